"""A plan runs what one process would run, each part of it once, and balances the weight."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic import shape_schema
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.backends.meta_shared import MetaShared
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.assignment import Share
from dgl_heta.planning.balance import longest_processing_time
from dgl_heta.planning.cost import predict
from dgl_heta.planning.cost import to_json as cost_json
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import share_evenly
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic, schemas

WRITES = Relation("author", "writes", "paper")
REV_WRITES = Relation("paper", "rev-writes", "author")
AFFILIATED = Relation("author", "affiliated", "institution")
REV_AFFILIATED = Relation("institution", "rev-affiliated", "author")
HAS_TOPIC = Relation("paper", "has_topic", "field")
REV_HAS_TOPIC = Relation("field", "rev-has_topic", "paper")
CITES = Relation("paper", "cites", "paper")

MAG = Schema(
    {"author": 1_134_649, "field": 59_965, "institution": 8_740, "paper": 736_389},
    {AFFILIATED: 1_043_998, REV_AFFILIATED: 1_043_998, WRITES: 7_145_660, REV_WRITES: 7_145_660,
     HAS_TOPIC: 7_505_078, REV_HAS_TOPIC: 7_505_078, CITES: 10_832_542},
    {"paper": 512},
)


# The worked example: ogbn-mag, Fig. 6 of the paper


def test_ogbn_mag_is_partitioned_as_in_the_paper():
    plan = make_plan(MAG, "paper", 2, 2)
    assert [(t.root, t.weight) for t in plan.sub_metatrees] == [
        (CITES, 27_414_283), (WRITES, 17_215_096), (REV_HAS_TOPIC, 15_806_510)]
    a, b = plan.partitions
    assert plan.roots(0) == {CITES: Share()}
    assert plan.roots(1) == {WRITES: Share(), REV_HAS_TOPIC: Share()}
    assert (len(a.relations), a.num_edges, a.num_nodes) == (3, 25_483_280, 1_931_003)
    assert (len(b.relations), b.num_edges, b.num_nodes) == (5, 30_345_474, 1_939_743)
    assert plan.boundary_nodes == 736_389


def test_ogbn_mag_runs_writes_in_a_at_layer_1_only():
    plan = make_plan(MAG, "paper", 2, 2)
    assert plan.owners(1, WRITES) == (0, 1)
    assert plan.owners(2, WRITES) == (1,)
    assert plan.owners(2, CITES) == (0,)
    a, b = plan.partitions
    assert a.layers == {1: (WRITES, REV_HAS_TOPIC, CITES), 2: (CITES,)}
    assert a.inner == {1: (WRITES, REV_HAS_TOPIC, CITES), 2: ()}
    assert b.layers[2] == (WRITES, REV_HAS_TOPIC)
    assert set(b.inner[1]) == {REV_AFFILIATED, REV_WRITES, HAS_TOPIC}


def test_ogbn_mag_needs_features_of_types_that_are_only_destinations():
    plan = make_plan(MAG, "paper", 1, 3)
    for partition, types in zip(plan.partitions, (
            ("paper",), ("author", "paper"), ("field", "paper"))):
        assert partition.node_types == types
    assert plan.users("paper") == (0, 1, 2)
    assert plan.users("author") == (1,)
    assert plan.users("institution") == ()


def test_ogbn_mag_as_json():
    data = json.loads(json.dumps(make_plan(MAG, "paper", 2, 2).to_json()))
    assert (data["target"], data["hops"], data["parts"]) == ("paper", 2, 2)
    assert data["boundary_nodes"] == 736_389
    assert [(t["root_relation"], t["weight"]) for t in data["sub_metatrees"]] == [
        (["paper", "cites", "paper"], 27_414_283),
        (["author", "writes", "paper"], 17_215_096),
        (["field", "rev-has_topic", "paper"], 15_806_510)]
    assert data["sub_metatrees"][1]["relations"] == [
        ["institution", "rev-affiliated", "author"], ["author", "writes", "paper"],
        ["paper", "rev-writes", "author"]]
    a, b = data["partitions"]
    assert a["sub_metatrees"] == [0]
    assert b["sub_metatrees"] == [1, 2]
    assert (a["num_nodes"], a["num_edges"], a["weight"]) == (1_931_003, 25_483_280, 27_414_283)
    assert (b["num_nodes"], b["num_edges"], b["weight"]) == (1_939_743, 30_345_474, 33_021_606)
    assert a["relations"] == [list(WRITES), list(REV_HAS_TOPIC), list(CITES)]
    assert a["layers"] == {"1": [list(WRITES), list(REV_HAS_TOPIC), list(CITES)],
                           "2": [list(CITES)]}
    assert set(b["layers"]) == {"1", "2"}
    assert len(b["relations"]) == 5


def test_one_partition_has_everything_and_no_boundary():
    plan = make_plan(MAG, "paper", 2, 1)
    assert plan.boundary_nodes == 0
    assert set(plan.partitions[0].layers[2]) == set(MAG.into["paper"])
    assert plan.replication_factor() == 1.0


def test_replication_counts_every_copy():
    plan = make_plan(MAG, "paper", 2, 2)
    assert plan.replication_factor() == pytest.approx((1_931_003 + 1_939_743) / 1_939_743)


# The algebra behind RAF, against a reference that knows only the schema and the metapaths


@st.composite
def cases(draw):
    """A schema, one or two targets, hops, and None or metapaths into every target."""
    schema = draw(schemas())
    aggregated = [t for t in schema.node_types if schema.into[t]]
    targets = draw(st.lists(st.sampled_from(aggregated), min_size=1, max_size=2, unique=True))
    hops = draw(st.integers(1, 4))
    paths = None
    if draw(st.booleans()):
        paths = []
        for index in range(draw(st.integers(len(targets), len(targets) + 4))):
            path = [draw(st.sampled_from(schema.into[targets[index % len(targets)]]))]
            for _ in range(draw(st.integers(0, hops - 1))):
                if schema.into[path[0].src]:
                    path.insert(0, draw(st.sampled_from(schema.into[path[0].src])))
            paths.append(tuple(path))
    return schema, targets, hops, paths


def one_process(schema, hops, paths, layer, ntype) -> set[Relation]:
    """What a single process runs at a layer on rows of a type that are not seeds.

    A row that is d relations away from a seed has a state after the layers 1 … hops - d; its
    state after layer l goes on through the relations that are d + 1 away.
    """
    if paths is None:
        return set(schema.into[ntype])
    return {path[-1 - d] for path in paths for d in range(1, len(path))
            if d <= hops - layer and path[-1 - d].dst == ntype}


def root_relations(schema, targets, paths) -> set[Relation]:
    if paths is None:
        return {r for t in targets for r in schema.into[t]}
    return {path[-1] for path in paths}


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 12))
def test_every_root_relation_of_every_seed_is_aggregated_once(case, parts):
    schema, targets, hops, paths = case
    plan = make_plan(schema, targets, hops, parts, paths)
    assert plan.num_parts == parts
    assert sorted(itertools.chain(*plan.groups)) == list(range(parts))
    for group, seeds in itertools.product(plan.groups, (0, 1, 7, 40)):
        for layer in range(1, hops + 1):
            covered = {root: np.zeros(seeds, int)
                       for root in root_relations(schema, targets, paths)}
            for part in group:
                for root, share in plan.roots(part).items():
                    assert root in plan.partitions[part].layers[layer]
                    low, high = share.rows(seeds)
                    covered[root][low:high] += 1
            assert all((times == 1).all() for times in covered.values())


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 12))
def test_a_partition_runs_on_other_rows_what_one_process_runs_there(case, parts):
    schema, targets, hops, paths = case
    plan = make_plan(schema, targets, hops, parts, paths)
    whole = make_plan(schema, targets, hops, 1, paths).partitions[0]
    for partition in plan.partitions:
        roots = set(plan.roots(partition.index))
        # Rows with a state that something on this partition reads, from the last layer down:
        # sources of what ran above, and the rows from above themselves.
        needed: set[str] = set()
        everything, types = set(roots), set(targets)
        for layer in range(hops, 0, -1):
            expected = {r for t in needed for r in one_process(schema, hops, paths, layer, t)}
            assert set(partition.inner[layer]) == expected
            assert set(partition.layers[layer]) == expected | roots
            assert expected == {r for r in whole.inner[layer] if r.dst in needed}
            needed |= {r.src for r in expected | roots}
            everything |= expected
        types |= {t for r in everything for t in (r.src, r.dst)}
        assert needed <= types
        assert partition.relations == tuple(r for r in schema.relations if r in everything)
        assert partition.node_types == tuple(t for t in schema.node_types if t in types)
        assert partition.num_nodes == sum(schema.node_counts[t] for t in types)
        assert partition.num_edges == sum(schema.edge_counts[r] for r in everything)


ROWS = 5


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_partial_aggregations_add_up_to_the_states_of_one_process(case, parts, seed):
    """The seeds' states, in whole numbers, from workers that exchange only sums of seed rows."""
    schema, targets, hops, paths = case
    plan = make_plan(schema, targets, hops, parts, paths)
    rng = np.random.default_rng(seed)
    # All entries are positive, so that a message too few or too many changes the sums.
    state = {t: rng.integers(1, 50, ROWS) for t in schema.node_types}
    message = {(layer, r): rng.integers(1, 4, (ROWS, ROWS))
               for r in schema.relations for layer in range(1, hops + 1)}
    seeds = rng.permutation(ROWS)[:3]
    others = np.setdiff1d(np.arange(ROWS), seeds)

    expected = dict(state)
    for layer in range(1, hops + 1):
        above = {t: rows.copy() for t, rows in expected.items()}
        for ntype in schema.node_types:
            is_target = ntype in targets
            for r in one_process(schema, hops, paths, layer, ntype):
                rows = others if is_target else np.arange(ROWS)
                above[ntype][rows] += message[layer, r][rows] @ expected[r.src]
            for r in root_relations(schema, targets, paths) if is_target else ():
                if r.dst == ntype:
                    above[ntype][seeds] += message[layer, r][seeds] @ expected[r.src]
        expected = above

    for group in plan.groups:
        local = {p: {t: state[t] for t in plan.partitions[p].node_types} for p in group}
        for layer in range(1, hops + 1):
            reduced = {t: np.zeros(len(seeds), int) for t in targets}
            above = {p: {t: rows.copy() for t, rows in local[p].items()} for p in group}
            for p in group:
                for r in plan.partitions[p].inner[layer]:
                    rows = others if r.dst in targets else np.arange(ROWS)
                    above[p][r.dst][rows] += message[layer, r][rows] @ local[p][r.src]
                for r, share in plan.roots(p).items():
                    low, high = share.rows(len(seeds))
                    reduced[r.dst][low:high] += message[layer, r][seeds[low:high]] @ local[p][r.src]
            for p, t in itertools.product(group, targets):
                above[p][t][seeds] += reduced[t]
            local = above
        for p, t in itertools.product(group, targets):
            assert local[p][t][seeds].tolist() == expected[t][seeds].tolist()


