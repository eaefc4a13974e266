"""The exchange of a model-parallel group: which rows are exchanged, and in which order.

What an exchange is, forward and backward, and what it sends: :mod:`dgl_heta.raf.maps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.row_parts import NOBODY
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.raf.chain import Adjoint, Chain, Map
from dgl_heta.raf.maps import (
    AllGather,
    AllReduce,
    ColumnGather,
    EarlySum,
    OffloadedSum,
    ReduceForReaders,
    ReduceScatter,
)
from dgl_heta.sampling.blocks import Block
from dgl_heta.sampling.seeds import SeedShares


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
        # By node type, layer and number of columns: agreeing is a collective, and the answer is the
        # plan's, so it is asked for once.
        self._layouts: dict[tuple[str, int, int], list[list[int]] | None] = {}
        self.chain = Chain()

    def __deepcopy__(self, memo: dict[int, object]) -> GroupExchange:
        """Itself: process groups have no copies, and a copied model gets an exchange of its own
        where it is distributed."""
        return self

    def begin(self) -> None:
        """Forget the last forward pass, and begin a chain."""
        self.done.clear()
        self.chain = Chain()

    def anchor(self, out: Tensor) -> Tensor:
        """`out`, depending on every exchange so far: the end of the chain."""
        return self.chain.anchor(out) if torch.is_grad_enabled() else out

    def begin_sum(self, remote: Tensor, block: Block, ntype: str) -> EarlySum:
        """Send the rows that are aggregated here for others (remote rows, D) before own rows are
        computed, which go to :meth:`reduce_sum` with what this returns."""
        early = EarlySum(self._group, ntype, block.remote[ntype], block.num_own(ntype))
        early.sent = self._link(block, remote, early.send, early.adjoint_of_send)
        return early

    def reduce_sum(self, partial: Tensor, block: Block, ntype: str,
                   early: EarlySum | None = None) -> Tensor:
        """Complete the sums of the seeds' rows.

        Parameters
        ----------
        partial : (destination rows, D); the seeds' rows, which lead, are partial, others complete.
            With `early` (own rows, D).

        Returns
        -------
        Tensor (destination rows, D), or at the last layer (own seeds, D). Below it, rows that
        nobody reads on this worker may have any finite values (`block.reads`).
        """
        if ntype in block.remote:
            self._note(block, ntype)
            if early is not None:
                partial = _After.apply(partial, early.sent)
                del early.sent  # whose graph has `early`: a cycle would keep all rows of the batch
                partial = self._link(block, partial, early.add, early.adjoint_of_add)
            else:
                offloaded = self._offloaded(block, ntype)
                partial = self._link(block, partial, offloaded.forward, offloaded.adjoint)
        shares = self._begin_exchange(block, ntype)
        if shares is None or self._group.size == 1:
            return partial
        if block.last:
            scatter = ReduceScatter(self._group, shares)
            return self._link(block, partial, scatter.forward, scatter.adjoint)
        # Where it is known which seeds are read above, only those rows are sent; else all workers
        # get all.
        reads = block.reads.get(ntype)
        exchange = (ReduceForReaders(self._group, shares, reads) if reads is not None
                    else AllReduce(self._group.holders(ntype), shares))
        return self._link(block, partial, _leading(exchange.forward, shares.total),
                          _leading_adjoint(exchange.adjoint, shares.total))

    def reduce_extreme(self, partial: Tensor, first: Tensor, op: str, block: Block, ntype: str
                       ) -> Tensor:
        """Complete the maxima or minima of the seeds' rows.

        y = max_w x_w; the gradient Σ_v ∂L/∂y_v goes to the worker that attained the maximum, and of
        several to the one whose relation is first in the schema, as in `torch.max` over a
        dimension. Two all-reduces forward (rows, int32 places), one exchange backward.

        Parameters
        ----------
        partial : as for :meth:`reduce_sum`; 0 where no relation here reaches a row.
        first : int32, of the shape of `partial`: the number in the schema of the relation that
            attained the extreme here first, NOBODY where none did.
        op : "max" or "min".

        Returns
        -------
        Tensor as for :meth:`reduce_sum`; 0 where no relation reaches a row.
        """
        if ntype in block.remote:
            raise InputError(f"relations into '{ntype}' are delegated to another partition, which "
                             f"a model that merges relations by {op} cannot be; make the "
                             "partition with partition.shared = rows")
        shares = self._begin_exchange(block, ntype)
        if shares is None:
            return partial
        seeds, last = shares.total, block.last
        holders = AllReduce(self._group.holders(ntype), shares)
        with torch.no_grad():
            own = first[:seeds]
            rows = torch.where((own == NOBODY) & (partial[:seeds] == 0), EXTREMES[op],
                               self._group.holders(ntype).rounded(partial[:seeds]))
            whole = holders.reduce(rows, op)
            # Ties go to the relation that is first in the schema, as on one worker: the minimum of
            # the places. Without it several workers would take the gradient of one number.
            # gloo loses NaN, depending on its place; the places tell of it.
            claims = torch.where(rows.isnan(), -1, torch.where(rows == whole, own, NOBODY))
            winner = holders.reduce(claims, "min")
            whole = torch.where(winner < 0, torch.nan, whole)
            attained = (claims == winner) & (winner != NOBODY)
            # A row that no relation reaches is 0, as in DGL, not minus infinity.
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
        if ntype in block.remote:
            self._note(block, ntype)
            partial = self._offloaded(block, ntype).maxima(partial)
        shares = self._begin_exchange(block, ntype)
        if shares is None or self._group.size == 1:
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
            # All holders must call it for the same key at the same time: whether columns are alone
            # on a worker decides which collective follows, so nobody may decide by itself.
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
            # Whole: what attained an extreme is compared with it.
            whole = group.counted_by(group.traffic) if group.wire is not None else group
            return whole.all_reduce(partial.detach(), op)
        return self._link(block, partial, group.all_reduce,
                          lambda grad, carry: carry(group).all_reduce(grad))

    def gather_rows(self, rows: Tensor, block: Block, ntype: str) -> Tensor:
        """All seeds' rows (seeds, …), of which every worker has its own (own seeds, …)."""
        shape = rows.shape[1:]
        width = math.prod(shape)  # said, as a worker may have no seed
        exchange = AllGather(self._group, block.seeds[ntype])
        return self._link(
            block, rows, lambda x: exchange.forward(x.reshape(len(x), width)).view(-1, *shape),
            lambda grad, carry: exchange.adjoint(grad.reshape(len(grad), width), carry).view(
                -1, *shape))

    def gather_remote(self, rows: Tensor, block: Block, ntype: str) -> Tensor:
        """Return the local destination rows (local, …) followed by the remote ones.

        Remote destinations are nodes whose relations other partitions have offloaded to this one;
        each sends the rows of its own.
        """
        shape = rows.shape[1:]
        width, exchange = math.prod(shape), self._offloaded(block, ntype)
        return self._link(
            block, rows, lambda x: exchange.gather(x.reshape(len(x), width)).view(-1, *shape),
            lambda grad, carry: exchange.adjoint_of_gather(
                grad.reshape(len(grad), width), carry).view(-1, *shape))

    def _offloaded(self, block: Block, ntype: str) -> OffloadedSum:
        return OffloadedSum(self._group, ntype, block.remote[ntype], block.num_own(ntype))

    def _begin_exchange(self, block: Block, ntype: str) -> SeedShares | None:
        """How the seeds are shared; None if there are none, on all workers alike."""
        # By the seeds of all workers, not by this one's: a worker without seeds must take part, and
        # if nobody has one, all leave the exchange out.
        if not block.exchanged(ntype):
            return None
        self._note(block, ntype)
        return block.seeds[ntype]

    def _note(self, block: Block, ntype: str) -> None:
        self.done.add((block.layer, ntype))
        block.done.add((block.layer, ntype))

    def _link(self, block: Block, rows: Tensor, forward: Map, adjoint: Adjoint) -> Tensor:
        return self._chain_of(block).link(rows, forward, adjoint)


class _After(torch.autograd.Function):
    """Rows, made to depend on a tensor without a number."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        return grad, None if grad is None else grad.new_empty(0)


def _leading(function: Map, rows: int) -> Map:
    """`function` of the leading rows; the rest stays as it is."""
    return lambda x: _join(function(x[:rows]), x[rows:])


def _leading_adjoint(adjoint: Adjoint, rows: int) -> Adjoint:
    """`adjoint` of the leading rows' gradient; the rest stays as it is."""
    return lambda grad, carry: _join(adjoint(grad[:rows], carry), grad[rows:])


def _join(rows: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([rows, rest]) if len(rest) else rows
