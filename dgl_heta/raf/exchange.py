"""The exchanges of a model-parallel group, differentiable (Heta Algorithm 1, lines 6-8)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.sampling.seeds import SeedReads, SeedShares


class GroupExchange:
    """Completes the seeds' rows over a model-parallel group (Heta Algorithm 1, lines 6-8).

    Where all rows are wanted everywhere: all-reduce, in both directions. At the last layer a
    worker wants its own rows: reduce-scatter forward, all-gather backward. So it does below the
    last layer where it is known which rows are read: these alone are sent besides.
    """

    def __init__(self, group: Comm) -> None:
        self._group = group
        self.done: set[tuple[int, str]] = set()
        self._layouts: dict[tuple[str, int, int], list[list[int]] | None] = {}
        self.token = torch.zeros(1)

    def begin(self) -> None:
        """Forget the last forward pass."""
        self.done.clear()
        self.token = torch.zeros(1, requires_grad=torch.is_grad_enabled())

    def reduce(self, rows: Tensor, op: str, shares: SeedShares, own: bool, layer: int,
               ntype: str, reads: SeedReads | None = None) -> Tensor:
        self.done.add((layer, ntype))
        rows = shares.canonical(rows)
        if reads is not None and op == "sum":
            return self._reduce_for_readers(rows, shares, reads)
        if own:
            return self._group.reduce_scatter_rows(rows, shares.sizes, "partials")
        return shares.local(self._group.holders(ntype).all_reduce(rows, op))

    def _reduce_for_readers(self, rows: Tensor, shares: SeedShares, reads: SeedReads) -> Tensor:
        group = self._group
        own = group.reduce_scatter_rows(rows, shares.sizes, "partials")
        counts, ones = reads.counts(), [1] * group.size
        if reads.given is None:
            reads.given_counts = group.all_to_all_rows(torch.tensor(counts), ones, ones,
                                                       "partials").tolist()
            starts = torch.tensor([0, *shares.sizes[:-1]]).cumsum(0)
            wanted = reads.canonical() - starts.repeat_interleave(torch.tensor(counts))
            reads.given = group.all_to_all_rows(wanted.int(), counts, reads.given_counts,
                                                "partials").long()
        found = group.all_to_all_rows(own[reads.given], reads.given_counts, counts, "partials")
        # Rows that nobody reads here are no zeros: a model may divide by their norm.
        out = torch.cat([own, own[:1].expand(shares.total - shares.own, -1)])
        out[reads.rows] = found
        return out

    def _adjoint_for_readers(self, grad: Tensor, shares: SeedShares, reads: SeedReads) -> Tensor:
        group = self._group
        assert reads.given is not None
        found = group.all_to_all_rows(grad[reads.rows], reads.counts(), reads.given_counts,
                                      "partials")
        own = grad[:shares.own].index_add(0, reads.given.to(grad.device), found)
        return shares.local(group.all_gather_rows(own, shares.sizes, "partials"))

    def adjoint(self, grad: Tensor, shares: SeedShares, own: bool, ntype: str,
                reads: SeedReads | None = None) -> Tensor:
        if reads is not None:
            return self._adjoint_for_readers(grad, shares, reads)
        if own:
            return shares.local(self._group.all_gather_rows(grad, shares.sizes, "partials"))
        return shares.local(self._group.holders(ntype).all_reduce(shares.canonical(grad)))

    def layout(self, ntype: str, layer: int, whole: Sequence[bool | None]
               ) -> list[list[int]] | None:
        """Agreed on once: a plan gives the same columns in every step."""
        key = (ntype, layer, len(whole))
        if key not in self._layouts:
            holders = self._group.holders(ntype)
            mine = torch.tensor([[{None: 0, True: 1, False: 2}[w] for w in whole]])
            every = holders.all_gather_rows(mine, [1] * holders.size, "control")
            known = bool((every.sum(0) == 1).all())
            self._layouts[key] = [torch.nonzero(row).flatten().tolist()
                                  for row in every] if known else None
        return self._layouts[key]

    def gather(self, columns: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
               layer: int, ntype: str) -> Tensor:
        self.done.add((layer, ntype))
        holders, width = self._group.holders(ntype), columns.shape[2]
        mine, counts = columns.shape[1] * width, [len(c) * width for c in layout]
        flat, rows = shares.canonical(columns).reshape(-1), shares.own if own else shares.total
        found = holders.all_to_all_rows(
            flat if own else flat.repeat(holders.size),
            [size * mine for size in shares.sizes] if own else [rows * mine] * holders.size,
            [rows * count for count in counts], "partials")
        pieces = [piece.view(rows, -1, width) for piece in
                  found.split([rows * count for count in counts])] if rows else [
            columns.new_zeros(0, len(c), width) for c in layout]
        order = torch.tensor([c for columns_of in layout for c in columns_of])
        out = torch.cat(pieces, 1)[:, torch.argsort(order)]
        return out if own else shares.local(out)

    def scatter(self, grad: Tensor, layout: list[list[int]], shares: SeedShares, own: bool,
                ntype: str) -> Tensor:
        holders, width = self._group.holders(ntype), grad.shape[2]
        grad = grad if own else shares.canonical(grad)
        mine = len(layout[holders.rank]) * width
        pieces = torch.cat([grad[:, c].reshape(-1) for c in layout])
        send = [len(grad) * len(c) * width for c in layout]
        if own:
            found = holders.all_to_all_rows(pieces, send, [s * mine for s in shares.sizes],
                                            "partials")
        else:
            found = holders.all_to_all_rows(pieces, send, [len(grad) * mine] * holders.size,
                                            "partials").view(holders.size, -1).sum(0)
        return shares.local(found.view(shares.total, len(layout[holders.rank]), width))


class _Anchor(torch.autograd.Function):
    """Identity that makes the output depend on every exchange, whatever the model did."""

    @staticmethod
    def forward(ctx, out: Tensor, token: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(token)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def, override]
        return grad, torch.zeros_like(ctx.saved_tensors[0])
