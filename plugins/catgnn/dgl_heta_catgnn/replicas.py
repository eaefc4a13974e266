"""Which nodes are on which partition: a set of partitions per node, one bit each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.streams import Chunk


class Replicas:
    """Sets of partitions, one per node; a node takes one byte for each eight partitions.

    Parameters
    ----------
    num_nodes : nodes.
    parts : partitions.
    """

    def __init__(self, num_nodes: int, parts: int) -> None:
        self.parts = parts
        self.bits = np.zeros((num_nodes, -(-parts // 8)), np.uint8)

    @classmethod
    def of_owners(cls, owner: np.ndarray, parts: int, chosen: np.ndarray | None = None) -> Replicas:
        """Every node (or every chosen one, a mask) on its owner alone."""
        replicas = cls(len(owner), parts)
        _assign(replicas.bits, owner, np.ones(0, np.bool_) if chosen is None else chosen)
        return replicas

    def add(self, chunk: Chunk, part: np.ndarray) -> None:
        """Both ends of each edge are on the edge's partition; -1 for an edge that is nowhere."""
        _add(self.bits, chunk.src, chunk.dst, part)

    def owners(self, seed: int) -> np.ndarray:
        """One of each node's partitions, at random by a hash of node and seed, int16 (nodes,).

        This is CATGNN's choice for partitioners of edges (§3.2). A node that is nowhere gets any.
        """
        return _draw(self.bits, self.parts, np.uint64(seed))

    def with_neighbours(self, chunks: Iterable[Chunk], directed: bool = False) -> Replicas:
        """Where nodes are once every replica here has its neighbours beside it.

        Parameters
        ----------
        chunks : a pass over all edges.
        directed : whether only the sources of in-edges are neighbours, as DistDGL takes them, and
            not the destinations of out-edges, too.
        """
        grown = Replicas(0, self.parts)
        grown.bits = self.bits.copy()
        for chunk in chunks:
            _grow(self.bits, grown.bits, chunk.src, chunk.dst, directed)
        return grown

    def union(self, other: Replicas) -> Replicas:
        """Return the replicas that are here or there."""
        joint = Replicas(0, self.parts)
        joint.bits = self.bits | other.bits
        return joint

    def counts(self) -> np.ndarray:
        """Nodes on each partition, int64 (parts,)."""
        counts = np.zeros(self.parts, np.int64)
        for part in range(self.parts):
            counts[part] = np.count_nonzero(self.bits[:, part >> 3] & (1 << (part & 7)))
        return counts

    def nodes(self, part: int) -> np.ndarray:
        """Which nodes are on a partition, bool (nodes,)."""
        on: np.ndarray = (self.bits[:, part >> 3] & (1 << (part & 7))) != 0
        return on

    def factor(self) -> float:
        """The replication factor Σ|V_i| / |V| (CATGNN, §5.1); 0 of a graph without nodes."""
        return int(self.counts().sum()) / max(len(self.bits), 1)


@kernel
def mixed(value):
    """A hash of 64 bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _assign(bits, owner, chosen):
    for v in range(len(owner)):
        if len(chosen) == 0 or chosen[v]:
            bits[v, owner[v] >> 3] |= np.uint8(1 << (owner[v] & 7))


@kernel
def _add(bits, src, dst, part):
    for i in range(len(src)):
        p = part[i]
        if p >= 0:
            bit = np.uint8(1 << (p & 7))
            bits[src[i], p >> 3] |= bit
            bits[dst[i], p >> 3] |= bit


@kernel
def _grow(bits, grown, src, dst, directed):
    for i in range(len(src)):
        u, v = src[i], dst[i]
        for word in range(bits.shape[1]):
            grown[u, word] |= bits[v, word]
            if not directed:
                grown[v, word] |= bits[u, word]


@kernel
def _draw(bits, parts, seed):
    owner = np.empty(len(bits), np.int16)
    for v in range(len(bits)):
        there = 0
        for p in range(parts):
            there += (bits[v, p >> 3] >> (p & 7)) & 1
        draw = mixed(np.uint64(v) + seed * np.uint64(0x9E3779B97F4A7C15))
        if there == 0:
            owner[v] = np.int16(draw % np.uint64(parts))
            continue
        left = np.int64(draw % np.uint64(there))
        for p in range(parts):
            if (bits[v, p >> 3] >> (p & 7)) & 1:
                if left == 0:
                    owner[v] = p
                    break
                left -= 1
    return owner
