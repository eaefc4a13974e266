"""SPRING as the cutter of one relation: clusters are dealt by the in-edges of their destinations.

What a piece of a relation costs are its edges, not its nodes; sources cost nothing, as every piece
has all of them. So a cluster weighs the in-edges of its destinations, where it weighs its nodes in
Algorithm 1 (CATGNN), and pieces may be of different sizes. Then nodes follow their neighbours, as
in :mod:`dgl_heta_catgnn.refining`, which is not of CATGNN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgl_heta import Cutter, GraphSource, Relation
from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import NONE, degrees, find_clusters
from dgl_heta_catgnn.refining import count_neighbour
from dgl_heta_catgnn.spring import SpringSettings, merge
from dgl_heta_catgnn.streams import EdgeStream

_MOST = 2**31 - 1
"""The most that a cluster may weigh: merging ranks by weight and number in one word."""


class SpringCutter(Cutter):
    """Pieces with as many in-edges, destinations of the same sources together."""

    name = "spring"
    description = "SPRING: clusters of destinations and sources, balanced by in-edges (CATGNN)"
    settings: SpringSettings = SpringSettings()

    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]) -> np.ndarray:
        """As :meth:`dgl_heta.Cutter.cut`; two passes more than SPRING as a partitioner."""
        settings, stream = self.settings, EdgeStream.of_relation(source, relation)
        weight = in_edges(stream, settings.chunk)
        degree = degrees(stream, settings.chunk)
        limit = settings.volume * int(degree.sum(dtype=np.int64)) / len(parts)
        clusters = find_clusters(stream, degree, limit, settings.chunk, settings.passes)
        limits = edge_limits(int(weight.sum()), parts, settings.balance)
        root, _ = merge(clusters, degree, int(limits.max()),
                        cluster_weights(clusters.of, weight, len(clusters.size)))
        pieces = deal_edges(clusters.of, root, weight, limits)
        del clusters, root, degree
        pieces = follow_neighbours(stream, pieces, weight, limits, settings.refine, settings.chunk)
        count = source.node_counts[relation.dst]
        return pieces[len(pieces) - count:]  # sources come first, where they are of another type


def in_edges(stream: EdgeStream, size: int) -> np.ndarray:
    """In-edges of each node, int64 (nodes,); in units, where there are too many for 31 bits."""
    weight = np.zeros(stream.num_nodes, np.int64)
    for chunk in stream.chunks(size):
        _count(weight, chunk.dst)
    unit = -(-int(weight.sum()) // (_MOST // 2))
    return weight if unit <= 1 else -(-weight // unit)


def edge_limits(total: int, parts: Sequence[int], balance: float) -> np.ndarray:
    """In-edges that each piece may have, int64 (pieces,): `balance` times its share of `total`."""
    shares = np.array(parts, float) / sum(parts) * total
    return np.maximum(np.floor(balance * shares), np.ceil(shares)).astype(np.int64)


def cluster_weights(of: np.ndarray, weight: np.ndarray, clusters: int) -> np.ndarray:
    """Return the sum of the nodes' weights in each cluster, int64 (clusters,)."""
    inside = of != NONE
    return np.bincount(of[inside], weight[inside], clusters).astype(np.int64)


def deal_edges(of: np.ndarray, root: np.ndarray, weight: np.ndarray, limits: np.ndarray
               ) -> np.ndarray:
    """Merged clusters, heaviest first, to the piece with the most room; (nodes,).

    What fits nowhere is dealt as what it was merged from, and then node by node: also a node that
    weighs more than a piece may have goes somewhere. Nodes without in-edges stay with their
    cluster; those without a place are shared like edges.

    Parameters
    ----------
    of : the cluster of each node; `root` what each cluster has become a part of.
    limits : what each piece may have.
    """
    own = cluster_weights(of, weight, len(root))
    merged = np.bincount(root, own, len(root)).astype(np.int64)
    load = np.zeros(len(limits), np.int64)
    piece = _deal(np.argsort(-merged, kind="stable"), merged, load, limits)[root]
    left = np.flatnonzero(piece == NONE)
    again = _deal(left[np.argsort(-own[left], kind="stable")], own, load, limits)
    piece[left] = again[left]
    part_of = np.where(of == NONE, NONE, piece[of])
    _finish(part_of, weight, load, limits)
    idle = np.flatnonzero(part_of == NONE)
    ends = np.cumsum(limits) / limits.sum() * len(idle)
    part_of[idle] = np.searchsorted(ends, np.arange(len(idle)), "right")
    return part_of


