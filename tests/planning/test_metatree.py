"""The metatree holds what a model of k layers, or the given metapaths, aggregates."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dgl_heta.planning
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.metatree import load_metapaths, metagraph, parse_metapaths, sub_metatrees
from tests.support.graphs import schemas

WRITES = Relation("author", "writes", "paper")
REV_WRITES = Relation("paper", "rev-writes", "author")
CITES = Relation("paper", "cites", "paper")
REV_CITES = Relation("paper", "rev-cites", "paper")
AFFILIATED = Relation("institution", "rev-affiliated", "author")

ACADEMIC = Schema({"author": 40, "institution": 7, "paper": 60}, {
    WRITES: 100, REV_WRITES: 100, CITES: 220, REV_CITES: 210, AFFILIATED: 50})


def by_root(schema, target, hops=None, metapaths=None):
    trees = sub_metatrees(schema, [target], hops, metapaths)
    return {tree.root: tree for tree in trees}


def walks(schema: Schema, root: Relation, hops: int) -> list[set[Relation]]:
    """Level by level the relations on walks that start with `root`, one walk at a time."""
    levels: list[set[Relation]] = [set() for _ in range(hops)]

    def follow(relation: Relation, depth: int) -> None:
        levels[depth].add(relation)
        if depth + 1 < hops:
            for before in schema.edge_counts:
                if before.dst == relation.src:
                    follow(before, depth + 1)

    follow(root, 0)
    return levels


def test_parallel_relations_are_children_of_their_own():
    trees = by_root(ACADEMIC, "paper", 1)
    assert set(trees) == {WRITES, CITES, REV_CITES}
    assert trees[CITES].relations == (CITES,)
    assert trees[CITES].weight == 220 + 60
    assert trees[REV_CITES].weight == 210 + 60


def test_heaviest_comes_first_and_equal_weights_in_the_order_of_the_file():
    schema = Schema({"a": 1, "t": 1}, {Relation("a", n, "t"): e for n, e in
                                       (("small", 2), ("x", 5), ("y", 5), ("big", 9))})
    roots = [tree.root.etype for tree in sub_metatrees(schema, ["t"], 1)]
    assert roots == ["big", "x", "y", "small"]


def test_a_weight_counts_every_relation_and_node_type_once():
    tree = by_root(ACADEMIC, "paper", 4)[CITES]
    assert set(tree.relations) == set(ACADEMIC.relations)
    assert tree.weight == sum(ACADEMIC.edge_counts.values()) + 40 + 7 + 60


@settings(max_examples=60, deadline=None)
@given(schemas(max_relations=6), st.integers(1, 4), st.data())
def test_a_sub_metatree_holds_the_walks_into_the_target(schema, hops, data):
    target = data.draw(st.sampled_from([t for t in schema.node_types if schema.into[t]]))
    trees = by_root(schema, target, hops)
    assert set(trees) == set(schema.into[target])
    for root, tree in trees.items():
        levels = walks(schema, root, hops)
        assert [set(level) for level in tree.levels] == levels
        unique = set().union(*levels)
        types = {t for r in unique for t in (r.src, r.dst)}
        assert tree.relations == tuple(r for r in schema.relations if r in unique)
        assert tree.node_types == tuple(t for t in schema.node_types if t in types)
        assert tree.weight == (sum(schema.edge_counts[r] for r in unique)
                               + sum(schema.node_counts[t] for t in types))


@settings(max_examples=40, deadline=None)
@given(schemas(max_relations=6), st.integers(1, 4), st.data())
def test_all_walks_as_metapaths_make_the_same_metatree_as_hops(schema, hops, data):
    target = data.draw(st.sampled_from([t for t in schema.node_types if schema.into[t]]))

    def backwards(path):
        yield path
        if len(path) < hops:
            for before in schema.into[path[0].src]:
                yield from backwards((before, *path))

    paths = [p for root in schema.into[target] for p in backwards((root,))]
    if len(paths) > 2000:
        return
    assert (sub_metatrees(schema, [target], hops, paths)
            == sub_metatrees(schema, [target], hops))


def test_each_target_has_a_metatree():
    trees = sub_metatrees(ACADEMIC, ["paper", "author"], 2)
    assert {t.root for t in trees if t.target == "paper"} == {WRITES, CITES, REV_CITES}
    assert {t.root for t in trees if t.target == "author"} == {REV_WRITES, AFFILIATED}


def test_metagraph_keeps_parallel_relations_and_sizes():
    graph = metagraph(ACADEMIC)
    assert dict(graph.nodes(data="weight")) == ACADEMIC.node_counts
    assert {Relation(u, key, v): w for u, v, key, w in graph.edges(data="weight", keys=True)} == \
        ACADEMIC.edge_counts


@pytest.mark.parametrize(("targets", "hops", "words"), [
    (["papr"], 2, ["'papr'", "node types: author, institution, paper", "did you mean 'paper'"]),
    (["institution"], 2, ["no relation ends at", "'institution'", "author, paper", "reverse"]),
    ([], 2, ["no target", "author, institution, paper"]),
    (["paper", "paper"], 2, ["twice", "paper, paper"]),
    (["paper"], 0, ["hops is 0", "1 or more"]),
    (["paper"], -2, ["hops is -2"]),
    (["paper"], None, ["number of hops", "metapaths"]),
])
def test_what_cannot_be_planned_is_named(targets, hops, words):
    with pytest.raises(InputError) as caught:
        sub_metatrees(ACADEMIC, targets, hops)
    for word in words:
        assert word in str(caught.value)


# Metapaths


def test_metapaths_restrict_the_metatree():
    trees = by_root(ACADEMIC, "paper", metapaths=[(AFFILIATED, WRITES), (CITES,)])
    assert set(trees) == {WRITES, CITES}
    assert trees[WRITES].levels == ((WRITES,), (AFFILIATED,))
    assert trees[CITES].levels == ((CITES,), ())
    assert trees[WRITES].weight == 100 + 50 + 40 + 7 + 60


def test_metapaths_may_continue_differently_from_the_same_type():
    trees = by_root(ACADEMIC, "paper", 3, [
        (AFFILIATED, WRITES), (REV_WRITES, WRITES, CITES), (CITES, CITES)])
    assert trees[WRITES].levels == ((WRITES,), (AFFILIATED,), ())
    assert trees[CITES].levels == ((CITES,), (WRITES, CITES), (REV_WRITES,))


def test_every_way_to_write_a_metapath_is_read():
    for path in ([["institution", "rev-affiliated", "author"], ["author", "writes", "paper"]],
                 ["rev-affiliated", "writes"],
                 ["institution rev-affiliated author", "author:writes:paper"],
                 ["rev-affiliated", ["author", "writes", "paper"]]):
        assert parse_metapaths([path], ACADEMIC) == [(AFFILIATED, WRITES)]
    assert parse_metapaths([["cites"], ["writes"], ["cites"]], ACADEMIC) == [(CITES,), (WRITES,)]


def test_metapaths_are_read_from_a_file(tmp_path):
    path = tmp_path / "paths.json"
    path.write_text(json.dumps([["rev-affiliated", "writes"]]), encoding="utf-8")
    assert load_metapaths(path, ACADEMIC) == [(AFFILIATED, WRITES)]


@pytest.mark.parametrize(("data", "words"), [
    ([], ["must be a list of metapaths"]),
    ({}, ["must be a list of metapaths"]),
    ("writes", ["must be a list of metapaths"]),
    (["writes"], ["must be a list of metapaths", "for example"]),
    (None, ["must be a list of metapaths"]),
    ([["wrties"]], ["'wrties'", "did you mean 'writes'"]),
    ([[["author", "writes", "author"]]], ["'author writes author' is not in the graph"]),
    ([[5]], ["a relation is 5"]),
    ([[None]], ["a relation is None"]),
    ([[]], ["a metapath is empty"]),
    ([["writes"], []], ["a metapath is empty"]),
    ([["rev-writes"]], ["ends at 'author'", "not at the target 'paper'", "edge direction"]),
    ([["writes", "rev-affiliated"]], ["is broken", "ends at 'paper'", "starts at 'institution'"]),
    ([["cites", "cites", "cites"]], ["a metapath has 3 relations", "hops is 2", "3 hops"]),
])
def test_a_wrong_metapath_is_named(data, words):
    with pytest.raises(InputError) as caught:
        sub_metatrees(ACADEMIC, ["paper"], 2, parse_metapaths(data, ACADEMIC, "paths.json"))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_metapath_is_named_when_no_hops_are_given():
    with pytest.raises(InputError, match="a metapath is empty"):
        sub_metatrees(ACADEMIC, ["paper"], None, [()])


def test_a_target_that_no_metapath_reaches_is_named():
    with pytest.raises(InputError, match="no metapath ends at target node type 'author'"):
        sub_metatrees(ACADEMIC, ["paper", "author"], 2, [(CITES,)])


@pytest.mark.parametrize("content", [b"[", b"\xff", b"[" * 100_000])
def test_damaged_metapath_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "paths.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not JSON") as caught:
        load_metapaths(path, ACADEMIC)
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match="cannot read metapaths"):
        load_metapaths(tmp_path / "absent.json", ACADEMIC)


def test_planning_needs_neither_torch_nor_dgl_nor_networkx():
    names = [f"dgl_heta.planning.{module.name}"
             for module in pkgutil.iter_modules(dgl_heta.planning.__path__)]
    assert len(names) > 10
    code = (f"import sys, {', '.join(names)}\n"
            "print({'torch', 'dgl', 'networkx'} & {*sys.modules})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
