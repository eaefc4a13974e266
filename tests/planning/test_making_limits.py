"""What cannot be planned is named; large schemas are planned in seconds."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from tests.support.plans import (
    MAG,
)

# Errors


@pytest.mark.parametrize(("target", "hops", "parts", "words"), [
    ("papr", 2, 2, ["'papr'", "author, field, institution, paper", "did you mean 'paper'"]),
    ("paper", 2, 0, ["partitions is 0", "1 to 4,096"]),
    ("paper", 2, 99999999, ["partitions is 99999999", "1 to 4,096"]),
    ("paper", 2, -3, ["partitions is -3"]),
    ("paper", 0, 2, ["hops is 0", "1 or more"]),
    ("paper", 1_000_000, 2, ["hops is 1000000", "at most 100"]),
    ("paper", 10**100, 2, ["hops is 1000", "at most 100"]),
    ("paper", 17, 4096, ["4,096 partitions with 17 hops", "at most 65,536"]),
    ([], 2, 2, ["no target"]),
])
def test_what_cannot_be_planned_is_named(target, hops, parts, words):
    with pytest.raises(InputError) as caught:
        make_plan(MAG, target, hops, parts)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("dealt", [
    [[0], [1]],             # 2 is lost
    [[0, 1], [1, 2]],       # 1 is there twice
    [[0, 1], [2], []],      # a partition too many
    [[0, 1, 2]],            # a partition too few
    [[0, 1], [3]],          # there is no 3
    [[0, 1], [-1]],
    [[0, 1], [2.0]],
    [0, 1],
    None,
])
def test_a_partition_method_that_does_not_deal_everything_once_is_named(dealt):
    with pytest.raises(InputError, match="partition method 'own'"):
        make_plan(MAG, "paper", 2, 2, assign=lambda weights, parts: dealt, method="own")


def test_a_partition_method_may_return_arrays(tmp_path):
    plan = make_plan(MAG, "paper", 2, 2, method="own",
                     assign=lambda weights, parts: [np.array([2, 0]), np.array([1])])
    assert [list(p.sub_metatrees) for p in plan.partitions] == [[0, 2], [1]]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


# Speed


def large(types: int, relations: int, into_target: int = 0) -> Schema:
    rng = random.Random(1)
    names = [f"t{i}" for i in range(types)]
    ends = [(names[i], names[(i + 1) % types]) for i in range(types)]
    ends += [(rng.choice(names), "t0") for _ in range(into_target)]
    while len(ends) < relations:
        ends.append((rng.choice(names), rng.choice(names)))
    return Schema({t: rng.randint(1, 10**6) for t in names},
                  {Relation(src, f"r{i}", dst): rng.randint(1, 10**6)
                   for i, (src, dst) in enumerate(ends)})


@pytest.mark.parametrize(("types", "relations", "into_target"), [
    (1000, 10_000, 0), (1000, 10_000, 500), (20, 10_000, 0), (1, 10_000, 0)])
def test_large_schemas_are_planned_in_seconds(types, relations, into_target):
    schema = large(types, relations, into_target)
    start = time.process_time()
    plan = make_plan(schema, "t0", 3, 64)
    assert time.process_time() - start < 10
    assert plan.num_parts == 64
