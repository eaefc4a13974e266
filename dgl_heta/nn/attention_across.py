"""HGT's attention, whose softmax ranges over the edges of all relations, compiled, on CPU.

R destination rows of a node type, H heads, D width of each. A relation has R_r rows, E_r edges and
S_r source rows with keys k and values v. Of a row with the query q (Hu et al. 2020,
https://arxiv.org/abs/2003.01332, Eq. 3 and 4; A and M are of each relation and head):

    s_e = k_u · (q A_r)        y = Σ_r (Σ_e exp(s_e - M) v_u) M_r        z = Σ_r Σ_e exp(s_e - M)

with M the maximum of the row's scores. Relations follow each other, and what was added before is
multiplied where one raises the maximum (Milakov and Gimelshein 2018,
https://arxiv.org/abs/1805.02867). Products with A and M are taken in the pass, of rows that are in
the processor's cache. Nothing is written per edge but its weight, (E_r, H). float32 or float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.nn.gradient_hub import array_of, differentiable_once, done, opened
from dgl_heta.nn.messages import check_shape, check_sources, dot
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

product = functools.partial(kernel, fastmath={"contract"})
"""A product and a sum may be one instruction."""


def attend_across(edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                  products: Sequence[Tensor], queries: Tensor, to_scores: Tensor, to_sums: Tensor
                  ) -> tuple[Tensor, Tensor]:
    """y beside z, (R, H · D + H), and the maxima (R, H), which have no gradient.

    `rows` are those of each relation among R, `products` its keys and values (S_r, 2, H, D),
    `queries` (R, H, D), `to_scores` and `to_sums` are A and M (relations, H, D, D). 0 and -inf for
    a row without edges.

    Raises
    ------
    InputError
        A shape does not fit, or an edge starts at a row that is not there.
    """
    numbers = [torch.arange(at.start, at.stop) if isinstance(at, slice) else at for at in rows]
    read = [opened(x) for x in products]
    for csc, at, (x, *_) in zip(edges, numbers, read):
        check_sources(csc.indices, x)
        check_shape("keys and values", x, (len(x), 2, *queries.shape[1:]))
        check_shape("numbers of rows", at, (len(csc.indptr) - 1,))
        if len(at):
            check_sources(at, queries)
    for weights in (to_scores, to_sums):
        check_shape("weights of relations", weights,
                    (len(edges), *queries.shape[1:], queries.shape[2]))
    sums, top = _Across.apply(
        list(zip((csc.indptr for csc in edges), (csc.indices for csc in edges), numbers)),
        [reading for _, reading, _ in read], queries, to_scores, to_sums,
        *(x for x, *_ in read), *(token for *_, token in read))
    return sums, top


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: list[tuple[Tensor, ...]], readings: list[Any], queries: Tensor,
                to_scores: Tensor, to_sums: Tensor, *read: Tensor) -> tuple[Tensor, Tensor]:
        _, heads, width = queries.shape
        queries, to_scores, to_sums = (x.detach().contiguous() for x in (
            queries, to_scores, to_sums))
        sums = queries.new_zeros((len(queries), heads * width + heads))
        top = queries.new_full((len(queries), heads), float("-inf"))
        saved = []
        for csc, x, a, m in zip(edges, read, to_scores.numpy(), to_sums.numpy()):
            weights = queries.new_empty((len(csc[1]), heads))
            tops = queries.new_empty((len(csc[2]), heads))
            _passes(heads, width)[0](*(t.numpy() for t in csc), x.contiguous().numpy(),
                                     queries.numpy(), a, m, weights.numpy(), tops.numpy(),
                                     top.numpy(), sums.numpy())
            saved += [x.contiguous(), weights, tops]
        ctx.save_for_backward(queries, to_scores, to_sums, top, *saved)
        ctx.edges, ctx.readings = edges, readings
        ctx.mark_non_differentiable(top)
        return sums, top

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        queries, to_scores, to_sums, top, *saved = ctx.saved_tensors
        grad = grad.contiguous()
        results = [torch.zeros_like(x) for x in (queries, to_scores, to_sums)]
        for i, (csc, reading) in enumerate(zip(ctx.edges, ctx.readings)):
            x, weights, tops = (t.numpy() for t in saved[3 * i:3 * i + 3])
            _passes(*queries.shape[1:])[1](
                *(t.numpy() for t in csc), x, queries.numpy(), to_scores[i].numpy(),
                to_scores[i].mT.contiguous().numpy(), to_sums[i].mT.contiguous().numpy(), weights,
                tops, top.numpy(), grad.numpy(), array_of(reading, x.shape, grad.dtype),
                results[0].numpy(), results[1][i].numpy(), results[2][i].numpy())
        return (None, None, *results, *(None for _ in ctx.edges),
                *(done(reading, grad) for reading in ctx.readings))


@product
def times(rows, weights, out, heads, width):  # type: ignore[no-untyped-def]
    """`rows` (H, D) times weights (H, D, D), to `out` (H, D), eight products at a time."""
    for head in range(heads):
        row, weight, added = rows[head], weights[head], out[head]
        for k in range(width):
            added[k] = 0
        for j in range(0, width - 7, 8):
            a, b, c, d = row[j], row[j + 1], row[j + 2], row[j + 3]
            e, f, g, h = row[j + 4], row[j + 5], row[j + 6], row[j + 7]
            for k in range(width):
                added[k] += (a * weight[j, k] + b * weight[j + 1, k] + c * weight[j + 2, k]
                             + d * weight[j + 3, k] + e * weight[j + 4, k]
                             + f * weight[j + 5, k] + g * weight[j + 6, k]
                             + h * weight[j + 7, k])
        for j in range(width - width % 8, width):
            for k in range(width):
                added[k] += row[j] * weight[j, k]


@product
def add_products(left, right, out, heads, width):  # type: ignore[no-untyped-def]
    """Products of 8 rows (8, H, D) with 8 others, added to `out` (H, D, D)."""
    for head in range(heads):
        a, b, c, d = right[0, head], right[1, head], right[2, head], right[3, head]
        e, f, g, h = right[4, head], right[5, head], right[6, head], right[7, head]
        for j in range(width):
            added = out[head, j]
            m, n, o, p = (left[0, head, j], left[1, head, j], left[2, head, j],
                          left[3, head, j])
            q, r, s, t = (left[4, head, j], left[5, head, j], left[6, head, j],
                          left[7, head, j])
            for k in range(width):
                added[k] += (m * a[k] + n * b[k] + o * c[k] + p * d[k]
                             + q * e[k] + r * f[k] + s * g[k] + t * h[k])


@functools.cache
def _passes(heads: int, width: int) -> tuple[Callable[..., None], Callable[..., None]]:  # noqa: C901, PLR0915
    """Forward and backward over one relation's edges. Both arguments are constants of the kernels,
    so that their loops are unrolled."""

    @product
    def forward(indptr, indices, rows, both, queries, to_scores, to_sums, weights, tops, top, sums):  # type: ignore[no-untyped-def]  # noqa: C901
        query, total = np.empty((heads, width), sums.dtype), np.empty((heads, width), sums.dtype)
        message = np.empty((heads, width), sums.dtype)
        for row in range(len(indptr) - 1):
            low, high, at = indptr[row], indptr[row + 1], rows[row]
            if low == high:
                continue
            times(queries[at], to_scores, query, heads, width)
            for edge in range(low, high):
                prefetch(both, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    weights[edge, head] = dot(both[other, 0, head], query[head])
            for head in range(heads):
                most = top[at, head]
                for edge in range(low, high):
                    most = max(most, weights[edge, head])
                scale = np.exp(top[at, head] - most)
                top[at, head] = tops[row, head] = most
                added = sums[at, heads * width + head] * scale
                for edge in range(low, high):
                    weight = np.exp(weights[edge, head] - most)
                    weights[edge, head] = weight
                    added += weight
                sums[at, heads * width + head] = added
                for k in range(width):
                    sums[at, head * width + k] *= scale
                    total[head, k] = 0
            for edge in range(low, high):
                other = indices[edge]
                for head in range(heads):
                    weight = weights[edge, head]
                    for k in range(width):
                        total[head, k] += weight * both[other, 1, head, k]
            times(total, to_sums, message, heads, width)
            for head in range(heads):
                for k in range(width):
                    sums[at, head * width + k] += message[head, k]

    @product
    def backward(indptr, indices, rows, both, queries, to_scores, from_scores, from_sums, weights,  # type: ignore[no-untyped-def]
                 tops, top, grad, to_both, to_queries, to_to_scores, to_to_sums):
        query, moved = np.empty((heads, width), grad.dtype), np.empty((heads, width), grad.dtype)
        to_total, scale = np.empty((heads, width), grad.dtype), np.empty(heads, grad.dtype)
        # Of 8 rows what the gradients of A and M are products of.
        kept, filled = np.zeros((4, 8, heads, width), grad.dtype), 0
        for row in range(len(indptr) - 1):
            low, high, at = indptr[row], indptr[row + 1], rows[row]
            if low == high:
                continue
            own, to_query = kept[0, filled], kept[1, filled]
            total, given = kept[2, filled], kept[3, filled]
            times(queries[at], to_scores, query, heads, width)
            for head in range(heads):
                scale[head] = np.exp(tops[row, head] - top[at, head])
                for k in range(width):
                    own[head, k] = queries[at, head, k]
                    given[head, k] = grad[at, head * width + k]
                    total[head, k] = 0
                    to_query[head, k] = 0
            times(given, from_sums, to_total, heads, width)
            for edge in range(low, high):
                prefetch(both, indices, edge)
                prefetch(to_both, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    key, value = both[other, 0, head], both[other, 1, head]
                    to_key, to_value = to_both[other, 0, head], to_both[other, 1, head]
                    q, g, dq, t = query[head], to_total[head], to_query[head], total[head]
                    weight = weights[edge, head] * scale[head]
                    to_score = weight * (dot(g, value) + grad[at, heads * width + head])
                    for k in range(width):
                        to_key[k] += to_score * q[k]
                        to_value[k] += weight * g[k]
                        dq[k] += to_score * key[k]
                        t[k] += weight * value[k]
            times(to_query, from_scores, moved, heads, width)
            for head in range(heads):
                for k in range(width):
                    to_queries[at, head, k] += moved[head, k]
            filled += 1
            if filled == 8:
                add_products(kept[0], kept[1], to_to_scores, heads, width)
                add_products(kept[2], kept[3], to_to_sums, heads, width)
                filled = 0
        kept[:, filled:] = 0
        add_products(kept[0], kept[1], to_to_scores, heads, width)
        add_products(kept[2], kept[3], to_to_sums, heads, width)

    return forward, backward
