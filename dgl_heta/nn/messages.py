"""Message passing with several heads over the in-edges of destination rows, compiled, on CPU.

R destination rows, E edges, S source rows, H heads, D width. `indptr` (R + 1, int64) and `indices`
(E) are CSC over the rows; edges are in the order of their rows. For an edge e from u to v:

    edge_dot      y_e = x_u · z_v            edge_add   y_e = x_u + z_v
    weighted_sum  y_v = Σ_e w_e x_u

Source rows are (S, H, D), what scripts write with DGL's message functions, or (S, D) and the same
for all heads: models compute with h_u itself, because a relation's weights can go to the
destination rows and to the sums, of which there is one per row and not one per edge (Heta, Eq. 1:
AGG_r). Every function is one pass over the edges forward and one backward; nothing of size
(E, H, D) is written, and a source row's gradient is added where it belongs instead of by way of the
reversed graph. Tensors are float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.nn.gradient_hub import Reading, array_of, differentiable_once, done, opened
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch


def edge_dot(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Products of both ends: `source` (S, H, D) or (S, D), `destination` (R, H, D); returns (E, H).

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    rows, *read = opened(source)
    rows = _per_head(rows)
    _check_ends(indptr, indices, rows, destination)
    out: Tensor = _Pair.apply(_operators_of(rows)[0], indptr, indices, rows, destination, *read)
    return out


def edge_add(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Sums of both ends: `source` (S, H), `destination` (R, H); returns (E, H).

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    rows, *read = opened(source)
    _check_ends(indptr, indices, rows, destination)
    out: Tensor = _Add.apply(indptr, indices, rows, destination, *read)
    return out


def weighted_sum(indptr: Tensor, indices: Tensor, source: Tensor, weights: Tensor) -> Tensor:
    """Sums of source rows times the weights of their edges, per head.

    `source` (S, H, D) or (S, D), `weights` (E, H); returns (R, H, D), 0 for a row without edges.

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    rows, *read = opened(source)
    rows = _per_head(rows)
    check_sources(indices, rows)
    heads = weights.shape[-1] if rows.shape[1] == 1 else rows.shape[1]
    check_shape("weights of edges", weights, (len(indices), heads))
    out: Tensor = _Pair.apply(_operators_of(rows)[1], indptr, indices, rows, weights, *read)
    return out


def _per_head(source: Tensor) -> Tensor:
    """Source rows (S, 1 or H, D)."""
    return source.unsqueeze(1) if source.dim() == 2 else source


def _operators_of(source: Tensor) -> tuple[_Operator, _Operator]:
    return _SHARED if source.shape[1] == 1 else _OF_HEADS


def check_sources(indices: Tensor, source: Tensor) -> None:
    """Compiled kernels do not check bounds: what does not fit is memory of something else.

    Raises
    ------
    InputError
        An edge starts at a row that is not there.
    """
    check_source(int(indices.max()) if len(indices) else -1, source)


def check_source(row: int, source: Tensor) -> None:
    """:func:`check_sources` of the largest row, or of one that a kernel has stopped at."""
    if row >= len(source):
        raise InputError(f"there are {len(source)} source rows, but an edge starts at row {row}")


def check_shape(what: str, given: Tensor, wanted: tuple[int | str, ...]) -> None:
    """Check a shape, in which a word stands for any size.

    Raises
    ------
    InputError
        Rows or weights have another shape than they should have.
    """
    if given.dim() != len(wanted) or any(
            isinstance(size, int) and size != got for size, got in zip(wanted, given.shape)):
        raise InputError(f"the {what} have the shape {tuple(given.shape)}; it should be "
                         f"({', '.join(map(str, wanted))})")


def _check_ends(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor) -> None:
    check_sources(indices, source)
    shape = (len(indptr) - 1, *source.shape[1:])
    if source.dim() == 3 and source.shape[1] == 1 and destination.dim() == 3:  # any heads
        shape = (shape[0], destination.shape[1], shape[2])
    check_shape("destination rows", destination, shape)


def detached(tensor: Tensor) -> np.ndarray:
    """Its numbers for a compiled kernel, row after row."""
    array: np.ndarray = tensor.detach().contiguous().numpy()
    return array


