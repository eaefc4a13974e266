"""Clusters of nodes, found in a stream (Hollocou et al., 2017): the start of SPRING and 2PS-L."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.streams import EdgeStream

NONE = -1
"""No cluster (of an isolated node), no neighbour (of a node with self-loops alone)."""
BLOCK = 64
"""Edges of which kernels read ahead what they need."""


def degrees(stream: EdgeStream, size: int) -> np.ndarray:
    """Edges at each node, by either end, uint32 (nodes,); it costs a pass.

    A self-loop counts for nothing: it brings no neighbour.
    """
    degree = np.zeros(stream.num_nodes, np.uint32)
    for chunk in stream.chunks(size):
        _count(degree, chunk.src, chunk.dst)
    return degree


@dataclass
class Clusters:
    """Clusters with consecutive numbers.

    Attributes
    ----------
    of : the cluster of each node, or :data:`NONE`; (nodes,).
    size : nodes of each cluster; (clusters,).
    volume : sum of the degrees of each cluster's nodes, int64 (clusters,).
    richest : the neighbour of each node with the highest degree, or :data:`NONE`; (nodes,).
    """

    of: np.ndarray
    size: np.ndarray
    volume: np.ndarray
    richest: np.ndarray


def find_clusters(stream: EdgeStream, degree: np.ndarray, limit: float, size: int,
                  passes: int = 1) -> Clusters:
    """Lines 2 to 21 of SPRING's Algorithm 1.

    Parameters
    ----------
    degree : as :func:`degrees` counts them.
    limit : τ_vol; no node moves from or to a cluster of a larger volume.
    passes : passes over the edges. In further ones all nodes have a cluster already.
    """
    most = max(len(degree), int(degree.max(initial=0)))
    ids = np.int32 if most < 2**31 else np.int64
    # What an edge asks of a node lies together, as these reads are where the time goes: degree,
    # cluster, richest neighbour and its degree.
    nodes = np.full((len(degree), 4), NONE, ids)
    nodes[:, _DEGREE] = degree
    volume, used = np.zeros(len(degree), np.int64), 0
    for _ in range(passes):
        for chunk in stream.chunks(size):
            used, _ = _move(chunk.src, chunk.dst, nodes, volume, used, limit)
    of, richest = nodes[:, _CLUSTER].copy(), nodes[:, _RICHEST].copy()
    del nodes
    count = np.zeros(used, ids)
    kept = _renumber(of, count, volume)
    return Clusters(of, count[:kept], volume[:kept].copy(), richest)


_DEGREE, _CLUSTER, _RICHEST, _RICHES = range(4)


@kernel
def _count(degree, src, dst):
    for i in range(len(src)):
        if src[i] != dst[i]:
            degree[src[i]] += np.uint32(1)
            degree[dst[i]] += np.uint32(1)


@kernel
def _move(src, dst, nodes, volume, used, limit):
    """Returns the clusters that there have been, and a number that says nothing."""
    ahead = 0
    for first in range(0, len(src), BLOCK):
        last = min(first + BLOCK, len(src))
        for i in range(first, last):  # reads that wait side by side, for what comes next
            ahead ^= nodes[src[i], _CLUSTER] ^ nodes[dst[i], _CLUSTER]
        for i in range(first, last):
            ahead ^= (volume[max(nodes[src[i], _CLUSTER], 0)]
                      ^ volume[max(nodes[dst[i], _CLUSTER], 0)])
        for i in range(first, last):
            used = _join(src[i], dst[i], nodes, volume, used, limit)
    return used, ahead  # or the compiler leaves out what nobody uses


@kernel
def _join(u, v, nodes, volume, used, limit):
    for node in (u, v):  # lines 3 to 8: a node that is new is a cluster
        if nodes[node, _CLUSTER] == NONE:
            nodes[node, _CLUSTER] = used
            volume[used] = nodes[node, _DEGREE]
            used += 1
    if u == v:  # a self-loop joins nothing, and nobody is their own richest neighbour
        return used
    a, b = nodes[u, _CLUSTER], nodes[v, _CLUSTER]
    if a != b and volume[a] <= limit and volume[b] <= limit:  # lines 9 to 17
        if volume[a] <= volume[b]:
            mover, giving, taking = u, a, b
        else:
            mover, giving, taking = v, b, a
        volume[giving] -= nodes[mover, _DEGREE]
        volume[taking] += nodes[mover, _DEGREE]
        nodes[mover, _CLUSTER] = taking
    # Lines 18 to 21 are printed inside the `if`, but the text (§4.2) has them for every edge
    # that streams in: also what cannot move has a richest neighbour.
    for node, other in ((u, v), (v, u)):
        if nodes[node, _RICHES] < nodes[other, _DEGREE]:
            nodes[node, _RICHEST] = other
            nodes[node, _RICHES] = nodes[other, _DEGREE]
    return used


@kernel
def _renumber(of, count, volume):
    """Count nodes, and number clusters without those that all have left; returns how many."""
    for node in range(len(of)):
        if of[node] != NONE:
            count[of[node]] += 1
    number = np.empty(len(count), of.dtype)
    kept = 0
    for cluster in range(len(count)):
        number[cluster] = kept
        if count[cluster] > 0:
            count[kept] = count[cluster]
            volume[kept] = volume[cluster]
            kept += 1
    for node in range(len(of)):
        if of[node] != NONE:
            of[node] = number[of[node]]
    return kept
