"""Limits of memory: plans fit them, or the error says what would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.footprint import footprint
from dgl_heta.planning.limit import largest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from tests.support.graphs import academic

WORK = Workload()


def test_relations_too_large_are_cut_so_that_every_partition_fits() -> None:
    schema = academic(dense=300).schema()
    work = replace(WORK, hidden=8)
    limit = 210_000
    plan = Meta().plan(schema, PartitionRequest(3, ("paper",), 2, replication="none",
                                                memory_limit=limit, workload=work))
    assert largest(plan, work) <= limit
    destinations: dict[Relation, int] = {}
    for p in plan.partitions:
        assert footprint(schema, p, work) <= limit
        for r in p.relations:
            low, high = p.ranges.get(r, (0, schema.node_counts[r.dst]))
            destinations[r] = destinations.get(r, 0) + high - low
    needed = make_plan(schema, "paper", 2, 1).partitions[0].relations
    assert destinations == {r: schema.node_counts[r.dst] for r in needed}


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


def test_no_partition_is_left_without_a_relation() -> None:
    schema = academic().schema()
    request = PartitionRequest(12, ("paper",), 2, replication="none", memory_limit=10**9)
    with pytest.raises(InputError, match="12 partitions .* in 7 pieces; use at most 7 partitions"):
        Meta().plan(schema, request)
    plan = Meta().plan(schema, replace(request, parts=7))
    assert all(p.relations for p in plan.partitions)
