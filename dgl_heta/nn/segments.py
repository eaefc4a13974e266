"""Sums, maxima and softmax over the in-edges of destination rows, compiled, on CPU.

R destination rows, E edges, H heads. `indptr` (R + 1, int64) has the edges of each row; they are in
the order of the rows; values of edges are (E, H), float32 or float64. The softmax of an edge e into
v is exp(s_e - M_v) / Σ_e' exp(s_e' - M_v) with M_v the maximum of the row's scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.nn.gradient_hub import differentiable_once
from dgl_heta.nn.messages import check_shape, detached
from dgl_heta.system.jit import kernel


def segment_total(indptr: Tensor, weights: Tensor) -> Tensor:
    """Sums over each row's edges: (E, H) to (R, H), 0 for a row without edges.

    Raises :class:`InputError` where a shape does not fit.
    """
    check_shape("weights of edges", weights, (int(indptr[-1]), "heads"))
    out: Tensor = _Total.apply(indptr, weights)
    return out


def segment_max(indptr: Tensor, scores: Tensor) -> Tensor:
    """Maxima over each row's edges, without a gradient: (E, H) to (R, H).

    -inf for a row without edges. Raises :class:`InputError` where a shape does not fit.
    """
    check_shape("scores of edges", scores, (int(indptr[-1]), "heads"))
    out = scores.new_full((len(indptr) - 1, *scores.shape[1:]), float("-inf"))
    _max_forward(indptr.numpy(), detached(scores), out.numpy())
    return out


def segment_softmax(indptr: Tensor, scores: Tensor) -> Tensor:
    """Softmax over each row's edges: (E, H) to (E, H).

    Raises :class:`InputError` where a shape does not fit.
    """
    check_shape("scores of edges", scores, (int(indptr[-1]), "heads"))
    out: Tensor = _Softmax.apply(indptr, scores)
    return out


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(indptr)
        out = weights.new_zeros((len(indptr) - 1, weights.shape[1]))
        _total_forward(indptr.numpy(), detached(weights), out.numpy())
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, torch.repeat_interleave(grad, ctx.saved_tensors[0].diff(), dim=0)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, scores: Tensor) -> Tensor:
        out = torch.empty(scores.shape, dtype=scores.dtype)
        _softmax_forward(indptr.numpy(), detached(scores), out.numpy())
        ctx.save_for_backward(indptr, out)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        indptr, out = ctx.saved_tensors
        to_scores = torch.empty_like(out)
        _softmax_backward(indptr.numpy(), detached(grad), out.numpy(), to_scores.numpy())
        return None, to_scores


@kernel
def _total_forward(indptr, weights, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(weights.shape[1]):
                out[row, head] += weights[edge, head]


@kernel
def _max_forward(indptr, scores, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            for head in range(scores.shape[1]):
                value = scores[edge, head]
                if value > out[row, head] or value != value:  # NaN stays NaN
                    out[row, head] = value


@kernel
def _softmax_forward(indptr, scores, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        low, high = indptr[row], indptr[row + 1]
        for head in range(scores.shape[1]):
            top = scores.dtype.type(-np.inf)
            for edge in range(low, high):
                top = max(top, scores[edge, head])
            total = scores.dtype.type(0)
            for edge in range(low, high):
                out[edge, head] = np.exp(scores[edge, head] - top)
                total += out[edge, head]
            for edge in range(low, high):
                out[edge, head] /= total


@kernel
def _softmax_backward(indptr, grad, out, to_scores):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        low, high = indptr[row], indptr[row + 1]
        for head in range(out.shape[1]):
            total = out.dtype.type(0)
            for edge in range(low, high):
                total += grad[edge, head] * out[edge, head]
            for edge in range(low, high):
                to_scores[edge, head] = out[edge, head] * (grad[edge, head] - total)
