"""Sub-metatrees shared by seeds: shares make a whole, and even out the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic import shape_schema
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.backends.meta import Meta, MetaShared, MetaWhole
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.dealing import longest_processing_time
from dgl_heta.planning.footprint import footprint
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.partition_shares import Share
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import LESS, MORE, share_evenly, works
from dgl_heta.planning.workload import Workload


def adding(weights: list[float]) -> Callable[[Mapping[int, Fraction]], float]:
    return lambda fractions: sum(weights[i] * float(f) for i, f in fractions.items())


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8), st.integers(1, 12))
def test_shares_make_a_whole_and_relieve_the_heaviest(weights: list[float], parts: int) -> None:
    contents = share_evenly(len(weights), parts, adding(weights))
    assert len(contents) == parts
    assert all(contents)
    for index in range(len(weights)):
        ranges = [content[index].rows(1600) for content in contents if index in content]
        assert [r[0] for r in ranges] == [0, *(r[1] for r in ranges[:-1])]
        assert ranges[-1][1] == 1600
    loads = [sum(weights[i] * s.width / s.count for i, s in content.items())
             for content in contents]
    whole = [sum(weights[i] for i in part)
             for part in longest_processing_time([round(w) for w in weights], parts)]
    assert max(loads) <= max(whole) + 1 + max(weights) / 16


def test_a_heavy_sub_metatree_is_shared_and_even_ones_are_not() -> None:
    assert share_evenly(2, 2, adding([16, 2])) == [{0: Share(0, 16, 9)},
                                                   {0: Share(9, 16, 7), 1: Share()}]
    assert share_evenly(3, 2, adding([4, 3, 1])) == [{0: Share()}, {1: Share(), 2: Share()}]
    assert share_evenly(1, 4, adding([1])) == [{0: Share(0, 16, 4)}, {0: Share(4, 16, 4)},
                                               {0: Share(8, 16, 4)}, {0: Share(12, 16, 4)}]


def test_no_partition_is_left_without_a_sub_metatree() -> None:
    """Though next to nothing of the work can be shared: almost all is to run a relation at all."""
    schema = Schema({"a": 3, "b": 10**6, "t": 1, "u": 3}, {
        Relation("b", "r", "u"): 10**9, Relation("u", "s", "t"): 10**9,
        Relation("a", "s", "t"): 10**6}, {"a": 400, "b": 4})
    request = PartitionRequest(5, ("u", "t"), 1, workload=Workload(64, fanouts=(1,)))
    plan = MetaShared().plan(schema, request)
    assert all(p.sub_metatrees for p in plan.partitions)


def test_a_sub_metatree_is_not_shared_where_most_of_it_would_be_done_twice() -> None:
    def load(fractions: Mapping[int, Fraction]) -> float:
        return sum(15 + (i == 0) * float(f) for i, f in fractions.items())

    contents = share_evenly(3, 2, load)
    assert all(share == Share() for content in contents for share in content.values())


def test_a_shared_plan_is_read_back_and_refused_with_a_gap() -> None:
    schema = shape_schema("mag240m", 0.001)
    plan = MetaShared().plan(schema, PartitionRequest(2, ("paper",), 2))
    assert [len(p.sub_metatrees) for p in plan.partitions] == [1, 2]
    assert all(set(schema.relations) >= set(p.relations) for p in plan.partitions)
    data = plan.to_json()
    assert Plan.from_json(data, schema, "here") == plan
    data["partitions"][1]["shares"][0][0] += 1
    with pytest.raises(InputError, match="edited"):
        Plan.from_json(data, schema, "here")


TARGETS = {"mag": "paper", "freebase": "book", "donor": "project", "igb-het": "paper",
           "mag240m": "paper"}


@given(st.sampled_from(list(TARGETS)), st.floats(0.001, 1), st.integers(2, 9),
       st.sampled_from(["rgcn", "hgt", "mine"]), st.sampled_from(["rows", "auto"]))
def test_meta_shares_what_lightens_the_heaviest_for_little_memory(
        shape: str, scale: float, parts: int, model: str, way: str) -> None:
    schema = shape_schema(shape, scale)
    work = Workload(model=model, in_script=True)
    request = PartitionRequest(parts, (TARGETS[shape],), 2, workload=work, shared=way)
    plan, whole = Meta().plan(schema, request), MetaWhole().plan(schema, request)
    assert plan.method == "meta"
    if model == "mine":
        assert plan.partitions == whole.partitions
    assert Plan.from_json(plan.to_json(), schema, "here") == plan
    if [p.sub_metatrees for p in plan.partitions] == [p.sub_metatrees for p in whole.partitions]:
        return
    (heaviest, largest), (before, held) = (
        (max(works(one, work)), max(footprint(schema, p, work) for p in one.partitions))
        for one in (choose(plan, work, way)[0], choose(whole, work, way)[0]))
    assert heaviest <= LESS * before
    assert largest <= MORE * held


@pytest.mark.parametrize(("shape", "shares"), [("mag", False), ("freebase", False),
                                               ("donor", False), ("igb-het", True),
                                               ("mag240m", True)])
def test_of_published_shapes_those_with_one_heavy_sub_metatree_are_shared(
        shape: str, shares: bool) -> None:
    schema = shape_schema(shape, 1)
    request = PartitionRequest(2, (TARGETS[shape],), 2)
    plan = Meta().plan(schema, request)
    assert any(share != Share() for p in plan.partitions
               for share in p.sub_metatrees.values()) == shares
    limited = PartitionRequest(2, (TARGETS[shape],), 2, memory_limit=10**13)
    for wish in (limited, PartitionRequest(1, (TARGETS[shape],), 2)):
        assert all(share == Share() for p in Meta().plan(schema, wish).partitions
                   for share in p.sub_metatrees.values())


def test_what_is_offloaded_is_the_work_of_its_owner() -> None:
    schema = shape_schema("mag", 0.1)
    work = Workload(in_script=True)
    plan = MetaWhole().plan(schema, PartitionRequest(2, ("paper",), 2))
    rows = works(plan, work)
    for owner in (0, 1):
        owned = works(plan.with_owners({"author": owner, "field": owner}), work)
        assert owned[owner] > rows[owner]
        assert owned[1 - owner] < rows[1 - owner]
        assert sum(owned) < sum(rows)  # each row is read once
