"""Plans that put every relation, or every piece of one, on one partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Schema
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.part_config import part_config
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cost import predict
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from tests.support.graphs import academic, schemas

WORK = Workload()


@settings(max_examples=50, deadline=None)
@given(schemas(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_without_replication_every_relation_is_on_one_partition(
        schema: Schema, parts: int, hops: int, seed: int) -> None:
    target = next(t for t, into in schema.into.items() if into)
    whole = make_plan(schema, target, hops, 1)
    needed = set(whole.partitions[0].relations)
    for backend in (Meta(), RelationRandom()):
        request = PartitionRequest(parts, (target,), hops, seed=seed, replication="none")
        if parts > len(needed):
            with pytest.raises(InputError, match=f"needs {len(needed)} relations"):
                backend.plan(schema, request)
            continue
        plan = backend.plan(schema, request)
        assert sorted(r for p in plan.partitions for r in p.relations) == sorted(needed)
        assert all(p.relations for p in plan.partitions)
        for layer in range(1, hops + 1):
            run = {r for p in plan.partitions for r in p.layers[layer]}
            assert run == set(whole.partitions[0].layers[layer])
        for p in plan.partitions:
            assert target in p.node_types
            assert {t for r in p.relations for t in (r.src, r.dst)} <= set(p.node_types)
        assert len(predict(plan, WORK)) == parts
        assert part_config(plan, "g", "store")["num_parts"] == parts


def test_a_plan_without_replication_is_what_was_saved(tmp_path: Path) -> None:
    schema = academic(dense=300).schema()
    request = PartitionRequest(3, ("paper",), 2, replication="none", memory_limit=210_000,
                               workload=replace(WORK, hidden=8))
    plan = Meta().plan(schema, request)
    assert any(p.ranges for p in plan.partitions), "nothing was cut"
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"num_edges": ', '"num_edges": 1', 1))
    with pytest.raises(InputError, match="was edited"):
        Plan.load(tmp_path / "plan.json")


def test_metapaths_and_doubtful_pieces_are_refused() -> None:
    schema = academic().schema()
    cites = schema.find_relation("cites")
    with pytest.raises(InputError, match="metapaths need replication = full"):
        Meta().plan(schema, PartitionRequest(2, ("paper",), 2, [(cites,)], replication="none"))

    class Forgetful(Meta):
        name = "forgetful"

        def deal(self, schema, relations, parts, request):  # type: ignore[no-untyped-def]
            dealt = [list(p) for p in super().deal(schema, relations, parts, request)]
            relation, low, high = dealt[0][0]
            dealt[0][0] = (relation, low, high - 1)
            return dealt

    with pytest.raises(InputError, match=r"'forgetful' dealt relation .* all of 0 …"):
        Forgetful().plan(schema, PartitionRequest(2, ("paper",), 2, replication="none"))
