"""The reader of GraphBolt's data sets."""

from __future__ import annotations

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    open_source,
    read_graphbolt,
)
from dgl_heta.graph.readers.arrays import joined_labels
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import Task
from tests.support.reading import (
    AUTHORS,
    CITES,
    CLASSES,
    EDGES,
    LABEL,
    PAPERS,
    check_mag,
    collect,
    write_graphbolt,
)


@pytest.mark.parametrize(("fmt", "edges"), [("numpy", "csv"), ("torch", "numpy")])
def test_graphbolt_data_set_gives_the_graph(tmp_path, fmt, edges):
    if fmt == "torch":
        pytest.importorskip("torch")
    source = read_graphbolt(write_graphbolt(tmp_path, fmt, edges))
    emb = source.node_arrays["author"].pop("feat")
    np.testing.assert_array_equal(emb, np.ones((AUTHORS, 1)))
    check_mag(source)
    np.testing.assert_array_equal(source.node_arrays["paper"]["year"], LABEL + 2010)
    assert list(source.node_counts) == ["author", "paper"]
    notes = " ".join(source.info["notes"])
    assert "edge feature 'weight' of 'paper:cites:paper' left out" in notes
    assert "features of 'author' are its feature 'emb'" in notes


@pytest.mark.parametrize("name", ["label", "labels"])
def test_labels_are_no_features_of_a_type_that_has_no_others(tmp_path, name):
    write_graphbolt(tmp_path, feature_data=lambda v: [*v[:2], {**v[2], "name": name}])
    assert {*read_graphbolt(tmp_path).node_arrays["author"]} == {name}


def test_graphbolt_reader_agrees_with_graphbolt(tmp_path):
    gb = pytest.importorskip("dgl.graphbolt")
    write_graphbolt(tmp_path / "ours")
    ours = read_graphbolt(tmp_path / "ours")
    theirs = gb.OnDiskDataset(str(write_graphbolt(tmp_path / "theirs"))).load()
    graph = theirs.graph
    offset = dict(zip(graph.node_type_to_id, graph.node_type_offset.tolist()))
    indptr = graph.csc_indptr.numpy()
    dst = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    assert list(graph.edge_type_to_id) == [":".join(r) for r in ours.edges]
    assert list(graph.node_type_to_id) == list(ours.node_counts)
    for relation, edges in ours.edges.items():
        chosen = graph.type_per_edge.numpy() == graph.edge_type_to_id[":".join(relation)]
        pairs = np.stack([graph.indices.numpy()[chosen] - offset[relation.src],
                          dst[chosen] - offset[relation.dst]])
        assert sorted(map(tuple, pairs.T)) == sorted(map(tuple, collect(edges).T))
    paper = ours.node_arrays["paper"]
    np.testing.assert_array_equal(paper["feat"], theirs.feature.read("node", "paper", "feat"))
    (task,) = theirs.tasks
    assert ours.task == Task("paper", task.metadata["num_classes"])
    for items, mask in ((task.train_set, "train_mask"), (task.validation_set, "val_mask"),
                        (task.test_set, "test_mask")):
        pairs = [[int(x) for x in item["paper"]] for item in items]
        assert [seed for seed, _ in pairs] == np.flatnonzero(paper[mask]).tolist()
        assert [label for _, label in pairs] == paper["label"][paper[mask]].tolist()


@pytest.mark.parametrize("labels", [np.array([2, 0, 1]), np.array([[0.5], [1.0], [np.nan]])])
def test_two_labels_of_one_node_are_named(labels):
    train, val = (np.array([4, 1, 3]), labels), (np.array([5, 3]), labels[[0, 2]])
    assert joined_labels([train, val], 6, "labels").shape == (6, *labels.shape[1:])
    with pytest.raises(InputError, match="labels are two for node 1: .*; give each node one"):
        joined_labels([train, (np.array([1]), labels[:1])], 6, "labels")


def test_homogeneous_graphbolt_data_set(tmp_path):
    def untyped(items):
        return [{key: value for key, value in item.items() if key != "type"} for item in items]

    def graph(value):
        return {"nodes": untyped(value["nodes"][:1]), "edges": untyped(value["edges"][1:])}

    def tasks(value):
        return [{key: untyped(item) if key.endswith("_set") else item
                 for key, item in value[0].items()}]

    write_graphbolt(tmp_path, graph=graph, tasks=tasks, feature_data=lambda v: untyped(v[:1]))
    source = read_graphbolt(tmp_path)
    assert source.node_counts == {"_N": PAPERS}
    np.testing.assert_array_equal(collect(source.edges[Relation("_N", "_E", "_N")]), EDGES[CITES])
    assert source.task == Task("_N", CLASSES)
    np.testing.assert_array_equal(source.node_arrays["_N"]["label"], LABEL)
    gb = pytest.importorskip("dgl.graphbolt")
    assert gb.OnDiskDataset(str(tmp_path)).load().graph.total_num_edges == 4
    assert read_graphbolt(tmp_path).node_counts == {"_N": PAPERS}  # preprocessed/ beside it


