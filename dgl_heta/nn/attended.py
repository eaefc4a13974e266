"""Scores and weighted sums of feature rows that wait for their values, on CPU.

Keys and values of attention are products of a source's rows, often of a product with its features.
They are one array per source node each, and one more for its gradient, though a layer reads them
only to score edges and to sum over them. As

    x W · q = x · (W q)        Σ_e a_e (x_e W) = (Σ_e a_e x_e) W

the products can as well be taken of queries and of sums, of which there is one per destination row
and head. Then rows are read where they are, some edges at a time, in each pass again; and they get
no gradient, because features have none. That is shorter where a layer has many source rows for each
of its destination rows: :func:`dgl_heta.planning.compute.attended_first`.

R destination rows, E edges, H heads, D width of each, W width of the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from dgl_heta.features.chunks import ChunkedRows, EdgePiece
from dgl_heta.features.deferred import LazyRows, defers
from dgl_heta.nn.gradient_hub import differentiable_once
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.messages import check_shape, check_sources, dot
from dgl_heta.nn.segments import segment_total
from dgl_heta.planning.compute import attended_first
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.system.jit import COMPILES, kernel


class Reads(NamedTuple):
    """Counts of the reads of the same source rows by all relations of a layer.

    Attributes
    ----------
    relations : how many they are.
    edges, rows : how many edges and destination rows they have together.
    """

    relations: int
    edges: int
    rows: int


def edge_dots(edges: InEdges, source: Tensor, destination: Tensor, reads: Reads) -> Tensor:
    """Products of both ends per head: (S, H, D) and (R, H, D) to (E, H).

    `source` may be rows that wait (:mod:`dgl_heta.features.deferred`).

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    if not _shorter(source, reads):
        return kernel_in_use().u_dot_v([edges], [source], [destination])[0]
    check_sources(edges.indices, source)
    check_shape("destination rows", destination, (len(edges.indptr) - 1, *source.shape[1:]))
    weight, bias = _per_head(source)
    some, rows = _with_edges(edges)
    if rows is not None:
        destination = destination[rows]
    out: Tensor = _Dots.apply(source.whole.source, some, destination, weight, bias)
    return out


def weighted_sums(edges: InEdges, source: Tensor, weights: Tensor, reads: Reads) -> Tensor:
    """Sums of source rows times the weights of their edges: (S, H, D) and (E, H) to (R, H, D).

    0 for a row without edges. `source` may be rows that wait.

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    if not _shorter(source, reads):
        return kernel_in_use().u_mul_e_sum([edges], [source], [weights])[0]
    check_sources(edges.indices, source)
    check_shape("weights of edges", weights, (len(edges.indices), source.shape[1]))
    matrix, bias = _per_head(source)
    some, rows = _with_edges(edges)
    out: Tensor = _Sums.apply(source.whole.source, some, weights, matrix, bias)
    if rows is None:
        return out
    return out.new_zeros((len(edges.indptr) - 1, *out.shape[1:])).index_copy(0, rows, out)


def _shorter(source: Tensor, reads: Reads) -> TypeGuard[LazyRows]:
    """Return whether it is shorter to take the products of destination rows."""
    if not (isinstance(source, LazyRows) and source.heads and defers(source) and COMPILES
            and kernel_in_use().defers):
        return False
    whole = source.whole
    inner = None if whole.factor is None else whole.factor.width
    return attended_first(len(source), *reads, whole.source.width, inner, *source.heads)


def _per_head(source: LazyRows) -> tuple[Tensor, Tensor | None]:
    """All products of the rows as one: weight (H, W, D) and bias (H, D) or None."""
    assert source.heads is not None
    weight, bias = source.whole.bypass(source.requires_grad)
    return (weight.view(-1, *source.heads).transpose(0, 1).contiguous(),
            None if bias is None else bias.view(source.heads))


def _with_edges(edges: InEdges) -> tuple[InEdges, Tensor | None]:
    """Without the destination rows that have no edges, if these are many: the others' numbers."""
    filled = edges.indptr.diff().nonzero()[:, 0]
    if 2 * len(filled) > len(edges.indptr) - 1:
        return edges, None
    return InEdges(torch.cat([edges.indptr[:1], edges.indptr[1:][filled]]), edges.indices), filled


