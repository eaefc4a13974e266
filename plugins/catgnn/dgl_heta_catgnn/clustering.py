"""Clusters of nodes, found in a stream (Hollocou et al., 2017): the start of SPRING and 2PS-L."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_heta.system.jit import kernel
from dgl_heta_catgnn.streams import EdgeStream

NONE = -1
"""No cluster (of an isolated node), no neighbour (of a node with self-loops alone)."""


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
    ids = np.int32 if len(degree) < 2**31 else np.int64
    of, richest = np.full(len(degree), NONE, ids), np.full(len(degree), NONE, ids)
    count, volume = np.zeros(len(degree), ids), np.zeros(len(degree), np.int64)
    used = np.zeros(1, np.int64)
    for _ in range(passes):
        for chunk in stream.chunks(size):
            _move(chunk.src, chunk.dst, degree, of, richest, count, volume, used, limit)
    kept = _renumber(of, count, volume, used[0])
    return Clusters(of, count[:kept].copy(), volume[:kept].copy(), richest)


@kernel
def _count(degree, src, dst):
    for i in range(len(src)):
        if src[i] != dst[i]:
            degree[src[i]] += np.uint32(1)
            degree[dst[i]] += np.uint32(1)


@kernel
def _move(src, dst, degree, of, richest, count, volume, used, limit):
    new = used[0]
    for i in range(len(src)):
        u, v = src[i], dst[i]
        for node in (u, v):  # lines 3 to 8: a node that is new is a cluster
            if of[node] == NONE:
                of[node] = new
                count[new] = 1
                volume[new] = degree[node]
                new += 1
        if u == v:  # a self-loop joins nothing, and nobody is their own richest neighbour
            continue
        a, b = of[u], of[v]
        if a != b and volume[a] <= limit and volume[b] <= limit:  # lines 9 to 17
            if volume[a] <= volume[b]:
                mover, giving, taking = u, a, b
            else:
                mover, giving, taking = v, b, a
            moved = np.int64(degree[mover])
            volume[giving] -= moved
            volume[taking] += moved
            count[giving] -= 1
            count[taking] += 1
            of[mover] = taking
        # Lines 18 to 21 are printed inside the `if`, but the text (§4.2) has them for every edge
        # that streams in: also what cannot move has a richest neighbour.
        if richest[u] == NONE or degree[richest[u]] < degree[v]:
            richest[u] = v
        if richest[v] == NONE or degree[richest[v]] < degree[u]:
            richest[v] = u
    used[0] = new


@kernel
def _renumber(of, count, volume, used):
    """Numbers without the clusters that all nodes have left; returns how many there are."""
    kept = 0
    number = np.empty(used, of.dtype)
    for cluster in range(used):
        number[cluster] = kept
        if count[cluster] > 0:
            count[kept] = count[cluster]
            volume[kept] = volume[cluster]
            kept += 1
    for node in range(len(of)):
        if of[node] != NONE:
            of[node] = number[of[node]]
    return kept
