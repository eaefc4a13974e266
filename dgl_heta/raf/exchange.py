"""The exchanges of Relation-Aggregation-First training, all of them, as differentiable functions.

Heta, Algorithm 1 (Zhong et al., PVLDB 18(9), 2025, https://doi.org/10.14778/3746405.3746408): every
worker of a model-parallel group aggregates the step's seeds over its own relations. What it has
then are *partial* rows x_w; the complete ones are merged over the workers w (line 8), and in the
backward pass gradients of complete rows come back as gradients of partial ones (lines 11-14). The
paper sends all partial rows to one designated worker. Here every worker merges its own seeds' rows,
which is the same mathematics (Prop. 1) without a worker that the others wait for. What moves are
rows of seeds, never neighbours' features; so what is sent grows with the number of boundary nodes
and not with that of edges (Prop. 2).

Notation: n workers, S seeds of the group, S_w of worker w, D numbers a row. x_w are worker w's
inputs of an exchange, y_w its outputs, L the loss, the sum of all workers' losses. Bytes are what
one worker sends, in numbers; the counter's cause is `partials`.

==================  ==================================  ==========================================
exchange            forward                             adjoint
==================  ==================================  ==========================================
`AllReduce`         y_w = Σ_v x_v                       ∂L/∂x_w = Σ_v ∂L/∂y_v
`ReduceScatter`     y_w = (Σ_v x_v)[seeds of w]         ∂L/∂x_w = [∂L/∂y_1; …; ∂L/∂y_n]
`ReduceForReaders`  y_w = (Σ_v x_v)[rows w reads]       ∂L/∂x_w = the sum over who reads each row
all-gather          y_w = [x_1; …; x_n]                 ∂L/∂x_w = (Σ_v ∂L/∂y_v)[seeds of w]
`ColumnGather`      y_w = [x_1 | … | x_n][seeds of w]   ∂L/∂x_w = own columns of [∂L/∂y_1; …]
extreme             y_w = max_v x_v                     ∂L/∂x_w = [x_w attained it] Σ_v ∂L/∂y_v
==================  ==================================  ==========================================

All but the last are linear, so the adjoint is the transposed map: a reduce-scatter's is an
all-gather, and the other way round.
Why all workers run the adjoints of all exchanges, in one order: :mod:`dgl_heta.raf.chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.parts import NOBODY
from dgl_heta.raf.chain import Adjoint, Carry, Chain, Map
from dgl_heta.sampling.blocks import Block
from dgl_heta.sampling.seeds import SeedReads, SeedShares


class GroupExchange:
    """The :class:`dgl_heta.nn.cross.Exchange` of a model-parallel group.

    All workers must call the same methods in the same order. Rows are in local order (see
    :mod:`dgl_heta.sampling.seeds`). A worker that never answers raises
    :class:`dgl_heta.comm.collectives.PeerLostError`.

    Parameters
    ----------
    group : the workers.
    chain_of : the chain that an exchange of a block belongs to; default: the one that
        :meth:`begin` began last.

    Attributes
    ----------
    done : (layer, node type) of the exchanges since :meth:`begin`, to check that none is missing.
        The set of each block has them, too.
    chain : the one that was begun last.
    """

    def __init__(self, group: Comm, chain_of: Callable[[Block], Chain] | None = None) -> None:
        self._group, self._chain_of = group, chain_of or (lambda block: self.chain)
        self.done: set[tuple[int, str]] = set()
        self._layouts: dict[tuple[str, int, int], list[list[int]] | None] = {}
        self.chain = Chain()

    def begin(self) -> None:
        """Forget the last forward pass, and begin a chain."""
        self.done.clear()
        self.chain = Chain()

    def anchor(self, out: Tensor) -> Tensor:
        """`out`, depending on every exchange so far: the end of the chain."""
        return self.chain.anchor(out) if torch.is_grad_enabled() else out

    def reduce_sum(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        """Complete the sums of the seeds' rows.

        Parameters
        ----------
        partial : (destination rows, D); the seeds' rows, which lead, are partial, others complete.

        Returns
        -------
        Tensor (destination rows, D), or at the last layer (own seeds, D). Below it, rows that
        nobody reads on this worker may have any finite values (`block.reads`).
        """
        shares = self._begin_exchange(block, ntype)
        if shares is None:
            return partial
        if block.last:
            scatter = ReduceScatter(self._group, shares)
            return self._link(block, partial, scatter.forward, scatter.adjoint)
        reads = block.reads.get(ntype)
        exchange = (ReduceForReaders(self._group, shares, reads) if reads is not None
                    else AllReduce(self._group.holders(ntype), shares))
        return self._link(block, partial, _leading(exchange.forward, shares.total),
                          _leading_adjoint(exchange.adjoint, shares.total))

    def reduce_extreme(self, partial: Tensor, place: Tensor, op: str, block: Block, ntype: str
                       ) -> Tensor:
        """Complete the maxima or minima of the seeds' rows.

        y = max_w x_w; the gradient Σ_v ∂L/∂y_v goes to the worker that attained the maximum, and of
        several to the one whose relation is first in the schema, as in `torch.max` over a
        dimension. Two all-reduces forward (rows, int32 places), one exchange backward.

        Parameters
        ----------
        partial : as for :meth:`reduce_sum`; 0 where no relation here reaches a row.
        place : int32, of the shape of `partial`: the place in the schema of the relation that
            attained the extreme here, NOBODY where none did.
        op : "max" or "min".

        Returns
        -------
        Tensor as for :meth:`reduce_sum`; 0 where no relation reaches a row.
        """
        shares = self._begin_exchange(block, ntype)
        if shares is None:
            return partial
        seeds, last = shares.total, block.last
        holders = AllReduce(self._group.holders(ntype), shares)
        with torch.no_grad():
            own, unreached = place[:seeds], float("-inf") if op == "max" else float("inf")
            rows = torch.where((own == NOBODY) & (partial[:seeds] == 0), unreached, partial[:seeds])
            whole = holders.reduce(rows, op)
            claims = torch.where(rows == whole, own, NOBODY)
            winner = holders.reduce(claims, "min")
            attained = (claims == winner) & (winner != NOBODY)
            whole = torch.where(torch.isinf(whole) & (winner == NOBODY), 0, whole)
        if last:
            to_all = ReduceScatter(self._group, shares).adjoint
            return self._link(block, partial, lambda _: whole[:shares.own].clone(),
                              lambda grad, carry: to_all(grad, carry) * attained)
        return self._link(
            block, partial, lambda x: _join(whole, x[seeds:]),
            _leading_adjoint(lambda grad, carry: holders.adjoint(grad, carry) * attained, seeds))

    @torch.no_grad()
    def reduce_max(self, partial: Tensor, block: Block, ntype: str) -> Tensor:
        """The maxima of the seeds' rows, all of them, without a gradient; others as they are."""
        shares = self._begin_exchange(block, ntype)
        if shares is None:
            return partial
        whole = AllReduce(self._group.holders(ntype), shares).reduce(partial[:shares.total], "max")
        return _join(whole, partial[shares.total:])

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        """Which worker has which columns, if every column is on one worker alone; else None.

        Agreed on once: a plan gives the same columns in every step.

        Parameters
        ----------
        whole : for each column whether this worker has all seeds' rows of it, some, or none (None).
        """
        key = (ntype, layer, len(whole))
        if key not in self._layouts:
            holders = self._group.holders(ntype)
            own = torch.tensor([[{None: 0, True: 1, False: 2}[w] for w in whole]])
            every = holders.all_gather_rows(own, [1] * holders.size, "control")
            alone = bool((every.sum(0) == 1).all())
            self._layouts[key] = [torch.nonzero(row).flatten().tolist()
                                  for row in every] if alone else None
        return self._layouts[key]

    def gather_columns(self, columns: Tensor, layout: Sequence[Sequence[int]], block: Block,
                       ntype: str) -> Tensor:
        """Bring the workers' columns of the seeds' rows together.

        Parameters
        ----------
        columns : (seeds, own columns, D).
        layout : per worker the columns that it has, as from :meth:`layout`.

        Returns
        -------
        Tensor (seeds, all columns, D), or at the last layer (own seeds, all columns, D).
        """
        shares = block.seeds[ntype]
        self._note(block, ntype)
        exchange = ColumnGather(self._group.holders(ntype), shares, layout, block.last)
        return self._link(block, columns, exchange.forward, exchange.adjoint)

    def join(self, partial: Tensor, block: Block, relation: Relation, op: str) -> Tensor:
        """Rows (rows, …) joined over who has a relation; the adjoint of a sum is a sum."""
        group = self._group.holders(relation)
        if op != "sum" or not partial.is_floating_point():
            return group.all_reduce(partial.detach(), op)
        return self._link(block, partial, group.all_reduce,
                          lambda grad, carry: carry(group).all_reduce(grad))

    def gather_rows(self, rows: Tensor, block: Block, ntype: str) -> Tensor:
        """All seeds' rows (seeds, …), of which every worker has its own (own seeds, …)."""
        shape = rows.shape[1:]
        exchange = AllGather(self._group, block.seeds[ntype])
        return self._link(
            block, rows, lambda x: exchange.forward(x.reshape(len(x), -1)).view(-1, *shape),
            lambda grad, carry: exchange.adjoint(grad.reshape(len(grad), -1), carry).view(
                -1, *shape))

    def _begin_exchange(self, block: Block, ntype: str) -> SeedShares | None:
        """How the seeds are shared; None if there are none, on all workers alike."""
        shares = block.seeds.get(ntype)
        if shares is None or not shares.total:
            return None
        self._note(block, ntype)
        return shares

    def _note(self, block: Block, ntype: str) -> None:
        self.done.add((block.layer, ntype))
        block.done.add((block.layer, ntype))

    def _link(self, block: Block, rows: Tensor, forward: Map, adjoint: Adjoint) -> Tensor:
        return self._chain_of(block).link(rows, forward, adjoint)


