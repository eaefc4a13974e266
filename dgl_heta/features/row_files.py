"""Where the rows of a static feature come from: a memory-mapped array, or direct reads of a file.

Whatever has rows is read in one way, :meth:`RowReader.read`: a source, a cache before it
(:class:`dgl_heta.cache.cached_rows.CachedRows`), a table of learnable rows. Readers do not look at
ids: those of our own sampler are in range, and those of others are checked once, where they come in
(:func:`dgl_heta.features.row_kernels.check_ids`).

`mapped` rows go through the page cache. `direct` ones do not: each read goes to the disk, many at
a time (:mod:`dgl_heta.features.direct_reads`), and the page cache is left to others. That is faster
where features are larger than memory, because a mapped array reads one page after another.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.features.direct_reads import BLOCK, Extents, prefetch, read_extents
from dgl_heta.features.row_kernels import gather_rows, gather_to, scatter_from
from dgl_heta.system.jit import kernel

_EXTENTS = 4096  # blocks or runs of blocks per round
_RUN = 64  # blocks in one read at most, unless a row has more
_ARENA = 16 * 2**20  # bytes read per round, unless a row has more


CPU = torch.device("cpu")


class RowReader(Protocol):
    """Rows of two-dimensional data that can be read by id."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, width)."""

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        """The rows `ids` (int64, in range), in their order, on a device: (ids, width)."""