class _Operator(NamedTuple):
    """A function of source rows and of one more tensor, with its gradients."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    sums: bool
    """True: it sums over edges, to (R, H, D), with a value per edge. False: it gives one, (E, H).
    """


class _Pair(torch.autograd.Function):
    """The source's gradient goes to what it has in common with other operators that read it
    (:mod:`dgl_heta.nn.gradient_hub`)."""

    @staticmethod
    def forward(ctx: Any, operator: _Operator, indptr: Tensor, indices: Tensor, source: Tensor,
                other: Tensor, reading: Reading | None, token: Tensor | None) -> Tensor:
        ctx.save_for_backward(indptr, indices, source, other)
        ctx.operator, ctx.reading = operator, reading
        out = (source.new_zeros((len(indptr) - 1, other.shape[1], source.shape[2]))
               if operator.sums else source.new_empty((len(indices), other.shape[1])))
        operator.forward(indptr.numpy(), indices.numpy(), detached(source), detached(other),
                         out.numpy())
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indptr, indices, source, other = ctx.saved_tensors
        to_source = array_of(ctx.reading, source.shape, source.dtype)
        new = torch.empty if ctx.operator.sums else torch.zeros  # every edge's entry is written
        to_other = new(other.shape, dtype=source.dtype)
        ctx.operator.backward(indptr.numpy(), indices.numpy(), detached(grad), detached(source),
                              detached(other), to_source, to_other.numpy())
        return None, None, None, None, to_other, None, done(ctx.reading, grad)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor,
                reading: Reading | None, token: Tensor | None) -> Tensor:
        ctx.save_for_backward(indptr, indices)
        ctx.shape, ctx.reading = source.shape, reading
        out = source.new_empty((len(indices), source.shape[1]))
        _add_forward(indptr.numpy(), indices.numpy(), detached(source), detached(destination),
                     out.numpy())
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indptr, indices = ctx.saved_tensors
        to_destination = grad.new_zeros((len(indptr) - 1, grad.shape[1]))
        _add_backward(indptr.numpy(), indices.numpy(), detached(grad),
                      array_of(ctx.reading, ctx.shape, grad.dtype), to_destination.numpy())
        return None, None, None, to_destination, None, done(ctx.reading, grad)


@partial(kernel, fastmath={"reassoc"})
def dot(a, b):  # type: ignore[no-untyped-def]
    """Free to add in any order, it is vectorised; NaN and infinity are kept."""
    total = a.dtype.type(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


# Four kernels, defined inside so that `shared` is a constant of each.
def _operators(shared: bool) -> tuple[_Operator, _Operator]:  # noqa: C901
    """`edge_dot` and `weighted_sum`, compiled for source rows that all heads share (S, 1, D) or for
    rows of each head (S, H, D). Which it is must be a constant: the loops are 10 to 20 % slower
    where it is computed."""

    @kernel
    def dot_forward(indptr, indices, source, destination, out):  # type: ignore[no-untyped-def]
        for row in range(len(indptr) - 1):
            for edge in range(indptr[row], indptr[row + 1]):
                prefetch(source, indices, edge)
                for head in range(out.shape[1]):
                    at = 0 if shared else head
                    out[edge, head] = dot(source[indices[edge], at], destination[row, head])

    @kernel
    def dot_backward(indptr, indices, grad, source, destination, to_source, to_destination):  # type: ignore[no-untyped-def]
        for row in range(len(indptr) - 1):
            for edge in range(indptr[row], indptr[row + 1]):
                prefetch(source, indices, edge)
                prefetch(to_source, indices, edge)
                other = indices[edge]
                for head in range(destination.shape[1]):
                    g, at = grad[edge, head], 0 if shared else head
                    for k in range(source.shape[2]):
                        to_destination[row, head, k] += g * source[other, at, k]
                        to_source[other, at, k] += g * destination[row, head, k]

    @kernel
    def weighted_forward(indptr, indices, source, weights, out):  # type: ignore[no-untyped-def]
        for row in range(len(indptr) - 1):
            for edge in range(indptr[row], indptr[row + 1]):
                prefetch(source, indices, edge)
                other = indices[edge]
                for head in range(weights.shape[1]):
                    weight, at = weights[edge, head], 0 if shared else head
                    for k in range(source.shape[2]):
                        out[row, head, k] += weight * source[other, at, k]

    @kernel
    def weighted_backward(indptr, indices, grad, source, weights, to_source, to_weights):  # type: ignore[no-untyped-def]
        for row in range(len(indptr) - 1):
            for edge in range(indptr[row], indptr[row + 1]):
                prefetch(source, indices, edge)
                prefetch(to_source, indices, edge)
                other = indices[edge]
                for head in range(weights.shape[1]):
                    weight, at = weights[edge, head], 0 if shared else head
                    for k in range(source.shape[2]):
                        to_source[other, at, k] += weight * grad[row, head, k]
                    to_weights[edge, head] = dot(grad[row, head], source[other, at])

    return (_Operator(dot_forward, dot_backward, sums=False),
            _Operator(weighted_forward, weighted_backward, sums=True))


@kernel
def _add_forward(indptr, indices, source, destination, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(out.shape[1]):
                out[edge, head] = source[indices[edge], head] + destination[row, head]


@kernel
def _add_backward(indptr, indices, grad, to_source, to_destination):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(grad.shape[1]):
                to_source[indices[edge], head] += grad[edge, head]
                to_destination[row, head] += grad[edge, head]


_SHARED, _OF_HEADS = _operators(True), _operators(False)