class AllReduce:
    """y_w = Σ_v x_v: all rows are wanted everywhere. It is its own adjoint.

    Sends 2 (n - 1) / n · S D, in either direction.
    """

    def __init__(self, group: Comm, shares: SeedShares) -> None:
        self._group, self._shares = group, shares

    def reduce(self, rows: Tensor, op: str) -> Tensor:
        """Rows (seeds, D) merged by `op`: sum, max or min."""
        return self._shares.local(self._group.all_reduce(self._shares.canonical(rows), op))

    def forward(self, rows: Tensor) -> Tensor:
        """(seeds, D) to (seeds, D)."""
        return self.reduce(rows, "sum")

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(seeds, D) to (seeds, D)."""
        return AllReduce(carry(self._group), self._shares).forward(grad)


class ReduceScatter:
    """y_w = (Σ_v x_v)[seeds of w]: each worker wants its own seeds' rows, as at the last layer.

    Sends (S - S_w) D forward, and S_w D (n - 1) in the adjoint, an all-gather.
    """

    def __init__(self, group: Comm, shares: SeedShares) -> None:
        self._group, self._shares = group, shares

    def forward(self, rows: Tensor) -> Tensor:
        """(seeds, D) to (own seeds, D)."""
        return self._group.reduce_scatter_rows(self._shares.canonical(rows), self._shares.sizes,
                                               "partials")

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(own seeds, D) to (seeds, D)."""
        return AllGather(carry(self._group), self._shares).forward(grad)


