"""Sums, means, maxima and minima of source rows over in-edges, compiled, on CPU.

`indptr` (R + 1, int64) and `indices` (E) are CSC over the destination rows, `states` are the source
rows (S, D), single or double precision. An edge that starts at a row that is not there is an
:class:`InputError`; the passes look for it, because one more over the edges would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.row_kernels import add_edges
from dgl_heta.nn.gradient_hub import Reading, array_of, differentiable_once, done, opened
from dgl_heta.nn.messages import check_source
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch


def sums(edges: Sequence[tuple[Tensor, Tensor]], states: Tensor, mean: bool
         ) -> tuple[Tensor, ...]:
    """The sum or mean over the in-edges of several relations, each (R, D), 0 without edges.

    The gradients of all of them are added to one array of the size of `states`, and those of other
    operators that read it, too.
    """
    rows, *read = opened(states)
    result: tuple[Tensor, ...] = _FusedSums.apply(
        rows, mean, *read, *(t for pair in edges for t in pair))
    return result


def extreme(indptr: Tensor, indices: Tensor, states: Tensor, largest: bool) -> Tensor:
    """The maximum or minimum over in-edges, (R, D), 0 without edges; NaN stays NaN."""
    rows, *read = opened(states)
    result: Tensor = _FusedExtreme.apply(indptr, indices, rows, largest, *read)
    return result


class _FusedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, mean: bool, reading: Reading | None,
                token: Tensor | None, *edges: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*edges)
        ctx.mean, ctx.shape, ctx.reading = mean, states.shape, reading
        ctx.set_materialize_grads(False)
        rows, result = states.contiguous().numpy(), []
        for indptr, indices in zip(edges[::2], edges[1::2]):
            out = states.new_zeros((len(indptr) - 1, states.shape[1]))
            check_source(add_edges(indptr.numpy(), indices.numpy(), rows, mean, out.numpy()),
                         states)
            result.append(out)
        return tuple(result)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        edges = ctx.saved_tensors
        given = [(g, *pair) for g, pair in zip(grads, zip(edges[::2], edges[1::2]))
                 if g is not None]
        if not given:
            return (None,) * (4 + len(edges))
        like = given[0][0]
        out = array_of(ctx.reading, ctx.shape, like.dtype)
        for grad, indptr, indices in given:
            _sum_backward(indptr.numpy(), indices.numpy(), grad.contiguous().numpy(), ctx.mean,
                          out)
        return None, None, None, done(ctx.reading, like), *(None,) * len(edges)


class _FusedExtreme(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, states: Tensor, largest: bool,
                reading: Reading | None, token: Tensor | None) -> Tensor:
        out = states.new_zeros((len(indptr) - 1, states.shape[1]))
        winner = torch.full(out.shape, -1, dtype=torch.int32)
        check_source(_extreme_forward(
            indptr.numpy(), indices.numpy(), states.contiguous().numpy(), largest, out.numpy(),
            winner.numpy()), states)
        ctx.save_for_backward(winner)
        ctx.shape, ctx.reading = states.shape, reading
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        _extreme_backward(winner.numpy(), grad.contiguous().numpy(),
                          array_of(ctx.reading, ctx.shape, grad.dtype))
        return None, None, None, None, None, done(ctx.reading, grad)


@kernel
def _sum_backward(indptr, indices, grad, mean, out):  # type: ignore[no-untyped-def]
    width = grad.shape[1]
    scaled = np.empty(width, grad.dtype)
    for row in range(len(indptr) - 1):
        count = indptr[row + 1] - indptr[row] if mean else 1
        for k in range(width):
            scaled[k] = grad[row, k] / max(count, 1)
        for edge in range(indptr[row], indptr[row + 1]):
            prefetch(out, indices, edge)
            source = indices[edge]
            for k in range(width):
                out[source, k] += scaled[k]


@kernel
def _extreme_forward(indptr, indices, states, largest, out, winner):  # type: ignore[no-untyped-def]
    """Return as :func:`add_edges`."""
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            prefetch(states, indices, edge)
            source = indices[edge]
            if source >= len(states):
                return source
            for k in range(states.shape[1]):
                value = states[source, k]
                better = value > out[row, k] if largest else value < out[row, k]
                if winner[row, k] < 0 or better or value != value:  # NaN stays NaN
                    out[row, k] = value
                    winner[row, k] = source
    return -1


@kernel
def _extreme_backward(winner, grad, out):  # type: ignore[no-untyped-def]
    for row in range(grad.shape[0]):
        for k in range(grad.shape[1]):
            if winner[row, k] >= 0:
                out[winner[row, k], k] += grad[row, k]
