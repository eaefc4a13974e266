"""Message passing with several heads over the in-edges of destination rows, compiled, on CPU.

R destination rows, E edges, S source rows, H heads, D width. `indptr` (R + 1, int64) and `indices`
(E) are CSC over the rows; edges are in the order of their rows. Every function is one pass over the
edges forward and one backward; nothing of size (E, H, D) is written, and a source row's gradient is
added where it belongs instead of by way of the reversed graph. Tensors are float32 or float64.

Unlike in :mod:`dgl_heta.nn.attention`, whose models keep states before the relation's weights,
every head has source rows of its own here: what scripts write with DGL's message functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dgl_heta.errors import InputError
from dgl_heta.nn.attention import _dot
from dgl_heta.system.jit import kernel


def edge_dot(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Products of both ends: `source` (S, H, D), `destination` (R, H, D); returns (E, H).

    Raises :class:`InputError` where a shape does not fit.
    """
    _check(indptr, indices, source, destination)
    found: Tensor = _Dot.apply(indptr, indices, source, destination)
    return found


def edge_add(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """Sums of both ends: `source` (S, H), `destination` (R, H); returns (E, H).

    Raises :class:`InputError` where a shape does not fit.
    """
    _check(indptr, indices, source, destination)
    found: Tensor = _Add.apply(indptr, indices, source, destination)
    return found


def weighted_sum(indptr: Tensor, indices: Tensor, source: Tensor, weights: Tensor) -> Tensor:
    """Sums of source rows times the weights of their edges, per head.

    `source` (S, H, D), `weights` (E, H); returns (R, H, D), 0 for a row without edges. Raises
    :class:`InputError` where a shape does not fit.
    """
    _check(indptr, indices, source)
    if weights.shape != (len(indices), source.shape[1]):
        raise InputError(f"the weights of edges have the shape {tuple(weights.shape)}; it should "
                         f"be {(len(indices), source.shape[1])}")
    found: Tensor = _Weighted.apply(indptr, indices, source, weights)
    return found


def _check(indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor | None = None
           ) -> None:
    """Compiled kernels do not check bounds: what does not fit is memory of something else."""
    last = int(indices.max()) if len(indices) else -1
    if last >= len(source):
        raise InputError(f"there are {len(source)} source rows, but an edge starts at row {last}")
    if destination is not None and destination.shape != (len(indptr) - 1, *source.shape[1:]):
        raise InputError(f"the destination rows have the shape {tuple(destination.shape)}; it "
                         f"should be {(len(indptr) - 1, *source.shape[1:])}")


def _array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().contiguous().numpy()
    return found


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor
                ) -> Tensor:
        ctx.save_for_backward(indptr, indices, source, destination)
        out = source.new_empty((len(indices), source.shape[1]))
        _dot_forward(indptr.numpy(), indices.numpy(), _array(source), _array(destination),
                     out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        indptr, indices, source, destination = ctx.saved_tensors
        to_source = torch.zeros(source.shape, dtype=source.dtype)
        to_destination = torch.zeros(destination.shape, dtype=source.dtype)
        _dot_backward(indptr.numpy(), indices.numpy(), _array(grad), _array(source),
                      _array(destination), to_source.numpy(), to_destination.numpy())
        return None, None, to_source, to_destination


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, source: Tensor, destination: Tensor
                ) -> Tensor:
        ctx.save_for_backward(indptr, indices)
        ctx.rows = len(source)
        out = source.new_empty((len(indices), source.shape[1]))
        _add_forward(indptr.numpy(), indices.numpy(), _array(source), _array(destination),
                     out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        indptr, indices = ctx.saved_tensors
        to_source = grad.new_zeros((ctx.rows, grad.shape[1]))
        to_destination = grad.new_zeros((len(indptr) - 1, grad.shape[1]))
        _add_backward(indptr.numpy(), indices.numpy(), _array(grad), to_source.numpy(),
                      to_destination.numpy())
        return None, None, to_source, to_destination


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, source: Tensor, weights: Tensor
                ) -> Tensor:
        ctx.save_for_backward(indptr, indices, source, weights)
        out = source.new_zeros((len(indptr) - 1, *source.shape[1:]))
        _weighted_forward(indptr.numpy(), indices.numpy(), _array(source), _array(weights),
                          out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        indptr, indices, source, weights = ctx.saved_tensors
        to_source = torch.zeros(source.shape, dtype=source.dtype)
        to_weights = torch.empty(weights.shape, dtype=source.dtype)
        _weighted_backward(indptr.numpy(), indices.numpy(), _array(grad), _array(source),
                           _array(weights), to_source.numpy(), to_weights.numpy())
        return None, None, to_source, to_weights


@kernel
def _dot_forward(indptr, indices, source, destination, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(out.shape[1]):
                out[edge, head] = _dot(source[indices[edge], head], destination[row, head])


@kernel
def _dot_backward(indptr, indices, grad, source, destination, to_source, to_destination):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            other = indices[edge]
            for head in range(source.shape[1]):
                g = grad[edge, head]
                for k in range(source.shape[2]):
                    to_destination[row, head, k] += g * source[other, head, k]
                    to_source[other, head, k] += g * destination[row, head, k]


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


@kernel
def _weighted_forward(indptr, indices, source, weights, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            other = indices[edge]
            for head in range(source.shape[1]):
                weight = weights[edge, head]
                for k in range(source.shape[2]):
                    out[row, head, k] += weight * source[other, head, k]


@kernel
def _weighted_backward(indptr, indices, grad, source, weights, to_source, to_weights):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            other = indices[edge]
            for head in range(source.shape[1]):
                weight = weights[edge, head]
                for k in range(source.shape[2]):
                    to_source[other, head, k] += weight * grad[row, head, k]
                to_weights[edge, head] = _dot(grad[row, head], source[other, head])
