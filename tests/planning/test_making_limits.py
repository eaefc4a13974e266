"""What cannot be planned is named; large schemas are planned in seconds."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc

import numpy as np
import pytest

import dgl_heta.planning.plan
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.part_config import part_config
from dgl_heta.planning.cost import predict
from dgl_heta.planning.dealing import _relief, balanced, longest_processing_time
from dgl_heta.planning.making import deal_whole, make_plan, plan_without_replication
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report.excerpt import holders_of
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


# Growth


def into_a_hub(types: int) -> Schema:
    """A target whose relations each lead to the hub, and all of the schema."""
    ends = [(f"t{i}", hub) for i in range(types) for hub in ("t0", "t1")]
    return Schema({f"t{i}": 10 + i for i in range(types)},
                  {Relation(src, f"r{i}", dst): 100 + i for i, (src, dst) in enumerate(ends)}
                  | {Relation("t1", f"s{i}", f"t{i}"): 50 for i in range(types)})


def test_memory_of_a_plan_grows_with_relations_not_with_their_square():
    def peak(types: int) -> int:
        schema = into_a_hub(types)
        tracemalloc.start()
        try:
            plan = make_plan(schema, "t0", 3, 4)
            assert plan.num_parts == 4
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(400) < 8 * peak(100)  # four times the relations


@pytest.mark.parametrize("part", ["balanced", "part_config", "to_networkx", "without replication"])
def test_parts_of_planning_take_time_in_proportion_to_relations(part):
    def seconds(types: int) -> float:
        schema = into_a_hub(types)
        plan = make_plan(schema, "t0", 2, 8)
        whole = plan_without_replication(schema, "t0", 2, 8, deal_whole, "own")
        call = {
            "balanced": lambda: balanced([*range(1000, 1000 + 2 * types)], 3),
            "part_config": lambda: part_config(plan, "graph", "store"),
            "to_networkx": plan.to_networkx,
            "without replication": lambda: (holders_of(whole), predict(whole, Workload())),
        }[part]
        taken = []
        gc.disable()  # it would go through all that other tests have left
        try:
            for _ in range(3):
                start = time.process_time()
                call()
                taken.append(time.process_time() - start)
        finally:
            gc.enable()
        return max(min(taken), 0.001)

    # Eight times the relations: a list that is searched for each of them takes 64 times as long.
    assert seconds(1600) < 32 * seconds(200)


def test_what_the_best_exchange_is_by_trying_all():
    rng = random.Random(3)
    for _ in range(300):
        weights = [rng.randint(0, 12) for _ in range(rng.randint(13, 30))]
        parts = rng.randint(2, 5)
        assigned = longest_processing_time(weights, parts)[::-1]
        for _ in range(rng.randint(0, 8)):  # anything but even
            giver = rng.choice([p for p in assigned if p])
            rng.choice(assigned).append(giver.pop(rng.randrange(len(giver))))
        loads = [sum(weights[i] for i in part) for part in assigned]
        source = max(range(parts), key=lambda p: (loads[p], -p))
        tried = [(max(loads[source] - shift, loads[target] + shift), number, (source, target, out,
                                                                              back))
                 for number, (target, out, back, shift) in enumerate(
                     (target, out, back, weights[out] - (0 if back is None else weights[back]))
                     for target in range(parts) if target != source for out in assigned[source]
                     for back in (None, *assigned[target])) if shift > 0]
        best = min(tried, default=(loads[source], 0, None))
        expected = best[2] if best[0] < loads[source] else None
        assert _relief(weights, assigned, loads) == expected


def test_a_plan_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    plan = make_plan(MAG, "paper", 2, 2)
    plan.save(tmp_path / "plan.json")
    size = (tmp_path / "plan.json").stat().st_size
    for most in (size - 1, 1000):  # all of the file counts, and the lists before they are made
        monkeypatch.setattr(dgl_heta.planning.plan, "PLAN_BYTES", most)
        with pytest.raises(InputError, match=f"more than {most:,} bytes of JSON.*fewer partitions"):
            plan.save(tmp_path / "other.json")
        assert not (tmp_path / "other.json").exists()
    monkeypatch.setattr(dgl_heta.planning.plan, "PLAN_BYTES", size)
    plan.save(tmp_path / "other.json")
    assert Plan.load(tmp_path / "other.json") == plan
