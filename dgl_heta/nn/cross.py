"""AGG_all: merge the relation-specific aggregations of a node type (Heta Eq. 1, §4).

A reducer is a mergeable state: the relations that a worker runs are merged locally, and the
rows of the group's seeds, which are partial on each worker, are merged across the
model-parallel group by an :class:`Exchange`. Alone, the exchange is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.sampling.blocks import Block, RelationBlock
from dgl_heta.sampling.seeds import SeedReads, SeedShares

REDUCERS = ("sum", "mean", "max", "min")
Part = tuple[RelationBlock, Tensor]


class Exchange(Protocol):
    """How partial rows of the seeds become complete.

    `token` links the exchanges of one forward pass into a chain, so that their backward
    passes run in the same order on all workers, and all of them run.
    """

    token: Tensor

    def reduce(self, rows: Tensor, op: str, shares: SeedShares, own: bool, layer: int,
               ntype: str, reads: SeedReads | None = None) -> Tensor:
        """Merge `rows` (seeds, width) over the workers by `op` (sum, max or min).

        Returns all rows, or with `own` only this worker's. With `reads` sums may be complete for
        this worker's rows and those that it reads alone; the rest has any finite values.
        """

    def adjoint(self, grad: Tensor, shares: SeedShares, own: bool, ntype: str,
                reads: SeedReads | None = None) -> Tensor:
        """The gradient of all seeds' rows from the gradients that the workers hold, summed."""

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        """Which worker has which columns, if every column is on one worker; else None.

        `whole` says of each column whether this worker has all rows of it, or none (None).
        """

    def gather(self, columns: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
               layer: int, ntype: str) -> Tensor:
        """Bring the workers' columns together: (seeds, own columns, width) to (…, all, width).

        Returns all rows, or with `own` only this worker's.
        """

    def scatter(self, grad: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
                ntype: str) -> Tensor:
        """The adjoint of `gather`."""


class Alone:
    """The exchange of a single process: partial rows are complete already."""

    @property
    def token(self) -> Tensor:
        return torch.zeros(1)

    @token.setter
    def token(self, _: Tensor) -> None:
        """Nothing to order: a kept token would tie the graphs of all steps together."""

    def reduce(self, rows: Tensor, op: str, shares: SeedShares, own: bool, layer: int,
               ntype: str, reads: SeedReads | None = None) -> Tensor:
        return rows

    def adjoint(self, grad: Tensor, shares: SeedShares, own: bool, ntype: str,
                reads: SeedReads | None = None) -> Tensor:
        return grad

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        return None

    def gather(self, columns: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
               layer: int, ntype: str) -> Tensor:
        return columns

    def scatter(self, grad: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
                ntype: str) -> Tensor:
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

    def forward(self, block: Block, ntype: str, parts: Sequence[Part], width: int,
                like: Tensor) -> Tensor:
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
        divisors = (len(block.seed_relations.get(ntype, ())),
                    len(block.inner_relations.get(ntype, ())))
        return merge(self.exchange, self.op, block, ntype, parts, width, like, divisors)


