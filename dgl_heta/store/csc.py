"""Compressed sparse columns of one relation, built from edge chunks in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.readers.id_shards import ArrayFile
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeSource, share_of
from dgl_heta.store.builders import ALONE, Builders
from dgl_heta.system.disk import array_of, forget, row_starts
from dgl_heta.system.jit import late_kernel
from dgl_heta.system.memory import give_back


class CSC(NamedTuple):
    """In-edges: sources of destination v are `indices[indptr[v]:indptr[v + 1]]`.

    `indptr` is int64 of length num_dst + 1; `indices` is int32, or int64 where the source
    type has 2^31 nodes or more. Edges of one destination keep the order of the input.
    """

    indptr: np.ndarray
    indices: np.ndarray


def index_dtype(num_src: int) -> np.dtype:
    return np.dtype(np.int32 if num_src < 2**31 else np.int64)


def count_in_degrees(
    relation: Relation, edges: EdgeSource, num_src: int, num_dst: int, chunk: int,
    advance: Callable[[int], None], builders: Builders = ALONE, scratch: Path | None = None,
) -> np.ndarray:
    """First pass: `indptr`, with every id checked. Memory: a chunk and destination nodes; many are
    mapped from a file in the new directory `scratch`, if it is given.

    Several builders read a share of the edges each; the sum of theirs is in memory.

    Raises
    ------
    InputError
        An id out of range, or chunks with unequal numbers of sources and destinations.
    """
    def count() -> np.ndarray:
        file = None
        if scratch is not None and num_dst > chunk // 8:
            scratch.mkdir(exist_ok=True)
            file = scratch / f"indptr-{builders.rank}"
        counts = array_of(file, np.int64, (num_dst + 1,))
        _count_share(relation, *share_of(edges, builders.rank, builders.size), num_src, counts,
                     chunk, advance)
        return counts

    indptr = builders.total(builders.each(count))
    for start in (starts := row_starts(len(indptr), 8)):
        part = indptr[max(start - 1, 0):start + starts.step]
        np.cumsum(part, out=part)
        forget(indptr)
    if not indptr[-1]:
        raise InputError(f"relation '{relation}' has 0 edges; it must have at least 1 "
                         "(leave an empty relation out of the graph)")
    return indptr


def _count_share(relation: Relation, first: int, edges: EdgeSource, num_src: int,
                 counts: np.ndarray, chunk: int, advance: Callable[[int], None]) -> None:
    """Add the in-degrees of a share that begins with edge `first` to `counts`, those of node v at
    v + 1."""
    seen, num_dst = 0, len(counts) - 1
    for src, dst in edges.chunks(chunk):
        bad = _count(*_as_int64(relation, src, dst), num_src, counts)
        if bad >= 0:
            out_of_range = not 0 <= src[bad] < num_src
            side, ntype, value, limit = (
                ("source", relation.src, src[bad], num_src) if out_of_range
                else ("destination", relation.dst, dst[bad], num_dst)
            )
            raise InputError(
                f"relation '{relation}': edge {first + seen + bad} has {side} id {value}, but node "
                f"type '{ntype}' has {limit} nodes (ids 0 … {limit - 1})"
            )
        seen += len(src)
        forget(counts)
        advance(len(src))
    if seen != edges.num_edges:
        raise InputError(f"relation '{relation}': {edges.num_edges} edges announced, {seen} read")


Pieces = Iterator[tuple[np.ndarray, ...]]
TimesOf = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The times of edges, given their sources and their positions in the source."""


