"""Row kernels on CPU arrays: gather, and sum by row.

One pass, compiled; scripts/bench/kernels.py compares them with NumPy and PyTorch. They do not check
ids: what is out of range is memory of something else. Ids from outside (a script's index, what a
policy chose) go through :func:`check_ids` where they come in; those of the sampler are in range.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row

RECYCLED = 4 << 20
"""Bytes from which on memory of gathered rows is used again."""


def gather_rows(array: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """`array[ids]` for a two-dimensional array and int64 ids; any fixed-size dtype."""
    out = new_rows(len(ids), array.shape[1], array.dtype)
    _gather(as_bits(array), ids, as_bits(out))
    return out


def gather_into(array: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """`out[:] = array[ids]`, of one dtype."""
    _gather(as_bits(array), ids, as_bits(out))


def new_rows(rows: int, width: int, dtype: Any) -> np.ndarray:
    """An array (rows, width) with any content.

    Large ones are in memory that earlier ones have left: a batch's rows take as much as the last
    batch's, and new memory costs more than filling it, a page fault for every 4 KB. Memory is
    used again when no array, view or tensor refers to it any more.
    """
    dtype = np.dtype(dtype)
    size = rows * width * dtype.itemsize
    if size < RECYCLED:
        return np.empty((rows, width), dtype)
    return _memory.array(size, dtype).reshape(rows, width)


class _Memory:
    """Large buffers that are used again. There is never more memory, in use and free together,
    than was in use at once, but for what a buffer is larger than the array in it."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._used = self._most = 0
        self._returned: deque[np.ndarray] = deque()  # appending is atomic: finalizers do it

    def array(self, size: int, dtype: np.dtype[Any]) -> np.ndarray:
        """An array of so many bytes with any content."""
        with _lock:
            self._collect()
            fitting = [i for i, one in enumerate(self._free) if size <= len(one) <= 2 * size]
            if fitting:
                best = min(fitting, key=lambda i: len(self._free[i]))
                buffer = self._free.pop(best)
            else:
                buffer = np.empty(math.ceil(size * 1.1), np.uint8)
            self._used += len(buffer)
            self._most = max(self._most, self._used)
            self._release()
        # All views of this array refer to it, and none past it to the buffer, because what it is
        # made of is no array.
        array = np.frombuffer(buffer.data[:size], dtype)
        weakref.finalize(array, self._returned.append, buffer).atexit = False
        return array

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._used -= len(buffer)
            self._free.append(buffer)

    def _release(self) -> None:
        """Give back what exceeds the limit, what has been free for longest first."""
        free = sum(map(len, self._free))
        while self._free and self._used + free > self._most:
            free -= len(self._free.pop(0))


_memory, _lock = _Memory(), threading.Lock()


def gather_cached(slots: np.ndarray, cached: np.ndarray, array: np.ndarray, ids: np.ndarray
                  ) -> tuple[np.ndarray, int]:
    """`array[ids]`, taking the rows with a slot from `cached[slots[ids]]`; and how many those are.

    `slots` is int32, one per row of `array`, -1 where a row is not cached.
    """
    out = new_rows(len(ids), array.shape[1], array.dtype)
    return out, int(_gather_cached(slots, as_bits(cached), as_bits(array), ids, as_bits(out)))


