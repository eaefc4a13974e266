"""`meta-random` deals every sub-metatree once, by its seed."""

from __future__ import annotations

import pytest
from dgl_heta_random_assignment import RandomAssignment

from dgl_heta import PartitionRequest, Relation, Schema


@pytest.mark.parametrize(("trees", "parts"), [(1, 1), (4, 2), (7, 3), (5, 5)])
def test_every_sub_metatree_is_dealt_once_and_every_partition_gets_some(trees, parts):
    dealt = RandomAssignment().assign(list(range(trees, 0, -1)), parts, seed=3)
    assert sorted(i for own in dealt for i in own) == list(range(trees))
    assert len(dealt) == parts
    assert all(dealt)


def test_the_seed_decides():
    weights = list(range(30, 0, -1))
    one, same, other = (RandomAssignment().assign(weights, 4, seed) for seed in (1, 1, 2))
    assert one == same != other


def test_a_plan_names_its_method():
    schema = Schema({"a": 10, "b": 20}, {
        Relation("a", "r", "b"): 30, Relation("b", "q", "b"): 40}, {})
    plan = RandomAssignment().plan(schema, PartitionRequest(2, ("b",), 2))
    assert plan.method == "meta-random"
    assert sorted(i for p in plan.partitions for i in p.sub_metatrees) == [0, 1]
