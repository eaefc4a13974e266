"""Memory of a part, and the number of parts that a limit asks for (CATGNN, §3.2, §3.4).

The paper takes the size of graph and feature data on the disk for their size in memory, and twice
as much again for the computations of training (T, two thirds of what a worker has). Here the data
of a part are counted, and `training` says what multiple of them its training takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgl_heta import GraphSource, InputError
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import EdgeStream

if TYPE_CHECKING:
    from dgl_heta_catgnn.partitioner import Assignment

NODE_BYTES, EDGE_BYTES = 9, 25
"""Bytes of a node besides its arrays (id, whose it is) and of an edge (ends, id, whose it is)."""
MOST_PARTS = 1024


@dataclass(frozen=True)
class Footprint:
    """Bytes that training on a part takes, as estimated, by part."""

    parts: int
    bytes: np.ndarray

    @property
    def largest(self) -> int:
        return int(self.bytes.max())


def row_bytes(source: GraphSource) -> np.ndarray:
    """Bytes of a node with its arrays, by node in the stream's order, int64 (nodes,)."""
    sizes = [NODE_BYTES + sum(array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
                              for array in source.node_arrays.get(ntype, {}).values())
             for ntype in source.node_counts]
    return np.repeat(np.array(sizes, np.int64), list(source.node_counts.values()))


def footprint(assignment: Assignment, stream: EdgeStream, rows: np.ndarray, hops: int,
              factor: float, size: int) -> Footprint:
    """The parts' bytes: nodes with their neighbours, edges, times `factor`; `hops` + 1 passes.

    Parameters
    ----------
    rows : bytes of each node (:func:`row_bytes`).
    hops : hops of neighbours that parts have.
    """
    near = Replicas.of_owners(assignment.owner, assignment.parts)
    for _ in range(hops):
        inner = near  # of these a part has the in-edges
        near = inner.with_neighbours(stream.chunks(size), directed=True)
    edges = np.zeros(assignment.parts, np.int64)
    for chunk in stream.chunks(size):
        for part in range(assignment.parts):
            edges[part] += np.count_nonzero(
                inner.bits[chunk.dst, part >> 3] & np.uint8(1 << (part & 7)))
    nodes = np.array([rows[near.nodes(part)].sum() for part in range(assignment.parts)])
    total = np.ceil(factor * (nodes + EDGE_BYTES * edges)).astype(np.int64)
    return Footprint(assignment.parts, total)


def choose_parts(measure: Callable[[int], Footprint], total: int, limit: int,
                 most: int = MOST_PARTS) -> Footprint:
    """The fewest parts, of those tried, whose largest takes `limit` bytes at most.

    Powers of two are tried, from the first that could do on: p parts of `total` bytes have one of
    total / p at least. Then numbers between it and the power before, halving the interval.

    Raises
    ------
    InputError
        The limit is too small; the message names the smallest that a number of parts that was
        tried can meet.
    """
    parts, seen, failed = 1, [], 0
    while parts * limit < total and parts < most:
        failed, parts = parts, min(2 * parts, most)
    while True:
        seen.append(measure(parts))
        if seen[-1].largest <= limit:
            break
        failed = parts
        if parts >= most:
            best = min(seen, key=lambda each: each.largest)
            raise InputError(
                f"no number of parts that was tried fits into {limit:,} bytes: the smallest limit "
                f"that one of them can meet is {best.largest:,} bytes (--memory-mb "
                f"{-(-best.largest // 1000) / 1000:g}), with {best.parts} parts; more parts have "
                "more neighbours of others")
        parts = min(2 * parts, most)
    chosen = seen[-1]
    while chosen.parts - failed > 1:
        middle = measure((chosen.parts + failed) // 2)
        if middle.largest <= limit:
            chosen = middle
        else:
            failed = middle.parts
    return chosen
