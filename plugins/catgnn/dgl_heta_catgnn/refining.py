"""A pass after SPRING's Algorithm 1: nodes move to the part where most of their neighbours are.

Not of CATGNN: it is restreaming (Nishimura and Ugander, 2013) for a stream of edges, in which a
node's neighbours do not come together. So each node counts which parts they are in.
"""

from __future__ import annotations

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import BLOCK
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import EdgeStream

COLUMNS = 32
"""Bytes of a node for counts; of more parts, several share a count."""
SAMPLE = 2**16
"""Nodes, at most twice as many, of which replicas are counted."""


def refine(stream: EdgeStream, owner: np.ndarray, parts: int, most: int, passes: int, size: int
           ) -> np.ndarray:
    """Move nodes to the part that most of their neighbours are in, while there is room.

    An edge counts for both its ends. Then the end that gains more moves to the other's part, at
    once, so what follows in the stream sees it there. A node counts one for the part that it is in
    at first: a single neighbour elsewhere does not move it. Counts are kept from pass to pass, at a
    quarter, and halved before one is more than a byte.

    Most neighbours together are not always fewest replicas: where a few hubs are neighbours of
    all, SPRING had better leave them together. So replicas of a sample of nodes are counted before
    and, in a last pass, after; nodes stay where they were if that was not worse.

    Parameters
    ----------
    owner : the part of each node, int16 (nodes,).
    most : nodes that a part may have.
    passes : passes over the edges, without the last one; 0 leaves everything as it is.

    Returns
    -------
    The part of each node, int16 (nodes,).
    """
    if parts == 1 or not passes:
        return owner
    moved, load = owner.copy(), np.bincount(owner, minlength=parts)
    counts = np.zeros((len(owner), min(parts, COLUMNS)), np.uint8)
    _start(owner, counts)
    before, after = _Sample(owner, parts), _Sample(moved, parts)
    for number in range(passes):
        if number:
            counts >>= 2
        for chunk in stream.chunks(size):
            if not number:
                before.add(chunk.src, chunk.dst)
            _follow(chunk.src, chunk.dst, moved, counts, load, most)
    del counts
    for chunk in stream.chunks(size):
        after.add(chunk.src, chunk.dst)
    return moved if after.replicas() < before.replicas() else owner


class _Sample:
    """Where some nodes are once their neighbours are beside them: all of a small graph."""

    def __init__(self, owner: np.ndarray, parts: int) -> None:
        self._owner = owner
        self._shift = max((len(owner) // SAMPLE).bit_length() - 1, 0)
        self._near = Replicas(len(range(0, len(owner), 1 << self._shift)), parts)

    def add(self, src: np.ndarray, dst: np.ndarray) -> None:
        _see(src, dst, self._owner, self._shift, self._near.bits)

    def replicas(self) -> int:
        own = Replicas.of_owners(self._owner[::1 << self._shift], self._near.parts)
        return int(self._near.union(own).counts().sum())


@kernel
def _see(src, dst, owner, shift, bits):
    rest = (1 << shift) - 1
    for i in range(len(src)):
        for node, other in ((src[i], dst[i]), (dst[i], src[i])):
            if node & rest == 0:
                part = owner[other]
                bits[node >> shift, part >> 3] |= np.uint8(1 << (part & 7))


@kernel
def _start(owner, counts):
    for v in range(len(owner)):
        counts[v, owner[v] % counts.shape[1]] = 1


@kernel
def _follow(src, dst, owner, counts, load, most):
    columns, ahead = counts.shape[1], 0
    for first in range(0, len(src), BLOCK):
        last = min(first + BLOCK, len(src))
        for i in range(first, last):  # reads that wait side by side, for what comes next
            ahead ^= owner[src[i]] ^ owner[dst[i]]
            ahead ^= counts[src[i], 0] ^ counts[dst[i], 0]
        for i in range(first, last):
            u, v = src[i], dst[i]
            if u == v:
                continue
            a, b = owner[u], owner[v]
            x, y = (a, b) if columns == len(load) else (a % columns, b % columns)
            count_neighbour(counts, u, y)
            count_neighbour(counts, v, x)
            if a == b:
                continue
            gain_u = np.int64(counts[u, y]) - np.int64(counts[u, x])
            gain_v = np.int64(counts[v, x]) - np.int64(counts[v, y])
            if gain_u < gain_v:
                u, v, a, b, gain_u, gain_v = v, u, b, a, gain_v, gain_u
            if gain_u > 0 and load[b] < most:
                owner[u] = b
                load[a] -= 1
                load[b] += 1
            elif gain_v > 0 and load[a] < most:
                owner[v] = a
                load[b] -= 1
                load[a] += 1
    return ahead  # or the compiler leaves out what nobody uses


@kernel
def count_neighbour(counts, node, column):
    """One more neighbour of a node in a part; all its counts are halved before one is full."""
    count = counts[node, column] + np.uint8(1)
    counts[node, column] = count
    if count == 255:
        for j in range(counts.shape[1]):
            counts[node, j] >>= 1