def test_graphbolt_task_is_chosen_by_name_and_link_prediction_is_left_out(tmp_path):
    def tasks(value):
        links = {"name": "links", "train_set": [{"type": "paper:cites:paper", "data": [
            {"name": "node_pairs", "format": "numpy", "path": "data/year.npy"}]}]}
        return [links, *value]

    write_graphbolt(tmp_path, tasks=tasks)
    source = read_graphbolt(tmp_path)
    assert source.task == Task("paper", CLASSES)
    assert "task 'links' left out: it has no seed nodes" in source.info["notes"]
    assert open_source(tmp_path, task="node_classification").task == Task("paper", CLASSES)
    with pytest.raises(InputError, match="task 'links' has no seed nodes"):
        read_graphbolt(tmp_path, task="links")
    with pytest.raises(InputError, match="no task 'link'.*did you mean 'links'"):
        read_graphbolt(tmp_path, task="link")


def test_only_preprocessed_graphbolt_data_needs_the_original_files(tmp_path):
    (tmp_path / "preprocessed").mkdir()
    (tmp_path / "preprocessed/metadata.yaml").write_text("graph_topology: {path: graph.pt}\n")
    for path in (tmp_path, tmp_path / "preprocessed"):
        with pytest.raises(InputError, match="is the preprocessed form.*original metadata.yaml"):
            open_source(path)
    write_graphbolt(tmp_path)
    (tmp_path / "data/cites.csv").unlink()
    with pytest.raises(InputError, match=r"cites\.csv, which is not a file.*original files"):
        read_graphbolt(tmp_path)


def first(**changes):
    """Replaces keys in the first entry of a list of mappings."""
    return lambda value: [{**value[0], **changes}, *value[1:]]


def in_graph(key, **changes):
    return lambda value: {**value, key: first(**changes)(value[key])}


def in_train_set(**changes):
    return lambda value: [{**value[0], "train_set": first(**changes)(value[0]["train_set"])}]


SEEDS = {"name": "seed_nodes", "format": "numpy", "path": "data/train-seeds.npy"}


@pytest.mark.parametrize(("changes", "message"), [
    ({"graph": 3}, "has no 'graph' with 'nodes' and 'edges'"),
    ({"graph": in_graph("nodes", num="5")}, "'num' is '5'; it must be the number of nodes"),
    ({"graph": in_graph("nodes", type=None)}, "'type' is None; it must be the name"),
    ({"graph": in_graph("nodes", type="author")}, "node type 'author' is named twice"),
    ({"graph": in_graph("edges", type="author:writes")}, 'it must be "src:etype:dst"'),
    ({"graph": in_graph("edges", type="autor:writes:paper")},
     "names node type 'autor'.*did you mean 'author'"),
    ({"graph": in_graph("edges", type="paper:cites:paper")}, "'paper cites paper' is named twice"),
    ({"graph": in_graph("edges", format="parquet")}, "'format' is 'parquet'; edges are csv or"),
    ({"graph": in_graph("edges", path="../writes.csv")}, "which leaves"),
    ({"graph": in_graph("edges", path="data/no.csv")}, "no.csv, which is not a file"),
    ({"graph": lambda v: {**v, "edges": [{"format": "csv", "path": "data/cites.csv"}]}},
     "have no 'type'"),
    ({"feature_data": {}}, "'feature_data' must be a list"),
    ({"feature_data": first(domain="nodes")}, "'domain' is 'nodes'; it must be node, edge or"),
    ({"feature_data": first(name=None)}, "'name' is None"),
    ({"feature_data": first(name="year")}, "feature 'year' of node type 'paper' is named twice"),
    ({"feature_data": first(type="papre")}, "'papre'.*did you mean 'paper'"),
    ({"feature_data": first(type="author")}, "'feat' of node type 'author'.*has 5 rows.*7 nodes"),
    ({"feature_data": first(format="csv")}, "'format' is 'csv'; arrays are numpy or torch"),
    ({"feature_data": first(format="torch")}, "feat.npy as one dense tensor"),
    ({"tasks": first(num_classes=2)}, "holds class 2, but num_classes is 2"),
    ({"tasks": first(num_classes="3")}, "'num_classes' is '3'"),
    ({"tasks": in_train_set(type="papers")}, "'papers'.*did you mean 'paper'"),
    ({"tasks": in_train_set(data=[SEEDS, {**SEEDS, "name": "labels", "path": "data/year.npy"}])},
     r"has 2 seeds, and labels of shape \(5,\)"),
    ({"tasks": in_train_set(data=[{**SEEDS, "path": "data/year.npy"}])}, "names node 2012"),
    ({"tasks": in_train_set(data=[{**SEEDS, "path": "data/feat.npy"}])}, None),
    ({"tasks": in_train_set(data=[SEEDS])}, "node 0 is in train_mask and has label -1"),
])
def test_wrong_graphbolt_metadata_names_the_entry(tmp_path, changes, message):
    write_graphbolt(tmp_path, **changes)
    if message is None:  # pairs of nodes: a link prediction task
        assert read_graphbolt(tmp_path).task is None
        return
    with pytest.raises(InputError, match=message) as caught:
        read_graphbolt(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [
    "graph: [", "- 1", "", "!!python/object/apply:os.system ['touch ran']", "a: \x00",
    "[" * 5000,
])
def test_broken_or_hostile_yaml_is_one_error(tmp_path, text, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metadata.yaml").write_text(text)
    with pytest.raises(InputError, match=r"metadata\.yaml"):
        open_source(tmp_path)
    assert not (tmp_path / "ran").exists()