def test_metapaths_that_continue_differently_from_a_type_give_its_rows_one_state():
    """Authors continue to institutions on one metapath and to papers on another."""
    schema = Schema({"a": 5, "i": 3, "p": 8}, {
        Relation("a", "w1", "p"): 9, Relation("a", "w2", "p"): 9,
        Relation("i", "has", "a"): 4, Relation("p", "by", "a"): 6})
    w1, w2, has, by = schema.relations
    plan = make_plan(schema, "p", 2, 2, [(has, w1), (by, w2)])
    assert [set(plan.roots(p)) for p in (0, 1)] == [{w1}, {w2}]
    for partition in plan.partitions:
        assert partition.inner[1] == (has, by)
    single = make_plan(schema, "p", 2, 1, [(has, w1), (by, w2)])
    assert single.partitions[0].inner[1] == (has, by)


# Balance


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


# More partitions than sub-metatrees


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_shares_tile_the_seeds_evenly(total, count):
    ranges = [Share(k, count).rows(total) for k in range(count)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(one[1] == two[0] for one, two in itertools.pairwise(ranges))
    sizes = [high - low for low, high in ranges]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=80, deadline=None)
@given(schemas(), st.integers(1, 3), st.integers(1, 40), st.data())
def test_every_group_has_every_sub_metatree_in_whole(schema, hops, parts, data):
    target = data.draw(st.sampled_from([t for t in schema.node_types if schema.into[t]]))
    plan = make_plan(schema, target, hops, parts)
    trees = len(plan.sub_metatrees)
    assert len(plan.groups) == max(1, parts // trees)
    sizes = [len(group) for group in plan.groups]
    assert max(sizes) - min(sizes) <= 1
    for group in plan.groups:
        for tree in range(trees):
            shares = [plan.partitions[p].sub_metatrees[tree] for p in group
                      if tree in plan.partitions[p].sub_metatrees]
            assert sorted((s.index, s.count) for s in shares) == [
                (k, len(shares)) for k in range(len(shares))]
            assert shares


def test_the_heaviest_sub_metatree_is_split_first():
    plan = make_plan(MAG, "paper", 2, 4)
    assert [dict(p.sub_metatrees) for p in plan.partitions] == [
        {0: Share(0, 2)}, {0: Share(1, 2)}, {1: Share()}, {2: Share()}]
    assert plan.groups == ((0, 1, 2, 3),)
    # Half of cites is lighter than the whole of writes, so writes is next.
    assert [list(p.sub_metatrees) for p in make_plan(MAG, "paper", 2, 5).partitions] == [
        [0], [0], [1], [1], [2]]


def test_twice_as_many_partitions_make_two_groups():
    plan = make_plan(MAG, "paper", 2, 7)
    assert plan.groups == ((0, 1, 2, 3), (4, 5, 6))
    assert plan.boundary_nodes == 736_389
    assert [c.boundary_nodes for c in predict(plan, Workload())] == [736_389 // 2] * 7


def test_replicas_of_a_single_sub_metatree_exchange_no_partial_aggregations():
    schema = Schema({"a": 5, "p": 8}, {Relation("a", "writes", "p"): 9})
    plan = make_plan(schema, "p", 2, 3)
    assert plan.groups == ((0,), (1,), (2,))
    assert plan.boundary_nodes == 0
    assert [c.partial_bytes for c in predict(plan, Workload())] == [0, 0, 0]


# Several targets, self-relations, cycles


def test_parallel_relations_go_to_different_partitions():
    cites, cited = Relation("p", "cites", "p"), Relation("p", "rev-cites", "p")
    plan = make_plan(Schema({"p": 10}, {cites: 30, cited: 30}), "p", 2, 2)
    assert [set(plan.roots(p)) for p in (0, 1)] == [{cites}, {cited}]
    for partition in plan.partitions:  # a paper that is a neighbour needs both
        assert partition.inner[1] == (cites, cited)


def test_several_targets_are_planned_together():
    plan = make_plan(MAG, ["paper", "author"], 2, 2)
    assert len(plan.sub_metatrees) == 5
    assert plan.boundary_nodes == 736_389 + 1_134_649
    assert plan.to_json()["target"] == ["paper", "author"]
    for partition in plan.partitions:
        assert {"paper", "author"} <= set(partition.node_types)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_a_self_relation_is_run_at_every_layer(hops):
    follows = Relation("user", "follows", "user")
    plan = make_plan(Schema({"user": 9}, {follows: 20}), "user", hops, 1)
    assert plan.partitions[0].layers == dict.fromkeys(range(1, hops + 1), (follows,))
    assert plan.partitions[0].inner == {
        **dict.fromkeys(range(1, hops), (follows,)), hops: ()}
    assert plan.partitions[0].weight == 29


# Files


@pytest.mark.parametrize("arguments", [
    {"target": "paper", "hops": 2},
    {"target": ["paper", "author"], "hops": 3, "parts": 4},
    {"target": "paper", "hops": 2, "parts": 7},
    {"target": "paper", "metapaths": [(REV_AFFILIATED, WRITES), (CITES,)], "method": "mine"},
], ids=["plain", "targets", "groups", "metapaths"])
def test_a_plan_survives_a_file(arguments, tmp_path):
    plan, path = make_plan(MAG, **arguments), tmp_path / "plan.json"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded == plan
    assert loaded.to_json() == plan.to_json()
    assert loaded.schema.feature_bytes == {"paper": 512}


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(1, 9))
def test_any_plan_survives_json(case, parts):
    schema, targets, hops, paths = case
    plan = make_plan(schema, targets, hops, parts, list(dict.fromkeys(paths)) if paths else None)
    data = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(data, schema, "here") == plan


def refused(data, tmp_path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        Plan.load(path)
    message = str(caught.value)
    assert str(path) in message or "is not in the graph" in message
    assert "Error(" not in message
    assert "Traceback" not in message
    assert "\n" not in message
    return message


def saved(tmp_path, parts: int = 2) -> dict:
    make_plan(MAG, "paper", 2, parts).save(tmp_path / "saved.json")
    return json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))


