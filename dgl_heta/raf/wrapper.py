"""Module wrappers: how a single-process model runs on several workers.

`raf` exchanges partial aggregations inside a model-parallel group; `ddp` is plain data
parallelism for comparison, where every worker holds the whole graph. Both average the
gradients of dense parameters over all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from dgl_heta.block import MiniBatch, SeedReads, SeedShares
from dgl_heta.errors import HetaError, InputError
from dgl_heta.nn.cross import CrossRelation
from dgl_heta.plan import Plan, make_plan
from dgl_heta.raf.comm import Comm
from dgl_heta.raf.gradients import GradientAverage


class WrappedModule(Protocol):
    """A model as the training loop sees it."""

    module: nn.Module

    def __call__(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits of the trainer's own seeds per target type."""

    def synchronize_gradients(self) -> None:
        """Called after backward and before the optimizer's step."""

    def end_epoch(self, epoch: int) -> None:
        """Called after the last step of an epoch (model averaging, for one)."""


class ModuleWrapper(Protocol):
    """A provider of hook `dgl_heta_module_wrappers`."""

    name: str

    def plan(self, plan: Plan) -> Plan:
        """The plan that the workers follow, given the partition backend's."""

    def wrap(self, module: nn.Module, world: Comm, group: Comm) -> WrappedModule:
        """Wrap a model; `group` is this worker's model-parallel group.

        In DistDGL scripts, whose models are wrapped by DistributedDataParallel, `plan` alone is
        called, and after each backward pass `average_gradients(parameters, world)` if the
        provider has it, instead of :class:`dgl_heta.raf.gradients.GradientAverage`.
        """


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


class RafModule(nn.Module):
    """A model whose cross-relation reductions run over a model-parallel group."""

    def __init__(self, module: nn.Module, world: Comm, group: Comm) -> None:
        super().__init__()
        self.module = module
        self._world = world
        self._average = GradientAverage()
        self._exchange = GroupExchange(group)
        self._several = group.size > 1
        found = [m for m in module.modules() if isinstance(m, CrossRelation)]
        if not found and group.size > 1:
            raise InputError(
                f"{type(module).__name__} cannot run under RAF: it has no CrossRelation module, "
                "so there is no cross-relation aggregation to reduce over the workers"
            )
        for reducer in found:
            reducer.exchange = self._exchange

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        exchange = self._exchange
        exchange.begin()
        outputs = self.module(batch, inputs)
        expected = {(block.layer, t) for block in batch.blocks
                    for t, shares in block.seeds.items() if shares.total}
        if self._several and (missing := expected - exchange.done):
            layer, ntype = min(missing)
            raise HetaError(
                f"the aggregation of '{ntype}' at layer {layer} was not reduced over the workers: "
                f"{type(self.module).__name__} does not use CrossRelation there, so its result "
                "would be wrong"
            )
        for ntype, own in batch.own_seeds.items():
            if len(outputs[ntype]) != len(own):
                raise HetaError(
                    f"the model returned {len(outputs[ntype])} rows for its {len(own)} seeds of "
                    f"'{ntype}'; use Block.wanted or Block.destination for the last layer's rows"
                )
        return {t: _Anchor.apply(out, exchange.token) for t, out in outputs.items()}

    def synchronize_gradients(self) -> None:
        self._average(self.module.parameters(), self._world)

    def end_epoch(self, epoch: int) -> None:
        pass


class _Anchor(torch.autograd.Function):
    """Identity that makes the output depend on every exchange, whatever the model did."""

    @staticmethod
    def forward(ctx, out: Tensor, token: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(token)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def, override]
        return grad, torch.zeros_like(ctx.saved_tensors[0])


class Raf:
    """The `raf` wrapper."""

    name = "raf"

    def plan(self, plan: Plan) -> Plan:
        return plan

    def wrap(self, module: nn.Module, world: Comm, group: Comm) -> RafModule:
        return RafModule(module, world, group)


class Ddp:
    """The `ddp` wrapper: every worker holds the whole graph and is a group by itself."""

    name = "ddp"

    def plan(self, plan: Plan) -> Plan:
        whole = make_plan(plan.schema, plan.targets, plan.hops, 1, plan.metapaths or None,
                          method="ddp")
        (one,) = whole.partitions
        return replace(whole, partitions=tuple(
            replace(one, index=i, group=i) for i in range(plan.num_parts)))

    def wrap(self, module: nn.Module, world: Comm, group: Comm) -> RafModule:
        return RafModule(module, world, group)


