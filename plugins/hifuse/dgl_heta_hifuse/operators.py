"""Operators of many relations by PyTorch's own, on any device: one of each for all relations.

The relations are put one after the other, as Algorithm 1 of HiFuse does: their source states in one
tensor, their in-edges as those of one relation. Products are one call for each relation, with one
tensor for the results and one for the gradients.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgl_heta.nn import BaseKernel, Joined, RelationError, differentiable_once, new_tensor
from dgl_heta.tools import InEdges

_one = BaseKernel()


def reduce(edges: Sequence[InEdges], states: Sequence[Tensor], op: str) -> Joined:
    one = _merged(edges, states)
    return Joined(_one.reduce([one.edges], [one.states()], op)[0], one.rows)


def dot(edges: Sequence[InEdges], sources: Sequence[Tensor], destinations: Sequence[Tensor]
        ) -> Joined:
    one = _merged(edges, sources)
    return Joined(_one.u_dot_v([one.edges], [one.states()], [_whole(destinations, one.rows)])[0],
                  one.counts)


def products(edges: Sequence[InEdges], sources: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Joined:
    one = _merged(edges, sources)
    return matmul(Joined(one.states().index_select(0, one.edges.indices), one.counts), weights)


def add(edges: Sequence[InEdges], sources: Sequence[Tensor], destinations: Sequence[Tensor]
        ) -> Joined:
    one = _merged(edges, sources)
    return Joined(_one.u_add_v([one.edges], [one.states()], [_whole(destinations, one.rows)])[0],
                  one.counts)


def spread(edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Joined:
    one = _merged(edges)
    return Joined(_one.copy_v([one.edges], [_whole(rows, one.rows)])[0], one.counts)


def softmax(edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Joined:
    one = _merged(edges)
    return Joined(_one.edge_softmax([one.edges], [_whole(scores, one.counts)])[0], one.counts)


def maxima(edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Joined:
    one = _merged(edges)
    return Joined(_one.e_max([one.edges], [_whole(scores, one.counts).detach()])[0], one.rows)


def totals(edges: Sequence[InEdges], values: Sequence[Tensor]) -> Joined:
    one = _merged(edges)
    return Joined(_one.e_sum([one.edges], [_whole(values, one.counts)])[0], one.rows)


def weighted(edges: Sequence[InEdges], sources: Sequence[Tensor], weights: Sequence[Tensor]
             ) -> Joined:
    one = _merged(edges, sources)
    return Joined(_one.u_mul_e_sum([one.edges], [one.states()], [_whole(weights, one.counts)])[0],
                  one.rows)


def gather(states: Sequence[Tensor], rows: Sequence[Tensor | slice]) -> Joined:
    whole, starts = _together(states)
    index, sizes = _index(rows, starts, [len(x) for x in states], whole.device)
    return Joined(whole if index is None else whole.index_select(0, index), sizes)


def scatter_sum(values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor) -> Tensor:
    index, _ = _index(rows, [0] * len(rows), [len(like)] * len(rows), like.device)
    whole = _whole(values)
    if index is None and len(whole) == len(like):
        return whole.to(like.dtype)
    if index is None:
        index = torch.arange(len(whole), device=like.device)
    return like.new_zeros(like.shape).index_add(0, index, whole)


def matmul(rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor) -> Joined:
    """Products of each relation's rows (n, A) or (n, H, A) with its weight."""
    stacked = isinstance(weights, Tensor)
    shape = weights[0].shape
    for i, weight in enumerate(weights):
        if weight.shape != shape or rows[i].dim() != weight.dim() or (
                rows[i].shape[1:] != shape[:-1]):
            raise RelationError(
                i, len(weights),
                f"rows of shape {tuple(rows[i].shape)} cannot be multiplied by a weight of "
                f"shape {tuple(weight.shape)}; it should be "
                f"{(*rows[i].shape[1:], shape[-1])}")
    joined = isinstance(rows, Joined)
    sizes = rows.sizes if isinstance(rows, Joined) else [len(x) for x in rows]
    given = [rows.whole] if isinstance(rows, Joined) else list(rows)
    of_weights = [weights] if isinstance(weights, Tensor) else list(weights)
    out: Tensor = _Products.apply(sizes, joined, stacked, *given, *of_weights)
    return Joined(out, sizes)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: list[int], joined: bool, stacked: bool, *tensors: Tensor
                ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.sizes, ctx.joined, ctx.stacked = sizes, joined, stacked
        rows, weights = _apart(ctx, tensors)
        out = new_tensor((sum(sizes), *weights[0].shape[:-2], weights[0].shape[-1]), rows[0].dtype,
                    rows[0].device)
        for x, weight, product in zip(rows, weights, out.split(sizes)):
            _product(x, weight, product)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        tensors, sizes = ctx.saved_tensors, ctx.sizes
        rows, weights = _apart(ctx, tensors)
        grads = grad.split(sizes)
        given = 1 if ctx.joined else len(sizes)
        needed = ctx.needs_input_grad[3:]
        to_rows: Sequence[Tensor | None] = [None] * given
        to_weights: Sequence[Tensor | None] = [None] * (len(tensors) - given)
        if any(needed[:given]):
            whole = new_tensor((sum(sizes), *rows[0].shape[1:]), grad.dtype, grad.device)
            for g, weight, out in zip(grads, weights, whole.split(sizes)):
                _product(g, weight.transpose(-1, -2), out)
            to_rows = [whole] if ctx.joined else whole.split(sizes)
        if any(needed[given:]):
            whole = grad.new_empty((len(sizes), *weights[0].shape))
            for x, g, out in zip(rows, grads, whole):
                if x.dim() == 2:
                    torch.mm(x.t(), g, out=out)
                else:
                    torch.bmm(x.permute(1, 2, 0), g.transpose(0, 1), out=out)
            to_weights = [whole] if ctx.stacked else whole.unbind()
        return None, None, None, *to_rows, *to_weights


