"""Operators with a product per relation inside, compiled, on CPU: nothing of its size is kept.

A query times a relation's weights, and a weighted sum before its weights, have a row of heads ×
width numbers for each destination: several times the states. They are made for some hundred rows at
a time, which stay in the processor's cache until the edges of these rows are done, and again in the
backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.nn import Joined, differentiable_once, new_tensor, new_zeros
from dgl_heta_hifuse import compiled as c
from dgl_heta_hifuse.arguments import Call, Rows, addresses

if TYPE_CHECKING:
    from dgl_heta.tools import InEdges

_NUMBERS = 1 << 17
"""Numbers of a chunk."""


def dot(edges: Sequence[InEdges], sources: Sequence[Tensor], destinations: Sequence[Tensor],
        weights: Sequence[Tensor] | Tensor) -> Joined:
    """Products of source rows (S, D) with destination rows (R, H, A) times weights (H, A, D)."""
    call, others = Call(edges, sources), Rows(destinations)
    heads, inner = others.shape
    call.want("source", call.shape, weights[0].shape[2:])
    others.want("destination", call.rows, (heads, inner))
    return _run(_Dot, call, others, weights, call.edges)


def weighted(edges: Sequence[InEdges], sources: Sequence[Tensor], of_edges: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Joined:
    """Sums of source rows (S, D) weighted by (E, H), times weights (H, D, B): (R, H, B)."""
    call, others = Call(edges, sources), Rows(of_edges)
    call.want("source", call.shape, weights[0].shape[1:2])
    others.want("edge", call.edges, weights[0].shape[:1])
    return _run(_Weighted, call, others, weights, call.rows)


def _run(function: Any, call: Call, others: Rows, weights: Sequence[Tensor] | Tensor,
         sizes: list[int]) -> Joined:
    stacked = isinstance(weights, Tensor)
    given = [weights] if isinstance(weights, Tensor) else list(weights)
    tokens = call.tokens
    whole: Tensor = function.apply(call, others, stacked, len(tokens), len(others.tensors),
                                   *tokens, *others.tensors, *given)
    return Joined(whole, sizes)


class _Chunks:
    """Some rows of a relation at a time: (relation, first and last row, its job)."""

    def __init__(self, jobs: np.ndarray, numbers: int) -> None:
        step = max(_NUMBERS // max(numbers, 1), 16)
        self.places = [(r, low, min(low + step, rows))
                       for r, rows in enumerate(jobs[:, c.ROWS].tolist())
                       for low in range(0, rows, step)]
        self.most = max((high - low for _, low, high in self.places), default=0)
        self.jobs = jobs[[r for r, _, _ in self.places]]
        if len(self.places):
            low, high = np.asarray([(a, b) for _, a, b in self.places]).T
            self.jobs[:, c.INDPTR] += 8 * low
            self.jobs[:, c.ROWS] = high - low


class _Pass:
    """The base of both functions: their arguments in order, and their gradients."""

    @staticmethod
    def begin(ctx: Any, call: Call, others: Rows, stacked: bool, tokens: int, given: int,
              tensors: Sequence[Tensor]) -> tuple[np.ndarray, Tensor]:
        """The jobs and the stacked weights."""
        weights = tensors[tokens + given:]
        memory = [x.detach().contiguous() for x in call.states]
        ctx.save_for_backward(*call.states, *tensors[tokens:])
        ctx.call, ctx.others, ctx.stacked, ctx.tokens, ctx.given = (
            call, others, stacked, tokens, given)
        ctx.memory = memory
        ctx.weights = (weights[0] if stacked else torch.stack(list(weights))).detach().contiguous()
        call.forget()
        jobs = call.jobs(memory)
        jobs[:, c.OTHER], jobs[:, c.OTHERS] = others.at, others.sizes
        return jobs, ctx.weights

    @staticmethod
    def begin_backward(ctx: Any, dtype: torch.dtype) -> tuple[np.ndarray, bool]:
        """The jobs, with where gradients of sources go, if they are wanted."""
        _ = ctx.saved_tensors  # none was changed in place
        call = ctx.call
        jobs = call.jobs(ctx.memory)
        jobs[:, c.OTHER], jobs[:, c.OTHERS] = ctx.others.at, ctx.others.sizes
        wanted = any(reading is not None for reading in call.readings)
        if wanted:
            arrays = [new_zeros(shape, dtype) if reading is None else reading.array()
                      for shape, reading in zip(call.shapes, call.readings)]
            at = [array.data_ptr() for array in arrays]
            jobs[:, c.TO_SOURCE] = [at[i] for i in call.of]
            ctx.arrays = arrays
        return jobs, wanted

    @staticmethod
    def end_backward(ctx: Any, of_others: Tensor, of_weights: Tensor) -> tuple[Any, ...]:
        ctx.arrays = None
        return (*[None] * 5, *[of_others.new_zeros(())] * ctx.tokens,
                *ctx.others.apart(of_others),
                *([of_weights] if ctx.stacked else of_weights.unbind()))


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, others: Rows, stacked: bool, tokens: int, given: int,
                *tensors: Tensor) -> Tensor:
        jobs, weights = _Pass.begin(ctx, call, others, stacked, tokens, given, tensors)
        _, heads, _, width = weights.shape
        out = new_tensor((sum(call.edges), heads), weights.dtype)
        jobs[:, c.OUT] = addresses([out], call.edges, True)
        chunks, queries = _Chunks(jobs, heads * width), others.split()
        asked = torch.empty((chunks.most, heads, width), dtype=weights.dtype)
        like = out.numpy().reshape(-1)[:0]
        for number, (r, low, high) in enumerate(chunks.places):
            _product(queries[r][low:high], weights[r], asked[:high - low])
            job = chunks.jobs[number:number + 1]
            job[0, c.OTHER], job[0, c.OTHERS] = asked.data_ptr(), high - low
            c.SHARED[0](job, heads, width, like)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad, weights, others = grad.contiguous(), ctx.weights, ctx.others
        jobs, of_sources = _Pass.begin_backward(ctx, grad.dtype)
        _, heads, _, width = weights.shape
        jobs[:, c.OUT] = addresses([grad], ctx.call.edges, True)
        chunks, queries = _Chunks(jobs, heads * width), others.split()
        asked, to_asked = (torch.empty((chunks.most, heads, width), dtype=grad.dtype)
                           for _ in range(2))
        whole, _ = others.new(False)
        of_rows, of_weights = whole.split(others.sizes), torch.zeros_like(weights)
        like = grad.numpy().reshape(-1)[:0]
        for number, (r, low, high) in enumerate(chunks.places):
            rows, count = queries[r][low:high], high - low
            _product(rows, weights[r], asked[:count])
            to_asked[:count].zero_()
            job = chunks.jobs[number:number + 1]
            job[0, c.OTHER], job[0, c.OTHERS] = asked.data_ptr(), count
            job[0, c.TO_OTHER] = to_asked.data_ptr()
            c.SHARED[1](job, heads, width, of_sources, True, like)
            _product(to_asked[:count], weights[r].transpose(1, 2), of_rows[r][low:high])
            of_weights[r].baddbmm_(rows.permute(1, 2, 0), to_asked[:count].transpose(0, 1))
        return _Pass.end_backward(ctx, whole, of_weights)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, others: Rows, stacked: bool, tokens: int, given: int,
                *tensors: Tensor) -> Tensor:
        jobs, weights = _Pass.begin(ctx, call, others, stacked, tokens, given, tensors)
        _, heads, width, last = weights.shape
        out = new_tensor((sum(call.rows), heads, last), weights.dtype)
        chunks, of_rows = _Chunks(jobs, heads * width), out.split(call.rows)
        sums = torch.empty((chunks.most, heads, width), dtype=weights.dtype)
        chunks.jobs[:, c.OUT] = sums.data_ptr()
        like = out.numpy().reshape(-1)[:0]
        for number, (r, low, high) in enumerate(chunks.places):
            c.SHARED[2](chunks.jobs[number:number + 1], heads, width, like)
            _product(sums[:high - low], weights[r], of_rows[r][low:high])
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weights, others = ctx.weights, ctx.others
        jobs, of_sources = _Pass.begin_backward(ctx, grad.dtype)
        _, heads, width, _ = weights.shape
        whole, jobs[:, c.TO_OTHER] = others.new(False)
        chunks, of_rows = _Chunks(jobs, heads * width), grad.split(ctx.call.rows)
        sums, to_sums = (torch.empty((chunks.most, heads, width), dtype=grad.dtype)
                         for _ in range(2))
        of_weights = torch.zeros_like(weights)
        like = whole.numpy().reshape(-1)[:0]
        for number, (r, low, high) in enumerate(chunks.places):
            rows, count = of_rows[r][low:high], high - low
            job = chunks.jobs[number:number + 1]
            job[0, c.OUT] = sums.data_ptr()
            c.SHARED[2](job, heads, width, like)
            of_weights[r].baddbmm_(sums[:count].permute(1, 2, 0), rows.transpose(0, 1))
            _product(rows, weights[r].transpose(1, 2), to_sums[:count])
            job[0, c.OUT] = to_sums.data_ptr()
            c.SHARED[3](job, heads, width, of_sources, True, like)
        return _Pass.end_backward(ctx, whole, of_weights)


def _product(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """(n, H, A) with (H, A, B) to (n, H, B)."""
    torch.bmm(rows.transpose(0, 1), weight, out=out.transpose(0, 1))
