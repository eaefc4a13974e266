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

from dgl_heta.block import Block, RelationBlock, SeedShares
from dgl_heta.errors import InputError

REDUCERS = ("sum", "mean", "max", "min")


class Exchange(Protocol):
    """How partial rows of the seeds become complete.

    `token` links the exchanges of one forward pass into a chain, so that their backward
    passes run in the same order on all workers, and all of them run.
    """

    token: Tensor

    def reduce(self, rows: Tensor, op: str, shares: SeedShares, own: bool, layer: int,
               ntype: str) -> Tensor:
        """Merge `rows` (seeds, width) over the workers by `op` (sum, max or min).

        Returns all rows, or with `own` only this worker's.
        """

    def adjoint(self, grad: Tensor, shares: SeedShares, own: bool) -> Tensor:
        """The gradient of all seeds' rows from the gradients that the workers hold, summed."""


class Alone:
    """The exchange of a single process: partial rows are complete already."""

    @property
    def token(self) -> Tensor:
        return torch.zeros(1)

    @token.setter
    def token(self, _: Tensor) -> None:
        """Nothing to order: a kept token would tie the graphs of all steps together."""

    def reduce(self, rows: Tensor, op: str, shares: SeedShares, own: bool, layer: int,
               ntype: str) -> Tensor:
        return rows

    def adjoint(self, grad: Tensor, shares: SeedShares, own: bool) -> Tensor:
        return grad


class CrossRelation(nn.Module):
    """Merge relation-specific aggregations by `sum`, `mean`, `max` or `min`.

    A relation counts for every row that it is run for, with edges or without, as in DGL's
    HeteroGraphConv: `mean` divides by the number of relations. Where several relations attain
    a maximum or minimum, the first of them in the schema's order has its gradient, as in
    `torch.max` over a dimension.
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
        divisors = (block.seed_relations.get(ntype, 1), block.inner_relations.get(ntype, 1))
        return merge(self.exchange, self.op, block, ntype, parts, width, like, divisors)


def merge(exchange: Exchange, op: str, block: Block, ntype: str,
          parts: Sequence[tuple[RelationBlock, Tensor]], width: int, like: Tensor,
          divisors: tuple[int, int]) -> Tensor:
    """Merge the parts of one node type over the relations here and, by `exchange`, elsewhere.

    `divisors` are the numbers of relations, over all workers, that reach a seed's row and
    another row, by which `mean` divides; the rest is as in :meth:`CrossRelation.forward`.
    """
    ranges = [(edges.start, edges.stop, edges.place) for edges, _ in parts]
    out, exchange.token = _Merge.apply(
        exchange, op, block, ntype, ranges, width, like.detach(),
        (max(divisors[0], 1), max(divisors[1], 1)), exchange.token,
        *(value for _, value in parts))
    return out


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, op: str, block: Block, ntype: str,
                ranges: list[tuple[int, int, int]], width: int, like: Tensor,
                divisors: tuple[int, int], token: Tensor, *values: Tensor
                ) -> tuple[Tensor, Tensor]:
        rows, seeds = block.num_dst[ntype], block.num_seeds(ntype)
        shares, own = block.seeds.get(ntype), block.last
        ctx.exchange, ctx.op, ctx.ranges, ctx.divisors = exchange, op, ranges, divisors
        ctx.seeds, ctx.shares, ctx.own, ctx.token_like = seeds, shares, own, token.detach()

        def complete(partial: Tensor, how: str, own: bool) -> Tensor:
            if shares is None or not seeds:
                return partial
            found = exchange.reduce(partial[:seeds], how, shares, own, block.layer, ntype)
            return found if own else _join(found, partial[seeds:])

        if op in ("sum", "mean"):
            out = like.new_zeros((rows, width))
            for (low, high, _), value in zip(ranges, values):
                out[low:high] += value
            out = complete(out, "sum", own)
            if op == "mean":
                out = _divide(out, divisors, len(out) if own else seeds)
            return out, token.clone()
        partial = like.new_full((rows, width), float("-inf") if op == "max" else float("inf"))
        better = torch.maximum if op == "max" else torch.minimum
        for (low, high, _), value in zip(ranges, values):
            partial[low:high] = better(partial[low:high], value)
        out = complete(partial, op, False)
        nobody = torch.iinfo(torch.int32).max
        winner = torch.full((rows, width), nobody, dtype=torch.int32, device=like.device)
        for (low, high, place), value in zip(ranges, values):
            attained = torch.where(value == out[low:high], place, nobody).to(torch.int32)
            winner[low:high] = torch.minimum(winner[low:high], attained)
        winner = complete(winner, "min", False)
        out = torch.where(torch.isinf(out) & (winner == nobody), torch.zeros_like(out), out)
        ctx.save_for_backward(*(winner[low:high] == place for low, high, place in ranges))
        return out[:shares.own].clone() if own and shares else out, token.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Autograd materialises a missing gradient as zeros, so that every worker takes part."""
        if ctx.op == "mean":
            grad = _divide(grad, ctx.divisors, len(grad) if ctx.own else ctx.seeds)
        if ctx.seeds:
            if ctx.own:
                grad = ctx.exchange.adjoint(grad, ctx.shares, True)
            else:
                grad = _join(ctx.exchange.adjoint(grad[:ctx.seeds], ctx.shares, False),
                             grad[ctx.seeds:])
        parts = [grad[low:high] for low, high, _ in ctx.ranges]
        if ctx.op in ("max", "min"):
            parts = [part * mask for part, mask in zip(parts, ctx.saved_tensors)]
        return (None,) * 8 + (torch.zeros_like(ctx.token_like), *parts)


def _join(seeds: Tensor, others: Tensor) -> Tensor:
    return torch.cat([seeds, others]) if len(others) else seeds


def _divide(rows: Tensor, divisors: tuple[int, int], seeds: int) -> Tensor:
    return _join(rows[:seeds] / divisors[0], rows[seeds:] / divisors[1])