def follow_neighbours(stream: EdgeStream, pieces: np.ndarray, weight: np.ndarray,
                      limits: np.ndarray, passes: int, size: int) -> np.ndarray:
    """Move nodes to the piece that most of their neighbours are in, while there is room; (nodes,).

    An edge counts for both its ends. Then the end that gains more moves to the other's piece, if
    that has room for its in-edges. Nodes stay where they were unless pieces then read fewer
    sources. Takes a byte per node and piece.

    Parameters
    ----------
    passes : passes over the edges, without two that count sources; 0 leaves everything as it is.
    """
    if not passes or len(limits) == 1:
        return pieces
    moved, load = pieces.copy(), np.bincount(pieces, weight, len(limits)).astype(np.int64)
    counts = np.zeros((len(pieces), len(limits)), np.uint8)
    counts[np.arange(len(pieces)), pieces] = 1  # a single neighbour elsewhere moves nobody
    for number in range(passes):
        if number:
            counts >>= 2
        for chunk in stream.chunks(size):
            _follow(chunk.src, chunk.dst, moved, counts, weight, load, limits)
    fewer = _sources(stream, moved, counts, size) < _sources(stream, pieces, counts, size)
    return moved if fewer else pieces


def _sources(stream: EdgeStream, pieces: np.ndarray, seen: np.ndarray, size: int) -> int:
    """Sources that each piece reads, of all pieces; `seen` (nodes, pieces) is written."""
    seen[:] = 0
    for chunk in stream.chunks(size):
        _read(chunk.src, chunk.dst, pieces, seen)
    return int(seen.sum(dtype=np.int64))


@kernel
def _count(weight, nodes):
    for node in nodes:
        weight[node] += 1


@kernel
def _deal(order, size, load, limits):
    piece = np.full(len(size), NONE, np.int64)
    for cluster in order:
        if size[cluster] == 0:
            continue
        best = np.argmax(limits - load)
        if load[best] + size[cluster] <= limits[best]:
            piece[cluster] = best
            load[best] += size[cluster]
    return piece


@kernel
def _finish(piece, weight, load, limits):
    at = np.argmax(limits - load)
    for node in range(len(piece)):
        if piece[node] == NONE and weight[node] > 0:
            if load[at] + weight[node] > limits[at]:
                at = np.argmax(limits - load)
            piece[node] = at
            load[at] += weight[node]


@kernel
def _follow(src, dst, piece, counts, weight, load, limits):
    for i in range(len(src)):
        u, v = src[i], dst[i]
        if u == v:
            continue
        a, b = piece[u], piece[v]
        for node, there in ((u, b), (v, a)):
            count_neighbour(counts, node, there)
        if a == b:
            continue
        gain_u = np.int64(counts[u, b]) - np.int64(counts[u, a])
        gain_v = np.int64(counts[v, a]) - np.int64(counts[v, b])
        if gain_u < gain_v:
            u, v, a, b, gain_u, gain_v = v, u, b, a, gain_v, gain_u
        if gain_u > 0 and load[b] + weight[u] <= limits[b]:
            piece[u] = b
            load[a] -= weight[u]
            load[b] += weight[u]
        elif gain_v > 0 and load[a] + weight[v] <= limits[a]:
            piece[v] = a
            load[b] -= weight[v]
            load[a] += weight[v]


@kernel
def _read(src, dst, piece, seen):
    for i in range(len(src)):
        seen[src[i], piece[dst[i]]] = 1