def a_relation_less(plan):
    plan["partitions"][0]["layers"]["1"].pop()


def a_sub_metatree_moved(plan):
    plan["partitions"][0]["sub_metatrees"] = [0, 1]


def a_sub_metatree_lost(plan):
    plan["partitions"][1]["sub_metatrees"] = [1]
    plan["partitions"][1]["shares"] = [[0, 1]]


def a_sub_metatree_that_is_not_there(plan):
    plan["partitions"][0]["sub_metatrees"] = [3]


def a_sub_metatree_counted_from_the_end(plan):
    plan["partitions"][0]["sub_metatrees"] = [-3]


def a_share_of_nothing(plan):
    plan["partitions"][0]["shares"] = [[0, 0]]


def half_a_share(plan):
    plan["partitions"][0]["shares"] = [[0, 2]]


def a_group_of_its_own(plan):
    plan["partitions"][1]["group"] = 1


def a_group_number_left_out(plan):
    for partition in plan["partitions"]:
        partition["group"] = 3


def a_weight(plan):
    plan["sub_metatrees"][0]["weight"] += 1


def a_partition_less(plan):
    plan["partitions"].pop()


def no_partitions(plan):
    plan["partitions"] = []
    plan["hops"] = 10**9


def many_hops(plan):
    plan["hops"] = 10**9


