"""The samples of a layer: one relation after the other or side by side on several threads, or in
another way that a plugin has.

Sampling has two parts: which neighbours a node has, a function of the node alone, and the row that
each neighbour gets, which depends on all that were sampled before it. On one thread both are done
in one pass. On several, neighbours come first, in any order and in pieces of relations; then they
get rows, each node type by one thread, its relations in their order. Blocks are the same bit for
bit.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock, SharedRows
from dgl_heta.sampling.positions import EdgeSample, Until
from dgl_heta.sampling.rows import NodeRows, RowScratch
from dgl_heta.sampling.sampling_kernels import (
    BAD,
    count_sampled,
    sample_neighbors,
    sample_pieces,
)
from dgl_heta.sampling.sampling_scope import HubPieces
from dgl_heta.store import CSC
from dgl_heta.store.structure import changed

PIECE = 8192  # destination rows that a thread samples for at a time
FEW = 2048    # destination rows of a layer, over its relations, that one thread samples for


@dataclass
class Sample:
    """The in-edges by one relation that a layer needs.

    Attributes
    ----------
    nodes : the destination nodes, in the order of the rows of the block to be.
    start, chosen : which destination rows they are, as in :class:`RelationBlock`.
    hubs : where the nodes' in-edges are cut, the pieces that are here, an entry per node.
    left_out : as :meth:`HeldOut.left_out` has it.
    weights : of the relation's edges, as :func:`sample_neighbors` has them.
    excluded : positions in `csc` of edges that are sampled like others and dropped, ascending.
    until, shifts : where seeds have times, which edges each node sees, as :func:`sample_neighbors`
        has them, and what the ids of its neighbours are more by (:class:`Moments`).
    """

    relation: Relation
    place: int
    csc: CSC
    nodes: np.ndarray
    start: int
    chosen: Tensor | None
    fanout: int
    key: np.uint64
    left_out: tuple[Any, ...] | None = None
    hubs: HubPieces | None = None
    weights: np.ndarray | None = None
    excluded: np.ndarray | None = None
    until: Until | None = None
    shifts: np.ndarray | None = None

    def most(self, indptr: np.ndarray) -> int:
        """Make room: the largest number of edges. `indptr` is filled, but not that of hubs."""
        if self.hubs is None:
            most: int = count_sampled(self.csc.indptr, self.nodes, self.fanout,
                                      len(self.csc.indices), indptr, self.until)
            self.check(most)
            return most
        here = self.hubs.high - self.hubs.low
        return int((here if self.fanout < 0 else np.minimum(here, self.fanout)).sum())

    def check(self, result: int) -> None:
        """Check the number that a kernel has returned.

        Raises
        ------
        InputError
            It found a number that leads out of the graph in the relation's files.
        """
        if result == BAD:
            raise changed(self.relation, self.csc)

    def block(self, indptr: np.ndarray, indices: np.ndarray, order: np.ndarray | None = None
              ) -> RelationBlock:
        shared = None if self.hubs is None or order is None else SharedRows(
            torch.from_numpy(self.hubs.own), torch.from_numpy(order))
        sample = None if self.left_out is not None else EdgeSample(
            self.relation, self.csc, self.fanout, self.key, self.hubs, self.weights,
            self.excluded, self.until)
        return RelationBlock(self.relation, self.start, torch.from_numpy(indptr),
                             torch.from_numpy(indices), self.place, self.chosen, shared, sample)

    def pieces(self) -> list[Sample]:
        """The same for some of the nodes each."""
        if self.hubs is not None or len(self.nodes) <= PIECE:
            return [self]
        return [replace(self, nodes=self.nodes[few], start=0, chosen=None,
                        until=self.until and (self.until[0][few], self.until[1][few],
                                              self.until[2]),
                        shifts=None if self.shifts is None else self.shifts[few])
                for low in range(0, len(self.nodes), PIECE) for few in [slice(low, low + PIECE)]]


class LayerSampling(Protocol):
    """How the layers of a batch are sampled; every way gives the same blocks, bit for bit."""

    def borrow(self) -> AbstractContextManager[dict[str, Any]]:
        """Empty rows per node type (as :class:`NodeRows`: `add`, `ids`, a length), for one batch;
        several threads may ask at once."""

    def sample(self, wanted: Sequence[Sample], rows: Mapping[str, Any]) -> list[RelationBlock]:
        """The blocks of a layer's samples; new neighbours become `rows`."""

    def nodes(self, rows: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The node of each row, int64, per node type."""


class OnCores:
    """Samples layers on CPU threads.

    Parameters
    ----------
    counts : nodes per type.
    threads : how many threads sample relations side by side.
    """

    def __init__(self, counts: Mapping[str, int], threads: int) -> None:
        self._scratch = RowScratch(counts)
        self._threads = Threads(threads) if threads > 1 else None

    def on_one_thread(self) -> OnCores:
        """The same, for callers of which several sample at once."""
        other = copy.copy(self)
        other._threads = None
        return other

    def borrow(self) -> AbstractContextManager[dict[str, NodeRows]]:
        return self._scratch.borrow()

    def sample(self, wanted: Sequence[Sample], rows: Mapping[str, NodeRows]
               ) -> list[RelationBlock]:
        if self._threads and sum(len(each.nodes) for each in wanted) > FEW:
            return sample_on_threads(wanted, rows, self._threads)
        return sample_in_turn(wanted, rows)

    def nodes(self, rows: Mapping[str, NodeRows]) -> dict[str, np.ndarray]:
        return {t: table.ids().copy() for t, table in rows.items()}


class _Sampled:
    """The sample of a piece: pointers, neighbours by their ids, the order of hubs' edges."""

    def __init__(self, wanted: Sample) -> None:
        self.wanted = wanted

    def __call__(self) -> None:
        wanted = self.wanted
        self.indptr = np.empty(len(wanted.nodes) + 1, np.int64)
        ids = np.empty(wanted.most(self.indptr), wanted.csc.indices.dtype)
        _, self.order, total = _run(wanted, self.indptr, ids, None, None, 0)
        self.ids = ids[:total]


def _run(wanted: Sample, indptr: np.ndarray, out: np.ndarray, row_of: np.ndarray | None,
         rows: np.ndarray | None, size: int) -> tuple[int, np.ndarray | None, int]:
    """Sample into `out`: rows, or ids without `row_of`.

    Returns the number of rows, the order of hubs' edges, and the number of edges.
    """
    csc, hubs = wanted.csc, wanted.hubs
    if hubs is None:
        size, total = sample_neighbors(
            csc.indptr, csc.indices, wanted.nodes, wanted.fanout, wanted.key, wanted.weights,
            indptr, out, row_of, rows, size, wanted.left_out, wanted.excluded, wanted.until)
        wanted.check(total)
        return size, None, total
    order = np.empty(len(out), np.int64)
    size, total = sample_pieces(csc.indptr, csc.indices, wanted.nodes, hubs.low, hubs.high,
                              wanted.fanout, wanted.key, wanted.weights, indptr, out, order, row_of,
                              rows, size, wanted.left_out, wanted.excluded, wanted.until)
    wanted.check(total)
    return size, order[:total], total


def sample_in_turn(wanted: Iterable[Sample], rows: Mapping[str, NodeRows]
                   ) -> list[RelationBlock]:
    """The blocks of relations, one after the other; new neighbours become `rows`."""
    blocks = []
    for each in wanted:
        sources = rows[each.relation.src]
        if not len(sources.row_of):  # rows are of more than nodes
            piece = _Sampled(each)
            piece()
            blocks.append(_with_rows(each, [piece], sources))
            continue
        indptr = np.empty(len(each.nodes) + 1, np.int64)
        most = each.most(indptr)
        sources.reserve(most)
        indices = np.empty(most, np.int32)
        sources.size, order, total = _run(each, indptr, indices, sources.row_of, sources.buffer,
                                          sources.size)
        blocks.append(each.block(indptr, indices[:total], order))
    return blocks


def sample_on_threads(wanted: Sequence[Sample], rows: Mapping[str, NodeRows], threads: Threads
                    ) -> list[RelationBlock]:
    """As :func:`sample_in_turn`, the same blocks."""
    pieces = [[_Sampled(piece) for piece in each.pieces()] for each in wanted]
    every = sorted(itertools.chain(*pieces), key=lambda piece: -len(piece.wanted.nodes))
    threads.run(every)
    blocks: list[RelationBlock | None] = [None] * len(wanted)
    by_type: dict[str, list[int]] = {}
    for i, each in enumerate(wanted):
        by_type.setdefault(each.relation.src, []).append(i)

    def give(ntype: str) -> None:
        for i in by_type[ntype]:
            blocks[i] = _with_rows(wanted[i], pieces[i], rows[ntype])

    edges = {t: sum(len(piece.ids) for i in places for piece in pieces[i])
             for t, places in by_type.items()}
    threads.run([lambda ntype=ntype: give(ntype)  # type: ignore[misc]
                 for ntype in sorted(edges, key=edges.__getitem__, reverse=True)])
    return [block for block in blocks if block is not None]


def _with_rows(wanted: Sample, pieces: Sequence[_Sampled], sources: NodeRows) -> RelationBlock:
    """The block of a relation whose neighbours were sampled."""
    total = sum(len(piece.ids) for piece in pieces)
    sources.reserve(total)
    indices = np.empty(total, np.int32)
    indptr = pieces[0].indptr if len(pieces) == 1 else np.zeros(len(wanted.nodes) + 1, np.int64)
    row = edge = 0
    for piece in pieces:
        stop = edge + len(piece.ids)
        wanted.check(sources.give(piece.ids, indices[edge:stop], piece.indptr,
                                  piece.wanted.shifts))
        if len(pieces) > 1:
            np.add(piece.indptr[1:], edge, out=indptr[row + 1:row + len(piece.indptr)])
            row += len(piece.indptr) - 1
        edge = stop
    return wanted.block(indptr, indices, pieces[0].order)


class Threads:
    """Some threads that work off lists of tasks, that of the caller among them.

    Several callers may use them at once, and count among them: who helps a caller leaves when
    others call. A thread that has not begun when a list is done is not waited for, so a caller
    never waits for threads that others keep busy. A process that is forked has threads of its own.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        # By process, as a fork has no threads; with a mark of each thread and caller that is busy.
        self._pools: dict[int, tuple[ThreadPoolExecutor, list[None]]] = {}

    def _pool(self) -> tuple[ThreadPoolExecutor, list[None]]:
        found = self._pools.get(os.getpid())
        if found is None:
            pool = ThreadPoolExecutor(max(self.number - 1, 1), "dgl-heta-sampling")
            found = self._pools.setdefault(os.getpid(), (pool, []))
        return found

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks; an error of one is raised when no task runs any more."""
        left = iter(tasks)  # taking the next of a list's entries is one step, whoever asks
        pool, busy = self._pool()

        def work(helps: bool = True) -> None:
            busy.append(None)
            try:
                for task in left:
                    task()
                    if helps and len(busy) > self.number:
                        return
            finally:
                busy.pop()

        others = [pool.submit(work) for _ in range(
            min(self.number - len(busy), len(tasks)) - 1)]
        try:
            work(helps=False)
        finally:
            errors = [other.exception() for other in others if not other.cancel()]
        for error in errors:
            if error is not None:
                raise error