class CrossSoftmax(CrossRelation):
    """Attention whose softmax ranges over all in-edges of a row, by whatever relation (HGT).

    The mergeable state is that of an online softmax: the maximum of the scores, the sum of
    their exponentials and the sum of messages weighted by these (Heta Eq. 1). The maxima are
    merged first, without a gradient, because the result does not depend on them.
    """

    def __init__(self) -> None:
        super().__init__("sum")

    def extra_repr(self) -> str:
        return "softmax"

    def forward(self, block: Block, ntype: str, parts: Sequence[Part], width: int,  # type: ignore[override]
                like: Tensor, messages: Callable[[Sequence[Part]], Sequence[Tensor]], heads: int
                ) -> Tensor:
        """Merge the parts of one node type.

        Parameters
        ----------
        parts : edges of the block that end at `ntype`, each with its scores (edges, heads).
        messages : gives for parts with weights (edges, heads), which do not add up to 1, the
            weighted sums of messages (edges.num_rows, width) each; linear in the weights.

        Returns
        -------
        Tensor (wanted rows, width), the heads side by side; 0 for a row without edges.
        """
        kernel, csc = kernel_in_use(), [edges.in_edges for edges, _ in parts]
        top = self._maxima(block, ntype, parts, heads, like)
        tops = kernel.copy_v(csc, [edges.of(top) for edges, _ in parts])
        weights = [torch.exp(scores - most) for (_, scores), most in zip(parts, tops)]
        weighted = messages([(edges, e) for (edges, _), e in zip(parts, weights)])
        sums = [(edges, torch.cat([rows, total], 1)) for (edges, _), rows, total in
                zip(parts, weighted, kernel.e_sum(csc, weights))]
        out = merge(self.exchange, "sum", block, ntype, sums, width + heads, like, (1, 1))
        total = torch.where(out[:, width:] == 0, 1, out[:, width:])
        rows = out[:, :width].view(len(out), heads, width // heads)
        return (rows / total.unsqueeze(2)).view(len(out), width)

    @torch.no_grad()
    def _maxima(self, block: Block, ntype: str, parts: Sequence[Part], heads: int,
                like: Tensor) -> Tensor:
        """The maximum of the scores of each destination row (rows, heads)."""
        top = like.new_full((block.num_dst[ntype], heads), float("-inf"))
        most = kernel_in_use().e_max([edges.in_edges for edges, _ in parts],
                                     [scores.detach() for _, scores in parts])
        for (edges, _), rows in zip(parts, most):
            _apply(top, edges, rows, torch.maximum)
        seeds, shares = block.num_seeds(ntype), block.seeds.get(ntype)
        if not seeds or shares is None:
            return top
        found = self.exchange.reduce(top[:seeds], "max", shares, False, block.layer, ntype)
        return _join(found, top[seeds:])


class CrossStack(CrossRelation):
    """Bring the aggregations of all relations together, for a function that sees them apart.

    For AGG_all that is no mergeable state (semantic attention, a transformer): they are
    gathered and the function is called, on each worker for its own rows.
    """

    def __init__(self) -> None:
        super().__init__("sum")

    def extra_repr(self) -> str:
        return "stack"

    def forward(self, block: Block, ntype: str, parts: Sequence[Part], width: int,  # type: ignore[override]
                like: Tensor, combine: Callable[[Tensor, tuple[Relation, ...]], Tensor],
                columns: int | None = None) -> Tensor:
        """Merge the parts of one node type, each (edges.num_rows, width).

        Parameters
        ----------
        combine : `combine(stacked, relations)` turns (rows, relations, width) into (rows, …);
            the relations, those that reach these rows, are in the schema's order.
        columns : the parts are no relations but stand at their `place` among so many.

        Returns
        -------
        Tensor (wanted rows, …).
        """
        on_seeds = block.seed_relations.get(ntype, ())
        elsewhere = block.inner_relations.get(ntype, ())
        reach = on_seeds if block.last else tuple(dict.fromkeys((*on_seeds, *elsewhere)))
        place = {r: i for i, r in enumerate(reach)}
        count, rows = len(reach) if columns is None else columns, block.num_dst[ntype]
        at = [place[e.relation] if columns is None else e.place for e, _ in parts]
        seeds = block.num_seeds(ntype)
        whole = _coverage(parts, at, count, seeds)
        claimed = [column for column, all_rows in enumerate(whole) if all_rows]
        layout = self.exchange.layout(ntype, block.layer, whole) if seeds else None
        mine = list(range(count)) if layout is None or seeds < rows else claimed
        spread = _spread(parts, at, mine, like.new_zeros((rows, width)))
        if layout is None:
            found = merge(self.exchange, "sum", block, ntype,
                          [(_whole(rows), spread.view(rows, count * width))], count * width, like,
                          (1, 1))
            found = found.view(len(found), count, width)
        else:
            own = spread[:seeds] if mine == claimed else spread[:seeds, claimed]
            found, self.exchange.token = _Gather.apply(
                self.exchange, layout, block, ntype, own, self.exchange.token)
            found = _join(found, spread[seeds:]) if seeds < rows else found
        if columns is not None:
            return combine(found, ())
        seeds = min(block.num_seeds(ntype), len(found))
        if on_seeds == elsewhere or seeds == len(found):
            return combine(_columns(found, place, on_seeds or elsewhere), on_seeds or elsewhere)
        others = combine(_columns(found[seeds:], place, elsewhere), elsewhere)
        if not seeds:
            return others
        return torch.cat([combine(_columns(found[:seeds], place, on_seeds), on_seeds), others])


def _spread(parts: Sequence[Part], at: Sequence[int], wanted: Sequence[int], none: Tensor
            ) -> Tensor:
    """The wanted columns side by side: (rows, columns, width), 0 where a column has no part.

    Made at once, because autograd copies the whole for each piece that is written into it.
    """
    pieces: dict[int, list[Part]] = {}
    for part, column in zip(parts, at):
        pieces.setdefault(column, []).append(part)
    columns = []
    for column in wanted:
        found, reached = [], 0
        for edges, value in sorted(pieces.get(column, ()), key=lambda part: part[0].start):
            if edges.rows is not None:
                value = none.index_copy(0, edges.rows, value)
            found += [none[reached:edges.start], value]
            reached = edges.start + len(value)
        found = [piece for piece in (*found, none[reached:]) if len(piece)]
        columns.append(found[0] if len(found) == 1 else torch.cat(found) if found else none)
    return torch.stack(columns, 1) if columns else none.new_zeros((len(none), 0, none.shape[1]))


def _coverage(parts: Sequence[Part], at: Sequence[int], count: int, seeds: int
              ) -> list[bool | None]:
    """For each column whether its parts have all the seeds' rows; None without a part."""
    rows: dict[int, int] = {}
    for (edges, _), column in zip(parts, at):
        if edges.rows is not None:
            rows[column] = -1  # a piece of a relation that is cut
        elif edges.start < seeds or not edges.stop:
            rows[column] = rows.get(column, 0) + min(edges.stop, seeds) - edges.start
    return [rows[column] == seeds if column in rows else None for column in range(count)]


class _Gather(torch.autograd.Function):
    """Columns from the workers that have them, through the exchange."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, layout: list[list[int]], block: Block, ntype: str,
                columns: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        ctx.exchange, ctx.layout, ctx.ntype = exchange, layout, ntype
        ctx.shares, ctx.own, ctx.token_like = block.seeds[ntype], block.last, token.detach()
        return exchange.gather(columns.contiguous(), layout, ctx.shares, ctx.own, block.layer,
                               ntype), token.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        found = ctx.exchange.scatter(grad, ctx.layout, ctx.shares, ctx.own, ctx.ntype)
        return None, None, None, None, found, torch.zeros_like(ctx.token_like)


def _columns(found: Tensor, place: dict[Relation, int], wanted: tuple[Relation, ...]) -> Tensor:
    chosen = [place[r] for r in wanted]
    return found if chosen == list(range(found.shape[1])) else found[:, chosen]


def _whole(rows: int) -> RelationBlock:
    """All destination rows, as a part to merge."""
    return RelationBlock(Relation("", "", ""), 0, torch.zeros(rows + 1, dtype=torch.int64),
                         torch.empty(0, dtype=torch.int32))


def merge(exchange: Exchange, op: str, block: Block, ntype: str, parts: Sequence[Part],
          width: int, like: Tensor, divisors: tuple[int, int]) -> Tensor:
    """Merge the parts of one node type over the relations here and, by `exchange`, elsewhere.

    `divisors` are the numbers of relations, over all workers, that reach a seed's row and
    another row, by which `mean` divides; the rest is as in :meth:`CrossRelation.forward`.
    """
    out, exchange.token = _Merge.apply(
        exchange, op, block, ntype, [edges for edges, _ in parts], width, like.detach(),
        (max(divisors[0], 1), max(divisors[1], 1)), exchange.token,
        *(value for _, value in parts))
    return out


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, op: str, block: Block, ntype: str,
                edges: list[RelationBlock], width: int, like: Tensor,
                divisors: tuple[int, int], token: Tensor, *values: Tensor
                ) -> tuple[Tensor, Tensor]:
        rows, seeds = block.num_dst[ntype], block.num_seeds(ntype)
        shares, own = block.seeds.get(ntype), block.last
        ctx.exchange, ctx.op, ctx.edges, ctx.divisors = exchange, op, edges, divisors
        ctx.seeds, ctx.shares, ctx.own, ctx.ntype = seeds, shares, own, ntype
        ctx.token_like = token.detach()
        ctx.reads = block.reads.get(ntype) if op in ("sum", "mean") and not own else None

        def complete(partial: Tensor, how: str, own: bool) -> Tensor:
            if shares is None or not seeds:
                return partial
            found = exchange.reduce(partial[:seeds], how, shares, own, block.layer, ntype,
                                    ctx.reads)
            return found if own else _join(found, partial[seeds:])

        if op in ("sum", "mean"):
            out = like.new_zeros((rows, width))
            for part, value in zip(edges, values):
                _apply(out, part, value, torch.add)
            out = complete(out, "sum", own)
            if op == "mean":
                out = _divide(out, divisors, len(out) if own else seeds)
            return out, token.clone()
        partial = like.new_full((rows, width), float("-inf") if op == "max" else float("inf"))
        better = torch.maximum if op == "max" else torch.minimum
        for part, value in zip(edges, values):
            _apply(partial, part, value, better)
        out = complete(partial, op, False)
        nobody = torch.iinfo(torch.int32).max
        winner = torch.full((rows, width), nobody, dtype=torch.int32, device=like.device)
        for part, value in zip(edges, values):
            attained = torch.where(value == part.of(out), part.place, nobody).to(torch.int32)
            _apply(winner, part, attained, torch.minimum)
        winner = complete(winner, "min", False)
        out = torch.where(torch.isinf(out) & (winner == nobody), torch.zeros_like(out), out)
        ctx.save_for_backward(*(part.of(winner) == part.place for part in edges))
        return out[:shares.own].clone() if own and shares else out, token.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Autograd materialises a missing gradient as zeros, so that every worker takes part."""
        if ctx.op == "mean":
            grad = _divide(grad, ctx.divisors, len(grad) if ctx.own else ctx.seeds)
        if ctx.seeds:
            if ctx.own:
                grad = ctx.exchange.adjoint(grad, ctx.shares, True, ctx.ntype)
            else:
                grad = _join(
                    ctx.exchange.adjoint(grad[:ctx.seeds], ctx.shares, False, ctx.ntype,
                                         ctx.reads),
                    grad[ctx.seeds:])
        parts = [part.of(grad) for part in ctx.edges]
        if ctx.op in ("max", "min"):
            parts = [part * mask for part, mask in zip(parts, ctx.saved_tensors)]
        return (None,) * 8 + (torch.zeros_like(ctx.token_like), *parts)


def _apply(out: Tensor, edges: RelationBlock, value: Tensor,
           how: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`out[rows] = how(out[rows], value)` for the rows of a relation, in place."""
    if edges.rows is not None and how is torch.add:
        out.index_add_(0, edges.rows, value)
    elif edges.rows is not None:
        out[edges.rows] = how(out[edges.rows], value)
    elif how is torch.add:
        out[edges.start:edges.stop] += value
    else:
        out[edges.start:edges.stop] = how(out[edges.start:edges.stop], value)


def _join(seeds: Tensor, others: Tensor) -> Tensor:
    return torch.cat([seeds, others]) if len(others) else seeds


def _divide(rows: Tensor, divisors: tuple[int, int], seeds: int) -> Tensor:
    return _join(rows[:seeds] / divisors[0], rows[seeds:] / divisors[1])