class _Dots(torch.autograd.Function):
    """Of destination rows (R, H, D), the matrix (H, W, D) and bias (H, D) or None: (E, H)."""

    @staticmethod
    def forward(ctx: Any, source: ChunkedRows, edges: InEdges, destination: Tensor, matrix: Tensor,
                bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(*edges, destination, matrix, bias)
        ctx.source = source
        out = destination.new_empty((len(edges.indices), len(matrix)))
        transposed = matrix.transpose(1, 2).contiguous()
        for piece in _pieces(source, edges, matrix.dtype):
            _score(piece, destination, transposed, out)
        return out if bias is None else out.add_(_spread(edges, (destination * bias).sum(2)))

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indptr, indices, destination, matrix, bias = ctx.saved_tensors
        edges, grad = InEdges(indptr, indices), grad.contiguous()
        to_destination, to_matrix = torch.zeros_like(destination), torch.zeros_like(matrix)
        buffer = _Buffer(matrix)
        for piece in _pieces(ctx.source, edges, matrix.dtype):
            summed = buffer.sums(piece, grad)
            to_destination[piece.rows] += torch.bmm(summed, matrix).transpose(0, 1)
            if ctx.needs_input_grad[3]:
                to_matrix.baddbmm_(summed.transpose(1, 2), destination[piece.rows].transpose(0, 1))
        to_bias = None
        if bias is not None:
            totals = segment_total(indptr, grad)[:, :, None]
            to_destination += totals * bias
            to_bias = (totals * destination).sum(0)
        return None, None, to_destination, to_matrix, to_bias


class _Sums(torch.autograd.Function):
    """Of values (E, H) of edges, the matrix (H, W, D) and bias (H, D) or None: (R, H, D)."""

    @staticmethod
    def forward(ctx: Any, source: ChunkedRows, edges: InEdges, values: Tensor, matrix: Tensor,
                bias: Tensor | None) -> Tensor:
        values = values.contiguous()
        ctx.save_for_backward(*edges, values, matrix, bias)
        ctx.source = source
        out = values.new_zeros((len(edges.indptr) - 1, len(matrix), matrix.shape[2]))
        buffer = _Buffer(matrix)
        for piece in _pieces(source, edges, matrix.dtype):
            out[piece.rows] += torch.bmm(buffer.sums(piece, values), matrix).transpose(0, 1)
        return out if bias is None else out.add_(
            segment_total(edges.indptr, values)[:, :, None] * bias)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indptr, indices, values, matrix, bias = ctx.saved_tensors
        edges = InEdges(indptr, indices)
        to_values, to_matrix = torch.empty_like(values), torch.zeros_like(matrix)
        buffer, transposed = _Buffer(matrix), matrix.transpose(1, 2).contiguous()
        for piece in _pieces(ctx.source, edges, matrix.dtype):
            _score(piece, grad, transposed, to_values)
            if ctx.needs_input_grad[3]:
                to_matrix.baddbmm_(buffer.sums(piece, values).transpose(1, 2),
                                   grad[piece.rows].transpose(0, 1))
        to_bias = None
        if bias is not None:
            to_values += _spread(edges, (grad * bias).sum(2))
            to_bias = (segment_total(indptr, values)[:, :, None] * grad).sum(0)
        return None, None, to_values, to_matrix, to_bias


def _pieces(source: ChunkedRows, edges: InEdges, dtype: torch.dtype) -> Iterator[EdgePiece]:
    """Edges with their source rows, some at a time."""
    return source.edge_pieces(edges.indptr.numpy(), edges.indices.numpy(), dtype)


def _score(piece: EdgePiece, rows: Tensor, transposed: Tensor, out: Tensor) -> None:
    """Products of a piece's source rows with `rows` (R, H, D) times `transposed` (H, D, W), to
    `out` (E, H)."""
    vectors = torch.bmm(rows[piece.rows].transpose(0, 1), transposed)
    _dots(piece.indptr, piece.values.numpy(), vectors.numpy(), out[piece.edges].numpy())


class _Buffer:
    """Sums over a piece's edges, in memory that the next piece's sums are written to."""

    def __init__(self, matrix: Tensor) -> None:
        self._heads, self._width, _ = matrix.shape
        self._memory = matrix.new_empty(0)

    def sums(self, piece: EdgePiece, values: Tensor) -> Tensor:
        """Source rows times `values` (E, H), summed: (H, rows of the piece, W)."""
        rows = len(piece.indptr) - 1
        size = self._heads * rows * self._width
        if len(self._memory) < size:
            self._memory = self._memory.new_empty(size)
        out = self._memory[:size].view(self._heads, rows, self._width).zero_()
        _add_sums(piece.indptr, piece.values.numpy(), values[piece.edges].numpy(), out.numpy())
        return out


def _spread(edges: InEdges, values: Tensor) -> Tensor:
    """Each edge's destination's: (R, H) to (E, H)."""
    return torch.repeat_interleave(values, edges.indptr.diff(), dim=0)


@kernel
def _dots(indptr, rows, vectors, out):  # type: ignore[no-untyped-def]
    """`rows` (E, W) times `vectors` (H, R, W) of their edges' destinations, to `out` (E, H)."""
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(len(vectors)):
                out[edge, head] = dot(rows[edge], vectors[head, row])


@kernel
def _add_sums(indptr, rows, values, out):  # type: ignore[no-untyped-def]
    """`rows` (E, W) times `values` (E, H) of their edges, added to `out` (H, R, W)."""
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(len(out)):
                value = values[edge, head]
                for k in range(rows.shape[1]):
                    out[head, row, k] += value * rows[edge, k]
