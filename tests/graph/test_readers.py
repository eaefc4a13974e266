"""What a user gets from a graph on disk or in memory, and what is said when it is broken."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    detect,
    open_source,
    read_dgl_graph,
    read_edge_files,
    read_graphbolt,
    read_ogb,
)
from dgl_heta.graph.readers.files import CsvEdges, JoinedEdges, NpyEdges
from dgl_heta.graph.readers.torch_file import read_tensor
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeSource, GraphSource, Task
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
WRITES = Relation("author", "writes", "paper")
CITES = Relation("paper", "cites", "paper")
AUTHORS, PAPERS, CLASSES = 7, 5, 3
EDGES = {
    WRITES: np.array([[0, 1, 2, 3, 4, 5, 6, 6], [0, 1, 2, 3, 4, 0, 1, 2]]),
    CITES: np.array([[0, 1, 4, 4], [1, 2, 0, 0]]),
}
FEAT = np.arange(PAPERS * 2, dtype=np.float32).reshape(PAPERS, 2) / 4
LABEL = np.array([2, 0, 1, 1, 0])
SPLIT = {"train": [0, 1], "valid": [2], "test": [3, 4]}
MASKS = {"train_mask": [1, 1, 0, 0, 0], "val_mask": [0, 0, 1, 0, 0], "test_mask": [0, 0, 0, 1, 1]}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def collect(source: EdgeSource, size: int = 1 << 20) -> np.ndarray:
    chunks = list(source.chunks(size))
    for src, dst in chunks:
        assert len(src) == len(dst) <= size
        assert {src.dtype.kind, dst.dtype.kind} <= {"i", "u"}
    if not chunks:
        return np.empty((2, 0), np.int64)
    return np.stack([np.concatenate(side).astype(np.int64) for side in zip(*chunks)])


def check_mag(source: GraphSource, label: str = "label") -> None:
    """The graph of the constants above, whatever it was read from."""
    assert source.node_counts == {"author": AUTHORS, "paper": PAPERS}
    for relation, edges in EDGES.items():
        assert source.edges[relation].num_edges == edges.shape[1]
        np.testing.assert_array_equal(collect(source.edges[relation]), edges)
        np.testing.assert_array_equal(collect(source.edges[relation], 3), edges)
    paper = source.node_arrays["paper"]
    np.testing.assert_array_equal(paper["feat"], FEAT)
    assert paper["feat"].dtype == np.float32
    for name, mask in MASKS.items():
        assert paper[name].dtype == np.bool_
        np.testing.assert_array_equal(paper[name], np.array(mask, bool))
    np.testing.assert_array_equal(paper[label], LABEL)
    assert source.task == Task("paper", CLASSES, label)
    assert source.schema().feature_bytes == {"paper": 8}
    json.dumps(source.info)


# --- edge files ----------------------------------------------------------------------------


def write_edge_files(directory: Path, **changes) -> Path:
    """A directory in the format of the edge files reader; `changes` replace metadata entries."""
    for folder in ("edges", "nodes"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    np.save(directory / "edges/cites.npy", EDGES[CITES].astype(np.int32))
    np.save(directory / "edges/writes-0.npy", EDGES[WRITES][:, :3])
    with gzip.open(directory / "edges/writes-1.csv.gz", "wt") as file:
        file.write("author,paper\n" + "".join(f"{u},{v}\n" for u, v in EDGES[WRITES][:, 3:5].T))
    np.save(directory / "edges/src.npy", EDGES[WRITES][0, 5:])
    np.save(directory / "edges/dst.npy", EDGES[WRITES][1, 5:])
    np.save(directory / "nodes/feat.npy", FEAT)
    np.save(directory / "nodes/label.npy", LABEL)
    for name, mask in MASKS.items():
        np.save(directory / f"nodes/{name}.npy", np.array(mask, np.uint8))
    arrays = {name: f"nodes/{name}.npy" for name in ("feat", "label", *MASKS)}
    metadata = {
        "name": "tiny",
        "nodes": {"author": {"count": AUTHORS}, "paper": {"count": PAPERS, "arrays": arrays}},
        "edges": [
            {"src": "author", "etype": "writes", "dst": "paper",
             "files": ["edges/writes-0.npy", "edges/writes-1.csv.gz",
                       {"src_file": "edges/src.npy", "dst_file": "edges/dst.npy"}]},
            {"src": "paper", "etype": "cites", "dst": "paper", "files": ["edges/cites.npy"]},
        ],
        "task": {"target": "paper", "num_classes": CLASSES},
    }
    metadata.update(changes)
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


def cites(*files) -> list:
    return [{"src": "paper", "etype": "cites", "dst": "paper", "files": list(files)}]


def papers(**arrays) -> dict:
    return {"author": {"count": AUTHORS}, "paper": {"count": PAPERS, "arrays": arrays}}


def test_edge_files_of_every_kind_give_the_graph(tmp_path):
    source = read_edge_files(write_edge_files(tmp_path))
    check_mag(source)
    assert source.name == "tiny"
    assert list(source.edges) == [WRITES, CITES]


def test_edge_files_task_is_optional_and_counts_classes(tmp_path):
    write_edge_files(tmp_path, task={"target": "paper", "label": "label"})
    assert read_edge_files(tmp_path).task == Task("paper", CLASSES)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    del metadata["task"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    assert read_edge_files(tmp_path).task is None


def test_node_arrays_stay_on_disk(tmp_path):
    paper = read_edge_files(write_edge_files(tmp_path)).node_arrays["paper"]
    assert isinstance(paper["feat"], np.memmap)
    assert isinstance(paper["label"], np.memmap)


edge_lists = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=40)


@settings(max_examples=40, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(edge_lists, min_size=1, max_size=3), size=st.integers(1, 50))
def test_any_chunk_size_gives_the_same_edges(tmp_path, parts, size):
    sources: list[EdgeSource] = []
    for index, part in enumerate(parts):
        pairs = np.array(part, np.int64).reshape(-1, 2)
        npy, fortran, big = (tmp_path / f"{index}-{kind}.npy" for kind in ("c", "f", "big"))
        np.save(npy, np.ascontiguousarray(pairs.T))
        np.save(fortran, pairs.T)
        np.save(big, pairs.T.astype(">i8"))
        src, dst = tmp_path / f"{index}-src.npy", tmp_path / f"{index}-dst.npy"
        np.save(src, pairs[:, 0])
        np.save(dst, pairs[:, 1].astype(np.uint64))
        csv = tmp_path / f"{index}.csv"
        csv.write_text("".join(f"{u},{v}\n" for u, v in part))
        same = [NpyEdges(npy), NpyEdges(fortran), NpyEdges(big), NpyEdges(src, dst), CsvEdges(csv)]
        for source in same:
            assert source.num_edges == len(part)
            np.testing.assert_array_equal(collect(source, size), pairs.T)
        sources.append(same[index % len(same)])
    joined = JoinedEdges(sources)
    everything = np.array([edge for part in parts for edge in part], np.int64).reshape(-1, 2).T
    assert joined.num_edges == everything.shape[1]
    np.testing.assert_array_equal(collect(joined, size), everything)


@pytest.mark.parametrize("text", [
    "0,1\n2,3\n", "src,dst\n0,1\n2,3", "\ufeffsrc,dst\n0,1\n2,3\n", "\n\n0,1\n\n2,3\n",
    '"src","dst"\r\n0, 1\r\n2, 3\r\n', '"0","1"\n"2","3"\n',
])
def test_csv_with_and_without_header(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_bytes(text.encode())
    source = CsvEdges(path)
    assert source.num_edges == 2
    np.testing.assert_array_equal(collect(source, 1), [[0, 2], [1, 3]])


@pytest.mark.parametrize("text", [
    "0,1\n2\n", "0,1\n2,3,4\n", "0\n1\n", "0,1,2\n", "0,1\n2,x\n", "0,1\nnan,3\n", "0,1.5\n",
    "0,x\n1,2\n", "0,1\n,\n", f"0,1\n{10**30},3\n", "0;1\n", "\x00\x01,\xff\n1,2,3\n",
])
def test_csv_that_is_not_pairs_of_whole_numbers_is_refused(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"edges\.csv.*(two|CSV)"):
        collect(CsvEdges(path))


def test_damaged_gzip_is_one_error(tmp_path):
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(gzip.compress(b"0,1\n" * 10000)[:-20])
    with pytest.raises(InputError, match="edges.csv.gz"):
        collect(CsvEdges(path))
    path.write_text("0,1\n")
    with pytest.raises(InputError, match="edges.csv.gz"):
        CsvEdges(path)


@pytest.mark.parametrize(("changes", "message"), [
    ({"nodse": {}}, "unknown key 'nodse'.*did you mean 'nodes'"),
    ({"name": 3}, "'name' is 3; it must be a name"),
    ({"nodes": []}, "'nodes' must be an object"),
    ({"nodes": {"paper": 5}}, "node type 'paper'.*is 5; it must be an object with .*count"),
    ({"nodes": {"paper": {"count": PAPERS, "array": {}}}}, "did you mean 'arrays'"),
    ({"nodes": {"paper": {"count": 0}}}, "'count' is 0; it must be a whole number, 1 or more"),
    ({"nodes": {"paper": {"count": 1.5}}}, "'count' is 1.5"),
    ({"nodes": {"paper": {"count": True}}}, "'count' is True"),
    ({"edges": {}}, "'edges' must be a list"),
    ({"edges": [{"src": "paper", "etype": "cites", "dst": "paper"}]}, r"edges\[0\] lacks files"),
    ({"edges": [{"src": "papre", "etype": "cites", "dst": "paper", "files": ["x.npy"]}]},
     "'src' is 'papre', which is not in 'nodes'.*author, paper; did you mean 'paper'"),
    ({"edges": cites("edges/cites.npy") * 2}, "'paper cites paper' is named twice"),
    ({"edges": cites()}, "'files' must be a list with at least one file"),
    ({"edges": cites("edges/cites.txt")}, "names .*cites.txt, which is not a file"),
    ({"edges": cites("edges")}, "is not a file"),
    ({"edges": cites("metadata.json")}, "edge files end in .npy, .csv, .csv.gz or"),
    ({"edges": cites(7)}, "is 7; it must be the path of a file"),
    ({"edges": cites("a\0b.npy")}, "it must be the path of a file"),
    ({"edges": cites("../cites.npy")}, "'../cites.npy', which leaves"),
    ({"edges": cites("edges/../../cites.npy")}, "which leaves"),
    ({"edges": cites("/etc/passwd")}, "'/etc/passwd', which leaves"),
    ({"edges": cites("nodes/label.npy")}, r"shape \(5,\); edges must have shape \(2, "),
    ({"edges": cites("nodes/feat.npy")}, "float32 values; node ids must be integers"),
    ({"edges": cites({"src_file": "edges/src.npy", "dst_file": "nodes/label.npy"})},
     "src.npy has 3 source ids and .*label.npy has 5 destination ids"),
    ({"edges": cites({"src_file": "edges/src.npy", "dst_file": "edges/cites.npy"})},
     "must be one-dimensional"),
    ({"edges": cites({"src_file": "edges/src.npy"})}, "lacks dst_file"),
    ({"edges": cites({"src_file": "edges/src.npy", "dst": "edges/dst.npy"})}, "unknown key 'dst'"),
    ({"nodes": papers(feat="edges/src.npy")},
     r"array 'feat' of node type 'paper' \(edges/src.npy\) has 3 rows, but the type has 5 nodes"),
    ({"nodes": papers(feat="../feat.npy")}, "which leaves"),
    ({"nodes": papers(feat="metadata.json")}, "cannot read .*metadata.json as a .npy array"),
    ({"nodes": papers(train_mask="nodes/label.npy", label="nodes/label.npy")},
     "'train_mask'.*holds other values than 0 and 1"),
    ({"task": {"target": "papers"}}, "'papers' is not in the graph.*did you mean 'paper'"),
    ({"task": {"target": "author"}}, "'author' has no labels"),
    ({"task": {"target": "paper", "label": "lable"}}, "no array 'lable'.*did you mean 'label'"),
    ({"task": {"target": "paper", "num_classes": 2}}, "holds class 2, but num_classes is 2"),
    ({"task": {"target": "paper", "num_classes": 0}}, "'num_classes' is 0"),
    ({"task": {"taget": "paper"}}, "did you mean 'target'"),
    ({"task": None}, "task is None; it must be an object"),
])
def test_wrong_metadata_names_the_entry_and_what_would_be_right(tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        read_edge_files(write_edge_files(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "", "\xff", "[" * 100_000, '{"a": ' + "9" * 5000 + "x"])
def test_broken_json_is_one_error(tmp_path, text):
    (tmp_path / "metadata.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"metadata\.json"):
        open_source(tmp_path)


def test_pickled_arrays_are_refused_and_not_run(tmp_path):
    write_edge_files(tmp_path, edges=cites("bomb.npy"))
    bomb = np.empty(2, object)
    bomb[:] = Bomb(tmp_path / "ran")
    np.save(tmp_path / "bomb.npy", bomb, allow_pickle=True)
    with pytest.raises(InputError, match=r"bomb\.npy"):
        read_edge_files(tmp_path)
    (tmp_path / "bomb.npy").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(InputError, match=r"bomb\.npy"):
        read_edge_files(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_cut_and_misnamed_npy_files_are_refused(tmp_path):
    path = tmp_path / "edges.npy"
    np.save(path, np.zeros((2, 100), np.int64))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"edges\.npy"):
        NpyEdges(path)
    np.save(path, np.zeros((2, 100), np.int64))
    for wrong in (b"'shape': K2, 100)", b"'shape': [2, 100]", b"'sh\x00pe': (2, 100)"):
        header = path.read_bytes().replace(b"'shape': (2, 100)", wrong)
        (tmp_path / "header.npy").write_bytes(header)
        with pytest.raises(InputError, match=r"header\.npy"):
            NpyEdges(tmp_path / "header.npy")
    with open(path, "wb") as file:
        np.savez(file, np.zeros((2, 3), np.int64))
    with pytest.raises(InputError, match="npz archive"):
        NpyEdges(path)
    np.save(path, np.zeros((2, 100), np.int64))
    source = NpyEdges(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="ends before edge 100"):
        collect(source, 7)


def test_integer_features_become_float_only_if_exact(tmp_path):
    write_edge_files(tmp_path, nodes=papers(feat="f.npy"), task={"target": "paper"})
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    del metadata["task"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    np.save(tmp_path / "f.npy", np.arange(PAPERS))
    feat = read_edge_files(tmp_path).node_arrays["paper"]["feat"]
    assert feat.shape == (PAPERS, 1)
    assert feat.dtype == np.float32
    np.save(tmp_path / "f.npy", np.arange(PAPERS) + 2**24)
    with pytest.raises(InputError, match="cannot hold exactly"):
        read_edge_files(tmp_path)
    np.save(tmp_path / "f.npy", np.zeros((PAPERS, 2, 2)))
    with pytest.raises(InputError, match="flatten each row"):
        read_edge_files(tmp_path)
    np.save(tmp_path / "f.npy", np.array(["a"] * PAPERS))
    with pytest.raises(InputError, match="must be numbers"):
        read_edge_files(tmp_path)


def test_streaming_a_large_edge_file_needs_memory_for_a_chunk(tmp_path):
    count = 20_000_000
    path = tmp_path / "edges.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<i8", "fortran_order": False, "shape": (2, count)})
        file.truncate(file.tell() + 2 * 8 * count)
    code = """
        import resource, sys
        from pathlib import Path
        from dgl_heta.graph.readers.files import NpyEdges
        source = NpyEdges(Path(sys.argv[1]))
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        before, edges = peak(), 0
        for src, dst in source.chunks(1 << 20):
            edges += len(src) + int(dst.sum())
        assert edges == source.num_edges == 20_000_000
        print(peak() - before)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], cwd=ROOT,
                         capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 100


