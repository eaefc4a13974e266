"""Operators of many relations as one compiled pass forward and one backward, on CPU.

Arguments and results are those of :class:`dgl_heta.Kernel`; all relations' tensors differ in the
number of rows alone. Results are joined: one tensor for all relations. Gradients of source states
and of gathered rows go to one array per tensor (:mod:`dgl_heta.nn.gradient_hub`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta.nn import (
    Joined,
    RelationError,
    differentiable_once,
    new_tensor,
    new_zeros,
    reading_of,
)
from dgl_heta_hifuse import compiled as c
from dgl_heta_hifuse.arguments import Call, Chosen, Rows, addresses

if TYPE_CHECKING:
    from dgl_heta.tools import InEdges


def reduce(edges: Sequence[InEdges], states: Sequence[Tensor], mean: bool) -> Joined:
    """Sums or means: (S, D) to (R, D)."""
    call = Call(edges, states)
    width = call.shape[0]

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        c.sums(jobs, width, mean, like)

    def backward(jobs: np.ndarray, of_sources: bool, _: bool, like: np.ndarray) -> None:
        c.sums_backward(jobs, width, mean, like)

    return _run(call, _Functions(forward, backward), None, call.rows, (width,))


def dot(edges: Sequence[InEdges], sources: Sequence[Tensor], destinations: Sequence[Tensor]
        ) -> Joined:
    """Products: (S, D) or (S, H, D), with (R or 1, H, D), to (E, H)."""
    call, others = Call(edges, sources), Rows(destinations)
    heads, width = others.shape
    shared = len(call.shape) == 1
    call.want("source", call.shape, (width,) if shared else (heads, width))
    for i, (rows, count) in enumerate(zip(others.sizes, call.rows)):
        if rows not in (1, count):
            raise RelationError(i, len(edges),
                                f"{rows} destination rows are given for {count}")
    run, run_backward, _, _ = c.SHARED if shared else c.OF_HEADS

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        run(jobs, heads, width, like)

    def backward(jobs: np.ndarray, of_sources: bool, of_others: bool, like: np.ndarray) -> None:
        run_backward(jobs, heads, width, of_sources, of_others, like)

    return _run(call, _Functions(forward, backward, True, True), others, call.edges, (heads,))


def heads_first(weights: Sequence[Tensor] | Tensor) -> Joined:
    """Weights (D, H) of relations as one destination row (1, H, D) of each."""
    stacked = weights if isinstance(weights, Tensor) else torch.stack(list(weights))
    return Joined(stacked.transpose(1, 2), [1] * len(stacked))


def add(edges: Sequence[InEdges], sources: Sequence[Tensor], destinations: Sequence[Tensor]
        ) -> Joined:
    """Sums: (S, H) and (R, H) to (E, H)."""
    call, others = Call(edges, sources), Rows(destinations)
    (heads,) = call.shape
    others.want("destination", call.rows, call.shape)

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        c.add(jobs, heads, like)

    def backward(jobs: np.ndarray, of_sources: bool, of_others: bool, like: np.ndarray) -> None:
        c.add_backward(jobs, heads, of_sources, of_others, like)

    return _run(call, _Functions(forward, backward, True), others, call.edges, (heads,))


def weighted(edges: Sequence[InEdges], sources: Sequence[Tensor], weights: Sequence[Tensor]
             ) -> Joined:
    """Weighted sums: (S, D) or (S, H, D), with (E, H), to (R, H, D)."""
    call, others = Call(edges, sources), Rows(weights)
    (heads,), width = others.shape, call.shape[-1]
    shared = len(call.shape) == 1 or call.shape[0] == 1
    call.want("source", call.shape, call.shape if shared else (heads, width))
    others.want("edge", call.edges, (heads,))
    _, _, run, run_backward = c.SHARED if shared else c.OF_HEADS

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        run(jobs, heads, width, like)

    def backward(jobs: np.ndarray, of_sources: bool, of_others: bool, like: np.ndarray) -> None:
        run_backward(jobs, heads, width, of_sources, of_others, like)

    return _run(call, _Functions(forward, backward, reads=True), others, call.rows, (heads, width))


def spread(edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Joined:
    """Each edge its row's values: (R, H) to (E, H)."""
    call, others = Call(edges), Rows(rows)
    (heads,) = others.shape
    others.want("destination", call.rows, (heads,))

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        c.spread(jobs, heads, like)

    def backward(jobs: np.ndarray, _: bool, __: bool, like: np.ndarray) -> None:
        c.totals(_swapped(jobs), heads, False, like)

    return _run(call, _Functions(forward, backward), others, call.edges, (heads,))


