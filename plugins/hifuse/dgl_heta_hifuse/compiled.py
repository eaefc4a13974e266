"""Passes over the in-edges of many relations, each one call, compiled, on CPU.

A relation is a row of `jobs` (int64): addresses and sizes, in the columns that are named below. All
values are of the dtype of `like`, in C order. R destination rows, E edges, S source rows, H heads,
D width. Functions of edges do not check indices: :func:`last_sources` does, once for each batch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from dgl_heta.tools import kernel, prefetch

INDPTR, INDICES, ROWS, EDGES, SOURCE, SOURCES, OTHER, OTHERS, OUT, TO_SOURCE, TO_OTHER = range(11)
"""Columns of functions of edges: addresses of the CSC (int64, int32) and its sizes, address and
number of the source rows, those of the rows or edges that are the other argument, the result (or
its gradient), the gradients of both arguments; 0 where there is none."""
FROM, COUNT, INDEX, START, CHOSEN, TO = range(6)
"""Columns of :func:`gather` and :func:`scatter`: rows and their number; the chosen ones' numbers
(address, int64), or 0 and the first; how many; the chosen rows, one after the other."""


def _pointer(context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], cgutils.voidptr_t)
    return types.voidptr(types.int64), generate


_at: Any = intrinsic(_pointer)


@kernel
def _csc(job):  # type: ignore[no-untyped-def]
    return (carray(_at(job[INDPTR]), (job[ROWS] + 1,), np.int64),
            carray(_at(job[INDICES]), (job[EDGES],), np.int32))


@kernel
def last_sources(jobs, last):  # type: ignore[no-untyped-def]
    """Fill `last` with the largest index of each relation, -1 without edges. Returns the first
    relation whose CSC is none, or -1."""
    for r in range(len(jobs)):
        indptr, indices = _csc(jobs[r])
        before = 0
        for row in range(jobs[r, ROWS] + 1):
            if indptr[row] < before or indptr[row] > jobs[r, EDGES]:
                return r
            before = indptr[row]
        if indptr[0] != 0 or before != jobs[r, EDGES]:
            return r
        last[r] = -1
        for edge in range(jobs[r, EDGES]):
            if indices[edge] < 0:
                return r
            last[r] = max(last[r], indices[edge])
    return -1


@kernel
def sums(jobs, width, mean, like):  # type: ignore[no-untyped-def]
    """OUT (R, D): the sum or mean of SOURCE (S, D)."""
    for r in range(len(jobs)):
        indptr, indices = _csc(jobs[r])
        source = carray(_at(jobs[r, SOURCE]), (jobs[r, SOURCES], width), like.dtype)
        out = carray(_at(jobs[r, OUT]), (jobs[r, ROWS], width), like.dtype)
        for row in range(jobs[r, ROWS]):
            low, high = indptr[row], indptr[row + 1]
            for k in range(width):
                out[row, k] = 0
            for edge in range(low, high):
                prefetch(source, indices, edge)
                other = indices[edge]
                for k in range(width):
                    out[row, k] += source[other, k]
            if mean and high > low + 1:
                for k in range(width):
                    out[row, k] /= high - low


@kernel
def sums_backward(jobs, width, mean, like):  # type: ignore[no-untyped-def]
    """Add OUT (R, D) to TO_SOURCE (S, D)."""
    scaled = np.empty(width, like.dtype)
    for r in range(len(jobs)):
        indptr, indices = _csc(jobs[r])
        grad = carray(_at(jobs[r, OUT]), (jobs[r, ROWS], width), like.dtype)
        to_source = carray(_at(jobs[r, TO_SOURCE]), (jobs[r, SOURCES], width), like.dtype)
        for row in range(jobs[r, ROWS]):
            low, high = indptr[row], indptr[row + 1]
            for k in range(width):
                scaled[k] = grad[row, k] / (high - low) if mean and high > low + 1 else grad[row, k]
            for edge in range(low, high):
                prefetch(to_source, indices, edge)
                other = indices[edge]
                for k in range(width):
                    to_source[other, k] += scaled[k]


@numba.njit(error_model="numpy", fastmath={"reassoc"})
def _dot(a, b):  # type: ignore[no-untyped-def]
    """Free to add in any order, it is vectorised; NaN and infinity are kept."""
    total = a.dtype.type(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


def _per_head(shared: bool) -> tuple[Any, ...]:  # noqa: C901, PLR0915  # kernels of one closure
    """Functions of SOURCE (S, D), which all heads share, or (S, H, D). Which it is must be a
    constant."""

    @kernel
    def dot(jobs, heads, width, like):  # type: ignore[no-untyped-def]
        """OUT (E, H): products of SOURCE with OTHER, (R, H, D) or (1, H, D)."""
        for r in range(len(jobs)):
            indptr, indices = _csc(jobs[r])
            source = carray(_at(jobs[r, SOURCE]),
                            (jobs[r, SOURCES], 1 if shared else heads, width), like.dtype)
            other = carray(_at(jobs[r, OTHER]), (jobs[r, OTHERS], heads, width), like.dtype)
            out = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
            for row in range(jobs[r, ROWS]):
                at = row if jobs[r, OTHERS] == jobs[r, ROWS] else 0
                for edge in range(indptr[row], indptr[row + 1]):
                    prefetch(source, indices, edge)
                    from_row = indices[edge]
                    for head in range(heads):
                        out[edge, head] = _dot(source[from_row, 0 if shared else head],
                                               other[at, head])

    @kernel
    def dot_backward(jobs, heads, width, to_source_too, to_other_too, like):  # type: ignore[no-untyped-def]
        """Add to TO_SOURCE and to TO_OTHER from OUT (E, H)."""
        for r in range(len(jobs)):
            indptr, indices = _csc(jobs[r])
            shape = (jobs[r, SOURCES], 1 if shared else heads, width)
            source = carray(_at(jobs[r, SOURCE]), shape, like.dtype)
            other = carray(_at(jobs[r, OTHER]), (jobs[r, OTHERS], heads, width), like.dtype)
            grad = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
            to_source = carray(_at(jobs[r, TO_SOURCE]), shape, like.dtype)
            to_other = carray(_at(jobs[r, TO_OTHER]), (jobs[r, OTHERS], heads, width), like.dtype)
            for row in range(jobs[r, ROWS]):
                at = row if jobs[r, OTHERS] == jobs[r, ROWS] else 0
                for edge in range(indptr[row], indptr[row + 1]):
                    prefetch(source, indices, edge)
                    if to_source_too:
                        prefetch(to_source, indices, edge)
                    from_row = indices[edge]
                    for head in range(heads):
                        g, column = grad[edge, head], 0 if shared else head
                        if to_source_too:
                            for k in range(width):
                                to_source[from_row, column, k] += g * other[at, head, k]
                        if to_other_too:
                            for k in range(width):
                                to_other[at, head, k] += g * source[from_row, column, k]

    @kernel
    def weighted(jobs, heads, width, like):  # type: ignore[no-untyped-def]
        """OUT (R, H, D): sums of SOURCE times OTHER (E, H)."""
        for r in range(len(jobs)):
            indptr, indices = _csc(jobs[r])
            source = carray(_at(jobs[r, SOURCE]),
                            (jobs[r, SOURCES], 1 if shared else heads, width), like.dtype)
            other = carray(_at(jobs[r, OTHER]), (jobs[r, EDGES], heads), like.dtype)
            out = carray(_at(jobs[r, OUT]), (jobs[r, ROWS], heads, width), like.dtype)
            for row in range(jobs[r, ROWS]):
                for head in range(heads):
                    for k in range(width):
                        out[row, head, k] = 0
                for edge in range(indptr[row], indptr[row + 1]):
                    prefetch(source, indices, edge)
                    from_row = indices[edge]
                    for head in range(heads):
                        weight, column = other[edge, head], 0 if shared else head
                        for k in range(width):
                            out[row, head, k] += weight * source[from_row, column, k]

    @kernel
    def weighted_backward(jobs, heads, width, to_source_too, to_other_too, like):  # type: ignore[no-untyped-def]
        """Add to TO_SOURCE, and fill TO_OTHER (E, H), from OUT (R, H, D)."""
        for r in range(len(jobs)):
            indptr, indices = _csc(jobs[r])
            shape = (jobs[r, SOURCES], 1 if shared else heads, width)
            source = carray(_at(jobs[r, SOURCE]), shape, like.dtype)
            other = carray(_at(jobs[r, OTHER]), (jobs[r, EDGES], heads), like.dtype)
            grad = carray(_at(jobs[r, OUT]), (jobs[r, ROWS], heads, width), like.dtype)
            to_source = carray(_at(jobs[r, TO_SOURCE]), shape, like.dtype)
            to_other = carray(_at(jobs[r, TO_OTHER]), (jobs[r, EDGES], heads), like.dtype)
            for row in range(jobs[r, ROWS]):
                for edge in range(indptr[row], indptr[row + 1]):
                    if to_other_too:
                        prefetch(source, indices, edge)
                    if to_source_too:
                        prefetch(to_source, indices, edge)
                    from_row = indices[edge]
                    for head in range(heads):
                        weight, column = other[edge, head], 0 if shared else head
                        if to_source_too:
                            for k in range(width):
                                to_source[from_row, column, k] += weight * grad[row, head, k]
                        if to_other_too:
                            to_other[edge, head] = _dot(grad[row, head], source[from_row, column])

    return dot, dot_backward, weighted, weighted_backward


SHARED, OF_HEADS = _per_head(True), _per_head(False)


@kernel
def add(jobs, heads, like):  # type: ignore[no-untyped-def]
    """OUT (E, H): sums of SOURCE (S, H) and OTHER (R, H)."""
    for r in range(len(jobs)):
        indptr, indices = _csc(jobs[r])
        source = carray(_at(jobs[r, SOURCE]), (jobs[r, SOURCES], heads), like.dtype)
        other = carray(_at(jobs[r, OTHER]), (jobs[r, ROWS], heads), like.dtype)
        out = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            for edge in range(indptr[row], indptr[row + 1]):
                for head in range(heads):
                    out[edge, head] = source[indices[edge], head] + other[row, head]


@kernel
def add_backward(jobs, heads, to_source_too, to_other_too, like):  # type: ignore[no-untyped-def]
    """Add OUT (E, H) to TO_SOURCE (S, H) and to TO_OTHER (R, H)."""
    for r in range(len(jobs)):
        indptr, indices = _csc(jobs[r])
        grad = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
        to_source = carray(_at(jobs[r, TO_SOURCE]), (jobs[r, SOURCES], heads), like.dtype)
        to_other = carray(_at(jobs[r, TO_OTHER]), (jobs[r, ROWS], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            for edge in range(indptr[row], indptr[row + 1]):
                for head in range(heads):
                    if to_source_too:
                        to_source[indices[edge], head] += grad[edge, head]
                    if to_other_too:
                        to_other[row, head] += grad[edge, head]


@kernel
def spread(jobs, heads, like):  # type: ignore[no-untyped-def]
    """OUT (E, H): each edge its row's OTHER (R, H)."""
    for r in range(len(jobs)):
        indptr, _ = _csc(jobs[r])
        other = carray(_at(jobs[r, OTHER]), (jobs[r, ROWS], heads), like.dtype)
        out = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            for edge in range(indptr[row], indptr[row + 1]):
                for head in range(heads):
                    out[edge, head] = other[row, head]


