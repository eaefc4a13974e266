"""AGG_all: merge the relation-specific aggregations of a node type (Heta Eq. 1, §4).

Heta (Zhong et al. 2025, https://doi.org/10.14778/3746405.3746408) writes a layer as

    h_v = AGG_all( { AGG_r( { h_u : u in N_r(v) } ) : r in R(v) } ).

A reducer here is AGG_all in two halves: the relations that a worker runs are merged on it
(:mod:`dgl_heta.nn.row_parts`), and the rows of the group's seeds, which are partial on each worker,
are merged across the model-parallel group by an :class:`Exchange`. A model is written with reducers
and knows nothing of workers: alone the exchange is the identity, and a wrapper hands in another one
(:class:`dgl_heta.raf.exchange.GroupExchange`, where the formulas are).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.features.row_files import move
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.kernels import kernel_in_use, sums_across
from dgl_heta.nn.precision import widened
from dgl_heta.nn.row_parts import (
    Part,
    Parts,
    coverage,
    extreme_parts,
    float32_parts,
    stack_parts,
    sum_parts,
)
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import Block

REDUCERS = ("sum", "mean", "max", "min")


class Exchange(Protocol):
    """How partial rows of the seeds become complete: differentiable functions of rows.

    Rows are those of a block's destinations of one node type, the seeds leading. Methods return
    the wanted rows, see :meth:`Block.wanted`: all, or at the last layer this worker's own.
    """

    def reduce_sum(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        """Sums over the workers of the seeds' rows (rows, width)."""

    def reduce_extreme(self, partial: Tensor, first: Tensor, op: str, block: Block, ntype: str
                       ) -> Tensor:
        """Maxima or minima, from rows and places as :func:`extreme_parts` returns them."""

    def reduce_max(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        """Maxima, of all rows at every layer, without a gradient."""

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        """Which worker has which columns, if every column is on one worker; else None.

        `whole` says of each column whether this worker has all rows of it, or none (None).
        """

    def gather_columns(self, columns: Tensor, layout: Sequence[Sequence[int]], block: Block,
                       ntype: str) -> Tensor:
        """The workers' columns of the seeds' rows: (seeds, own columns, width) to (…, all, width).
        """

    def join(self, partial: Tensor, block: Block, relation: Relation, op: str) -> Tensor:
        """Sums, maxima or minima of rows (rows, …) over the workers that have the relation, which
        have the same rows; sums of floating-point numbers with a gradient."""


class Alone:
    """The exchange of a single process: partial rows are complete already."""

    def reduce_sum(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        return partial

    def reduce_extreme(self, partial: Tensor, first: Tensor, op: str, block: Block, ntype: str
                       ) -> Tensor:
        return partial

    def reduce_max(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        return partial

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        return None

    def gather_columns(self, columns: Tensor, layout: Sequence[Sequence[int]], block: Block,
                       ntype: str) -> Tensor:
        return columns

    def join(self, partial: Tensor, block: Block, relation: Relation, op: str) -> Tensor:
        return partial


def extreme_of(columns: Tensor, op: str) -> Tensor:
    """Return the maximum or minimum over relations side by side, (rows, relations, width) to (rows,
    width); of equal numbers the first has the gradient."""
    return (columns.max(1) if op == "max" else columns.min(1))[0]


def merge(exchange: Exchange, op: str, block: Block, ntype: str, parts: Sequence[Part], width: int,
          like: Tensor) -> Tensor:
    """Merge the parts of one node type by sum, max or min, here and, by `exchange`, elsewhere.

    Returns (wanted rows, width); 0 for a row in no part.
    """
    rows = block.num_dst[ntype]
    if op == "sum":
        return exchange.reduce_sum(sum_parts(parts, rows, width, like), block, ntype)
    partial, first = extreme_parts(op, parts, rows, width, like)
    return exchange.reduce_extreme(partial, first, op, block, ntype)


def check_complete(parts: Sequence[Part]) -> None:
    """Raise an :class:`InputError` if a part is of rows of which other workers have edges, too."""
    for edges in Parts.of(parts).edges:
        if edges.shared is not None:
            raise InputError(
                f"the plan cuts the in-edges of single nodes by '{edges.relation}', which only "
                "layers derived from HGNNLayer can join; derive the model's layers from it, or "
                "make the partition again with partition.hubs = 0")


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
        check_complete(parts)
        parts, like = float32_parts(parts), widened(like)
        if self.op in EXTREMES and block.offloads:
            return stacked(self.exchange, block, ntype, parts, width, like, self._extreme)
        if self.op in EXTREMES:
            return merge(self.exchange, self.op, block, ntype, parts, width, like)
        return self.complete(sum_parts(parts, block.num_dst[ntype], width, like), block, ntype)

    def complete(self, sums: Tensor, block: Block, ntype: str) -> Tensor:
        """The merged rows by `sum` or `mean`, from the sums of this worker's parts (rows, width).

        Returns (wanted rows, width).
        """
        out = self.exchange.reduce_sum(sums, block, ntype)
        return self._divided(out, block, ntype) if self.op == "mean" else out

    def _extreme(self, columns: Tensor, relations: tuple[Relation, ...]) -> Tensor:
        """The extreme over relations (rows, relations, width), for rows that one worker aggregates
        for another, of which several have relations: (rows, width)."""
        if not relations:
            return columns.new_zeros(len(columns), columns.shape[2])
        return extreme_of(columns, self.op)

    @staticmethod
    def _divided(rows: Tensor, block: Block, ntype: str) -> Tensor:
        """Sums divided by the number of relations, on all workers, that reach a row."""
        on_seeds = max(len(block.seed_relations.get(ntype, ())), 1)
        elsewhere = max(len(block.inner_relations.get(ntype, ())), 1)
        seeds = min(block.num_seeds(ntype), len(rows))
        if seeds in (0, len(rows)) or on_seeds == elsewhere:
            return rows / (on_seeds if seeds else elsewhere)
        divisors = rows.new_full((len(rows), 1), elsewhere)
        divisors[:seeds] = on_seeds
        return rows / divisors


class CrossSoftmax(CrossRelation):
    """Attention whose softmax ranges over all in-edges of a row, by whatever relation (HGT).

    The mergeable state is that of an online softmax (Milakov and Gimelshein 2018,
    https://arxiv.org/abs/1805.02867): with scores s_e and messages m_e of the in-edges e of a row,
    the maximum M = max s_e, the sum Σ exp(s_e - M) and the weighted sum Σ exp(s_e - M) m_e; the
    result is the last divided by the one before. The maxima are merged first, and each worker
    multiplies its sums by exp(M - the maximum of all); the maxima have no gradient, because the
    result does not depend on them.
    """

    def __init__(self) -> None:
        super().__init__("sum")

    def extra_repr(self) -> str:
        return "softmax"

    def forward(self, block: Block, ntype: str, parts: Sequence[Part], width: int,  # type: ignore[override]
                like: Tensor, messages: Callable[[Parts], Sequence[Tensor]], heads: int
                ) -> Tensor:
        """Merge the parts of one node type.

        Parameters
        ----------
        parts : edges of the block that end at `ntype`, each with its scores (edges, heads).
        messages : gives for parts with weights (edges, heads), which do not add up to 1, the
            weighted sums of messages (edges.num_rows, width) each; linear in the weights.

        Returns
        -------
        Tensor (wanted rows, width), the heads side by side; 0 for a row without edges, and where
        all of a row's scores are -inf.
        """
        parts, like = Parts.of(float32_parts(parts)), widened(like)
        rows = block.num_dst[ntype]
        if not parts:  # kernels get one at least
            return self.merged(like.new_zeros((rows, width + heads)),
                               like.new_full((rows, heads), float("-inf")), block, ntype)
        return self.merged(*sums_across(
            kernel_in_use(), [edges.in_edges for edges in parts.edges],
            [edges.index for edges in parts.edges], parts.values, rows,
            lambda weights: messages(Parts(parts.edges, weights))), block, ntype)

    def merged(self, sums: Tensor, top: Tensor, block: Block, ntype: str) -> Tensor:
        """The result (wanted rows, width) from this worker's sums (rows, width + heads), weighted
        ones and those of weights, and from the maxima (rows, heads) that they are relative to."""
        most = self.exchange.reduce_max(top, block, ntype)
        heads = top.shape[1]
        width = sums.shape[1] - heads
        if most is not top:
            scale = torch.exp((top - most).nan_to_num(0))  # both -inf: there are no edges at all
            of_rows = scale.unsqueeze(2).expand(-1, -1, width // heads).flatten(1)
            sums = sums * torch.cat([of_rows, scale], 1)
        return self.divided(self.exchange.reduce_sum(sums, block, ntype), width)

    @staticmethod
    def divided(sums: Tensor, width: int) -> Tensor:
        """Weighted sums by the sums of weights beside them: (rows, width + heads) to (…, width)."""
        heads = sums.shape[1] - width
        total = torch.where(sums[:, width:] == 0, 1, sums[:, width:])
        rows = sums[:, :width].view(len(sums), heads, width // heads)
        return (rows / total.unsqueeze(2)).view(len(sums), width)


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
            the relations, those that reach these rows, are in the schema's order. There are none
            for a type that no relation reaches.
        columns : the parts are no relations but stand at their `place` among so many.

        Returns
        -------
        Tensor (wanted rows, …).
        """
        check_complete(parts)
        return stacked(self.exchange, block, ntype, float32_parts(parts), width, widened(like),
                       combine, columns)


def stacked(exchange: Exchange, block: Block, ntype: str, parts: Sequence[Part], width: int,
            like: Tensor, combine: Callable[[Tensor, tuple[Relation, ...]], Tensor],
            columns: int | None = None) -> Tensor:
    """Return the stacked rows of :class:`CrossStack`, by any exchange."""
    on_seeds = block.seed_relations.get(ntype, ())
    elsewhere = block.inner_relations.get(ntype, ())
    reach = on_seeds if block.last else tuple(dict.fromkeys((*on_seeds, *elsewhere)))
    column_of = {r: i for i, r in enumerate(reach)}
    count, rows = len(reach) if columns is None else columns, block.num_dst[ntype]
    at = [column_of[e.relation] if columns is None else e.place for e, _ in parts]
    seeds = block.num_seeds(ntype)
    whole = coverage(parts, at, count, seeds)
    claimed = [column for column, all_rows in enumerate(whole) if all_rows]
    layout = (exchange.layout(ntype, block.layer, whole)
              if seeds and not block.offloads else None)
    own = list(range(count)) if layout is None or seeds < rows else claimed
    rows_of = stack_parts(parts, at, own, like.new_zeros((rows, width)))
    if layout is None:
        merged = exchange.reduce_sum(rows_of.view(rows, count * width), block, ntype)
        merged = merged.view(len(merged), count, width)
    else:
        merged = exchange.gather_columns(
            rows_of[:seeds] if own == claimed else _chosen(rows_of[:seeds], claimed), layout,
            block, ntype)
        merged = torch.cat([merged, rows_of[seeds:]]) if seeds < rows else merged
    if columns is not None:
        return combine(merged, ())
    seeds = min(block.num_seeds(ntype), len(merged))
    if on_seeds == elsewhere or seeds == len(merged):
        return combine(_columns(merged, column_of, on_seeds or elsewhere), on_seeds or elsewhere)
    others = combine(_columns(merged[seeds:], column_of, elsewhere), elsewhere)
    if not seeds:
        return others
    return torch.cat([combine(_columns(merged[:seeds], column_of, on_seeds), on_seeds), others])


def _columns(stacked: Tensor, column_of: dict[Relation, int], relations: tuple[Relation, ...]
             ) -> Tensor:
    """The columns of some relations, in their order; the tensor itself where these are all."""
    chosen = [column_of[r] for r in relations]
    return stacked if chosen == list(range(stacked.shape[1])) else _chosen(stacked, chosen)


def _chosen(stacked: Tensor, columns: Sequence[int]) -> Tensor:
    return stacked.index_select(1, move(torch.tensor(columns, dtype=torch.int64),
                                       stacked.device))
