"""AGG_all: merge the relation-specific aggregations of a node type (Heta Eq. 1, §4).

A reducer is a mergeable state: the relations that a worker runs are merged locally, and the
rows of the group's seeds, which are partial on each worker, are merged across the
model-parallel group by an :class:`Exchange`. Alone, the exchange is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dgl_heta.block import Block, RelationBlock
from dgl_heta.errors import InputError

REDUCERS = ("sum", "mean", "max", "min")


class Exchange(Protocol):
    """How partial rows of the seeds become complete.

    `token` links the exchanges of one forward pass into a chain, so that their backward
    passes run in the same order on all workers, and all of them run.
    """

    token: Tensor

    def reduce(self, rows: Tensor, op: str, own: tuple[int, int] | None, layer: int,
               ntype: str) -> Tensor:
        """Merge `rows` (seeds, width) over the workers by `op` (sum, max or min).

        Returns all rows, or only those of the half-open range `own`.
        """

    def adjoint(self, grad: Tensor, own: tuple[int, int] | None, rows: int) -> Tensor:
        """The gradient of all `rows` from the gradients that the workers hold, summed."""


class Alone:
    """The exchange of a single process: partial rows are complete already."""

    @property
    def token(self) -> Tensor:
        return torch.zeros(1)

    @token.setter
    def token(self, _: Tensor) -> None:
        """Nothing to order: a kept token would tie the graphs of all steps together."""

    def reduce(self, rows: Tensor, op: str, own: tuple[int, int] | None, layer: int,
               ntype: str) -> Tensor:
        return rows if own is None else rows[own[0]:own[1]]

    def adjoint(self, grad: Tensor, own: tuple[int, int] | None, rows: int) -> Tensor:
        if own is None:
            return grad
        full = grad.new_zeros((rows, *grad.shape[1:]))
        full[own[0]:own[1]] = grad
        return full


class CrossRelation(nn.Module):
    """Merge relation-specific aggregations by `sum`, `mean`, `max` or `min`.

    A relation counts for every row that it is run for, with edges or without, as in DGL's
    HeteroGraphConv: `mean` divides by the number of relations. Where several relations attain
    a maximum or minimum they share its gradient equally.
    """

    exchange: Exchange

    def __init__(self, op: str = "sum") -> None:
        super().__init__()
        if op not in REDUCERS:
            raise InputError(f"reducer '{op}' is unknown; known are {', '.join(REDUCERS)}")
        self.op = op
        self.exchange = Alone()

    def extra_repr(self) -> str:
        return self.op

    def forward(self, block: Block, ntype: str, parts: Sequence[tuple[RelationBlock, Tensor]],
                width: int, like: Tensor) -> Tensor:
        """Merge the parts of one node type.

        Parameters
        ----------
        parts : edges of the block that end at `ntype`, each with its aggregation
            (edges.num_rows, width). May be empty.
        width, like : width of the result; `like` gives its dtype and device.

        Returns
        -------
        Tensor (wanted rows, width); see :meth:`Block.wanted`.
        """
        ranges = [(edges.start, edges.stop) for edges, _ in parts]
        values = [value for _, value in parts]
        out, self.exchange.token = _Merge.apply(
            self.exchange, self.op, block, ntype, ranges, width, like.detach(),
            self.exchange.token, *values)
        return out


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, op: str, block: Block, ntype: str,
                ranges: list[tuple[int, int]], width: int, like: Tensor, token: Tensor,
                *values: Tensor) -> tuple[Tensor, Tensor]:
        rows, seeds = block.num_dst[ntype], block.seed_rows.get(ntype, 0)
        own = block.own[ntype] if block.own is not None and ntype in block.seed_rows else None
        ctx.exchange, ctx.op, ctx.ranges = exchange, op, ranges
        ctx.rows, ctx.seeds, ctx.own, ctx.token_like = rows, seeds, own, token.detach()
        if op in ("sum", "mean"):
            out = like.new_zeros((rows, width))
            for (low, high), value in zip(ranges, values):
                out[low:high] += value
            divisors = (max(block.seed_relations.get(ntype, 1), 1),
                        max(block.inner_relations.get(ntype, 1), 1)) if op == "mean" else None
            ctx.divisors = divisors
            if seeds:
                complete = exchange.reduce(out[:seeds], "sum", own, block.layer, ntype)
                out = complete if own is not None else _join(complete, out[seeds:])
            elif own is not None:
                out = out[:0]
            if divisors:
                out = _divide(out, divisors, len(out) if own is not None else seeds)
            return out, token.clone()
        infinity = float("-inf") if op == "max" else float("inf")
        out = like.new_full((rows, width), infinity)
        better = torch.maximum if op == "max" else torch.minimum
        for (low, high), value in zip(ranges, values):
            out[low:high] = better(out[low:high], value)
        if seeds:
            out = _join(exchange.reduce(out[:seeds], op, None, block.layer, ntype), out[seeds:])
        ties = like.new_zeros((rows, width))
        masks = [value == out[low:high] for (low, high), value in zip(ranges, values)]
        for (low, high), mask in zip(ranges, masks):
            ties[low:high] += mask
        if seeds:
            ties = _join(exchange.reduce(ties[:seeds], "sum", None, block.layer, ntype),
                         ties[seeds:])
        out = torch.where(torch.isinf(out) & (ties == 0), torch.zeros_like(out), out)
        ctx.save_for_backward(ties, *masks)
        if own is not None:
            out = out[own[0]:own[1]].clone()
        return out, token.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Autograd materialises a missing gradient as zeros, so that every worker takes part."""
        if ctx.op == "mean" and ctx.divisors:
            grad = _divide(grad, ctx.divisors, len(grad) if ctx.own is not None else ctx.seeds)
        if ctx.seeds:
            if ctx.own is not None:
                grad = ctx.exchange.adjoint(grad, ctx.own, ctx.seeds)
            else:
                grad = _join(ctx.exchange.adjoint(grad[:ctx.seeds], None, ctx.seeds),
                             grad[ctx.seeds:])
        if ctx.op in ("sum", "mean"):
            parts = [grad[low:high] for low, high in ctx.ranges]
        else:
            ties, *masks = ctx.saved_tensors
            shared = grad / ties.clamp(min=1)
            parts = [shared[low:high] * mask for (low, high), mask in zip(ctx.ranges, masks)]
        return (None,) * 7 + (torch.zeros_like(ctx.token_like), *parts)


def _join(seeds: Tensor, others: Tensor) -> Tensor:
    return torch.cat([seeds, others]) if len(others) else seeds


def _divide(rows: Tensor, divisors: tuple[int, int], seeds: int) -> Tensor:
    return _join(rows[:seeds] / divisors[0], rows[seeds:] / divisors[1])
