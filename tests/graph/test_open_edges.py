"""A file of edges by its name: .npy, CSV, Parquet."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from dgl_heta import InputError, Relation, open_edges
from dgl_heta.graph.readers import read_edge_files

EDGES = np.array([[0, 5, 2, 2, 7], [1, 0, 2, 6, 3]])


def parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def written(directory, ending):
    path = directory / f"edges{ending}"
    lines = "".join(f"{u},{v}\n" for u, v in EDGES.T)
    if ending == ".npy":
        np.save(path, EDGES)
    elif ending == ".parquet":
        parquet(path, time=np.arange(5), src=EDGES[0], dst=EDGES[1].astype(np.uint32))
    else:
        path.write_bytes(lines.encode() if ending == ".csv" else gzip.compress(lines.encode()))
    return path


@pytest.mark.parametrize("ending", [".npy", ".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_edges_come_in_chunks_as_often_as_asked(tmp_path, ending, size):
    edges = open_edges(written(tmp_path, ending))
    assert edges.num_edges == 5
    for _ in range(2):
        chunks = list(edges.chunks(size))
        assert max(len(src) for src, _ in chunks) <= size
        np.testing.assert_array_equal(np.concatenate(chunks, axis=1), EDGES)


def test_a_relation_may_be_in_parquet(tmp_path):
    written(tmp_path, ".parquet")
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"a": {"count": 8}},
        "edges": [{"src": "a", "etype": "r", "dst": "a", "files": ["edges.parquet"]}]}))
    assert read_edge_files(tmp_path).edges[Relation("a", "r", "a")].num_edges == 5


def test_dictionary_encoded_ids_are_ids(tmp_path):
    pa = pytest.importorskip("pyarrow")
    src, dst = (pa.array(ids.tolist()).dictionary_encode() for ids in EDGES)
    path = parquet(tmp_path / "edges.parquet", src=src, dst=dst)
    np.testing.assert_array_equal(
        np.concatenate(list(open_edges(path).chunks(3)), axis=1), EDGES)
    parquet(path, src=src, dst=pa.array([1, 0, None, 6, 3]).dictionary_encode())
    with pytest.raises(InputError, match="an edge without an end"):
        list(open_edges(path).chunks(10))


@pytest.mark.parametrize(("columns", "message"), [
    ({"src": [0, 1]}, "has columns src; edges are the columns src and dst"),
    ({"a": [0], "b": [0], "c": [0]}, "has columns a, b, c"),
    ({"src": [0.5], "dst": [1]}, "column 'src' of .* holds double values"),
    ({"src": [[0], [1]], "dst": [1, 2]}, r"column 'src' of .* holds list<.*> values"),
    ({"src": [0, None], "dst": [1, 2]}, "an edge without an end"),
])
def test_parquet_that_is_not_edges_is_refused(tmp_path, columns, message):
    path = parquet(tmp_path / "edges.parquet", **columns)
    with pytest.raises(InputError, match=message):
        list(open_edges(path).chunks(10))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "edges.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot read .*Parquet"):
        open_edges(tmp_path / "edges.parquet")
    with pytest.raises(InputError, match=r"none\.npy is not a file"):
        open_edges(tmp_path / "none.npy")
    with pytest.raises(InputError, match=r"they end in \.csv, \.csv\.gz, \.npy, \.parquet, \.tsv"):
        open_edges(tmp_path / "edges.dat")