def totals(edges: Sequence[InEdges], values: Sequence[Tensor]) -> Joined:
    """Sums over each row's edges: (E, H) to (R, H)."""
    call, others = Call(edges), Rows(values)
    (heads,) = others.shape
    others.want("edge", call.edges, (heads,))

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        c.totals(jobs, heads, False, like)

    def backward(jobs: np.ndarray, _: bool, __: bool, like: np.ndarray) -> None:
        c.spread(_swapped(jobs), heads, like)

    return _run(call, _Functions(forward, backward), others, call.rows, (heads,))


@torch.no_grad()
def maxima(edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Joined:
    """Maxima over each row's edges: (E, H) to (R, H), without a gradient."""
    call, others = Call(edges), Rows(scores)
    (heads,) = others.shape
    others.want("edge", call.edges, (heads,))

    def forward(jobs: np.ndarray, like: np.ndarray) -> None:
        c.totals(jobs, heads, True, like)

    return _run(call, _Functions(forward, None), others, call.rows, (heads,))


def softmax(edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Joined:
    """The softmax over each row's edges: (E, H) to (E, H)."""
    call, others = Call(edges), Rows(scores)
    (heads,) = others.shape
    others.want("edge", call.edges, (heads,))
    whole: Tensor = _Softmax.apply(call, others, heads, *others.tensors)
    return Joined(whole, others.sizes)


def gather(states: Sequence[Tensor], rows: Sequence[Tensor | slice]) -> Joined:
    """Rows of states (n, …): by their numbers or from one to another."""
    return _Gather(states, rows).run()


def scatter_sum(values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor) -> Tensor:
    """Zeros as `like` (n, …), to which values are added at those rows."""
    others = Rows(values)
    chosen = Chosen(rows, [len(like)] * len(others.sizes))
    others.want("destination", chosen.counts, like.shape[1:])
    out: Tensor = _Scatter.apply(chosen, others, tuple(like.shape), *others.tensors)
    return out


class _Functions(NamedTuple):
    forward: Callable[[np.ndarray, np.ndarray], None]
    backward: Callable[[np.ndarray, bool, bool, np.ndarray], None] | None
    adds_to_others: bool = False
    """True: `backward` adds to the other argument's gradient. False: it fills it."""
    reads: bool = False
    """True if `backward` reads the arguments."""


def _run(call: Call, functions: _Functions, others: Rows | None, sizes: list[int],
         shape: tuple[int, ...]) -> Joined:
    tokens, given = call.tokens, others.tensors if others is not None else ()
    whole: Tensor = _Pass.apply(call, functions, others, sizes, shape, len(tokens), *tokens, *given)
    return Joined(whole, sizes)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, functions: _Functions, others: Rows | None,
                sizes: list[int], shape: tuple[int, ...], tokens: int, *tensors: Tensor) -> Tensor:
        memory = [x.detach().contiguous() for x in call.states]
        given = others.memory if others is not None else []
        like = (memory or given)[0]
        out = new_tensor((sum(sizes), *shape), like.dtype)
        jobs = call.jobs(memory)
        if others is not None:
            jobs[:, c.OTHER], jobs[:, c.OTHERS] = others.at, others.sizes
        jobs[:, c.OUT] = addresses([out], sizes, True)
        functions.forward(jobs, like.numpy().reshape(-1)[:0])
        if functions.reads:
            ctx.save_for_backward(*call.states, *tensors[tokens:])
            ctx.memory = memory
        ctx.call, ctx.functions, ctx.others, ctx.sizes = call, functions, others, sizes
        ctx.tokens = tokens
        call.forget()
        if not functions.reads and others is not None:
            others.forget()
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # none was changed in place
        call, functions, others = ctx.call, ctx.functions, ctx.others
        grad = grad.contiguous()
        jobs = call.jobs(ctx.memory if functions.reads else ())
        jobs[:, c.OUT] = addresses([grad], ctx.sizes, True)
        of_sources = any(reading is not None for reading in call.readings)
        if of_sources:  # the pass adds to all or to none
            arrays = [new_zeros(shape, grad.dtype) if reading is None else reading.array()
                      for shape, reading in zip(call.shapes, call.readings)]
            at = [array.data_ptr() for array in arrays]
            jobs[:, c.TO_SOURCE] = [at[i] for i in call.of]
            jobs[:, c.SOURCES] = [call.shapes[i][0] for i in call.of]
        of_others = others is not None and any(ctx.needs_input_grad[6 + ctx.tokens:])
        to_others: Sequence[Tensor | None] = []
        if others is not None:
            jobs[:, c.OTHERS] = others.sizes
            if functions.reads:
                jobs[:, c.OTHER] = others.at
            to_others = [None] * others.count
            if of_others:
                whole, jobs[:, c.TO_OTHER] = others.new(functions.adds_to_others)
                to_others = others.apart(whole)
        functions.backward(jobs, of_sources, of_others, grad.numpy().reshape(-1)[:0])
        zero = grad.new_zeros(())
        return (*[None] * 6, *[zero] * ctx.tokens, *to_others)


def _swapped(jobs: np.ndarray) -> np.ndarray:
    """From the gradient of the result to that of the other argument, by the adjoint's function."""
    jobs = jobs.copy()
    jobs[:, c.OTHER], jobs[:, c.OUT] = jobs[:, c.OUT], jobs[:, c.TO_OTHER].copy()
    return jobs


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, others: Rows, heads: int, *tensors: Tensor) -> Tensor:
        like = others.memory[0]
        out = new_tensor((sum(others.sizes), heads), like.dtype)
        jobs = call.jobs([])
        jobs[:, c.OTHER] = others.at
        jobs[:, c.OUT] = addresses([out], others.sizes, True)
        c.softmax(jobs, heads, like.numpy().reshape(-1)[:0])
        ctx.save_for_backward(out)
        ctx.call, ctx.others, ctx.heads = call, others, heads
        others.forget()
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (out,), others, grad = ctx.saved_tensors, ctx.others, grad.contiguous()
        jobs = ctx.call.jobs([])
        jobs[:, c.OTHER] = addresses([out], others.sizes, True)
        jobs[:, c.OUT] = addresses([grad], others.sizes, True)
        whole, jobs[:, c.TO_OTHER] = others.new(False)
        c.softmax_backward(jobs, ctx.heads, grad.numpy().reshape(-1)[:0])
        return None, None, None, *others.apart(whole)