def another_field(plan):
    plan["note"] = "mine"


@pytest.mark.parametrize("edit", [
    a_relation_less, a_sub_metatree_moved, a_sub_metatree_lost, a_sub_metatree_that_is_not_there,
    a_sub_metatree_counted_from_the_end, a_share_of_nothing, half_a_share, a_group_of_its_own,
    a_group_number_left_out, a_weight, a_partition_less, no_partitions, many_hops,
    another_field])
def test_an_edited_plan_is_refused(edit, tmp_path):
    data = saved(tmp_path)
    edit(data["plan"])
    assert "was edited" in refused(data, tmp_path)


def test_a_plan_of_a_graph_that_has_changed_since_is_refused(tmp_path):
    data = saved(tmp_path)
    data["schema"]["relations"][2]["edges"] += 1
    assert "was edited" in refused(data, tmp_path)
    data["schema"]["relations"].pop(2)
    refused(data, tmp_path)


@pytest.mark.parametrize(("change", "words"), [
    ({"format": "other"}, "not a dgl-heta plan"),
    ({"version": 2}, "format version 2"),
    ({"plan": None}, "damaged"),
    ({"plan": []}, "damaged"),
    ({"plan": {}}, "lacks the field 'target'"),
    ({"schema": []}, "node_counts"),
])
def test_a_damaged_plan_is_refused(change, words, tmp_path):
    assert words in refused({**saved(tmp_path), **change}, tmp_path)


