"""HGT's attention, whose softmax ranges over the edges of all relations, compiled, on CPU.

R destination rows of a node type, H heads, D width of each. A relation has R_r rows, E_r edges and
S_r source rows with keys k and values v. Of a row with the query q (Hu et al. 2020,
https://arxiv.org/abs/2003.01332, Eq. 3 and 4; A and M are of each relation and head, a and m, too):

    s_e = k_u · (q A_r) + q · a_r       z_r = Σ_e exp(s_e - M)
    y = Σ_r (Σ_e exp(s_e - M) v_u) M_r + z_r m_r        z = Σ_r z_r

with M the maximum of the row's scores. Keys and values are rows of their own, of width D a head,
and a and m are 0; or both are the source's state, of any width W, which all heads share, and A and
M hold the weights of keys and values, a and m their biases. Relations follow each other, and what
was added before is multiplied where one raises the maximum (Milakov and Gimelshein 2018,
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

from dgl_heta.errors import InputError
from dgl_heta.nn.gradient_hub import array_of, differentiable_once, done, opened
from dgl_heta.nn.messages import check_shape, check_sources, dot
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

product = functools.partial(kernel, fastmath={"contract"})
"""A product and a sum may be one instruction."""


def attend_across(edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                  sources: Sequence[Tensor], queries: Tensor, to_scores: Tensor, to_sums: Tensor,
                  biases: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """y beside z, (R, H · D + H), and the maxima (R, H), which have no gradient.

    `rows` are those of each relation among R, `sources` its keys and values (S_r, 2, H, D) or
    states (S_r, W), `queries` (R, H, D), `to_scores` A (relations, H, D, D or W), `to_sums` M
    (relations, H, D or W, D), `biases` a and m (relations, 2, H, D), with states alone. 0 and
    -inf for a row without edges.

    Raises
    ------
    InputError
        A shape does not fit, biases are given with keys and values, or an edge starts at a row that
        is not there.
    """
    _, heads, width = queries.shape
    numbers = [torch.arange(at.start, at.stop) if isinstance(at, slice) else at for at in rows]
    read = [opened(x) for x in sources]
    shared = sources[0].dim() == 2
    inner = sources[0].shape[1] if shared else width
    for csc, at, (x, *_) in zip(edges, numbers, read):
        check_sources(csc.indices, x)
        check_shape("states" if shared else "keys and values", x,
                    (len(x), inner) if shared else (len(x), 2, heads, width))
        check_shape("numbers of rows", at, (len(csc.indptr) - 1,))
        if len(at):
            check_sources(at, queries)
    if biases is not None and not shared:
        raise InputError("biases go with states, and keys and values are given")
    if biases is None:
        biases = queries.new_zeros((len(edges), 2, heads, width))
    check_shape("weights of scores", to_scores, (len(edges), heads, width, inner))
    check_shape("weights of sums", to_sums, (len(edges), heads, inner, width))
    check_shape("biases", biases, (len(edges), 2, heads, width))
    sums, top = _Across.apply(
        list(zip((csc.indptr for csc in edges), (csc.indices for csc in edges), numbers)),
        [reading for _, reading, _ in read], queries, to_scores, to_sums, biases,
        *(x for x, *_ in read), *(token for *_, token in read))
    return sums, top


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: list[tuple[Tensor, ...]], readings: list[Any], queries: Tensor,
                *weighed: Tensor) -> tuple[Tensor, Tensor]:
        _, heads, width = queries.shape
        (queries, *weights), read = ([x.detach().contiguous() for x in (queries, *weighed[:3])],
                                     weighed[3:])
        sums = queries.new_zeros((len(queries), heads * width + heads))
        top = queries.new_full((len(queries), heads), float("-inf"))
        ctx.passes = _passes(heads, width, weights[0].shape[3], read[0].dim() == 2)
        saved = []
        for csc, x, *own in zip(edges, read, *weights):
            of_edges = queries.new_empty((len(csc[1]), heads))
            tops = queries.new_empty((len(csc[2]), heads))
            ctx.passes[0](*(t.numpy() for t in csc), _rows(x.contiguous().numpy()),
                          queries.numpy(), *(t.numpy() for t in own), of_edges.numpy(),
                          tops.numpy(), top.numpy(), sums.numpy())
            saved += [x.contiguous(), of_edges, tops]
        ctx.save_for_backward(queries, *weights, top, *saved)
        ctx.edges, ctx.readings = edges, readings
        ctx.mark_non_differentiable(top)
        return sums, top

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        queries, to_scores, to_sums, biases, top, *saved = ctx.saved_tensors
        grad = grad.contiguous()
        to_queries, *to_weights = (torch.zeros_like(x) for x in (
            queries, to_scores, to_sums, biases))
        for i, (csc, reading) in enumerate(zip(ctx.edges, ctx.readings)):
            x, weights, tops = (t.numpy() for t in saved[3 * i:3 * i + 3])
            ctx.passes[1](
                *(t.numpy() for t in csc), _rows(x), queries.numpy(), to_scores[i].numpy(),
                to_scores[i].mT.contiguous().numpy(), to_sums[i].mT.contiguous().numpy(),
                biases[i].numpy(), weights, tops, top.numpy(), grad.numpy(),
                _rows(array_of(reading, x.shape, grad.dtype)), to_queries.numpy(),
                *(t[i].numpy() for t in to_weights))
        return (None, None, to_queries, *to_weights, *(None for _ in ctx.edges),
                *(done(reading, grad) for reading in ctx.readings))


def _rows(x: np.ndarray) -> np.ndarray:
    """(S, 2, H, D), or (S, 1, 1, W) of states."""
    return x.reshape(len(x), 1, 1, x.shape[1]) if x.ndim == 2 else x


@product
def times(rows, weights, out, heads, inner, width):  # type: ignore[no-untyped-def]
    """`rows` (H, A) times weights (H, A, B), to `out` (H, B), eight products at a time."""
    for head in range(heads):
        row, weight, added = rows[head], weights[head], out[head]
        for k in range(width):
            added[k] = 0
        for j in range(0, inner - 7, 8):
            a, b, c, d = row[j], row[j + 1], row[j + 2], row[j + 3]
            e, f, g, h = row[j + 4], row[j + 5], row[j + 6], row[j + 7]
            for k in range(width):
                added[k] += (a * weight[j, k] + b * weight[j + 1, k] + c * weight[j + 2, k]
                             + d * weight[j + 3, k] + e * weight[j + 4, k]
                             + f * weight[j + 5, k] + g * weight[j + 6, k]
                             + h * weight[j + 7, k])
        for j in range(inner - inner % 8, inner):
            for k in range(width):
                added[k] += row[j] * weight[j, k]


@product
def add_products(left, right, out, heads, inner, width):  # type: ignore[no-untyped-def]
    """Products of 8 rows (8, H, A) with 8 others (8, H, B), added to `out` (H, A, B)."""
    for head in range(heads):
        a, b, c, d = right[0, head], right[1, head], right[2, head], right[3, head]
        e, f, g, h = right[4, head], right[5, head], right[6, head], right[7, head]
        for j in range(inner):
            added = out[head, j]
            m, n, o, p = (left[0, head, j], left[1, head, j], left[2, head, j],
                          left[3, head, j])
            q, r, s, t = (left[4, head, j], left[5, head, j], left[6, head, j],
                          left[7, head, j])
            for k in range(width):
                added[k] += (m * a[k] + n * b[k] + o * c[k] + p * d[k]
                             + q * e[k] + r * f[k] + s * g[k] + t * h[k])


@functools.cache
def _passes(heads: int, width: int, inner: int, shared: bool  # noqa: C901, PLR0915
            ) -> tuple[Callable[..., None], Callable[..., None]]:
    """Forward and backward over one relation's edges. All arguments are constants of the kernels,
    so that their loops are unrolled."""
    of_values = 0 if shared else 1  # where they stand in a source's row

    @product
    def forward(indptr, indices, rows, source, queries, to_scores, to_sums, biases, weights,  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
                tops, top, sums):
        query, total = np.empty((heads, inner), sums.dtype), np.empty((heads, inner), sums.dtype)
        message = np.empty((heads, width), sums.dtype)
        for row in range(len(indptr) - 1):
            low, high, at = indptr[row], indptr[row + 1], rows[row]
            if low == high:
                continue
            times(queries[at], to_scores, query, heads, width, inner)
            for edge in range(low, high):
                prefetch(source, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    weights[edge, head] = dot(source[other, 0, 0 if shared else head], query[head])
            for head in range(heads):
                most = top[at, head]
                if shared:
                    bias = dot(queries[at, head], biases[0, head])
                    for edge in range(low, high):
                        weights[edge, head] += bias
                for edge in range(low, high):
                    most = max(most, weights[edge, head])
                # Where all scores are -inf, it would be -inf - -inf: other relations have others.
                finite = sums.dtype.type(0) if most == -np.inf else most
                scale = np.exp(top[at, head] - finite)
                top[at, head] = tops[row, head] = most
                added = sums.dtype.type(0)
                for edge in range(low, high):
                    weight = np.exp(weights[edge, head] - finite)
                    weights[edge, head] = weight
                    added += weight
                z = heads * width + head
                sums[at, z] = sums[at, z] * scale + added
                for k in range(width):
                    sums[at, head * width + k] *= scale
                if shared:
                    for k in range(width):
                        sums[at, head * width + k] += added * biases[1, head, k]
                for k in range(inner):
                    total[head, k] = 0
            for edge in range(low, high):
                other = indices[edge]
                for head in range(heads):
                    weight, value = weights[edge, head], source[other, of_values,
                                                                0 if shared else head]
                    for k in range(inner):
                        total[head, k] += weight * value[k]
            times(total, to_sums, message, heads, inner, width)
            for head in range(heads):
                for k in range(width):
                    sums[at, head * width + k] += message[head, k]

    @product
    def backward(indptr, indices, rows, source, queries, to_scores, from_scores, from_sums,  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912, PLR0915
                 biases, weights, tops, top, grad, to_source, to_queries, to_to_scores, to_to_sums,
                 to_biases):
        query, to_total = np.empty((heads, inner), grad.dtype), np.empty((heads, inner), grad.dtype)
        moved, scale = np.empty((heads, width), grad.dtype), np.empty(heads, grad.dtype)
        of_z, of_scores, of_weights = (np.empty(heads, grad.dtype), np.empty(heads, grad.dtype),
                                       np.empty(heads, grad.dtype))
        # Of 8 rows what the gradients of A and M are products of.
        outer, inside = (np.zeros((2, 8, heads, width), grad.dtype),
                         np.zeros((2, 8, heads, inner), grad.dtype))
        filled = 0
        for row in range(len(indptr) - 1):
            low, high, at = indptr[row], indptr[row + 1], rows[row]
            if low == high:
                continue
            own, given = outer[0, filled], outer[1, filled]
            to_query, total = inside[0, filled], inside[1, filled]
            times(queries[at], to_scores, query, heads, width, inner)
            for head in range(heads):
                scale[head] = np.exp(tops[row, head] - top[at, head])
                if tops[row, head] == -np.inf:
                    scale[head] = 0
                of_scores[head] = of_weights[head] = 0
                for k in range(width):
                    own[head, k] = queries[at, head, k]
                    given[head, k] = grad[at, head * width + k]
                for k in range(inner):
                    total[head, k] = 0
                    to_query[head, k] = 0
                of_z[head] = grad[at, heads * width + head]
                if shared:
                    of_z[head] += dot(given[head], biases[1, head])
            times(given, from_sums, to_total, heads, width, inner)
            for edge in range(low, high):
                prefetch(source, indices, edge)
                prefetch(to_source, indices, edge)
                other = indices[edge]
                for head in range(heads):
                    column = 0 if shared else head
                    key, value = source[other, 0, column], source[other, of_values, column]
                    to_key, to_value = (to_source[other, 0, column],
                                        to_source[other, of_values, column])
                    q, g, dq, t = query[head], to_total[head], to_query[head], total[head]
                    w = weights[edge, head] * scale[head]
                    d = w * (dot(g, value) + of_z[head])
                    if shared:
                        of_scores[head] += d
                        of_weights[head] += w
                    if shared:
                        for k in range(inner):
                            to_key[k] += d * q[k] + w * g[k]
                    else:
                        for k in range(inner):
                            to_key[k] += d * q[k]
                            to_value[k] += w * g[k]
                    for k in range(inner):
                        dq[k] += d * key[k]
                        t[k] += w * value[k]
            times(to_query, from_scores, moved, heads, inner, width)
            for head in range(heads):
                for k in range(width):
                    to_queries[at, head, k] += moved[head, k]
                if shared:
                    for k in range(width):
                        to_queries[at, head, k] += of_scores[head] * biases[0, head, k]
                        to_biases[0, head, k] += of_scores[head] * own[head, k]
                        to_biases[1, head, k] += of_weights[head] * given[head, k]
            filled += 1
            if filled == 8:
                add_products(outer[0], inside[0], to_to_scores, heads, width, inner)
                add_products(inside[1], outer[1], to_to_sums, heads, inner, width)
                filled = 0
        outer[:, filled:] = 0
        inside[:, filled:] = 0
        add_products(outer[0], inside[0], to_to_scores, heads, width, inner)
        add_products(inside[1], outer[1], to_to_sums, heads, inner, width)

    return forward, backward
