"""What a user gets from edges in CSV files, and what is said of lines that are something else."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import whole_numbers
from dgl_heta.graph.readers.array_files import CsvEdges


def collect(source: CsvEdges, size: int = 1 << 20) -> np.ndarray:
    chunks = list(source.chunks(size))
    assert all(len(src) <= size for src, _ in chunks)
    return np.concatenate([np.stack(chunk) for chunk in chunks], 1)


@pytest.mark.parametrize(("field", "said"), [
    ("1e2147483648", "not two whole numbers"), ("1e4294967297", "not two whole numbers"),
    ("1e-99999999999", "not two whole numbers"), ("1e0", "not two whole numbers"),
    ("1_0", "not two whole numbers"), ("9223372036854775808", "does not fit in 64 bits"),
    ("1" * 5000, "does not fit in 64 bits"), ("\u0663", "not two whole numbers"),
])
def test_ids_are_never_read_by_way_of_floating_point(tmp_path, field, said):
    path = tmp_path / "edges.csv"
    path.write_text("src,dst\n0,1\n\n2," + field + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"edges\.csv, line 4: '2,{field[:20]}.*{said}") as caught:
        collect(CsvEdges(path))
    assert len(str(caught.value)) < 400 + len(str(path))


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 300)), min_size=1),
       st.sampled_from(["{},{}\n", "{},{}\r\n", '"{}" ,\t"{}"\r', "\n +{}, {} \n"]),
       st.integers(1, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_gives_the_numbers_that_are_written(tmp_path, edges, form, size):
    path = tmp_path / "edges.csv"
    path.write_bytes("".join(form.format(*edge) for edge in edges).encode())
    np.testing.assert_array_equal(collect(CsvEdges(path), size).T, edges)


def test_csv_blocks_end_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_numbers, "_BLOCK", 7)
    edges = np.arange(60).reshape(30, 2) * 997
    path = tmp_path / "edges.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("src,dst\r\n" + "".join(f"{u},{v}\r\n" for u, v in edges))
    for size in (1, 4, 100):
        np.testing.assert_array_equal(collect(CsvEdges(path), size).T, edges)


@pytest.mark.parametrize("lines", [b"0,1\n" + b"1" * (80 << 20), b"0,1\n" + b"\n" * (80 << 20)])
def test_gzip_does_not_expand_without_limit(tmp_path, lines):
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(gzip.compress(lines, 1))
    with pytest.raises(InputError, match=r"edges\.csv\.gz.*(more than 65536|expands to more)"):
        collect(CsvEdges(path))
