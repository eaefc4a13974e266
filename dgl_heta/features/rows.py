"""Row kernels on CPU arrays: gather, and sum by row.

One pass, compiled; scripts/bench/rows.py compares them with NumPy and PyTorch.
"""

from __future__ import annotations

import numpy as np

from dgl_heta.jit import kernel


def gather_rows(array: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """`array[ids]` for a two-dimensional array and int64 ids in range; any fixed-size dtype.

    Raises
    ------
    IndexError
        An id out of range.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(array):
        raise IndexError(f"row ids reach from {ids.min()} to {ids.max()}, but there are "
                         f"{len(array)} rows")
    out = np.empty((len(ids), array.shape[1]), array.dtype)
    if array.dtype.kind == "f" and array.dtype.itemsize in (4, 8) and array.dtype.isnative:
        _gather(array, ids, out)
    elif array.dtype.itemsize in (1, 2, 4, 8):  # bits are bits: half precision, odd byte orders
        bits = np.dtype(f"u{array.dtype.itemsize}")
        _gather(array.view(bits), ids, out.view(bits))
    else:
        np.take(array, ids, axis=0, out=out)
    return out


def sum_rows(rows: np.ndarray, values: np.ndarray, slots: np.ndarray
             ) -> tuple[np.ndarray, np.ndarray]:
    """Unique `rows` in order of first appearance, with the sums of their `values`.

    `slots` is int32 scratch with an entry per row of the table, all -1 before and after.
    """
    unique = np.empty(len(rows), np.int64)
    sums = np.zeros(values.shape, values.dtype)
    count = _sum_rows(rows, values, slots, unique, sums)
    return unique[:count], sums[:count]


@kernel
def _gather(array, ids, out):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        source, target = array[ids[i]], out[i]
        for k in range(len(source)):
            target[k] = source[k]


@kernel
def _sum_rows(rows, values, slots, unique, sums):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(rows)):
        slot = slots[rows[i]]
        if slot < 0:
            slot = count
            slots[rows[i]] = slot
            unique[slot] = rows[i]
            count += 1
        value, total = values[i], sums[slot]
        for k in range(len(value)):
            total[k] += value[k]
    for i in range(count):
        slots[unique[i]] = -1
    return count