@pytest.mark.parametrize("name", ["format", "version", "schema", "plan"])
def test_a_plan_file_without_a_field_is_refused(name, tmp_path):
    data = saved(tmp_path)
    del data[name]
    refused(data, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_plan_file_is_refused(content, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not") as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read plan .*absent\.json"):
        Plan.load(tmp_path / "absent.json")


JUNK = st.sampled_from([None, True, -1, 0, 1, 2, 10**9, 1.5, "", "paper", [], {}, [[]], [None]])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_plan_with_any_value_replaced_is_refused_or_means_the_same(data):
    plan = make_plan(MAG, "paper", 2, 4)
    tree = json.loads(json.dumps(plan.to_json()))
    place, key = None, None
    inside = tree
    while isinstance(inside, dict | list) and inside and (
            place is None or data.draw(st.booleans())):
        place = inside
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        inside = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(JUNK)
    else:
        del place[key]
    message, loaded = "", plan
    try:
        loaded = Plan.from_json(tree, MAG, "here")
    except InputError as error:
        message = str(error)
    assert "Error(" not in message
    assert loaded.partitions == plan.partitions
    assert loaded.sub_metatrees == plan.sub_metatrees


# Errors


@pytest.mark.parametrize(("target", "hops", "parts", "words"), [
    ("papr", 2, 2, ["'papr'", "author, field, institution, paper", "did you mean 'paper'"]),
    ("paper", 2, 0, ["partitions is 0", "1 to 65536"]),
    ("paper", 2, 99999999, ["partitions is 99999999", "1 to 65536"]),
    ("paper", 2, -3, ["partitions is -3"]),
    ("paper", 0, 2, ["hops is 0", "1 or more"]),
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
    with pytest.raises(InputError, match="partition method 'mine'"):
        make_plan(MAG, "paper", 2, 2, assign=lambda weights, parts: dealt, method="mine")


def test_a_partition_method_may_return_arrays(tmp_path):
    plan = make_plan(MAG, "paper", 2, 2, method="mine",
                     assign=lambda weights, parts: [np.array([2, 0]), np.array([1])])
    assert [list(p.sub_metatrees) for p in plan.partitions] == [[0, 2], [1]]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


# Cost


def test_predicted_topology_is_what_the_store_holds(tmp_path):
    source = academic()
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = make_plan(source.schema(), "paper", 2, 3)
    for partition, cost in zip(plan.partitions, predict(plan, Workload(hidden=16))):
        csc = [store.relation(r) for r in partition.relations]
        assert cost.topology_bytes == sum(c.indptr.nbytes + c.indices.nbytes for c in csc)
        features = {t: source.node_arrays[t]["feat"] for t in partition.node_types
                    if "feat" in source.node_arrays.get(t, {})}
        assert cost.feature_bytes == sum(array.nbytes for array in features.values())
        learnable = sum(source.schema().node_counts[t] for t in partition.node_types
                        if t not in features)
        assert cost.learnable_bytes == learnable * 16 * 4 * 3
        assert (cost.relations, cost.nodes, cost.edges) == (
            len(csc), partition.num_nodes, partition.num_edges)


def test_ids_of_huge_types_take_8_bytes():
    schema = Schema({"a": 2**31, "p": 9}, {Relation("a", "r", "p"): 100})
    assert predict(make_plan(schema, "p", 1, 1), Workload())[0].topology_bytes == 10 * 8 + 100 * 8


def test_bytes_per_step_of_two_partitions_and_two_layers():
    plan = make_plan(MAG, "paper", 2, 2)
    work = Workload(batch_size=1000, hidden=64, itemsize=4, parameters=5000)
    # 2 workers × 1000 seeds × 64 × 4 bytes = 512,000 bytes of seed states. Layer 2: half of
    # it is sent forward (reduce-scatter) and half backward (all-gather). Layer 1: an
    # all-reduce in both directions, each of which sends 2 × half. Gradients: 5000 × 4 bytes.
    for cost in predict(plan, work):
        assert cost.partial_bytes == 512_000 + 1_024_000
        assert cost.gradient_bytes == 20_000
    without = Workload(batch_size=1000, hidden=64, seed_states=False)
    assert {c.partial_bytes for c in predict(plan, without)} == {512_000}


def test_bytes_per_step_do_not_depend_on_the_neighbours():
    denser = Schema(MAG.node_counts, {r: 50 * n for r, n in MAG.edge_counts.items()})
    sent = [{c.partial_bytes for c in predict(make_plan(schema, "paper", 2, 2), Workload())}
            for schema in (MAG, denser)]
    assert sent[0] == sent[1]
    plan = make_plan(MAG, "paper", 2, 2)
    assert predict(plan, Workload(fanouts=(1, 1))) == predict(plan, Workload(fanouts=(-1, 90)))


def test_one_partition_sends_nothing():
    cost, = predict(make_plan(MAG, "paper", 3, 1), Workload(parameters=10_000))
    assert (cost.partial_bytes, cost.gradient_bytes, cost.boundary_nodes) == (0, 0, 0)


def test_the_prediction_as_json():
    data = cost_json(make_plan(MAG, "paper", 2, 2), Workload(batch_size=512))
    assert data["workload"]["batch_size"] == 512
    assert [p["edges"] for p in data["partitions"]] == [25_483_280, 30_345_474]
    json.dumps(data)


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


def adding(weights: list[float]) -> Callable[[Mapping[int, Fraction]], float]:
    return lambda fractions: sum(weights[i] * float(f) for i, f in fractions.items())


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8), st.integers(1, 12))
def test_shares_make_a_whole_and_relieve_the_heaviest(weights: list[float], parts: int) -> None:
    held = share_evenly(len(weights), parts, adding(weights))
    assert len(held) == parts
    for index in range(len(weights)):
        ranges = [mine[index].rows(1600) for mine in held if index in mine]
        assert [r[0] for r in ranges] == [0, *(r[1] for r in ranges[:-1])]
        assert ranges[-1][1] == 1600
    loads = [sum(weights[i] * s.width / s.count for i, s in mine.items()) for mine in held]
    whole = [sum(weights[i] for i in part)
             for part in longest_processing_time([round(w) for w in weights], parts)]
    assert max(loads) <= max(whole) + 1 + max(weights) / 16


def test_a_heavy_sub_metatree_is_shared_and_even_ones_are_not() -> None:
    assert share_evenly(2, 2, adding([16, 2])) == [{0: Share(0, 16, 9)},
                                                   {0: Share(9, 16, 7), 1: Share()}]
    assert share_evenly(3, 2, adding([4, 3, 1])) == [{0: Share()}, {1: Share(), 2: Share()}]
    assert share_evenly(1, 4, adding([1])) == [{0: Share(0, 16, 4)}, {0: Share(4, 16, 4)},
                                               {0: Share(8, 16, 4)}, {0: Share(12, 16, 4)}]


def test_a_sub_metatree_is_not_shared_where_most_of_it_would_be_done_twice() -> None:
    def load(fractions: Mapping[int, Fraction]) -> float:
        return sum(15 + (i == 0) * float(f) for i, f in fractions.items())

    held = share_evenly(3, 2, load)
    assert all(share == Share() for mine in held for share in mine.values())


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