def gather_to(array: np.ndarray, ids: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
    """`out[places] = array[ids]`, of one dtype."""
    _gather_to(as_bits(array), ids, as_bits(out), places)


def filled_rows(rows: np.ndarray) -> np.ndarray:
    """The positions of rows (n, width), of floating-point numbers, that are not all zeros."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    return np.flatnonzero(_filled(bits))


def check_ids(ids: np.ndarray, rows: int) -> None:
    """Check ids (int64) that come from outside.

    Raises
    ------
    IndexError
        An id is not in 0 … rows - 1.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() < rows:
        raise IndexError(f"row ids reach from {ids.min()} to {ids.max()}, but there are "
                         f"{rows} rows")


def as_bits(array: np.ndarray) -> np.ndarray:
    """The array as numbers that a kernel can copy: half precision and odd byte orders, too."""
    if array.dtype.kind == "f" and array.dtype.itemsize in (4, 8) and array.dtype.isnative:
        return array
    if array.dtype.itemsize in (1, 2, 4, 8):
        return array.view(f"u{array.dtype.itemsize}")
    return array.view(np.uint8).reshape(len(array), array.shape[1] * array.dtype.itemsize)


def sum_rows(rows: np.ndarray, values: np.ndarray, slots: np.ndarray
             ) -> tuple[np.ndarray, np.ndarray]:
    """Unique `rows` in order of first appearance, with the sums of their `values`.

    `slots` is int32 scratch with an entry per row of the table, all -1 before and after.
    """
    unique, sums = np.empty(len(rows), np.int64), np.zeros(values.shape, values.dtype)
    count = _sum_rows(rows, values, None, slots, unique, sums, None)
    return unique[:count], sums[:count]


def sum_rows_with_bits(rows: np.ndarray, values: np.ndarray, bits: np.ndarray, slots: np.ndarray
                       ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As :func:`sum_rows`, and for each unique row the union of its `bits` (int64)."""
    unique, sums = np.empty(len(rows), np.int64), np.zeros(values.shape, values.dtype)
    united = np.zeros(len(rows), np.int64)
    count = _sum_rows(rows, values, bits, slots, unique, sums, united)
    return unique[:count], sums[:count], united[:count]


def each_once(ids: np.ndarray, slots: np.ndarray) -> bool:
    """Return whether no id (int64) is there twice; `slots` as in :func:`sum_rows`."""
    return bool(_each_once(ids, slots))


def marked(ids: np.ndarray, among: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """For each of `ids` (int64) whether it is `among` others; `slots` as in :func:`sum_rows`."""
    out = np.empty(len(ids), np.bool_)
    _marked(ids, among, slots, out)
    return out


@kernel
def _gather(array, ids, out):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        prefetch(array, ids, i)
        source, target = array[ids[i]], out[i]
        for k in range(len(source)):
            target[k] = source[k]


@kernel
def _gather_cached(slots, cached, array, ids, out):  # type: ignore[no-untyped-def]
    hits = 0
    for i in range(len(ids)):
        prefetch(slots, ids, i + AHEAD)
        if i + AHEAD < len(ids):
            ahead = slots[ids[i + AHEAD]]
            if ahead >= 0:
                prefetch_row(cached, ahead)
            else:
                prefetch_row(array, ids[i + AHEAD])
        slot, target = slots[ids[i]], out[i]
        if slot >= 0:
            hits += 1
            near = cached[slot]
            for k in range(len(target)):
                target[k] = near[k]
        else:
            far = array[ids[i]]
            for k in range(len(target)):
                target[k] = far[k]
    return hits


@kernel
def _gather_to(array, ids, out, places):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        prefetch(array, ids, i)
        source, target = array[ids[i]], out[places[i]]
        for k in range(len(target)):
            target[k] = source[k]


@kernel
def scatter_from(arena, places, rows, out):  # type: ignore[no-untyped-def]
    """`out[rows[i]] = arena[places[i]: places[i] + width]`, all of bytes."""
    width = out.shape[1]
    for i in range(len(rows)):
        source, target = places[i], out[rows[i]]
        for k in range(width):
            target[k] = arena[source + k]


@kernel
def count_ids(counts, ids):  # type: ignore[no-untyped-def]
    """Add one to `counts` (int64) for each of `ids`."""
    for i in range(len(ids)):
        prefetch(counts, ids, i)
        counts[ids[i]] += 1


@kernel
def _filled(rows):  # type: ignore[no-untyped-def]
    out = np.zeros(len(rows), np.bool_)
    for i in range(len(rows)):
        bits = np.uint64(0)
        for k in range(rows.shape[1]):
            bits |= rows[i, k]
        out[i] = bits != 0
    return out


@kernel
def add_edges(indptr, indices, states, mean, out):  # type: ignore[no-untyped-def]
    """Add `states` over in-edges (CSC) to `out`; with `mean` divide by their number.

    Return -1, or the first source row that is past the last one, where it stops.
    """
    rows, width = states.shape
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            prefetch(states, indices, edge)
            source = indices[edge]
            if source >= rows:
                return source
            for k in range(width):
                out[row, k] += states[source, k]
        if mean and indptr[row + 1] > indptr[row]:
            count = indptr[row + 1] - indptr[row]
            for k in range(width):
                out[row, k] /= count
    return -1


@kernel
def _sum_rows(rows, values, bits, slots, unique, sums, united):  # type: ignore[no-untyped-def]
    """Without `bits`, None, numba compiles nothing for them."""
    count = 0
    for i in range(len(rows)):
        prefetch(slots, rows, i)
        slot = slots[rows[i]]
        if slot < 0:
            slot = count
            slots[rows[i]] = slot
            unique[slot] = rows[i]
            count += 1
        if bits is not None:
            united[slot] |= bits[i]
        value, total = values[i], sums[slot]
        for k in range(len(value)):
            total[k] += value[k]
    for i in range(count):
        slots[unique[i]] = -1
    return count


@kernel
def _each_once(ids, slots):  # type: ignore[no-untyped-def]
    once = True
    for i in range(len(ids)):
        prefetch(slots, ids, i)
        once &= slots[ids[i]] < 0
        slots[ids[i]] = 0
    for i in range(len(ids)):
        slots[ids[i]] = -1
    return once


@kernel
def _marked(ids, among, slots, out):  # type: ignore[no-untyped-def]
    for i in range(len(among)):
        slots[among[i]] = 0
    for i in range(len(ids)):
        prefetch(slots, ids, i)
        out[i] = slots[ids[i]] >= 0
    for i in range(len(among)):
        slots[among[i]] = -1