class RowSource(RowReader, Protocol):
    """All rows of a static feature, which a cache can be put before.

    Attributes
    ----------
    dtype : of the rows as they are stored, of any byte order.
    """

    dtype: np.dtype

    def read_to(self, ids: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """`out[places] = rows[ids]`, of the stored dtype; places are int64, each once."""


class MappedRows:
    """Rows of an array in memory or mapped from a file."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype
        self.cold: int | None = None
        """Descriptor of the file, if it does not fit in memory: rows are asked for beforehand."""

    def __del__(self) -> None:
        if self.cold is not None:
            os.close(self.cold)

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        if device.type == "cuda" and self.dtype.isnative:
            return through_pinned(self, ids, device)
        self._ask(ids)
        return move(as_tensor(gather_rows(self.array, ids)), device)

    def read_to(self, ids: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        self._ask(ids)
        gather_to(self.array, ids, out, places)

    def _ask(self, ids: np.ndarray) -> None:
        if self.cold is not None:
            prefetch(self.cold, int(self.array.offset),  # type: ignore[attr-defined]
                     self.array.shape[1] * self.array.itemsize, ids)

    def expect_misses(self) -> None:
        """The file will not fit in memory: read many rows at once, and none ahead."""
        if isinstance(self.array, np.memmap) and hasattr(mmap, "MADV_RANDOM"):
            mapping: Any = self.array._mmap  # type: ignore[attr-defined]
            mapping.madvise(mmap.MADV_RANDOM)
            if self.cold is None:
                self.cold = os.open(str(self.array.filename), os.O_RDONLY)

    def evict(self) -> None:
        """Drop the rows from memory, as far as no other process has them mapped."""
        if not isinstance(self.array, np.memmap) or not hasattr(os, "posix_fadvise"):
            return
        mapping: Any = self.array._mmap  # type: ignore[attr-defined]
        mapping.madvise(mmap.MADV_DONTNEED)
        handle = os.open(str(self.array.filename), os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def open_rows(arrays: Mapping[str, np.ndarray], reads: str, fits: bool) -> dict[str, RowSource]:
    """Sources of memory-mapped arrays, all read in one way.

    Parameters
    ----------
    reads : "mapped", "direct", or "auto": direct if the files do not fit in memory, and if their
        file system has direct reads.
    fits : whether they do.

    Raises
    ------
    InputError
        Direct reads are asked for, and there are none.
    """
    if reads == "direct" or (reads == "auto" and not fits):
        try:
            return {name: DirectRows(array) for name, array in arrays.items()}
        except InputError:
            if reads == "direct":
                raise
    mapped = {name: MappedRows(array) for name, array in arrays.items()}
    for source in mapped.values():
        if not fits:
            source.expect_misses()
    return {**mapped}


class CalledRows:
    """Rows that a function reads, of which a cache may hold copies."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype,
                 read: Callable[[np.ndarray], np.ndarray]) -> None:
        self.shape, self.dtype, self._read = shape, np.dtype(dtype), read

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        return move(as_tensor(self._read(ids)), device)

    def read_to(self, ids: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        out[places] = self._read(ids)


class DirectRows:
    """Rows of a file, read past the page cache, many at a time.

    Parameters
    ----------
    array : the memory-mapped array of the file (`numpy.memmap`), which says what is where.

    Raises
    ------
    InputError
        The file system has no direct reads.
    """

    def __init__(self, array: np.ndarray) -> None:
        if not isinstance(array, np.memmap) or not isinstance(array.filename, str | Path):
            raise InputError("direct reads need a memory-mapped array of a file")
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype
        self._path, self._offset = str(array.filename), int(array.offset)
        self._row = array.shape[1] * array.dtype.itemsize
        if not hasattr(os, "O_DIRECT"):
            raise InputError("cache.reads = direct needs O_DIRECT, which this system does not "
                             "have; use cache.reads=mapped")
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
            if array.size:
                with mmap.mmap(-1, BLOCK) as block:
                    os.preadv(self._file, [block], 0)
        except OSError as error:
            raise InputError(f"cache.reads = direct cannot be used with {self._path}: its file "
                             f"system has no direct reads ({error.strerror}); use "
                             "cache.reads=mapped") from None
        self._bytes = os.fstat(self._file).st_size

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        if device.type == "cuda" and self.dtype.isnative:
            return through_pinned(self, ids, device)
        out = np.empty((len(ids), self.shape[1]), self.dtype)
        self.read_to(ids, out, np.arange(len(ids)))
        return move(as_tensor(out), device)

    def read_to(self, ids: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        if not self._row or not len(ids):
            return
        order = np.argsort(ids, kind="stable")
        target, done = out.view(np.uint8).reshape(len(out), self._row), 0
        while done < len(ids):
            done = self._round(ids, order, done, target, places)

    def _round(self, ids: np.ndarray, order: np.ndarray, done: int, target: np.ndarray,
               places: np.ndarray) -> int:
        """Read as many rows as fit in a round of extents; returns how many are done."""
        starts, sizes = np.empty((2, _EXTENTS), np.int64)
        offsets = np.empty(len(ids) - done, np.int64)
        rows, count = _extents(ids, order, done, self._offset, self._row,
                               max(_RUN, self._row // BLOCK + 2), _ARENA, starts, sizes, offsets)
        bounds = np.concatenate([[0], np.cumsum(sizes[:count])])
        with _lock:
            arena = _room(int(bounds[-1]))
            try:
                read_extents(Extents(self._path, self._file, arena, starts[:count], bounds,
                                     self._bytes))
            except BaseException:
                _forget_arena()  # reads that are under way still write to it
                raise
            scatter_from(np.frombuffer(arena, np.uint8), offsets[:rows],
                         places[order[done:done + rows]], target)
        return done + int(rows)


def through_pinned(source: RowSource, ids: np.ndarray, device: torch.device) -> Tensor:
    """Rows on a GPU, read into pinned memory, from where they are copied."""
    like = torch.from_numpy(np.empty(0, source.dtype))
    rows = torch.empty((len(ids), source.shape[1]), dtype=like.dtype, pin_memory=True)
    source.read_to(ids, rows.numpy(), np.arange(len(ids)))
    return rows.to(device, non_blocking=True)


def to_memory(rows: Tensor) -> Tensor:
    """Rows in memory; from a GPU by pinned memory, as fast as the bus is."""
    if rows.device.type != "cuda":
        return rows
    out = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    out.copy_(rows, non_blocking=True)
    torch.cuda.current_stream(rows.device).synchronize()
    return out


def move(rows: Tensor, device: torch.device) -> Tensor:
    """Rows on a device; from memory to a GPU they are pinned, and go on the current stream without
    waiting."""
    if device.type == "cuda" and rows.device.type == "cpu":
        return rows.pin_memory().to(device, non_blocking=True)
    return rows.to(device)


def as_tensor(rows: np.ndarray) -> Tensor:
    """A tensor of an array, of any byte order."""
    if not rows.dtype.isnative:
        rows = rows.astype(rows.dtype.newbyteorder("="))
    return torch.from_numpy(rows)


_lock = threading.Lock()
_arena: mmap.mmap | None = None
"""The buffer that rows are read into first: one for all sources, used under the lock."""


def _room(size: int) -> mmap.mmap:
    global _arena
    if _arena is None or len(_arena) < size:
        _arena = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _arena


def _forget_arena() -> None:
    global _arena
    _arena = None


@kernel
def _extents(ids, order, done, offset, row, longest, most, starts, sizes, places):  # type: ignore[no-untyped-def]
    """Runs of blocks that hold the rows `order[done:]`, and where each row will be in them."""
    count, used, n = 0, 0, 0
    end = -1  # of the last extent
    for i in range(done, len(order)):
        low = offset + ids[order[i]] * row
        high = low + row
        first, last = low // 4096 * 4096, -(-high // 4096) * 4096
        if count and first <= end and last - starts[count - 1] <= longest * 4096:
            if last > end:
                sizes[count - 1] += last - end
                end = last
        else:
            if count == len(starts) or (count and used + sizes[count - 1] >= most):
                break
            if count:
                used += sizes[count - 1]
            starts[count], sizes[count] = first, last - first
            count += 1
            end = last
        places[n] = used + low - starts[count - 1]
        n += 1
    return n, count
