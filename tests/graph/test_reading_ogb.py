"""The reader of OGB's data sets."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    open_source,
    read_ogb,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import Task
from tests.support.reading import (
    CITES,
    CLASSES,
    EDGES,
    FEAT,
    LABEL,
    MASKS,
    PAPERS,
    ROOT,
    SPLIT,
    WRITES,
    Bomb,
    check_mag,
    collect,
    csv_gz,
    needs_ogb,
    write_ogb_mag,
)
from tests.support.waiting import PATIENCE


def write_ogb_plain(root: Path, name: str, split: str) -> Path:
    """A homogeneous data set in OGB's CSV layout: the citations of the papers."""
    directory = root / name
    raw = directory / "raw"
    csv_gz(raw / "edge.csv.gz", EDGES[CITES].T)
    csv_gz(raw / "num-node-list.csv.gz", [PAPERS])
    csv_gz(raw / "num-edge-list.csv.gz", [EDGES[CITES].shape[1]])
    csv_gz(raw / "node-feat.csv.gz", FEAT)
    csv_gz(raw / "node_year.csv.gz", LABEL + 2010)
    csv_gz(raw / "node-label.csv.gz", LABEL)
    for key, ids in SPLIT.items():
        csv_gz(directory / "split" / split / f"{key}.csv.gz", ids)
    (directory / "processed").mkdir()
    (directory / "RELEASE_v1.txt").write_text("release\n")
    return directory


@needs_ogb
def test_ogb_heterogeneous_data_set_with_reverse_relations(tmp_path):
    write_ogb_mag(tmp_path)
    source = read_ogb("ogbn-mag", tmp_path)
    assert source.task == Task("paper", 349)
    source.task = Task("paper", CLASSES)
    check_mag(source)
    assert list(source.edges) == [WRITES, CITES, Relation("paper", "rev-writes", "author"),
                                  Relation("paper", "rev-cites", "paper")]
    np.testing.assert_array_equal(collect(source.edges[Relation("paper", "rev-writes", "author")]),
                                  EDGES[WRITES][::-1])
    np.testing.assert_array_equal(source.node_arrays["paper"]["node_year"], LABEL + 2010)
    assert list(read_ogb("ogbn-mag", tmp_path, reverse=False).edges) == [WRITES, CITES]


