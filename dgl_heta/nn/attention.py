"""Attention over the in-edges of destination rows, compiled, on CPU, single or double precision.

R destination rows, E edges, S source rows, H heads, D width. `indptr` (R + 1, int64) and
`indices` (E) are CSC over the rows; edges are in the order of their rows. Each function is one
pass over the edges that writes nothing of size (E, H, D). All heads have the same source rows:
scores and sums of messages W_r h_u are computed from h_u itself, because W_r can go to the queries
and to the sums, of which there is one per row and not one per edge (Heta, Eq. 1: AGG_r).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dgl_heta.errors import InputError
from dgl_heta.system.jit import kernel


def edge_scores(indptr: Tensor, indices: Tensor, queries: Tensor, states: Tensor) -> Tensor:
    """Products of each edge's source state with its row's queries.

    `queries` (R, H, D), `states` (S, D); returns (E, H). Raises :class:`InputError` where a
    shape does not fit.
    """
    _want("queries", queries, (len(indptr) - 1, "heads", "width"))
    _want("states", states, ("source rows", queries.shape[2]))
    _reach(indices, states)
    found: Tensor = _Scores.apply(indptr, indices, queries, states)
    return found


def attend(indptr: Tensor, indices: Tensor, weights: Tensor, states: Tensor) -> Tensor:
    """Sums of source states over each row's edges, weighted per head.

    `weights` (E, H), `states` (S, D); returns (R, H, D), 0 for a row without edges. Raises
    :class:`InputError` where a shape does not fit.
    """
    _want("weights", weights, (len(indices), "heads"))
    _want("states", states, ("source rows", "width"))
    _reach(indices, states)
    found: Tensor = _Attend.apply(indptr, indices, weights, states)
    return found


def segment_total(indptr: Tensor, weights: Tensor) -> Tensor:
    """Sums over each row's edges: (E, H) to (R, H), 0 for a row without edges.

    Raises :class:`InputError` where a shape does not fit.
    """
    _want("weights", weights, (int(indptr[-1]), "heads"))
    found: Tensor = _Total.apply(indptr, weights)
    return found


def segment_max(indptr: Tensor, scores: Tensor) -> Tensor:
    """Maxima over each row's edges, without a gradient: (E, H) to (R, H).

    -inf for a row without edges. Raises :class:`InputError` where a shape does not fit.
    """
    _want("scores", scores, (int(indptr[-1]), "heads"))
    out = scores.new_full((len(indptr) - 1, *scores.shape[1:]), float("-inf"))
    _max_forward(indptr.numpy(), _array(scores), out.numpy())
    return out


def segment_softmax(indptr: Tensor, scores: Tensor) -> Tensor:
    """Softmax over each row's edges: (E, H) to (E, H).

    Raises :class:`InputError` where a shape does not fit.
    """
    _want("scores", scores, (int(indptr[-1]), "heads"))
    found: Tensor = _Softmax.apply(indptr, scores)
    return found


def _want(name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """Compiled kernels do not check bounds: what does not fit is memory of something else."""
    if tensor.dim() != len(shape) or any(
            isinstance(size, int) and size != got for size, got in zip(shape, tensor.shape)):
        raise InputError(f"the {name} of an attention kernel have the shape "
                         f"{tuple(tensor.shape)}; it should be ({', '.join(map(str, shape))})")


def _reach(indices: Tensor, states: Tensor) -> None:
    last = int(indices.max()) if len(indices) else -1
    if last >= len(states):
        raise InputError(f"the states of an attention kernel have {len(states)} rows, but an edge "
                         f"starts at row {last}; give one for each source row")


def _array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().contiguous().numpy()
    return found


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, queries: Tensor, states: Tensor
                ) -> Tensor:
        ctx.save_for_backward(indptr, indices, queries, states)
        out = states.new_empty((len(indices), queries.shape[1]))
        _scores_forward(indptr.numpy(), indices.numpy(), _array(queries), _array(states),
                        out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        indptr, indices, queries, states = ctx.saved_tensors
        to_queries, to_states = torch.zeros(queries.shape, dtype=grad.dtype), torch.zeros(
            states.shape, dtype=grad.dtype)
        _pair_backward(indptr.numpy(), indices.numpy(), _array(grad), _array(queries),
                       _array(states), to_queries.numpy(), to_states.numpy())
        return None, None, to_queries, to_states


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, weights: Tensor, states: Tensor
                ) -> Tensor:
        ctx.save_for_backward(indptr, indices, weights, states)
        out = states.new_zeros((len(indptr) - 1, weights.shape[1], states.shape[1]))
        _attend_forward(indptr.numpy(), indices.numpy(), _array(weights), _array(states),
                        out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        indptr, indices, weights, states = ctx.saved_tensors
        to_weights = torch.empty(weights.shape, dtype=grad.dtype)
        to_states = torch.zeros(states.shape, dtype=grad.dtype)
        _attend_backward(indptr.numpy(), indices.numpy(), _array(grad), _array(weights),
                         _array(states), to_weights.numpy(), to_states.numpy())
        return None, None, to_weights, to_states


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(indptr)
        out = weights.new_zeros((len(indptr) - 1, weights.shape[1]))
        _total_forward(indptr.numpy(), _array(weights), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, torch.repeat_interleave(grad, ctx.saved_tensors[0].diff(), dim=0)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, scores: Tensor) -> Tensor:
        out = torch.empty(scores.shape, dtype=scores.dtype)
        _softmax_forward(indptr.numpy(), _array(scores), out.numpy())
        ctx.save_for_backward(indptr, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        indptr, out = ctx.saved_tensors
        to_scores = torch.empty_like(out)
        _softmax_backward(indptr.numpy(), _array(grad), out.numpy(), to_scores.numpy())
        return None, to_scores


@numba.njit(error_model="numpy", fastmath={"reassoc"})
def _dot(a, b):  # type: ignore[no-untyped-def]
    """Free to add in any order, it is vectorised; NaN and infinity are kept."""
    total = a.dtype.type(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@kernel
def _scores_forward(indptr, indices, queries, states, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(queries.shape[1]):
                out[edge, head] = _dot(queries[row, head], states[source])


@kernel
def _pair_backward(indptr, indices, grad, queries, states, to_queries, to_states):  # type: ignore[no-untyped-def]
    heads, width = queries.shape[1], queries.shape[2]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(heads):
                g = grad[edge, head]
                for k in range(width):
                    to_queries[row, head, k] += g * states[source, k]
                    to_states[source, k] += g * queries[row, head, k]


@kernel
def _attend_forward(indptr, indices, weights, states, out):  # type: ignore[no-untyped-def]
    heads, width = weights.shape[1], states.shape[1]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(heads):
                weight = weights[edge, head]
                for k in range(width):
                    out[row, head, k] += weight * states[source, k]


@kernel
def _attend_backward(indptr, indices, grad, weights, states, to_weights, to_states):  # type: ignore[no-untyped-def]
    heads, width = weights.shape[1], states.shape[1]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(heads):
                weight = weights[edge, head]
                for k in range(width):
                    to_states[source, k] += weight * grad[row, head, k]
                to_weights[edge, head] = _dot(grad[row, head], states[source])


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
