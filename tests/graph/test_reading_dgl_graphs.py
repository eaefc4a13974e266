"""The reader of DGLGraph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    read_dgl_graph,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import Task, graph_names
from tests.support.reading import (
    AUTHORS,
    EDGES,
    FEAT,
    LABEL,
    MASKS,
    PAPERS,
    WRITES,
    check_mag,
    collect,
)

# --- DGLGraph ------------------------------------------------------------------------------


@pytest.fixture
def mag():
    """The graph of the constants above as a DGLGraph."""
    dgl = pytest.importorskip("dgl")
    torch = pytest.importorskip("torch")
    graph = dgl.heterograph(
        {tuple(r): (torch.tensor(e[0]), torch.tensor(e[1])) for r, e in EDGES.items()},
        num_nodes_dict={"author": AUTHORS, "paper": PAPERS})
    data = graph.nodes["paper"].data
    data["feat"], data["label"] = torch.tensor(FEAT), torch.tensor(LABEL)
    for name, mask in MASKS.items():
        data[name] = torch.tensor(mask, dtype=torch.bool)
    return graph


def test_dgl_graph_gives_the_graph(mag):
    mag.nodes["paper"].data["year"] = mag.nodes["paper"].data["label"] + 2000
    mag.edges["cites"].data["weight"] = mag.edges(etype="cites")[0].float()
    source = read_dgl_graph(mag, "tiny")
    check_mag(source)
    np.testing.assert_array_equal(source.node_arrays["paper"]["year"], LABEL + 2000)
    assert "author" not in source.node_arrays
    assert any("weight" in note for note in source.info["notes"])


def test_dgl_graph_shares_memory_and_keeps_edge_ids(mag):
    source = read_dgl_graph(mag, "tiny")
    mag.nodes["paper"].data["feat"][0, 0] = 42
    assert source.node_arrays["paper"]["feat"][0, 0] == 42
    for formats in ("csc", "csr", "coo"):
        check = collect(read_dgl_graph(mag.formats(formats), "tiny").edges[WRITES])
        np.testing.assert_array_equal(check, EDGES[WRITES])
    np.testing.assert_array_equal(collect(read_dgl_graph(mag.int(), "t").edges[WRITES]),
                                  EDGES[WRITES])


def test_homogeneous_dgl_graph_with_labels_and_plain_features():
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    graph = dgl.graph(([0, 1, 2], [1, 2, 0]), num_nodes=4)
    graph.ndata["feat"] = torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=torch.bfloat16)
    graph.ndata["labels"] = torch.tensor([0.0, 1.0, float("nan"), 3.0])
    graph.ndata["train_mask"] = torch.tensor([1, 1, 0, 0], dtype=torch.uint8)
    source = read_dgl_graph(graph, "ring")
    assert source.node_counts == {"_N": 4}
    np.testing.assert_array_equal(collect(source.edges[Relation("_N", "_E", "_N")]),
                                  [[0, 1, 2], [1, 2, 0]])
    arrays = source.node_arrays["_N"]
    np.testing.assert_array_equal(arrays["feat"], [[0.5], [1.5], [2.5], [3.5]])
    np.testing.assert_array_equal(arrays["label"], [0, 1, -1, 3])
    assert arrays["train_mask"].dtype == np.bool_
    assert source.task == Task("_N", 4)
    assert read_dgl_graph(graph, "ring", target="_N", num_classes=9).task == Task("_N", 9)


def test_dgl_graph_features_of_another_name(mag):
    import torch

    mag.nodes["author"].data["emb"] = torch.ones(AUTHORS, 3)
    mag.nodes["paper"].data["emb"] = torch.ones(PAPERS, 3, requires_grad=True)
    source = read_dgl_graph(mag, "tiny", node_features={"author": "emb", "paper": "emb"})
    assert source.schema().feature_bytes == {"author": 12, "paper": 12}
    assert graph_names(source, "author") == graph_names(source, "paper") == {"feat": "emb"}
    assert any("'feat' of 'paper' left out" in note for note in source.info["notes"])
    with pytest.raises(InputError, match="no node data 'enb'.*did you mean 'emb'"):
        read_dgl_graph(mag, "tiny", node_features={"author": "enb"})
    with pytest.raises(InputError, match="'authors'.*did you mean 'author'"):
        read_dgl_graph(mag, "tiny", node_features={"authors": "emb"})


def test_dgl_graph_that_cannot_be_read_is_refused(mag):
    import dgl
    import torch

    with pytest.raises(InputError, match="expected a dgl.DGLGraph, got builtins.dict"):
        read_dgl_graph({}, "tiny")
    with pytest.raises(InputError, match="is a block"):
        read_dgl_graph(dgl.to_block(mag), "tiny")
    with pytest.raises(InputError, match="'papr' is not in the graph.*did you mean 'paper'"):
        read_dgl_graph(mag, "tiny", target="papr")
    with pytest.raises(InputError, match="'author' has no labels"):
        read_dgl_graph(mag, "tiny", target="author")
    mag.nodes["author"].data["z"] = torch.zeros(AUTHORS, dtype=torch.complex64)
    with pytest.raises(InputError, match="'z' of node type 'author'.*complex64"):
        read_dgl_graph(mag, "tiny")


def test_dgl_graph_without_a_clear_task_says_why(mag):
    import torch

    paper = mag.nodes["paper"].data
    paper["label"] = torch.full((PAPERS, 4), 3.0)
    source = read_dgl_graph(mag, "tiny")
    assert source.task is None
    assert "a label is 0 or 1" in source.info["notes"][0]
    with pytest.raises(InputError, match=r"node 0 is in train_mask and has 3\.0 for label 0"):
        read_dgl_graph(mag, "tiny", target="paper")
    paper["label"] = torch.tensor([-1, 0, 0, 0, 0])
    with pytest.raises(InputError, match="node 0 is in train_mask and has label -1"):
        read_dgl_graph(mag, "tiny", target="paper")


def test_labels_that_are_a_matrix_are_no_features(mag):
    del mag.nodes["paper"].data["feat"]
    mag.nodes["paper"].data["label"] = torch.eye(mag.num_nodes("paper"))[:, :2]
    source = read_dgl_graph(mag, "tiny")
    assert {"label", "feat"} & {*source.node_arrays["paper"]} == {"label"}
    assert source.task is not None
    assert source.task.kind == "multilabel"
    mag.nodes["paper"].data["emb"] = torch.ones(mag.num_nodes("paper"), 3)
    assert read_dgl_graph(mag, "tiny").node_arrays["paper"]["feat"].shape[1] == 3