@needs_ogb
def test_ogb_reader_agrees_with_the_ogb_package_and_opens_no_pickle(tmp_path):
    directory = write_ogb_mag(tmp_path)
    read_ogb("ogbn-mag", tmp_path)
    nodeproppred = pytest.importorskip("ogb.nodeproppred")
    theirs = nodeproppred.NodePropPredDataset("ogbn-mag", root=str(tmp_path))
    graph, labels = theirs[0]
    splits = theirs.get_idx_split()
    pickles = [directory / "processed" / "data_processed",
               directory / "split" / "time" / "split_dict.pt"]
    assert pickles[0].exists()  # the package made it of the same raw files
    for path in pickles:
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    before = sorted(tmp_path.rglob("*"))
    ours = read_ogb("ogbn-mag", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert ours.node_counts == graph["num_nodes_dict"]
    for relation, edges in graph["edge_index_dict"].items():
        np.testing.assert_array_equal(collect(ours.edges[Relation(*relation)]), edges)
    paper = ours.node_arrays["paper"]
    np.testing.assert_array_equal(paper["feat"], graph["node_feat_dict"]["paper"])
    np.testing.assert_array_equal(paper["label"], labels["paper"].reshape(-1))
    for key, mask in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        np.testing.assert_array_equal(np.flatnonzero(paper[mask]), splits[key]["paper"])


@needs_ogb
def test_reading_ogb_files_imports_no_dgl_and_asks_no_network(tmp_path):
    write_ogb_mag(tmp_path)
    code = ("import sys, threading, dgl_heta.graph.readers as r\n"
            "r.open_source('ogbn-mag', root=sys.argv[1])\n"
            "print(sorted({'dgl', 'outdated'} & sys.modules.keys()))\n"
            "print([t.name for t in threading.enumerate() if not t.daemon])")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True,
                         capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout.split("\n") == ["[]", "['MainThread']", ""]
    assert ran.stderr == ""


@needs_ogb
def test_ogb_homogeneous_data_sets(tmp_path):
    write_ogb_plain(tmp_path, "ogbn_arxiv", "time")
    source = read_ogb("ogbn-arxiv", tmp_path)
    assert source.node_counts == {"node": PAPERS}
    assert list(source.edges) == [Relation("node", "to", "node")]
    np.testing.assert_array_equal(collect(source.edges[Relation("node", "to", "node")]),
                                  EDGES[CITES])
    assert source.task == Task("node", 40)
    for name, mask in MASKS.items():
        np.testing.assert_array_equal(source.node_arrays["node"][name], np.array(mask, bool))
    assert list(read_ogb("ogbn-arxiv", tmp_path, reverse=True).edges)[1].etype == "rev-to"
    assert collect(open_source(tmp_path / "ogbn_arxiv").edges[Relation("node", "to", "node")]
                   ).shape == (2, 4)

    write_ogb_plain(tmp_path, "ogbn_products", "sales_ranking")  # OGB adds inverse edges here
    edges = read_ogb("ogbn-products", tmp_path).edges[Relation("node", "to", "node")]
    assert {tuple(e) for e in collect(edges).T} == {
        (int(a), int(b)) for u, v in EDGES[CITES].T for a, b in ((u, v), (v, u))}


@needs_ogb
def test_ogb_binary_data_set_with_unlabelled_nodes(tmp_path):
    directory = write_ogb_plain(tmp_path, "ogbn_papers100M", "time")
    for path in (directory / "raw").iterdir():
        path.unlink()
    np.savez(directory / "raw/data.npz", edge_index=EDGES[CITES], num_nodes_list=[PAPERS],
             num_edges_list=[4], node_feat=FEAT, node_year=(LABEL + 2010).reshape(-1, 1))
    label = LABEL.astype(np.float32).reshape(-1, 1)
    label[4] = np.nan
    np.savez(directory / "raw/node-label.npz", node_label=label)
    source = read_ogb("ogbn-papers100M", tmp_path)
    assert source.task == Task("node", 172)
    np.testing.assert_array_equal(source.node_arrays["node"]["label"], [2, 0, 1, 1, -1])
    assert source.node_arrays["node"]["node_year"].shape == (PAPERS,)


@needs_ogb
def test_ogb_data_set_of_many_labels_is_multilabel(tmp_path):
    directory = write_ogb_plain(tmp_path, "ogbn_proteins", "species")
    labels = np.eye(PAPERS, 112)
    labels[0, 5] = np.nan
    csv_gz(directory / "raw/node-label.csv.gz", labels)
    source = read_ogb("ogbn-proteins", tmp_path)
    assert source.task == Task("node", 112, kind="multilabel")
    np.testing.assert_array_equal(source.node_arrays["node"]["label"], labels)
    labels[0, 5] = 3
    csv_gz(directory / "raw/node-label.csv.gz", labels)
    with pytest.raises(InputError, match=r"node 0 is in train_mask and has 3.0 for label 5"):
        read_ogb("ogbn-proteins", tmp_path)


@needs_ogb
def test_ogb_data_set_that_is_not_there_is_named_and_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked a question"))
    with pytest.raises(InputError, match=r"ogbn-mag was expected in .*ogbn_mag, which does not"):
        read_ogb("ogbn-mag", tmp_path)
    with pytest.raises(InputError, match=r"did you mean 'ogbn-mag'"):
        read_ogb("ogbn-mga", tmp_path)
    directory = write_ogb_mag(tmp_path)
    (directory / "RELEASE_v2.txt").rename(directory / "RELEASE_v1.txt")
    with pytest.raises(InputError, match=r"holds RELEASE_v1.txt.*describes RELEASE_v2.txt"):
        read_ogb("ogbn-mag", tmp_path)
    (directory / "RELEASE_v1.txt").unlink()
    assert read_ogb("ogbn-mag", tmp_path).node_counts["paper"] == PAPERS
    (directory / "raw/triplet-type-list.csv.gz").unlink()
    with pytest.raises(InputError, match=r"lacks raw/triplet-type-list.csv.gz"):
        read_ogb("ogbn-mag", tmp_path)


def packed(content: bytes) -> bytes:
    """The same bytes at any time of day: they are part of tests' names."""
    return gzip.compress(content, mtime=0)


@needs_ogb
@pytest.mark.parametrize(("file", "content", "message"), [
    ("raw/relations/paper___cites___paper/edge.csv.gz", None, "missing: raw/relations/paper___c"),
    ("raw/relations/paper___cites___paper/edge.csv.gz", b"0,1\n", "cannot read .*edge.csv.gz"),
    ("raw/relations/paper___cites___paper/edge.csv.gz", packed(b"a,b\n"), "cannot read"),
    ("raw/relations/paper___cites___paper/edge.csv.gz", packed(b"0\n1\n2\n3\n"),
     "has 1 columns"),
    ("raw/node-feat/paper/node-feat.csv.gz", packed(b"0,1\n"), "'feat'.*has 1 row,"),
    ("raw/node-label/paper/node-label.csv.gz", packed(b"349\n" * PAPERS),
     "class 349, but num_classes is 349"),
    ("raw/node-label/paper/node-label.csv.gz", packed(b"0.5\n" * PAPERS), "fractions"),
    ("split/time/paper/train.csv.gz", packed(b"0\n5\n"), "train split.*node 5.*0 to 4"),
    ("split/time/paper/test.csv.gz", None, "cannot read ogbn-mag.*test.csv.gz"),
    ("split/time/nodetype-has-split.csv.gz", None, "lacks split/time/nodetype-has-split.csv.gz"),
])
def test_damaged_ogb_files_are_one_error(tmp_path, file, content, message):
    path = write_ogb_mag(tmp_path) / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_ogb("ogbn-mag", tmp_path)
    assert "\n" not in str(caught.value)
