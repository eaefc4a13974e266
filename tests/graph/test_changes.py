"""Reverse relations, arrays taken for features, and what is said of a graph that is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.changes import (
    features_text,
    unreached,
    unreached_text,
    with_features,
    with_reverse,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.graph_input import Reading, open_input
from dgl_heta.store import Store, write_store

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")
AT, BACK = Relation("author", "at", "place"), Relation("place", "rev-at", "author")


def graph(*relations: Relation) -> GraphSource:
    counts = {t: 3 for r in relations for t in (r.src, r.dst)}
    return GraphSource("g", counts, {r: EdgeArrays(np.array([0, 1, 1]), np.array([2, 0, 1]))
                                     for r in relations},
                       {"paper": {"x": np.arange(6).reshape(3, 2), "label": np.array([0, 1, 0]),
                                  "train_mask": np.ones(3, bool), "old": np.zeros(3)}},
                       Task("paper", 2))


def test_reverse_adds_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    source = with_reverse(graph(WRITES, CITES, AT, BACK))
    assert list(source.edges) == [WRITES, CITES, AT, BACK,
                                  Relation("paper", "rev-writes", "author"),
                                  Relation("paper", "rev-cites", "paper")]
    assert list(with_reverse(source).edges) == list(source.edges)
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    for one in (WRITES, CITES):
        back = Relation(one.dst, f"rev-{one.etype}", one.src)
        there, here = ({tuple(e) for c in store.source().edges[r].chunks(9) for e in zip(*c)}
                       for r in (one, back))
        assert here == {(v, u) for u, v in there}


def test_relations_that_lead_nowhere_are_named() -> None:
    schema = graph(WRITES, CITES, AT).schema()
    assert unreached(schema, ["paper"]) == [AT]
    assert unreached_text(schema, ("paper",)).startswith(
        "1 of 3 relations does not lead to paper and is of no use: author at place; --reverse")
    assert unreached_text(with_reverse(graph(WRITES, CITES, AT)).schema(), ("paper",)) == ""


def test_an_array_is_taken_for_features_by_name() -> None:
    source = graph(WRITES, CITES)
    assert features_text(source) == (
        "features: (none); learned: author, paper; not used: old of paper, x of paper "
        "(--feature TYPE=ARRAY takes an array for the features)")
    chosen = with_features(source, {"paper": "x"})
    assert chosen.node_arrays["paper"]["feat"].dtype == np.float32
    assert chosen.schema().feature_bytes == {"paper": 8}
    assert features_text(with_features(source, {"paper": "x"})).startswith(
        "features: paper (2 wide); learned: author; not used: old of paper (")
    assert "x" in source.node_arrays["paper"]  # which is as it was


@pytest.mark.parametrize(("chosen", "said"), [
    ({"papers": "x"}, "node type 'papers', which is not in the graph.*did you mean 'paper'"),
    ({"paper": "y"}, "node type 'paper' has no array 'y' to take for features; its arrays: label,"),
])
def test_features_that_are_not_there_are_refused(chosen: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_features(graph(WRITES), chosen)


def test_what_is_no_graph_in_files_cannot_be_changed(tmp_path: Path) -> None:
    write_store(graph(WRITES, CITES), tmp_path / "store")
    with pytest.raises(InputError, match=r"--reverse changes a graph when it is read, but .*store"):
        open_input(str(tmp_path / "store"), plugins(), reading=Reading(True))
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(graph(WRITES).schema().to_json()))
    with pytest.raises(InputError, match="--feature changes a graph when .* is a schema already"):
        open_input(str(schema), plugins(), reading=Reading(features=["paper=x"]))
    assert open_input(str(schema), plugins(), reading=Reading()).schema.node_counts["paper"] == 3


def test_a_command_says_what_it_reads_and_changes_it(tmp_path: Path) -> None:
    for name, array in graph(WRITES).node_arrays["paper"].items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "e.npy", np.array([[0, 1, 1], [2, 0, 1]]))
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"author": {"count": 3}, "place": {"count": 3}, "paper": {
            "count": 3, "arrays": {n: f"{n}.npy" for n in ("x", "label", "train_mask")}}},
        "edges": [{"src": r.src, "etype": r.etype, "dst": r.dst, "files": ["e.npy"]}
                  for r in (WRITES, AT)], "task": {"target": "paper"}}))
    opened = open_input(str(tmp_path), plugins(), reading=Reading(True, ["paper=x"]))
    assert opened.schema.feature_bytes == {"paper": 8}
    assert len(opened.schema.relations) == 4
    with pytest.raises(InputError, match="--feature is 'x'; write a node type and the name of its"):
        open_input(str(tmp_path), plugins(), reading=Reading(features=["x"]))
