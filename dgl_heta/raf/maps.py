"""The exchanges of Relation-Aggregation-First training, all of them: functions and their adjoints.

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
`OffloadedSum`      y_w = x_w[own] + Σ_v x_v[w's rows]  ∂L/∂x_w = [∂L/∂y_w; ∂L/∂y_v of v's rows; …]
`EarlySum`          the same, begun before own rows     the same, ended after their gradients
`.gather`           y_w = [x_w; x_v of v's rows; …]     ∂L/∂x_w = ∂L/∂y_w[own] + Σ_v ∂L/∂y_v
==================  ==================================  ==========================================

All but the extreme are linear, so the adjoint is the transposed map: a reduce-scatter's is an
all-gather, and the other way round.
Why all workers run the adjoints of all exchanges, in one order: :mod:`dgl_heta.raf.chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.features.row_files import move
from dgl_heta.raf.chain import Carry
from dgl_heta.sampling.blocks import RemoteDestinations
from dgl_heta.sampling.seeds import SeedReads, SeedShares


class OffloadedSum:
    """Rows aggregated by the worker that has their neighbours go to the worker that asked for them.

    With x_w = [own rows; remote rows of each worker], y_w = own rows + Σ_v (rows of w at v), at the
    rows that w asked v for: its last ones. Sends one row for each remote destination
    forward, and in the adjoint one for each row asked for.
    """

    def __init__(self, group: Comm, ntype: str, remote: RemoteDestinations, own: int) -> None:
        self._comm, self._own = group.offloading(ntype), own
        # Workers that exchange these rows may be fewer than the group, in whose order `remote` is.
        workers = [group.ranks.index(rank) for rank in self._comm.ranks]
        self._received = [remote.received[worker] for worker in workers]
        self._sent = [remote.sent[worker] for worker in workers]

    def forward(self, rows: Tensor) -> Tensor:
        """(own + remote rows, D) to (own rows, D)."""
        return self._added(rows, self._comm)

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(own rows, D) to (own + remote rows, D)."""
        return torch.cat([grad, self._asked(grad, carry(self._comm))])

    def gather(self, rows: Tensor) -> Tensor:
        """Of rows that are complete on who asked (own rows, D), those of all that are here
        (own + remote rows, D): what is read of a destination."""
        rows = self._comm.rounded(rows)
        return torch.cat([rows, self._asked(rows, self._comm)])

    def adjoint_of_gather(self, grad: Tensor, carry: Carry) -> Tensor:
        """(own + remote rows, D) to (own rows, D)."""
        return self._added(grad, carry(self._comm))

    def maxima(self, rows: Tensor) -> Tensor:
        """Maxima (own + remote rows, D) of both sides, on both."""
        # Rounded as what arrives is: a softmax divides by sums over numbers that both sides must
        # agree on.
        top = self._comm.rounded(rows[:self._own]).clone()
        for piece in self._returned(rows[self._own:], self._comm):
            if len(piece):
                last = top[self._own - len(piece):]
                torch.maximum(last, piece, out=last)
        return torch.cat([top, self._asked(top, self._comm)])

    def _added(self, rows: Tensor, comm: Comm) -> Tensor:
        """Rows (own + remote rows, D) with those that others have of this worker's (own rows, D).
        """
        return self._plus(rows[:self._own], self._returned(rows[self._own:], comm))

    def _plus(self, own: Tensor, returned: Sequence[Tensor]) -> Tensor:
        out = own.clone()
        for piece in returned:
            # Rows that were asked for are the last ones of the own rows
            # (`RemoteDestinations.sent`): seeds lead, and are never remote, since their aggregation
            # is merged by the group anyway.
            out[self._own - len(piece):] += piece
        return out

    def _returned(self, remote: Tensor, comm: Comm) -> Sequence[Tensor]:
        """The others' results for this worker's rows, for its own of theirs (remote rows, D)."""
        arrived = comm.all_to_all_rows(remote, self._received, self._sent, "partials")
        return arrived.split(self._sent)

    def _asked(self, rows: Tensor, comm: Comm) -> Tensor:
        """Rows (own rows, D) to where they are remote; returns those that are remote here."""
        return self._begin_asked(rows, comm)()

    def _begin_asked(self, rows: Tensor, comm: Comm) -> Callable[[], Tensor]:
        return comm.begin_all_to_all_rows(torch.cat([rows[self._own - n:] for n in self._sent]),
                                          self._sent, self._received, "partials")


class EarlySum(OffloadedSum):
    """An :class:`OffloadedSum` in two links, between which every worker computes its own rows.

    Forward remote rows leave at the first link (:meth:`send`), and what arrives is added at the
    second (:meth:`add`). Backward the second comes first: there gradients leave, which arrive at
    the first. It sends what one link sends.

    Attributes
    ----------
    sent : what the first link gives, without a number; the second depends on it.
    """

    sent: Tensor
    _arriving: Callable[[], Tensor]
    _carry: Carry

    def send(self, remote: Tensor) -> Tensor:
        """(remote rows, D) to :attr:`sent`."""
        self._arriving = self._comm.begin_all_to_all_rows(remote, self._received, self._sent,
                                                          "partials")
        return remote.new_empty(0)

    def add(self, own: Tensor) -> Tensor:
        """(own rows, D) to (own rows, D)."""
        returned = self._arriving().split(self._sent)
        del self._arriving  # holds rows that were sent
        return self._plus(own, returned)

    def adjoint_of_add(self, grad: Tensor, carry: Carry) -> Tensor:
        """(own rows, D) to (own rows, D)."""
        self._carry, self._arriving = carry, self._begin_asked(grad, carry(self._comm))
        if not carry.own:  # whether anyone has a gradient, this link must know now
            arrived = self._arriving()
            self._arriving = lambda: arrived
        return grad

    def adjoint_of_send(self, grad: Tensor, carry: Carry) -> Tensor:
        """:attr:`sent` to (remote rows, D)."""
        arrived = self._arriving()
        carry.anyone = self._carry.anyone
        del self._arriving
        return arrived


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
        # Nobody knows which rows another worker's edges read. Told once a step, the positions serve
        # the forward and the backward pass.
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
        own, reads = self._group.rounded(self._scatter.forward(rows)), self._reads
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
        # A row that several workers read has several gradients, and the own one; all belong to one
        # sum.
        own = grad[:self._shares.own].index_add(0, given.to(grad.device), arrived)
        # One flag is enough, and this collective brings it to all workers.
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
        self._columns = [len(columns) for columns in layout]
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
            # Where each wants its own seeds alone, the rows are split among workers; where all want
            # all, every worker gets a copy of this worker's columns.
            flat if self._own else flat.repeat(group.size),
            [seeds * size for seeds in shares.sizes] if self._own else [rows * size] * group.size,
            [rows * count * width for count in self._columns], "partials")
        out = torch.cat([piece.view(rows, count, width) for piece, count in zip(
            arrived.split([rows * count * width for count in self._columns]), self._columns)], 1)
        if self._order is not None:
            out = out.index_select(1, move(torch.argsort(self._order), out.device))
        return out if self._own else shares.local(out)

    def adjoint(self, grad: Tensor, carry: Carry) -> Tensor:
        """(rows, all columns, D) to (seeds, own columns, D)."""
        group, shares, width = carry(self._group), self._shares, grad.shape[2]
        grad = grad if self._own else shares.canonical(grad)
        if self._order is not None:
            grad = grad.index_select(1, move(self._order, grad.device))
        pieces = torch.cat([piece.reshape(-1) for piece in grad.split(self._columns, 1)])
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