def _apart(ctx: Any, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The rows and the weight of each relation."""
    given = 1 if ctx.joined else len(ctx.sizes)
    rows = tensors[0].split(ctx.sizes) if ctx.joined else tensors[:given]
    return rows, tensors[given].unbind() if ctx.stacked else tensors[given:]


def _product(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    if rows.dim() == 2:
        torch.mm(rows, weight, out=out)
    else:
        torch.bmm(rows.transpose(0, 1), weight, out=out.transpose(0, 1))


class _Merged(NamedTuple):
    """The in-edges of several relations as those of one."""

    edges: InEdges
    rows: list[int]
    counts: list[int]
    together: Tensor | None

    def states(self) -> Tensor:
        """The source states of all relations, one tensor after the other."""
        assert self.together is not None
        return self.together


class _Known(NamedTuple):
    key: tuple[Any, ...]
    starts: list[int] | None
    edges: InEdges


_known: deque[_Known] = deque(maxlen=8)


def _merged(edges: Sequence[InEdges], states: Sequence[Tensor] = ()) -> _Merged:
    whole, starts = _together(states) if states else (None, None)
    key = tuple(t for csc in edges for t in csc)
    rows = [len(csc.indptr) - 1 for csc in edges]
    counts = [len(csc.indices) for csc in edges]
    for known in _known:
        if known.starts == starts and len(known.key) == len(key) and all(
                a is b for a, b in zip(known.key, key)):
            return _Merged(known.edges, rows, counts, whole)
    device = edges[0].indices.device
    indices = torch.cat([csc.indices for csc in edges]).long()
    if starts is not None:
        indices = indices + _repeated(starts, counts, device)
    indptr = torch.cat([csc.indptr[:-1] for csc in edges])
    indptr = indptr + _repeated(list(itertools.accumulate(counts, initial=0))[:-1], rows, device)
    end = indptr.new_full((1,), sum(counts))
    merged = InEdges(torch.cat([indptr, end]), indices)
    _known.append(_Known(key, starts, merged))
    return _Merged(merged, rows, counts, whole)


def _together(states: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Each tensor once, one after the other, and where the one of each relation begins."""
    if isinstance(states, Joined):
        return states.whole, states.starts
    unique = {id(x): x for x in states}
    starts = dict(zip(unique, itertools.accumulate((len(x) for x in unique.values()), initial=0)))
    tensors = list(unique.values())
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors),
            [starts[id(x)] for x in states])


def _index(rows: Sequence[Tensor | slice], starts: Sequence[int], lengths: Sequence[int],
           device: torch.device) -> tuple[Tensor | None, list[int]]:
    """Chosen rows as numbers in one tensor; None for all of it."""
    pieces, sizes = [], []
    for chosen, start, length in zip(rows, starts, lengths):
        if isinstance(chosen, slice):
            first, stop, _ = chosen.indices(length)
            pieces.append(torch.arange(start + first, start + max(first, stop), device=device))
        else:
            pieces.append(chosen + start if start else chosen)
        sizes.append(len(pieces[-1]))
    if len(rows) == 1 and isinstance(rows[0], slice) and sizes[0] == lengths[0] and not starts[0]:
        return None, sizes
    return torch.cat(pieces), sizes


def _repeated(values: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Each value as often as its count says."""
    both = torch.tensor([[*values], [*counts]], dtype=torch.int64,
                        pin_memory=device.type == "cuda")  # else the copy is waited for
    of, times = both.to(device, non_blocking=True)
    return torch.repeat_interleave(of, times, output_size=sum(counts))


def _whole(values: Sequence[Tensor], wanted: Sequence[int] | None = None) -> Tensor:
    """The values of all relations in one tensor, of so many rows each.

    Raises
    ------
    RelationError
        A relation has others: its values would be taken for another's.
    """
    if wanted is not None:
        sizes = values.sizes if isinstance(values, Joined) else map(len, values)
        for i, (size, of) in enumerate(zip(sizes, wanted, strict=True)):
            if size != of:
                raise RelationError(i, len(wanted), f"{size} rows are given for {of}")
    if isinstance(values, Joined):
        return values.whole
    return values[0] if len(values) == 1 else torch.cat(list(values))