class AllGather:
    """y_w = [x_1; …; x_n]: all workers want all seeds' rows, of which each has its own.

    Sends S_w D (n - 1) forward, and (S - S_w) D in the adjoint, a reduce-scatter.
    """

    def __init__(self, group: Comm, shares: SeedShares) -> None:
        self._group, self._shares = group, shares

    def forward(self, rows: Tensor) -> Tensor:
        """(own seeds, D) to (seeds, D)."""
        return self._shares.local(
            self._group.all_gather_rows(rows, self._shares.sizes, "partials"))

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(seeds, D) to (own seeds, D)."""
        return ReduceScatter(carry(self._group), self._shares).forward(grad)


class ReduceForReaders:
    """Below the last layer: of the others' seeds only those rows that the next layer reads here.

    A reduce-scatter, then each worker sends the R_vw rows of its own seeds that worker v reads.
    Sends (S - S_w) D + Σ_v R_vw D forward; backward Σ_v R_wv D and S_w D (n - 1). Which rows are
    read is told once a step, 4 bytes a row.
    """

    def __init__(self, group: Comm, shares: SeedShares, reads: SeedReads) -> None:
        self._group, self._shares, self._reads = group, shares, reads
        self._scatter = ReduceScatter(group, shares)

    def _agree(self) -> Tensor:
        """Positions among the own seeds of the rows that others read, one worker's after the
        other's; asked for when the step's first exchange needs them."""
        group, reads, counts = self._group, self._reads, self._reads.counts()
        if reads.given is None:
            ones = [1] * group.size
            reads.given_counts = group.all_to_all_rows(torch.tensor(counts), ones, ones,
                                                       "partials").tolist()
            starts = torch.tensor([0, *self._shares.sizes[:-1]]).cumsum(0)
            positions = reads.canonical() - starts.repeat_interleave(torch.tensor(counts))
            reads.given = group.all_to_all_rows(positions.int(), counts, reads.given_counts,
                                                "partials").long()
        return reads.given

    def forward(self, rows: Tensor) -> Tensor:
        """(seeds, D) to (seeds, D)."""
        own, reads = self._scatter.forward(rows), self._reads
        given = self._agree()
        read = self._group.all_to_all_rows(own[given], reads.given_counts, reads.counts(),
                                           "partials")
        # Rows that nobody reads here are no zeros: a model may divide by their norm.
        out = torch.cat([own, own[:1].expand(self._shares.total - self._shares.own, -1)])
        out[reads.rows] = read
        return out

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(seeds, D) to (seeds, D)."""
        reads, given = self._reads, self._agree()
        arrived = self._group.all_to_all_rows(grad[reads.rows], reads.counts(), reads.given_counts,
                                              "partials")
        own = grad[:self._shares.own].index_add(0, given.to(grad.device), arrived)
        return self._scatter.adjoint(own, carry)


