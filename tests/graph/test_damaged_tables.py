"""Damaged tables are refused by name, and tables that would take all memory are not read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta import InputError, open_edges
from tests.support.tables import described, relation, table

pa = pytest.importorskip("pyarrow")
pcsv = pytest.importorskip("pyarrow.csv")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize(("kind", "step", "count"), [
    ("arrow", 2, 150), ("feather", 4, 150), ("parquet", 4, 150), ("csv.gz", 8, 200)])
def test_a_damaged_table_is_read_or_refused_and_never_ends_the_process(
        kind: str, step: int, count: int) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.support.damaged_tables", kind, str(step),
                           str(count)], capture_output=True, text=True, timeout=600)
    assert not done.returncode, f"{done.stdout[-20:]}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["refused"] > 30 < found["read"]


LONG = "x" * 1_000_000
SAME = np.zeros(3000, np.int64)


def views() -> Any:
    """3,000 views of one long text."""
    one = pa.array([LONG], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), 3000, [
        None, pa.py_buffer(one[1].to_pybytes() * 3000), *one[2:]])


def bombs() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Files of some kB: a column that takes from 80 MB to 16 GB, and how it is written."""
    same = pa.DictionaryArray.from_arrays(pa.array(SAME), [LONG])
    return {
        "dictionary.parquet": (same, {}),
        "delta.parquet": (pa.array([LONG] * 1000), {"use_dictionary": False, "column_encoding": {
            "c": "DELTA_BYTE_ARRAY"}}),
        "packed.parquet": (pa.array([LONG] * 80), {"use_dictionary": False}),
        "zeros.parquet": (pa.array(np.zeros(10_000_000)), {}),
        "rows.parquet": (pa.nulls(50_000_000, pa.int8()), {}),
        "lists.parquet": (pa.array([[0.0] * 100_000] * 100), {}),
        "lists.arrow": (pa.array([[1] * 100_000] * 100, pa.list_(pa.int8())),
                        {"compression": "zstd"}),
        "packed.arrow": (pa.array(["\0" * 1_000_000] * 80), {"compression": "zstd"}),
        "dictionary.arrow": (same, {"compression": "zstd"}),
        "dictionary.feather": (same, {}),
        "views.arrow": (views(), {}),
        "rows.arrow": (pa.nulls(2_000_000_000), {}),
        "runs.arrow": (pa.RunEndEncodedArray.from_arrays(
            pa.array([2_000_000_000], pa.int32()), ["a"]), {})}


READ = """
import resource, sys
from pathlib import Path
from dgl_heta.errors import InputError
from dgl_heta.graph.readers.column_files import open_columns
from dgl_heta.system.memory import peak_rss_mb
import pyarrow.ipc, pyarrow.parquet
before = peak_rss_mb()
for path in sys.argv[1:]:
    try:
        open_columns(Path(path)).read(["c"])
        print("read", path)
    except InputError as error:
        print(error)
print(peak_rss_mb() - before)
"""


def test_a_table_cannot_take_very_much_more_memory_than_its_size(tmp_path: Path) -> None:
    files = bombs()
    for name, (values, options) in files.items():
        whole = pa.table({"c": values})
        if name.endswith(".parquet"):
            pq.write_table(whole, tmp_path / name, compression="zstd", **options)
        else:
            with pa.ipc.new_file(str(tmp_path / name), whole.schema,
                                 options=pa.ipc.IpcWriteOptions(**options)) as writer:
                writer.write_table(whole)
        assert (tmp_path / name).stat().st_size < 2_000_000
    *said, grown = subprocess.run(
        [sys.executable, "-c", READ, *(str(tmp_path / name) for name in files)],
        capture_output=True, text=True, timeout=600, check=True).stdout.splitlines()
    for name, line in zip(files, said, strict=True):
        assert re.match(rf"{re.escape(str(tmp_path / name))} would take [0-9,]+ bytes of memory, "
                        "more than 200 times its size and 64 MiB; ", line), line
    assert float(grown) < 400, "MB of memory"


def test_edges_of_numbers_in_parquet_have_the_same_limit(tmp_path: Path) -> None:
    zeros = np.zeros(10_000_000, np.int64)
    pq.write_table(pa.table({"src": zeros, "dst": zeros}), tmp_path / "e.parquet")
    with pytest.raises(InputError, match="would take 160,000,000 bytes of memory"):
        next(open_edges(tmp_path / "e.parquet").chunks(10))


def test_features_have_a_limit(tmp_path: Path) -> None:
    table(tmp_path, "a.parquet", id=np.arange(300_000), c=np.arange(300_000) % 1000)
    table(tmp_path, "e.parquet", src=[0], dst=[1])
    with pytest.raises(InputError, match="would take 1,200,000,000 bytes: 300,000 nodes, 1,000"):
        described(tmp_path, {"a": {"table": "a.parquet", "features": {"c": "category"}}, "b": {}},
                  [relation()])


@pytest.mark.parametrize("ending", ["arrow", "csv"])
def test_columns_that_nobody_names_cost_little(tmp_path: Path, ending: str) -> None:
    """Where each cost what all cost, these took 20 s and more."""
    names = [f"c{i}" for i in range(30_000)]
    wide = pa.table({"src": ["x"], "dst": ["y"], **{name: [0.5] for name in names}})
    if ending == "arrow":
        with pa.ipc.new_file(str(tmp_path / "t.arrow"), wide.schema) as writer:
            writer.write_table(wide)
    else:
        pcsv.write_csv(wide, tmp_path / "t.csv")
    started = time.process_time()
    source = described(tmp_path, {"a": {"table": f"t.{ending}", "id": "src", "features": {
        "c5": "vector", "c29999": "vector"}}, "b": {}}, [relation(files=[f"t.{ending}"])])
    assert time.process_time() - started < 6
    assert source.node_arrays["a"]["feat"].tolist() == [[0.5, 0.5]]
