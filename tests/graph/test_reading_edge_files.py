"""Readers of edge files: metadata.json beside .csv and .npy."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    open_source,
    read_edge_files,
)
from dgl_heta.graph.readers.array_files import CsvEdges, NpyEdges
from dgl_heta.graph.source import EdgeSource, JoinedEdges, Task
from tests.support.reading import (
    AUTHORS,
    CITES,
    CLASSES,
    PAPERS,
    ROOT,
    WRITES,
    Bomb,
    check_mag,
    collect,
    write_edge_files,
)
from tests.support.waiting import PATIENCE


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


def test_a_target_that_is_no_node_type_is_named_with_the_nearest(tmp_path):
    write_edge_files(tmp_path, task={"target": "papr", "split": [0.8, 0.1, 0.1]})
    with pytest.raises(InputError, match="'papr' is not in the graph.*did you mean 'paper'"):
        read_edge_files(tmp_path)


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
    '"src","dst"\r\n0, 1\r\n2, 3\r\n', '"0","1"\n"2","3"\n', "src;dst\r\n0;1\r\n2; 3\r\n",
    "src\tdst\n0\t1\n2\t\t3\n", '"0"\t"1"\n2 \t 3', "src,dst\r0,1\r2,3\r", "src,dst\r0,1\n2,3\n",
    "\r\r\nsrc,dst\r\r\n0,1\r\r\n2,3\r\r\n",
])
def test_csv_with_and_without_header(tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_bytes(text.encode())
    source = CsvEdges(path)
    assert source.num_edges == 2
    np.testing.assert_array_equal(collect(source, 1), [[0, 2], [1, 3]])


@pytest.mark.parametrize("text", [
    "0,1\n2\n", "0,1\n2,3,4\n", "0\n1\n", "0,1,2\n", "0,1\n2,x\n", "0,1\nnan,3\n", "0,1.5\n",
    "0,x\n1,2\n", "0,1\n,\n", f"0,1\n{10**30},3\n", "0 1\n", "0:1\n",
    "0;1;2\n", "0\t1\t2\n", "\x00\x01,\xff\n1,2,3\n",
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
    ({"edges": cites("edges/none*.npy")}, r"'edges/none\*.npy', but there is no such file in"),
    ({"edges": cites("metadata.json")}, r"not a file of edges by its name; they end in \.csv, "),
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
    ({"nodes": papers(feat="metadata.json")}, "metadata.json does not begin as a .npy file"),
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


def test_a_key_that_stands_twice_is_named(tmp_path):
    (tmp_path / "metadata.json").write_text('{"name": "g", "nodes": {"a": {}, "a": {}}}')
    with pytest.raises(InputError, match=r"metadata\.json has 'a' twice in one object"):
        read_edge_files(tmp_path)


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
        from dgl_heta.graph.readers.array_files import NpyEdges
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


@pytest.mark.parametrize("files", [
    [{"src_file": "s.npy", "dst_file": "d.npy"}] * 2, ["s.npy", "./s.npy"], ["s.npy", "same.npy"]])
def test_a_file_is_read_once(tmp_path, files):
    """Also by another name."""
    for name in ("s.npy", "d.npy"):
        np.save(tmp_path / name, np.zeros((2, 2), np.int64))
    (tmp_path / "same.npy").symlink_to("s.npy")
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"paper": {"count": 3}}, "edges": cites(*files)}))
    with pytest.raises(InputError, match=r"files\[1\] is .* again; a file is read once"):
        read_edge_files(tmp_path)


def test_names_of_columns_that_the_file_has_are_not_given_again(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\nu,v\n")
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"paper": {}}, "edges": [
            {**cites("e.csv")[0], "header": ["src", "dst"]}]}))
    with pytest.raises(InputError, match=r"e\.csv has the names of its columns in its first line"):
        read_edge_files(tmp_path)