class ColumnGather:
    """y = [x_1 | … | x_n]: the workers' columns side by side, each column on one worker.

    For functions over all relations that are no merge (attention over relations), and where rows
    are narrower before a product with weights than after it. Of C columns worker w has C_w. At the
    last layer, with `own`, it sends (S - S_w) C_w D forward and S_w (C - C_w) D backward; else
    (n - 1) S C_w D and S (C - C_w) D.

    Parameters
    ----------
    layout : per worker its columns among all.
    own : whether a worker wants its own seeds' rows, or all.
    """

    def __init__(self, group: Comm, shares: SeedShares, layout: Sequence[Sequence[int]], own: bool
                 ) -> None:
        self._group, self._shares, self._own = group, shares, own
        self._layout, self._columns = layout, [len(columns) for columns in layout]
        order = [c for columns in layout for c in columns]
        self._order = torch.tensor(order) if order != list(range(len(order))) else None
        """The columns as they arrive, one worker's after the other's; None if that is in order."""

    def forward(self, columns: Tensor) -> Tensor:
        """(seeds, own columns, D) to (rows, all columns, D)."""
        group, shares, width = self._group, self._shares, columns.shape[2]
        size = columns.shape[1] * width  # of a row that is sent
        rows = shares.own if self._own else shares.total
        flat = shares.canonical(columns).reshape(-1)
        arrived = group.all_to_all_rows(
            flat if self._own else flat.repeat(group.size),
            [seeds * size for seeds in shares.sizes] if self._own else [rows * size] * group.size,
            [rows * count * width for count in self._columns], "partials")
        out = torch.cat([piece.view(rows, count, width) for piece, count in zip(
            arrived.split([rows * count * width for count in self._columns]), self._columns)], 1)
        if self._order is not None:
            out = out[:, torch.argsort(self._order)]
        return out if self._own else shares.local(out)

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(rows, all columns, D) to (seeds, own columns, D)."""
        group, shares, width = carry(self._group), self._shares, grad.shape[2]
        grad = grad if self._own else shares.canonical(grad)
        of_each = (grad.split(self._columns, 1) if self._order is None
                   else [grad[:, columns] for columns in self._layout])
        pieces = torch.cat([piece.reshape(-1) for piece in of_each])
        send = [len(grad) * count * width for count in self._columns]
        columns = self._columns[group.rank]
        if self._own:
            arrived = group.all_to_all_rows(
                pieces, send, [seeds * columns * width for seeds in shares.sizes], "partials")
        else:
            arrived = group.all_to_all_rows(
                pieces, send, [len(grad) * columns * width] * group.size,
                "partials").view(group.size, -1).sum(0)
        return shares.local(arrived.view(shares.total, columns, width))


def _leading(function: Map, rows: int) -> Map:
    """`function` of the leading rows; the rest stays as it is."""
    return lambda x: _join(function(x[:rows]), x[rows:])


def _leading_adjoint(adjoint: Adjoint, rows: int) -> Adjoint:
    """`adjoint` of the leading rows' gradient; the rest stays as it is."""
    return lambda grad, carry: _join(adjoint(grad[:rows], carry), grad[rows:])


def _join(rows: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([rows, rest]) if len(rest) else rows