def test_reading_edge_files_imports_neither_dgl_nor_torch(tmp_path):
    write_edge_files(tmp_path)
    code = ("import sys, dgl_heta.graph.readers as r\n"
            "r.open_source(sys.argv[1]).schema()\n"
            "print(sorted({'dgl', 'torch', 'ogb'} & sys.modules.keys()))")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True,
                         capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout.strip() == "[]"


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
    paper["label"] = torch.zeros(PAPERS, 4)
    source = read_dgl_graph(mag, "tiny")
    assert source.task is None
    assert "one class per node" in source.info["notes"][0]
    with pytest.raises(InputError, match="one class per node"):
        read_dgl_graph(mag, "tiny", target="paper")
    paper["label"] = torch.tensor([-1, 0, 0, 0, 0])
    with pytest.raises(InputError, match="1 training nodes of 'paper' have no label"):
        read_dgl_graph(mag, "tiny", target="paper")


# --- OGB -----------------------------------------------------------------------------------

needs_ogb = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="needs ogb")


def csv_gz(path: Path, rows, header: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        if header is not None:
            file.write(header + "\n")
        for row in rows:
            file.write(",".join(str(x) for x in np.atleast_1d(row)) + "\n")


def write_ogb_mag(root: Path) -> Path:
    """ogbn-mag's layout with the graph of the constants above."""
    directory = root / "ogbn_mag"
    raw, split = directory / "raw", directory / "split" / "time"
    csv_gz(raw / "num-node-dict.csv.gz", [[AUTHORS, PAPERS]], "author,paper")
    csv_gz(raw / "triplet-type-list.csv.gz", [list(r) for r in EDGES])
    for relation, edges in EDGES.items():
        folder = raw / "relations" / "___".join(relation)
        csv_gz(folder / "edge.csv.gz", edges.T)
        csv_gz(folder / "num-edge-list.csv.gz", [edges.shape[1]])
        csv_gz(folder / "edge_reltype.csv.gz", [[0]] * edges.shape[1])
    csv_gz(raw / "node-feat/paper/node-feat.csv.gz", FEAT)
    csv_gz(raw / "node-feat/paper/node_year.csv.gz", LABEL + 2010)
    csv_gz(raw / "nodetype-has-label.csv.gz", [["False", "True"]], "author,paper")
    csv_gz(raw / "node-label/paper/node-label.csv.gz", LABEL)
    csv_gz(split / "nodetype-has-split.csv.gz", [["False", "True"]], "author,paper")
    for name, ids in SPLIT.items():
        csv_gz(split / f"paper/{name}.csv.gz", ids)
    (directory / "processed").mkdir()
    (directory / "RELEASE_v2.txt").write_text("release\n")
    return directory


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
def test_ogb_data_set_of_many_labels_has_no_task(tmp_path):
    directory = write_ogb_plain(tmp_path, "ogbn_proteins", "species")
    csv_gz(directory / "raw/node-label.csv.gz", np.eye(PAPERS, 3, dtype=int))
    source = read_ogb("ogbn-proteins", tmp_path)
    assert source.task is None
    assert source.node_arrays["node"]["label"].shape == (PAPERS, 3)
    assert "one class per node" in source.info["notes"][0]


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
    ("raw/node-feat/paper/node-feat.csv.gz", packed(b"0,1\n"), "'feat'.*has 1 rows"),
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


# --- GraphBolt -----------------------------------------------------------------------------


def write_graphbolt(directory: Path, fmt: str = "numpy", edges: str = "csv", **changes) -> Path:
    """A GraphBolt data set with the graph of the constants above, item sets for paper."""
    yaml = pytest.importorskip("yaml")
    (directory / "data").mkdir(parents=True, exist_ok=True)

    def save(name: str, array: np.ndarray) -> dict:
        path = f"data/{name}.{'npy' if fmt == 'numpy' else 'pt'}"
        if fmt == "numpy":
            np.save(directory / path, array)
        else:
            import torch
            torch.save(torch.from_numpy(np.ascontiguousarray(array)), directory / path)
        return {"format": fmt, "path": path}

    entries = []
    for relation, pairs in EDGES.items():
        path = f"data/{relation.etype}.{'csv' if edges == 'csv' else 'npy'}"
        if edges == "csv":
            (directory / path).write_text("".join(f"{u},{v}\n" for u, v in pairs.T))
        else:
            np.save(directory / path, pairs)
        entries.append({"type": ":".join(relation), "format": edges, "path": path})
    ids = {key: np.array(value) for key, value in SPLIT.items()}
    task = {"name": "node_classification", "num_classes": CLASSES}
    for key, which in (("train_set", "train"), ("validation_set", "valid"), ("test_set", "test")):
        task[key] = [{"type": "paper", "data": [
            {"name": "seed_nodes", **save(f"{which}-seeds", ids[which])},
            {"name": "labels", **save(f"{which}-labels", LABEL[ids[which]])}]}]
    metadata = {
        "dataset_name": "tiny",
        "graph": {"nodes": [{"type": "paper", "num": PAPERS}, {"type": "author", "num": AUTHORS}],
                  "edges": entries},
        "feature_data": [
            {"domain": "node", "type": "paper", "name": "feat", "in_memory": False,
             **save("feat", FEAT)},
            {"domain": "node", "type": "paper", "name": "year", **save("year", LABEL + 2010)},
            {"domain": "node", "type": "author", "name": "emb",
             **save("emb", np.ones((AUTHORS, 1), np.float64))},
            {"domain": "edge", "type": "paper:cites:paper", "name": "weight",
             **save("weight", np.ones(EDGES[CITES].shape[1], np.float32))}],
        "tasks": [task],
    }
    for key, value in changes.items():
        metadata[key] = value(metadata[key]) if callable(value) else value
    (directory / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    return directory


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
     "has 2 seeds and 5 labels"),
    ({"tasks": in_train_set(data=[{**SEEDS, "path": "data/year.npy"}])}, "names node 2012"),
    ({"tasks": in_train_set(data=[{**SEEDS, "path": "data/feat.npy"}])}, None),
    ({"tasks": in_train_set(data=[SEEDS])}, "2 training nodes of 'paper' have no label"),
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


# --- torch files ---------------------------------------------------------------------------


def test_tensors_are_read_as_torch_reads_them(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(24).reshape(2, 3, 4)
    tensors = [base.to(getattr(torch, name)) for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool")]
    tensors += [base.transpose(0, 2), base[1, :, ::2], base[:, :0], torch.tensor(5),
                torch.nn.Parameter(torch.ones(3)), torch.ones(1).expand(4), torch.empty(0)]
    path = tmp_path / "t.pt"
    for tensor in tensors:
        for protocol in (2, 4):
            torch.save(tensor, path, pickle_protocol=protocol)
            array = read_tensor(path)
            expected = tensor.detach()
            if expected.dtype == torch.bfloat16:
                expected = expected.float()
            assert array.dtype == expected.numpy().dtype
            np.testing.assert_array_equal(array, expected.numpy())


def test_torch_files_cannot_run_code(tmp_path):
    torch = pytest.importorskip("torch")
    path, ran = tmp_path / "t.pt", tmp_path / "ran"
    torch.save(Bomb(ran), path)
    with pytest.raises(InputError, match="it asks to call"):
        read_tensor(path)
    torch.save(torch.ones(3), path, _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"t\.pt.*save it again as \.npy"):
        read_tensor(path)
    path.write_bytes(pickle.dumps(Bomb(ran)))
    with pytest.raises(InputError, match="one dense tensor"):
        read_tensor(path)
    assert not ran.exists()


def test_torch_files_with_something_else_or_a_lie_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "t.pt"
    for value in ([torch.ones(1)], {"a": 1}, 3, torch.eye(3).to_sparse(),
                  torch.ones(2, dtype=torch.complex64)):
        torch.save(value, path)
        with pytest.raises(InputError, match=r"t\.pt as one dense tensor"):
            read_tensor(path)
    torch.save(torch.ones(6).reshape(2, 3), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pkl,) = [name for name in members if name.endswith("data.pkl")]
    shape = b"K\x02K\x03\x86"
    assert members[pkl].count(shape) == 1
    for changed in (b"K\x09K\x03\x86", b"K\x02K\xff\x86", b"J\xff\xff\xff\xffK\x03\x86", b""):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content.replace(shape, changed) if name == pkl else content)
        with pytest.raises(InputError, match=r"t\.pt as one dense tensor"):
            read_tensor(path)


# --- detection -----------------------------------------------------------------------------


def test_the_kind_of_a_directory_is_recognised(tmp_path):
    assert detect(tmp_path) is None
    assert detect(tmp_path / "nothing") is None
    assert detect(write_edge_files(tmp_path / "a")) == "edges"
    assert detect(write_graphbolt(tmp_path / "b")) == "graphbolt"
    assert detect(write_ogb_mag(tmp_path)) == "ogb"
    (tmp_path / "metadata.json").write_text('{"version": 1}')
    assert detect(tmp_path) is None
    check_mag(open_source(str(tmp_path / "a")))


@needs_ogb
def test_ogb_by_name_or_by_directory(tmp_path):
    directory = write_ogb_mag(tmp_path)
    assert len(open_source("ogbn-mag", root=tmp_path).edges) == 4
    assert len(open_source(directory, reverse=False).edges) == 2
    with pytest.raises(InputError, match=r"expected in dataset/ogbn_products"):
        open_source("ogbn-products")


def test_what_cannot_be_read_says_what_would_be_right(tmp_path):
    for path, found in ((tmp_path, "holds none"), (tmp_path / "no", "does not exist"),
                        (Path(__file__), "is a file")):
        with pytest.raises(InputError, match=f"{found}.*metadata.json.*metadata.yaml.*ogbn-mag"):
            open_source(path)
    write_edge_files(tmp_path)
    with pytest.raises(InputError, match="reader 'edges' has no option 'reverse'; options: .none."):
        open_source(tmp_path, reverse=True)
    os.chmod(tmp_path / "metadata.json", 0)
    if not os.access(tmp_path / "metadata.json", os.R_OK):
        with pytest.raises(InputError, match=r"cannot read .*metadata\.json"):
            open_source(tmp_path)


# --- what expands -----------------------------------------------------------------------------


def expanding_yaml(levels: int, merged: bool) -> str:
    """A few lines that stand for 8 ** levels entries."""
    lines = ["a0: &a0 {k: v}"] + [
        f"a{i}: &a{i} {{k{i}: [{', '.join([f'*a{i - 1}'] * 8)}]}}" for i in range(1, levels)]
    last = f"*a{levels - 1}"
    return "\n".join([*lines, f"graph: {{<<: [{', '.join([last] * 8)}]}}" if merged
                      else f"graph: [{last}]"])


@pytest.mark.parametrize("merged", [False, True])
def test_yaml_references_expand_within_limits(tmp_path, merged):
    pytest.importorskip("yaml")
    (tmp_path / "metadata.yaml").write_text(expanding_yaml(12, merged))
    with pytest.raises(InputError, match=r"metadata\.yaml has more than 200,000 entries"):
        read_graphbolt(tmp_path)
    for text in ("a: &a [*a]", "graph: " + "[" * 200 + "]" * 200, "{" * 100_000):
        (tmp_path / "metadata.yaml").write_text(text)
        with pytest.raises(InputError, match=r"metadata\.yaml is not YAML: it is nested too"):
            read_graphbolt(tmp_path)


def test_yaml_references_that_are_few_are_followed(tmp_path):
    yaml = pytest.importorskip("yaml")
    write_graphbolt(tmp_path)
    data = yaml.safe_load((tmp_path / "metadata.yaml").read_text())
    data["tasks"].append(data["tasks"][0])  # which PyYAML writes as a reference
    (tmp_path / "metadata.yaml").write_text(yaml.dump(data))
    assert "*id" in (tmp_path / "metadata.yaml").read_text()
    assert read_graphbolt(tmp_path).task is not None


@pytest.mark.parametrize("damage", ["compressed", "repeated", "hashed", "named"])
def test_torch_files_do_not_expand(tmp_path, damage):
    torch = pytest.importorskip("torch")
    path = tmp_path / "t.pt"
    torch.save(torch.zeros(1).expand(2, 3), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pkl,) = [name for name in members if name.endswith("data.pkl")]
    doubled = b"K\x01\x85" + b"".join(
        bytes([ord("q"), i, ord("h"), i, ord("h"), i, 0x86]) for i in range(1, 60))
    members[pkl] = {
        "compressed": members[pkl],
        "repeated": members[pkl].replace(b"K\x02K\x03", b"J\xff\xff\xff\x00J\xff\xff\xff\x00"),
        "hashed": b"\x80\x02}" + doubled + b"K\x01s.",
        "named": b"\x80\x04" + doubled + b"\x8c\x01a\x93.",
    }[damage]
    if damage == "compressed":
        members[next(n for n in members if n.endswith("data/0"))] = bytes(200 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if damage == "compressed"
                         else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=r"t\.pt as one dense tensor.*("
                       "compressed|repeats|neither texts, numbers|by what is no text)"):
        read_tensor(path)


@needs_ogb
@pytest.mark.parametrize(("file", "lines"), [
    ("relations/paper___cites___paper/edge.csv.gz", b"0,1\n1,1e4294967297\n"),
    ("relations/paper___cites___paper/num-edge-list.csv.gz", b"4.0\n"),
    ("node-feat/paper/node-feat.csv.gz", b"0.5,1\n1e2147483648,2\n"),
    ("num-node-dict.csv.gz", b"author,paper\n1e99999999999,5\n"),
    ("node-label/paper/node-label.csv.gz", b"\n" * (80 << 20)),
])
def test_ogb_numbers_that_pandas_would_misread_are_named(tmp_path, file, lines):
    directory = write_ogb_mag(tmp_path)
    (directory / "raw" / file).write_bytes(gzip.compress(lines, 1))
    with pytest.raises(InputError, match=rf"{Path(file).name}(, line \d: '.*' is not| expands)"):
        open_source(directory)