@kernel
def totals(jobs, heads, largest, like):  # type: ignore[no-untyped-def]
    """OUT (R, H): each row's sum of its edges' OTHER (E, H), or the maximum; NaN stays NaN."""
    none = like.dtype.type(-np.inf if largest else 0)
    for r in range(len(jobs)):
        indptr, _ = _csc(jobs[r])
        other = carray(_at(jobs[r, OTHER]), (jobs[r, EDGES], heads), like.dtype)
        out = carray(_at(jobs[r, OUT]), (jobs[r, ROWS], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            for head in range(heads):
                total = none
                for edge in range(indptr[row], indptr[row + 1]):
                    value = other[edge, head]
                    if not largest:
                        total += value
                    elif value > total or value != value:
                        total = value
                out[row, head] = total


@kernel
def softmax(jobs, heads, like):  # type: ignore[no-untyped-def]
    """OUT (E, H): the softmax of OTHER (E, H) over each row's edges."""
    for r in range(len(jobs)):
        indptr, _ = _csc(jobs[r])
        other = carray(_at(jobs[r, OTHER]), (jobs[r, EDGES], heads), like.dtype)
        out = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            low, high = indptr[row], indptr[row + 1]
            for head in range(heads):
                top = like.dtype.type(-np.inf)
                for edge in range(low, high):
                    top = max(top, other[edge, head])
                total = like.dtype.type(0)
                for edge in range(low, high):
                    out[edge, head] = np.exp(other[edge, head] - top)
                    total += out[edge, head]
                for edge in range(low, high):
                    out[edge, head] /= total


@kernel
def softmax_backward(jobs, heads, like):  # type: ignore[no-untyped-def]
    """TO_OTHER (E, H) from the result OTHER and its gradient OUT (E, H)."""
    for r in range(len(jobs)):
        indptr, _ = _csc(jobs[r])
        other = carray(_at(jobs[r, OTHER]), (jobs[r, EDGES], heads), like.dtype)
        grad = carray(_at(jobs[r, OUT]), (jobs[r, EDGES], heads), like.dtype)
        to_other = carray(_at(jobs[r, TO_OTHER]), (jobs[r, EDGES], heads), like.dtype)
        for row in range(jobs[r, ROWS]):
            low, high = indptr[row], indptr[row + 1]
            for head in range(heads):
                total = like.dtype.type(0)
                for edge in range(low, high):
                    total += grad[edge, head] * other[edge, head]
                for edge in range(low, high):
                    to_other[edge, head] = other[edge, head] * (grad[edge, head] - total)


@kernel
def gather(jobs, width, like):  # type: ignore[no-untyped-def]
    """TO: the chosen rows of FROM. The relation in which one is not there, or -1."""
    for r in range(len(jobs)):
        rows = carray(_at(jobs[r, FROM]), (jobs[r, COUNT], width), like.dtype)
        index = carray(_at(jobs[r, INDEX]), (jobs[r, CHOSEN],), np.int64)
        out = carray(_at(jobs[r, TO]), (jobs[r, CHOSEN], width), like.dtype)
        for i in range(jobs[r, CHOSEN]):
            if jobs[r, INDEX]:
                prefetch(rows, index, i)
            row = index[i] if jobs[r, INDEX] else jobs[r, START] + i
            if row < 0 or row >= jobs[r, COUNT]:
                return r
            for k in range(width):
                out[i, k] = rows[row, k]
    return -1


@kernel
def scatter(jobs, width, like):  # type: ignore[no-untyped-def]
    """Add TO to the chosen rows of FROM. The relation in which one is not there, or -1."""
    for r in range(len(jobs)):
        rows = carray(_at(jobs[r, FROM]), (jobs[r, COUNT], width), like.dtype)
        index = carray(_at(jobs[r, INDEX]), (jobs[r, CHOSEN],), np.int64)
        values = carray(_at(jobs[r, TO]), (jobs[r, CHOSEN], width), like.dtype)
        for i in range(jobs[r, CHOSEN]):
            if jobs[r, INDEX]:
                prefetch(rows, index, i)
            row = index[i] if jobs[r, INDEX] else jobs[r, START] + i
            if row < 0 or row >= jobs[r, COUNT]:
                return r
            for k in range(width):
                rows[row, k] += values[i, k]
    return -1
