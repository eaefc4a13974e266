"""AIFB, MUTAG, BGS and AM: synthetic ones have the published numbers, real ones are read as DGL
saved them, and nothing that a file names is run."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from dgl_heta_hifuse import rdf
from dgl_heta_hifuse.datasets import every
from dgl_heta_hifuse.shapes import SHAPES

from dgl_heta import GraphSource, InputError, Relation, Task
from dgl_heta.graph.datasets import load_dataset
from dgl_heta.tools import generate
from tests.support.plugins import heta, in_tree

# nodes, node types, edges, relations, classes, nodes for training and for test
PUBLISHED = {"aifb": (7_262, 7, 48_810, 104, 4, 140, 36),
             "mutag": (27_163, 5, 148_100, 50, 2, 272, 68),
             "bgs": (94_806, 27, 672_884, 122, 2, 117, 29),
             "am": (1_885_136, 7, 5_668_682, 108, 11, 802, 198)}


def edges_of(graph: GraphSource) -> dict[Relation, np.ndarray]:
    """Sources and destinations of all edges, (2, edges)."""
    return {r: np.hstack([np.stack(chunk) for chunk in edges.chunks(10**6)])
            for r, edges in graph.edges.items()}


def task_of(graph: GraphSource) -> Task:
    assert graph.task is not None
    return graph.task


@pytest.fixture
def heta_here(tmp_path):
    """Runs a command of dgl-heta in `tmp_path`."""
    path = in_tree(tmp_path / "site", "hifuse")
    return lambda *words: heta(*words, path=tmp_path, PYTHONPATH=path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_shape_has_the_published_numbers(name):
    nodes, types, edges, relations, classes, train, test = PUBLISHED[name]
    shape = SHAPES[name].scaled(1.0)
    schema = shape.schema()
    assert sum(schema.node_counts.values()) == nodes
    assert len(schema.node_types) == types
    assert sum(schema.edge_counts.values()) == edges
    assert len(schema.relations) == relations
    assert len(schema.into[shape.target]) >= 4
    assert not schema.feature_bytes
    assert (shape.num_classes, shape.labelled) == (classes, train + test)


@pytest.mark.parametrize("name", ["aifb", "mutag", "bgs"])
def test_graph_has_the_published_masks_and_distinct_edges(name):
    *_, classes, train, test = PUBLISHED[name]
    graph = load_dataset({d.name: d for d in every()}[f"synthetic-{name}"])
    arrays = graph.node_arrays[task_of(graph).target]
    assert [int(arrays[f"{m}_mask"].sum()) for m in ("train", "val", "test")] == [train, 0, test]
    assert set(np.unique(arrays["label"])) == set(range(classes)) == set(range(
        task_of(graph).num_classes))
    for relation, edges in edges_of(graph).items():
        assert np.unique(edges, axis=1).shape == edges.shape, relation


def test_a_synthetic_graph_is_partitioned_and_trained(heta_here, tmp_path):
    done = heta_here("train", "synthetic-am:scale=0.002", "--parts", 2, "--run-dir", "run",
                     "--set", "train.epochs=2", "--set", "model.hidden=8")
    assert done.returncode == 0, done.stderr
    epochs = [line for line in map(json.loads, (tmp_path / "run/metrics.jsonl").open())
              if line["event"] == "epoch"]
    assert len(epochs) == 2
    assert all(np.isfinite(line["loss"]) for line in epochs)


def saved_by_dgl(root: Path, name: str) -> Path:
    """A small graph with the target of `name`, as DGL's data class saves one: with a pickled file,
    which here writes a file when it is loaded."""
    import dgl

    source = generate(SHAPES[name], 0.1)
    graph = dgl.heterograph(
        {tuple(r): tuple(map(torch.tensor, edges)) for r, edges in edges_of(source).items()},
        num_nodes_dict=source.node_counts)
    target = task_of(source).target
    data = {key: torch.tensor(array) for key, array in source.node_arrays[target].items()}
    del data["val_mask"]
    data["label"][:3] = -1  # as that of a node that is in no split
    data["train_mask"][:3] = data["test_mask"][:3] = False
    graph.nodes[target].data.update(data, labels=data["label"])
    folder = root / f"{name}-hetero_82d021d8"
    folder.mkdir()
    dgl.save_graphs(str(folder / f"{name}-hetero_dgl_graph.bin"), graph)

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(root / "was-run"),)

    (folder / f"{name}-hetero_dgl_graph.pkl").write_bytes(pickle.dumps(Code()))
    return folder


@pytest.mark.needs("dgl")
def test_a_graph_that_dgl_saved_is_read_without_its_pickled_file(tmp_path, heta_here):
    folder = saved_by_dgl(tmp_path, "bgs")
    expected = generate(SHAPES["bgs"], 0.1)
    graph = rdf.load("bgs", tmp_path)
    assert graph.schema() == expected.schema()
    got = edges_of(graph)
    for relation, edges in edges_of(expected).items():
        assert np.array_equal(got[relation], edges), relation
    arrays = graph.node_arrays[task_of(graph).target]
    assert set(arrays) == {"label", "train_mask", "test_mask"}
    assert (arrays["label"][:3] == -1).all()
    assert (task_of(graph).target, task_of(graph).num_classes) == ("Lexicon/NamedRockUnit", 2)
    done = heta_here("train", f"bgs:path={folder}", "--parts", 2, "--run-dir", "run",
                     "--set", "train.epochs=1", "--set", "model.hidden=8")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "was-run").exists()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.needs("dgl")
def test_what_is_missing_or_wrong_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"holds no mutag: .*nothing is downloaded"):
        rdf.load("mutag", tmp_path)
    with pytest.raises(InputError, match="holds no am"):
        rdf.load("am", tmp_path / "not-there")
    folder = saved_by_dgl(tmp_path, "aifb")
    graph = folder / "aifb-hetero_dgl_graph.bin"
    graph.rename(folder / "mutag-hetero_dgl_graph.bin")
    with pytest.raises(InputError, match="no node type 'd' with labels, as mutag has"):
        rdf.load("mutag", folder)
    graph.write_text("no graph")
    with pytest.raises(InputError, match=r"aifb-hetero_dgl_graph.bin cannot be read"):
        rdf.load("aifb", tmp_path)


PERSON = "<http://www.aifb.uni-karlsruhe.de/Personen/viewPersonOWL/id{}instance>"
PAPER = "<http://www.aifb.uni-karlsruhe.de/Publikationen/viewPublikationOWL/id7instance>"


def test_triples_have_a_limit(tmp_path):
    for name in ("trainingSet.tsv", "testSet.tsv", "a.nt", "b.n3"):
        (tmp_path / name).touch()
    os.truncate(tmp_path / "a.nt", rdf.TRIPLES_BYTES - 5)  # holes, which take no room
    os.truncate(tmp_path / "b.n3", 6)
    with pytest.raises(InputError, match=r"b\.n3 has 6 bytes; all triples .* 2 GiB at most"):
        rdf.load("aifb", tmp_path)
    os.truncate(tmp_path / "a.nt", 0)
    os.truncate(tmp_path / "testSet.tsv", rdf.SPLIT_BYTES + 1)
    with pytest.raises(InputError, match=r"testSet\.tsv has 33,554,433 bytes; .* 32 MiB at most"):
        rdf.load("aifb", tmp_path)
    os.truncate(tmp_path / "testSet.tsv", 0)
    os.mkfifo(tmp_path / "c.nt")
    with pytest.raises(InputError, match=r"c\.nt is named as a file .* but is none"):
        rdf.load("aifb", tmp_path)


@pytest.mark.needs("dgl")
def test_triples_are_read_by_dgls_class_or_rdflib_is_named(tmp_path):
    author = "<http://swrc.ontoware.org/ontology#author>"
    (tmp_path / "triples.nt").write_text("".join(
        f"{PAPER} {author} {PERSON.format(i)} .\n" for i in (1, 2)))
    for file, i in (("trainingSet.tsv", 1), ("testSet.tsv", 2)):
        (tmp_path / file).write_text(
            f"person\tid\tlabel_affiliation\n{PERSON.format(i)[1:-1]}\t{i}\tgroup-{i}\n")
    before = sorted(tmp_path.iterdir())
    if importlib.util.find_spec("rdflib") is None:
        with pytest.raises(InputError, match=r"needs rdflib, .*'dgl-heta-hifuse\[rdf\]'"):
            rdf.load("aifb", tmp_path)
        return
    graph = rdf.load("aifb", tmp_path)
    assert graph.node_counts == {"Personen": 2, "Publikationen": 1}
    assert len(graph.edges) == 2
    assert graph.node_arrays["Personen"]["train_mask"].tolist() == [True, False]
    assert graph.node_arrays["Personen"]["test_mask"].tolist() == [False, True]
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "triples.nt").write_text(f"{PAPER} {author} .\n")
    with pytest.raises(InputError, match=f"in {tmp_path} cannot be read as aifb: "):
        rdf.load("aifb", tmp_path)
