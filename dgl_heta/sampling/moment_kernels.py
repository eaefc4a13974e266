"""Compiled loops of batches whose seeds have times: which edges a node sees, and rows of pairs."""

from __future__ import annotations

import numpy as np

from dgl_heta.sampling.sampling_kernels import BAD
from dgl_heta.system.hashing import GOLDEN, mix
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row


@kernel
def visible(  # type: ignore[no-untyped-def]
        indptr, times, nodes, at, strict, key, degrees, keys):
    """Fill `degrees` with how many in-edges of each node are there at its time, or with `strict`
    before it, and `keys` with the key of its draw; return the nodes' number, or BAD.

    `times` (int64) are of the edges, ascending among a node's.
    """
    for i in range(len(nodes)):
        prefetch(indptr, nodes, i + AHEAD)
        if i + AHEAD < len(nodes) and 0 <= nodes[i + AHEAD] < len(indptr) - 1:
            prefetch_row(times, (indptr[nodes[i + AHEAD]] + indptr[nodes[i + AHEAD] + 1]) // 2)
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return BAD
        begin = indptr[node]
        low = begin
        high = indptr[node + 1]
        if begin < 0 or high < begin or high > len(times):
            return BAD
        while low < high:
            middle = (low + high) // 2
            if times[middle] < at[i] or (times[middle] == at[i] and not strict):
                low = middle + 1
            else:
                high = middle
        degrees[i] = low - begin
        keys[i] = mix(key ^ (np.uint64(at[i]) * GOLDEN))
    return len(nodes)


@kernel
def find_rows(ids, out, table, rows, size, grow, again=False):  # type: ignore[no-untyped-def]
    """Fill `out` with the rows of ids, of which there are too many for :func:`give_rows`: `table`
    (int32, more entries than rows, a power of two) has rows by the hashes of their ids, and -1.
    Ids without a row get new ones with `grow`, else -1; with `again` others, too, and the last one
    of an id is found. Returns how many rows there are then."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(ids)):
        at = np.int64(mix(np.uint64(ids[i])) & mask)
        while table[at] >= 0 and rows[table[at]] != ids[i]:
            at = (at + 1) & np.int64(mask)
        if grow and (again or table[at] < 0):
            table[at] = size
            rows[size] = ids[i]
            size += 1
        out[i] = table[at]
    return size
