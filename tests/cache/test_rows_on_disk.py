"""Rows that are read from a file: directly, past the cache, and what a miss takes."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from dgl_heta.cache.cached_rows import CachedRows
from dgl_heta.cache.cached_table import CachedTable
from dgl_heta.cache.penalties import Penalty, measure
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features import direct_reads as direct_io
from dgl_heta.features.disk_tables import DiskTables
from dgl_heta.features.row_files import DirectRows, MappedRows
from tests.support.caches import CPU


@pytest.fixture
def on_disk(tmp_path):
    """Makes a memory-mapped array whose file can be read directly, or skips."""
    def make(rows: int, width: int, dtype: str = "f4") -> np.ndarray:
        array = np.random.default_rng(3).standard_normal((rows, width)).astype(dtype)
        np.save(tmp_path / "rows.npy", array)
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        try:
            DirectRows(mapped)
        except InputError as error:
            pytest.skip(f"no direct reads here: {error}")
        return mapped
    return make


@pytest.fixture(params=["asynchronous", "threads"])
def way(request, monkeypatch):
    """How direct reads are made; the choice is kept, so it is forgotten before and after."""
    direct_io._context.cache_clear()
    if request.param == "threads":
        monkeypatch.setenv("DGL_HETA_READS", "threads")
    elif direct_io._context(os.getpid()) is None:
        pytest.skip("asynchronous reads are not allowed here")
    yield request.param
    direct_io._context.cache_clear()


def test_rows_after_an_interrupt_are_those_that_are_asked_for(
        on_disk, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that were under way come later: not into these rows, and they count as none of them."""
    array = on_disk(20_000, 512)
    source, rng, rounds = DirectRows(array), np.random.default_rng(0), iter(range(3))

    def interrupt(*given: object) -> int:
        if next(rounds, 0) == 1:
            raise KeyboardInterrupt
        return plain(*given)

    where, name = ((direct_io._Context, "_call") if way == "asynchronous" else
                   (direct_io.Extents, "finish"))
    plain = getattr(where, name)
    monkeypatch.setattr(where, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        source.read(rng.integers(0, 20_000, 600))
    for size in (3, 40, 700):
        ids = rng.integers(0, 20_000, size)
        np.testing.assert_array_equal(source.read(ids), array[ids])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("rows", "width", "dtype"), [
    (1, 1, "f4"), (5000, 7, "f4"), (3000, 789, "f4"), (40, 70_000, "f2"), (1000, 3, "f8"),
    (20_000, 1, "f2")])
def test_direct_reads_are_the_rows(on_disk, rows: int, width: int, dtype: str) -> None:
    array = on_disk(rows, width, dtype)
    source, rng = DirectRows(array), np.random.default_rng(0)
    for ids in (np.empty(0, np.int64), np.arange(rows), rng.integers(0, rows, 3 * rows // 2),
                np.array([rows - 1, 0, rows - 1])):
        np.testing.assert_array_equal(source.read(ids), array[ids])


@pytest.mark.usefixtures("way")
def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_rows_of_zeros(on_disk) -> None:
    array = on_disk(5000, 16)
    source = DirectRows(array)
    with open(array.filename, "r+b") as file:
        file.truncate(8192)
    with pytest.raises(HetaError, match="truncated while it was read"):
        source.read(np.arange(5000))


def test_direct_reads_need_a_file() -> None:
    with pytest.raises(InputError, match="memory-mapped"):
        DirectRows(np.zeros((3, 3)))


def test_penalties_are_what_a_miss_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dgl_heta.cache.penalties.time.perf_counter", lambda: now)

    def slow(ids: np.ndarray) -> None:
        nonlocal now
        now += 1e-4 * len(ids)

    found = measure(10_000, 40, slow, lambda ids: None, 10_000)
    assert found.at(64) == found.at(10**6) == pytest.approx(1e-4 / 40)
    between = Penalty(10, {64: (0.64, 0.0), 128: (0.64, 0.0)})
    assert [between.at(n) for n in (1, 64, 96, 128, 1000)] == pytest.approx(
        [1e-3, 1e-3, 0.64 / 960, 5e-4, 5e-4])
    assert between.at(0) == 0
    free = measure(10_000, 40, slow, slow, 10_000)
    assert free.at(64) == 0
    assert Penalty.from_json(found.to_json()) == found
    assert measure(0, 4, slow, slow, 0).at(1) == 0
    with pytest.raises(ValueError, match="nan"):
        Penalty.from_json({"row_bytes": 4, "seconds": {"64": [float("nan"), 1.0]}})


def test_rows_of_a_file_that_does_not_fit_in_memory(on_disk, tmp_path) -> None:
    """They are asked for beforehand, and are the same."""
    rng, array = np.random.default_rng(0), on_disk(3000, 7)
    source = MappedRows(array)
    source.expect_misses()
    cached = CachedRows(source, np.arange(0, 3000, 4))
    table = DiskTables(tmp_path, fits=False)("x", 3000, 7, torch.float32)
    assert table.prefetch is not None
    table.value.copy_(torch.from_numpy(np.array(array)))
    tables = (table, CachedTable(table, np.arange(0, 3000, 3)))
    for ids in (rng.integers(0, 3000, 500), np.empty(0, np.int64), np.array([2999])):
        source.evict()
        assert table.evict is not None
        table.evict()
        np.testing.assert_array_equal(source.read(ids), array[ids])
        np.testing.assert_array_equal(cached.read(ids).numpy(), array[ids])
        for each in tables:
            np.testing.assert_array_equal(each.read(ids, CPU).numpy(), array[ids])
