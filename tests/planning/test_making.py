"""A plan runs what one process would run, each part of it once, and balances the weight."""

from __future__ import annotations

import doctest
import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dgl_heta.planning.plan
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.cost import predict
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.partition_shares import Share
from dgl_heta.planning.workload import Workload
from tests.support.graphs import schemas
from tests.support.plans import (
    CITES,
    HAS_TOPIC,
    MAG,
    REV_AFFILIATED,
    REV_HAS_TOPIC,
    REV_WRITES,
    WRITES,
    cases,
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


# As a NetworkX graph


def test_a_plan_as_networkx_graph_says_who_has_and_runs_what():
    plan = make_plan(MAG, "paper", 2, 2)
    graph = plan.to_networkx()
    assert dict(graph.nodes["paper"]) == {
        "weight": 736_389, "feature_bytes": 512, "target": True, "partitions": (0, 1)}
    assert graph.nodes["institution"]["partitions"] == plan.users("institution") == (1,)
    assert graph.nodes["author"]["feature_bytes"] == 0
    writes = graph.edges["author", "paper", "writes"]
    assert writes == {"weight": 7_145_660, "relation": WRITES, "partitions": (0, 1),
                      "layers": {1: (0, 1), 2: (1,)}}
    affiliated = graph.edges["author", "institution", "affiliated"]  # no layer of two needs it
    assert (affiliated["partitions"], affiliated["layers"]) == ((), {})
    assert graph.number_of_edges() == len(MAG.relations)


def test_the_example_of_to_networkx_is_true():
    results = doctest.testmod(dgl_heta.planning.plan)
    assert results.attempted > 0
    assert results.failed == 0
