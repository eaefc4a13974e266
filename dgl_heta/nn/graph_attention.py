"""The attention of GAT over in-edges in one compiled pass forward and one backward, on CPU.

R destination rows, E edges, S source rows, H heads, D width. `indptr` (R + 1, int64) and `indices`
(E) are CSC over the rows. Of a row v (Veličković et al. 2018, https://arxiv.org/abs/1710.10903,
Eq. 3 and 4, where the scores of rows are given):

    s_e = LeakyReLU(x_u · a + b_v)        y_v = Σ_e exp(s_e) x_u / Σ_e exp(s_e)

Source rows are (S, H, D), or (S, D) and the same for all heads. Nothing is written per edge but its
share, (E, H). Tensors are float32 or float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.nn.gradient_hub import Reading, array_of, differentiable_once, done, opened
from dgl_heta.nn.messages import check_shape, check_sources, dot
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

SLOPE = 0.2
"""Of LeakyReLU below 0, as in GAT."""


def attend(indptr: Tensor, indices: Tensor, source: Tensor, vectors: Tensor, own: Tensor) -> Tensor:
    """`source` (S, D) or (S, H, D), a in `vectors` (H, D), b in `own` (R, H), to (R, H, D).

    0 for a row without edges.

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    rows, *read = opened(source)
    rows = rows.unsqueeze(1) if rows.dim() == 2 else rows
    check_sources(indices, rows)
    heads = vectors.shape[0] if rows.shape[1] == 1 else rows.shape[1]
    check_shape("vectors of heads", vectors, (heads, rows.shape[2]))
    check_shape("scores of rows", own, (len(indptr) - 1, heads))
    out: Tensor = _Attend.apply(indptr, indices, rows, vectors, own, *read)
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, source: Tensor, vectors: Tensor,
                own: Tensor, reading: Reading | None, token: Tensor | None) -> Tensor:
        source, vectors = source.contiguous(), vectors.detach().contiguous()
        share = source.new_empty((len(indices), len(vectors)))
        out = source.new_empty((len(indptr) - 1, *vectors.shape))
        _passes(source.shape[1] == 1, len(vectors))[0](
            indptr.numpy(), indices.numpy(), source.numpy(), vectors.numpy(),
                           own.detach().contiguous().numpy(), _slope(source), share.numpy(),
                           out.numpy())
        ctx.save_for_backward(indptr, indices, source, vectors, share)
        ctx.reading = reading
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indptr, indices, source, vectors, share = ctx.saved_tensors
        to_vectors, to_own = torch.zeros_like(vectors), grad.new_zeros(grad.shape[:2])
        _passes(source.shape[1] == 1, len(vectors))[1](
            indptr.numpy(), indices.numpy(), grad.contiguous().numpy(),
                           source.numpy(), vectors.numpy(), share.numpy(), _slope(source),
                           array_of(ctx.reading, source.shape, source.dtype), to_vectors.numpy(),
                           to_own.numpy())
        return None, None, None, to_vectors, to_own, None, done(ctx.reading, grad)


def _slope(like: Tensor) -> Any:
    """As a number of the tensor's type, or kernels would compute in double precision."""
    return like.numpy().dtype.type(SLOPE)


@functools.cache
def _passes(shared: bool, heads: int) -> tuple[Callable[..., None], Callable[..., None]]:  # noqa: C901, PLR0915
    """Forward and backward, compiled for source rows that all heads share, (S, 1, D), or for rows
    of each head. Both arguments are constants of the kernels, whose loops over heads are unrolled:
    that takes half the time."""

    @kernel
    def forward(indptr, indices, source, vectors, own, slope, share, out):  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
        width = source.shape[2]
        for row in range(len(indptr) - 1):
            low, high = indptr[row], indptr[row + 1]
            for edge in range(low, high):
                prefetch(source, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    at = 0 if shared else head
                    score = dot(source[other, at], vectors[head]) + own[row, head]
                    share[edge, head] = score if score > 0 else slope * score
            for head in range(heads):
                total = slope - slope
                top = share[low, head] if high > low else total
                for edge in range(low, high):
                    top = max(top, share[edge, head])
                for edge in range(low, high):
                    score = share[edge, head]
                    weight = np.exp(score - top)
                    total += weight
                    # Its sign is that of the score, for LeakyReLU's gradient.
                    share[edge, head] = weight if score > 0 else -weight
                for edge in range(low, high):
                    share[edge, head] /= total
                for k in range(width):
                    out[row, head, k] = 0
            for edge in range(low, high):
                other = indices[edge]
                if shared:
                    for k in range(width):
                        for head in range(heads):
                            out[row, head, k] += abs(share[edge, head]) * source[other, 0, k]
                else:
                    for head in range(heads):
                        weight = abs(share[edge, head])
                        for k in range(width):
                            out[row, head, k] += weight * source[other, head, k]

    @kernel
    def backward(indptr, indices, grad, source, vectors, share, slope, to_source, to_vectors,  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
                 to_own):
        width, most = source.shape[2], 0
        for row in range(len(indptr) - 1):
            most = max(most, indptr[row + 1] - indptr[row])
        scores = np.empty((most, heads), grad.dtype)
        for row in range(len(indptr) - 1):
            low, high = indptr[row], indptr[row + 1]
            for edge in range(low, high):
                prefetch(source, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    scores[edge - low, head] = dot(grad[row, head],
                                                   source[other, 0 if shared else head])
            for head in range(heads):
                mean = slope - slope
                for edge in range(low, high):
                    mean += abs(share[edge, head]) * scores[edge - low, head]
                for edge in range(low, high):
                    weight = share[edge, head]
                    to_score = abs(weight) * (scores[edge - low, head] - mean)
                    to_score *= 1 if weight > 0 else slope
                    scores[edge - low, head] = to_score
                    to_own[row, head] += to_score
            for edge in range(low, high):
                # Not with the rows above: too much would be asked for at once.
                prefetch(to_source, indices, edge)
                at, other = edge - low, indices[edge]
                if shared:
                    for k in range(width):
                        total = to_source[other, 0, k]
                        for head in range(heads):
                            total += abs(share[edge, head]) * grad[row, head, k]
                        for head in range(heads):
                            total += scores[at, head] * vectors[head, k]
                        to_source[other, 0, k] = total
                    for head in range(heads):
                        to_score = scores[at, head]
                        for k in range(width):
                            to_vectors[head, k] += to_score * source[other, 0, k]
                else:
                    for head in range(heads):
                        weight, to_score = abs(share[edge, head]), scores[at, head]
                        for k in range(width):
                            to_source[other, head, k] += (weight * grad[row, head, k]
                                                          + to_score * vectors[head, k])
                            to_vectors[head, k] += to_score * source[other, head, k]

    return forward, backward
