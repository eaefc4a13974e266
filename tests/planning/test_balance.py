"""Balance, memory limits, and plans without replication."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets import load_dataset
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.part_config import part_config
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.balance import balanced, longest_processing_time
from dgl_heta.planning.cost import predict
from dgl_heta.planning.footprint import footprint
from dgl_heta.planning.limit import largest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from tests.support.graphs import academic, schemas

WORK = Workload()


def heaviest(weights: list[int], assigned: list[list[int]]) -> int:
    return max(sum(weights[i] for i in part) for part in assigned)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 4))
def test_small_assignments_are_the_best_there_are(weights: list[int], parts: int) -> None:
    found = balanced(weights, parts)
    assert sorted(i for part in found for i in part) == list(range(len(weights)))
    best = min(heaviest(weights, [[i for i, p in enumerate(places) if p == part]
                                  for part in range(parts)])
               for places in itertools.product(range(parts), repeat=len(weights)))
    assert heaviest(weights, found) == best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=13, max_size=80), st.integers(2, 9))
def test_large_assignments_are_never_worse_than_lpt(weights: list[int], parts: int) -> None:
    found = balanced(weights, parts)
    assert sorted(i for part in found for i in part) == list(range(len(weights)))
    assert heaviest(weights, found) <= heaviest(weights, longest_processing_time(weights, parts))
    lower = max(-(-sum(weights) // parts), max(weights))
    assert heaviest(weights, found) <= 4 / 3 * max(lower, heaviest(weights, found) * 3 / 4)


def schema_of(name: str) -> tuple[Schema, str]:
    provider = Plugins(guests=False).get("dataset", "synthetic-" + name)
    source = load_dataset(provider, {"scale": 0.001})
    assert source.task is not None
    return source.schema(), source.task.target


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("name", ["freebase", "donor"])
def test_schemas_of_the_paper_are_balanced(name: str, parts: int) -> None:
    """Within 1.1x of a lower bound of what any assignment of sub-metatrees can reach."""
    schema, target = schema_of(name)
    plan = make_plan(schema, target, 2, parts, assign=balanced)
    weights = [tree.weight for tree in plan.sub_metatrees]
    if parts > len(weights):
        pytest.skip(f"{name} has {len(weights)} sub-metatrees: more partitions share them")
    found = max(p.weight for p in plan.partitions)
    lower = max(-(-sum(weights) // parts), weights[0],
                weights[parts - 1] + weights[parts] if len(weights) > parts else 0)
    if len(weights) <= 12:
        assert found == heaviest(weights, balanced(weights, parts))
    assert found <= 1.1 * lower or len(weights) <= 12, (found, lower)
    assert found <= heaviest(weights, longest_processing_time(weights, parts))


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


def test_relations_too_large_are_cut_so_that_every_partition_fits() -> None:
    schema = academic(dense=300).schema()
    work = replace(WORK, hidden=8)
    limit = 210_000
    plan = Meta().plan(schema, PartitionRequest(3, ("paper",), 2, replication="none",
                                                memory_limit=limit, workload=work))
    assert largest(plan, work) <= limit
    held: dict[Relation, int] = {}
    for p in plan.partitions:
        assert footprint(schema, p, work) <= limit
        for r in p.relations:
            low, high = p.ranges.get(r, (0, schema.node_counts[r.dst]))
            held[r] = held.get(r, 0) + high - low
    needed = make_plan(schema, "paper", 2, 1).partitions[0].relations
    assert held == {r: schema.node_counts[r.dst] for r in needed}


def test_a_limit_that_no_plan_meets_says_by_how_much_and_what_would() -> None:
    schema = academic(papers=6000).schema()
    work = replace(WORK, hidden=8)
    request = PartitionRequest(2, ("paper",), 2, workload=work)
    least = min(largest(Meta().plan(schema, request), work), 10**12)
    with pytest.raises(InputError, match=r"more than the limit of .* a limit of .* MB would do"):
        Meta().plan(schema, replace(request, memory_limit=least // 2))
    assert Meta().plan(schema, replace(request, memory_limit=least)).num_parts == 2
    with pytest.raises(InputError, match="alone take .* node types are not cut"):
        Meta().plan(schema, replace(request, memory_limit=least // 50, replication="none"))
    with pytest.raises(InputError, match="too little; use more partitions or a higher limit"):
        Meta().plan(schema, replace(request, memory_limit=least * 7 // 10, replication="none"))


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