def sorted_indices(
    relation: Relation, edges: EdgeSource, indptr: np.ndarray, num_src: int, chunk: int,
    want_ids: bool, scratch: Path, advance: Callable[[int], None], builders: Builders = ALONE,
    times: TimesOf | None = None,
) -> Pieces:
    """Second pass: `(indices, edge ids)` in CSC order, piece by piece; with `times`
    `(indices, times, edge ids)`, and a node's in-edges ascend by their times.

    Up to `chunk` edges of as many destinations are sorted in memory. More are first dealt to files
    in the directory `scratch`, one per range of destinations that holds about a chunk of edges;
    then each file is sorted by itself. Edge ids are empty unless `want_ids`. Several builders deal
    a share of the edges each, and sort a share of the ranges, which are one after the other.

    Raises
    ------
    HetaError
        The edges are not those of the first pass (a file that is still being written).
    """
    num_edges = int(indptr[-1])
    if times is not None:  # more columns
        want_ids, chunk = True, max(chunk // 2, 1024)
    runs = scratch / f"runs-{builders.rank}"  # of nodes that are dealt, so it is there by then
    if max(num_edges, len(indptr) - 1) <= chunk and builders.size == 1:
        whole = _sorted_in_memory(relation, edges, indptr, num_src, chunk, want_ids, advance)
        return whole if times is None else _by_time(whole, indptr, 0, times, runs)
    bounds = _ranges(indptr, chunk)
    dtypes = [index_dtype(num_src), index_dtype(len(indptr) - 1)]
    record = np.dtype([*zip(("src", "dst"), dtypes)] + ([("id", np.int64)] if want_ids else []))
    buckets = _Buckets(scratch, len(bounds) - 1, record, builders)
    # Edges that are dealt or read back are held several times over: as read, as records, as
    # sorted, as bytes.
    piece = max(chunk // 4, 1024)

    def deal() -> None:
        scratch.mkdir(exist_ok=True)
        first, own = share_of(edges, builders.rank, builders.size)
        for done, src, dst in _reread(relation, own, piece, own.num_edges, num_src,
                                      len(indptr) - 1):
            rows = np.empty(len(src), record)
            rows["src"], rows["dst"] = src, dst
            if want_ids:
                rows["id"] = np.arange(first + done, first + done + len(src))
            buckets.deal(rows, *_by_range(dst, bounds))
            advance(len(src) // 2)

    builders.each(deal)
    low, high = np.searchsorted(indptr[bounds[:-1]], [
        num_edges * rank / builders.size for rank in (builders.rank, builders.rank + 1)])
    pieces = _sorted_buckets(
        relation, indptr, bounds[low:high + 1], buckets, int(low), piece, want_ids, advance)
    return pieces if times is None else _by_time(
        pieces, indptr, int(indptr[bounds[low]]), times, runs)


def _by_time(pieces: Pieces, indptr: np.ndarray, first: int, times: TimesOf, runs: Path) -> Pieces:
    """Pieces from edge `first` on, with their times, by which each node's in-edges ascend; those of
    one time keep their order. A node's that come in several pieces are merged from the file `runs`.
    """
    ends, kept = [0], None
    for indices, ids in pieces:
        at, stop = times(indices, ids), first + len(indices)
        low, high = int(np.searchsorted(indptr, first, "right")) - 1, int(
            np.searchsorted(indptr, stop))
        whole = indptr[low] == first and indptr[high] == stop
        order = np.arange(len(at))
        if _sort_by(at, indptr[low:high + 1] - first if whole else np.array([0, len(at)]), order):
            indices, at, ids = indices[order], at[order], ids[order]
        if whole:
            yield indices, at, ids
        else:
            kept = kept or ArrayFile(runs, [("src", indices.dtype), ("time", at.dtype),
                                            ("id", ids.dtype)])
            kept.append(np.rec.fromarrays([indices, at, ids], kept.dtype))
            ends.append(len(kept))
            if indptr[high] == stop:
                for rows in _merged(kept, ends):
                    yield rows["src"], rows["time"], rows["id"]
                runs.unlink()
                ends, kept = [0], None
        first = stop
        del indices, at, ids, order  # before the next piece is there


def _merged(file: ArrayFile, ends: list[int]) -> Iterator[np.ndarray]:
    """Records of runs that ascend by time each, merged; those of one time are in the order of the
    runs. As many are in memory as a run has."""
    size = max(ends[1] // (len(ends) - 1), 1)
    left = [*itertools.pairwise(ends)]
    heads = [file.read(low, min(low + size, high)) for low, high in left]
    while any(map(len, heads)):
        # The run whose head ends first: nothing that is to come of any is before that.
        last, run = min((head["time"][-1], run) for run, head in enumerate(heads) if len(head))
        cuts = [int(np.searchsorted(head["time"], last, "right" if i <= run else "left"))
                for i, head in enumerate(heads)]
        rows = np.concatenate([head[:cut] for head, cut in zip(heads, cuts)])
        yield rows[np.argsort(rows["time"], kind="stable")]
        heads = [head[cut:] for head, cut in zip(heads, cuts)]
        low, high = left[run]
        left[run] = low + size, high
        heads[run] = file.read(min(low + size, high), min(low + 2 * size, high))


def _sorted_in_memory(relation: Relation, edges: EdgeSource, indptr: np.ndarray, num_src: int,
                      chunk: int, want_ids: bool, advance: Callable[[int], None]) -> Pieces:
    num_edges = int(indptr[-1])
    indices = np.empty(num_edges, index_dtype(num_src))
    ids = np.empty(num_edges if want_ids else 0, np.int64)
    cursor = indptr[:-1].copy()
    for done, src, dst in _reread(relation, edges, chunk, num_edges, num_src, len(cursor)):
        places = np.arange(done, done + len(src) if want_ids else done)
        if not _scatter(src, dst, 0, 0, cursor, indptr[1:], indices, ids, places):
            raise _changed(relation)
        advance(len(src))
    yield indices, ids


def _sorted_buckets(relation: Relation, indptr: np.ndarray, bounds: np.ndarray, buckets: _Buckets,
                    first: int, piece: int, want_ids: bool, advance: Callable[[int], None]
                    ) -> Pieces:
    """The buckets from `first` on, one for each range between `bounds`."""
    for bucket, (low, high) in enumerate(itertools.pairwise(bounds.tolist()), start=first):
        base, size = int(indptr[low]), int(indptr[high] - indptr[low])
        if buckets.size(bucket) != size:
            raise _changed(relation)
        if not size:
            continue
        alone = high - low == 1  # one destination, perhaps larger than a chunk: in order
        indices = np.empty(0 if alone else size, buckets.record["src"])
        ids = np.empty(size if want_ids and not alone else 0, np.int64)
        cursor = indptr[low:high] - base
        for rows in buckets.read(bucket, piece):
            src = np.ascontiguousarray(rows["src"])
            places = np.ascontiguousarray(rows["id"]) if want_ids else ids[:0]
            if alone:
                yield src, places
            elif not _scatter(src, np.ascontiguousarray(rows["dst"], np.int64), low, base, cursor,
                              indptr[low + 1:high + 1], indices, ids, places):
                raise _changed(relation)
            advance(len(rows) - len(rows) // 2)
        if not alone:
            yield indices, ids
        del indices, ids, cursor
        give_back()


def _reread(relation: Relation, edges: EdgeSource, chunk: int, num_edges: int, num_src: int,
            num_dst: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The edges again, as `(position of the first, src, dst)`, in range and as many as before."""
    done = 0
    for given in edges.chunks(chunk):
        src, dst = _as_int64(relation, *given)
        done += len(src)
        for ids, count in ((src, num_src), (dst, num_dst)):
            if done > num_edges or (len(ids) and not 0 <= ids.min() <= ids.max() < count):
                raise _changed(relation)
        yield done - len(src), src, dst
    if done != num_edges:
        raise _changed(relation)


def _changed(relation: Relation) -> HetaError:
    return HetaError(f"the edges of relation '{relation}' changed while they were read; nothing "
                     "else may write to them meanwhile")


def _ranges(indptr: np.ndarray, chunk: int) -> np.ndarray:
    """Destination ranges of at most `chunk` edges and nodes, a larger destination by itself."""
    bounds = [0]
    last = len(indptr) - 1
    while bounds[-1] < last:
        low = bounds[-1]
        high = int(np.searchsorted(indptr, indptr[low] + chunk, side="right")) - 1
        bounds.append(min(max(high, low + 1), low + chunk, last))
    return np.asarray(bounds, dtype=np.int64)


class _Buckets:
    """Append-only files of edge records, for each bucket one of each builder; opened for each
    append, so their number is free."""

    def __init__(self, directory: Path, count: int, record: np.dtype, builders: Builders) -> None:
        self.record, self._rank = record, builders.rank
        self._paths = [[directory / f"{i}-{rank}.bin" for rank in range(builders.size)]
                       for i in range(count)]

    def deal(self, rows: np.ndarray, order: np.ndarray, ends: np.ndarray) -> None:
        """Append rows, which are bucket by bucket in this order, each to its end."""
        rows = rows[order]
        start = 0
        for paths, end in zip(self._paths, ends.tolist()):
            if end > start:
                with paths[self._rank].open("ab") as file:
                    file.write(rows[start:end].tobytes())
            start = end

    def size(self, bucket: int) -> int:
        return sum(path.stat().st_size // self.record.itemsize
                   for path in self._paths[bucket] if path.exists())

    def read(self, bucket: int, chunk: int) -> Iterator[np.ndarray]:
        """The records in the order of the edges: shares of builders are one after the other."""
        for path in self._paths[bucket]:
            if not path.exists():
                continue
            with path.open("rb") as file:
                while data := file.read(chunk * self.record.itemsize):
                    yield np.frombuffer(data, self.record)
            path.unlink()


def _as_int64(relation: Relation, src: np.ndarray,
              dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a chunk in the one form that the kernels take; too large ones turn negative."""
    if len(src) != len(dst):
        raise InputError(
            f"relation '{relation}': {len(src)} source ids but {len(dst)} destination ids; "
            "both lists must have the same length"
        )
    for side, ids in (("source", src), ("destination", dst)):
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise InputError(
                f"relation '{relation}': {side} ids are {ids.dtype} of shape {ids.shape}; they "
                "must be integers in one dimension"
            )
    return np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)


@late_kernel
def _count(src, dst, num_src, counts):  # type: ignore[no-untyped-def]
    """Add in-degrees to counts[1:]; the index of the first edge out of range, or -1."""
    num_dst = len(counts) - 1
    for i in range(len(dst)):
        row = dst[i]  # once: the array may be a mapped file
        if src[i] < 0 or src[i] >= num_src or row < 0 or row >= num_dst:
            return i
        counts[row + 1] += 1
    return -1


@late_kernel
def _sort_by(times, indptr, order):  # type: ignore[no-untyped-def]
    """Sort `order`, the places of edges, within each node by their times; equal ones stay in order.
    Return whether any had to move."""
    moved = False
    for node in range(len(indptr) - 1):
        begin, end = indptr[node], indptr[node + 1]
        for i in range(begin + 1, end):
            if times[i] < times[i - 1]:
                order[begin:end] = begin + np.argsort(times[begin:end], kind="mergesort")
                moved = True
                break
    return moved


@late_kernel
def _by_range(ids, bounds):  # type: ignore[no-untyped-def]
    """The order of ids by the range between bounds that each is in, and where each range ends."""
    count = len(bounds) - 1
    ends, which = np.zeros(count, np.int64), np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            if bounds[middle] <= ids[i]:
                low = middle
            else:
                high = middle
        which[i] = low
        ends[low] += 1
    at, order = np.cumsum(ends) - ends, np.empty(len(ids), np.int32)
    ends += at
    for i in range(len(ids)):
        order[at[which[i]]] = i
        at[which[i]] += 1
    return order, ends


@late_kernel
def _scatter(  # type: ignore[no-untyped-def]
        src, dst, low, base, cursor, ends, indices, ids, places):
    """Put each edge in the next place of its destination, from `low` on, whose first edge is at
    `base`; False if there is none left."""
    keep = len(ids) > 0
    for i in range(len(src)):
        row = dst[i] - low
        if row < 0 or row >= len(cursor):
            return False
        slot = cursor[row]
        if slot >= ends[row] - base:
            return False
        cursor[row] = slot + 1
        indices[slot] = src[i]
        if keep:
            ids[slot] = places[i]
    return True
