"""Dealing weights: never worse than LPT, and the best there is where that can be searched."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.graph.datasets import load_dataset
from dgl_heta.graph.schema import Schema
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.dealing import balanced, longest_processing_time
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.workload import Workload
from tests.support.plans import (
    MAG,
)


def heaviest(weights: list[int], assigned: list[list[int]]) -> int:
    return max(sum(weights[i] for i in part) for part in assigned)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=7), st.integers(1, 3))
def test_the_heaviest_partition_is_at_most_a_third_above_the_best_possible(weights, parts):
    dealt = longest_processing_time(weights, parts)
    assert sorted(itertools.chain(*dealt)) == list(range(len(weights)))
    heaviest = max(sum(weights[i] for i in part) for part in dealt)
    best = min(max(sum(w for w, p in zip(weights, places) if p == part) for part in range(parts))
               for places in itertools.product(range(parts), repeat=len(weights)))
    assert 3 * heaviest <= 4 * best


def test_a_partition_gets_no_second_sub_metatree_while_another_has_none():
    plan = make_plan(MAG, "paper", 2, 3)
    assert [list(p.sub_metatrees) for p in plan.partitions] == [[0], [1], [2]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 4))
def test_small_assignments_are_the_best_there_are(weights: list[int], parts: int) -> None:
    dealt = balanced(weights, parts)
    assert sorted(i for part in dealt for i in part) == list(range(len(weights)))
    best = min(heaviest(weights, [[i for i, p in enumerate(places) if p == part]
                                  for part in range(parts)])
               for places in itertools.product(range(parts), repeat=len(weights)))
    assert heaviest(weights, dealt) == best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=13, max_size=80), st.integers(2, 9))
def test_large_assignments_are_never_worse_than_lpt(weights: list[int], parts: int) -> None:
    dealt = balanced(weights, parts)
    assert sorted(i for part in dealt for i in part) == list(range(len(weights)))
    assert heaviest(weights, dealt) <= heaviest(weights, longest_processing_time(weights, parts))


def schema_of(name: str) -> tuple[Schema, str]:
    provider = Plugins(guests=False).get("dataset", "synthetic-" + name)
    source = load_dataset(provider, "scale=0.001")
    assert source.task is not None
    return source.schema(), source.task.target


@pytest.mark.parametrize(("name", "parts"), [  # donor has five sub-metatrees
    ("freebase", 2), ("freebase", 4), ("freebase", 8), ("donor", 2), ("donor", 4)])
def test_schemas_of_the_paper_are_balanced(name: str, parts: int) -> None:
    """Within 1.1x of a lower bound of what any assignment of sub-metatrees can reach."""
    schema, target = schema_of(name)
    plan = make_plan(schema, target, 2, parts, assign=balanced)
    weights = [tree.weight for tree in plan.sub_metatrees]
    assert parts <= len(weights)
    most = max(p.weight for p in plan.partitions)
    lower = max(-(-sum(weights) // parts), weights[0],
                weights[parts - 1] + weights[parts] if len(weights) > parts else 0)
    if len(weights) <= 12:
        assert most == heaviest(weights, balanced(weights, parts))
    assert most <= 1.1 * lower or len(weights) <= 12, (most, lower)
    assert most <= heaviest(weights, longest_processing_time(weights, parts))


@pytest.mark.parametrize("model", ["rgcn", "rgat", "hgt"])
def test_no_partition_of_a_script_computes_alone_for_all(model: str) -> None:
    """For fewest bytes, one would aggregate all of Freebase's types where a model has attention."""
    schema, target = schema_of("freebase")
    plan, _ = choose(make_plan(schema, target, 2, 2),
                     Workload(model=model, batch_size=16, in_script=True), "auto")
    assert {*plan.offloaded.values()} == {0, 1}
