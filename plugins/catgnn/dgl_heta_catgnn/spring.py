"""SPRING: streaming partitioning by richest neighbours (CATGNN, §4, Algorithm 1).

What the paper leaves open is decided here, each where it is coded. The volume limit τ_vol, for
which it gives no value, is the setting `volume` times a partition's share of the volume of the
graph, Σd / p; 1 is the limit of 2PS-L (Mayer et al., 2022). The algorithm as printed ends with
`deal`; what follows is in `refining.py`, and `refine` 0 leaves it out.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import NONE, Clusters, degrees, find_clusters
from dgl_heta_catgnn.partitioner import NodePartitioner, StreamSettings, capacity
from dgl_heta_catgnn.refining import refine
from dgl_heta_catgnn.streams import EdgeStream


class SpringSettings(StreamSettings):
    """Settings of SPRING."""

    volume: float = Field(0.1, gt=0, allow_inf_nan=False, description="limit τ_vol on the volume "
                          "of a cluster from and to which nodes move, in shares of a partition, "
                          "Σd / p")
    passes: int = Field(1, ge=1, description="passes of clustering")
    refine: int = Field(1, ge=0, description="passes in which nodes move to where their neighbours "
                        "are; 0 is the paper")


class Spring(NodePartitioner):
    """Clusters found in a stream, merged by richest neighbours, dealt to partitions."""

    name = "spring"
    description = "SPRING: clusters in a stream, merged by richest neighbours (CATGNN)"
    settings: SpringSettings = SpringSettings()

    def __init__(self) -> None:
        self._figures: dict[str, float] = {}

    def nodes(self, stream: EdgeStream, parts: int, seed: int) -> np.ndarray:
        """Passes for degrees, clusters and refining. Nothing is drawn: `seed` changes nothing."""
        settings = self.settings
        degree = degrees(stream, settings.chunk)
        limit = settings.volume * int(degree.sum(dtype=np.int64)) / parts
        clusters = find_clusters(stream, degree, limit, settings.chunk, settings.passes)
        most = capacity(stream.num_nodes, parts, settings.balance)
        root, merged = merge(clusters, degree, most)
        self._figures = {"clusters": len(clusters.size),
                         "clusters_merged": int(np.count_nonzero(merged))}
        del degree
        owner = deal(clusters, root, merged, parts, most)
        del clusters, root, merged
        return refine(stream, owner, parts, most, settings.refine, settings.chunk)

    def figures(self) -> dict[str, float]:
        return self._figures


def merge(clusters: Clusters, degree: np.ndarray, most: int, size: np.ndarray | None = None
          ) -> tuple[np.ndarray, np.ndarray]:
    """Lines 22 to 29: clusters join those of their richest neighbours, the smallest first.

    Parameters
    ----------
    size : what is ranked and bounded, integers (clusters,); None: nodes of each cluster.
    most : nodes that a merged cluster may have, β·|V| / p in equation (2). |V| counts isolated
        nodes, too: they get their places from what clusters leave.

    Returns
    -------
    For each cluster the one that it has become a part of, and nodes of each of these (or `size`),
    0 for those that are a part of another.
    """
    representative = np.full(len(clusters.size), NONE, clusters.of.dtype)
    _represent(clusters.of, clusters.richest, degree, representative)
    root = np.arange(len(clusters.size), dtype=clusters.of.dtype)
    size = (clusters.size if size is None else size).copy()
    # Sizes and numbers in one word, ascending. They are taken from the front; what grows meanwhile
    # waits in a binary heap, for which the place of what was taken is enough: a merger takes one
    # entry and adds one.
    heap = np.sort((size.astype(np.int64) << 32) | np.arange(len(size)))
    _merge(clusters.of, clusters.richest, degree, representative, size, root, heap, most)
    return root, size


def deal(clusters: Clusters, root: np.ndarray, merged: np.ndarray, parts: int, most: int
         ) -> np.ndarray:
    """Lines 30 to 33: clusters, largest first, to the part with the fewest nodes; (nodes,).

    The paper bounds merged clusters, but not what is dealt: a single cluster of the stream may be
    larger than a partition, and a few large ones may not go up in `parts`. Here no part gets more
    than `most` nodes. A merged cluster that fits nowhere is dealt as what it was merged from,
    and what does not fit even then, node by node in the order of ids, a part after the other.
    Isolated nodes have no cluster; they come last, each to the part with the fewest nodes.
    """
    load = np.zeros(parts, np.int64)
    whole = _deal(np.argsort(-merged.astype(np.int64), kind="stable"), merged, load, most)
    part = np.where(whole[root] >= 0, whole[root], NONE).astype(np.int16)
    left = np.flatnonzero(part == NONE)
    pieces = left[np.argsort(-clusters.size[left].astype(np.int64), kind="stable")]
    again = _deal(pieces, clusters.size, load, most)
    part[pieces] = again[pieces]
    return _finish(clusters.of, part, load, most)


@kernel
def _represent(of, richest, degree, representative):
    for v in range(len(of)):
        if of[v] == NONE or richest[v] == NONE:
            continue
        known = representative[of[v]]
        if known == NONE or degree[richest[known]] < degree[richest[v]]:
            representative[of[v]] = v


@kernel
def _root(root, cluster):
    while root[cluster] != cluster:
        root[cluster] = root[root[cluster]]
        cluster = root[cluster]
    return cluster


@kernel
def _merge(of, richest, degree, representative, size, root, heap, most):
    following, length = 0, 0
    while following < len(heap) or length > 0:
        if length > 0 and (following == len(heap) or heap[0] < heap[following]):
            smallest = heap[0]
            length -= 1
            _sift_down(heap, heap[length], length)
        else:
            smallest = heap[following]
            following += 1
        i = smallest & 0xFFFFFFFF
        if root[i] != i or size[i] != smallest >> 32:
            continue  # merged, or grown since this entry was made
        node = representative[i]
        if node == NONE:
            continue  # self-loops alone: there is no neighbour
        # Line 27's t is a node; it is this node's cluster, as it is now, that is meant.
        t = _root(root, of[richest[node]])
        if t == i or np.int64(size[i]) + np.int64(size[t]) > most:
            continue
        root[i] = t
        size[t] += size[i]
        size[i] = 0
        # A merged cluster needs a representative of its own: the richer of the two. And it needs
        # its rank by its new size; it is scanned again there, also if it was scanned before.
        theirs = representative[t]
        if theirs == NONE or degree[richest[theirs]] < degree[richest[node]]:
            representative[t] = node
        _sift_up(heap, (np.int64(size[t]) << 32) | t, length)
        length += 1
    for i in range(len(root)):
        root[i] = _root(root, i)


@kernel
def _sift_down(heap, entry, length):
    """Put an entry into the place of the first of `length` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= length:
            break
        if child + 1 < length and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    if length > 0:
        heap[at] = entry


@kernel
def _sift_up(heap, entry, at):
    """Put an entry behind the last."""
    while at > 0 and heap[(at - 1) // 2] > entry:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = entry


@kernel
def _deal(order, size, load, most):
    part = np.full(len(size), NONE, np.int16)
    for cluster in order:
        least = np.argmin(load)
        if size[cluster] > 0 and load[least] + size[cluster] <= most:
            part[cluster] = least
            load[least] += size[cluster]
    return part


@kernel
def _finish(of, part, load, most):
    owner = np.empty(len(of), np.int16)
    at = np.argmin(load)
    for node in range(len(of)):
        if of[node] != NONE:
            target = part[of[node]]
            if target == NONE:
                if load[at] >= most:
                    at = np.argmin(load)
                target = at
                load[at] += 1
            owner[node] = target
    for node in range(len(of)):
        if of[node] == NONE:
            least = np.argmin(load)
            owner[node] = least
            load[least] += 1
    return owner