class _Gather:
    def __init__(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]) -> None:
        unique = {id(x): x for x in states}
        of = {key: i for i, key in enumerate(unique)}
        self.states = list(unique.values())
        self.of = [of[id(x)] for x in states]
        self.readings = [reading_of(x) for x in self.states]
        self.chosen = Chosen(rows, [len(x) for x in states])
        self.shapes = [tuple(x.shape) for x in self.states]
        self.shape = self.shapes[0][1:]

    def run(self) -> Joined:
        tokens = [reading.token for reading in self.readings if reading is not None]
        whole: Tensor = _Gathered.apply(self, *tokens)
        return Joined(whole, self.chosen.counts)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Gather, *tokens: Tensor) -> Tensor:
        memory = [x.detach().contiguous() for x in call.states]
        counts = call.chosen.counts
        out = new_tensor((sum(counts), *call.shape), memory[0].dtype)
        at = [x.data_ptr() for x in memory]
        call.chosen.run(c.gather, [at[i] for i in call.of], addresses([out], counts, True),
                        _width(call.shape), out)
        ctx.call, ctx.tokens = call, len(tokens)
        call.states = []
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, grad = ctx.call, grad.contiguous()
        arrays = [new_zeros(shape, grad.dtype) if reading is None else reading.array()
                  for shape, reading in zip(call.shapes, call.readings)]
        at = [x.data_ptr() for x in arrays]
        call.chosen.run(c.scatter, [at[i] for i in call.of],
                        addresses([grad], call.chosen.counts, True), _width(call.shape), grad)
        return (None, *[grad.new_zeros(())] * ctx.tokens)


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chosen: Chosen, others: Rows, shape: tuple[int, ...],
                *tensors: Tensor) -> Tensor:
        out = new_zeros(shape, others.memory[0].dtype)
        chosen.run(c.scatter, [out.data_ptr()] * len(others.sizes), others.at, _width(shape[1:]),
                   out)
        ctx.chosen, ctx.others, ctx.shape = chosen, others, shape
        others.forget()
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad = grad.contiguous()
        whole, at = ctx.others.new(False)
        ctx.chosen.run(c.gather, [grad.data_ptr()] * len(at), at, _width(ctx.shape[1:]), grad)
        return None, None, None, *ctx.others.apart(whole)


def _width(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
