"""Module wrappers: how a single-process model runs on several workers.

`raf` follows the plan of the partition backend, whose workers exchange partial aggregations inside
model-parallel groups; `ddp` is plain data parallelism for comparison, where every worker has the
whole graph. Both average the gradients of dense parameters over all workers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.gradient_average import GradientAverage, average_rows, give
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext, WrappedModule
from dgl_heta.nn.cross import CrossRelation
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.sampling.blocks import MiniBatch


class GradientSync(WrappedModule):
    """A module whose gradients are averaged over all workers after each backward pass."""

    def __init__(self, module: nn.Module, context: WrapContext) -> None:
        super().__init__(module)
        self._context, self._average = context, GradientAverage(context.in_place)
        # Tables of embeddings are averaged by their rows: as dense parameters all of a table would
        # move.
        alone = {id(table) for table in context.tables}
        self._dense = [p for p in module.parameters() if id(p) not in alone]
        self._replicas = [_Replica(table, context) for table in context.replicas]
        copies = {id(table) for table in context.replicas}
        self._tables = [table for table in context.tables if id(table) not in copies]

    def state(self) -> dict[str, Tensor]:
        return {"owners": torch.tensor(self._average.owners, dtype=torch.int64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._average.owners = state["owners"].tolist()

    def after_backward(self) -> None:
        world = self._context.world
        self._average(self._dense, world)
        for replica in self._replicas:
            replica.divide()
        for table in self._tables:
            average_rows(table, world, self._context.in_place)


class _Replica:
    """A table of which each worker has its own copy, and its own gradient.

    Still the gradient is divided by the number of workers, as with one owner per row, so that
    learning rates mean the same in both modes. It is divided once: where a script accumulates
    gradients, what earlier passes have left is multiplied again before another one adds to it.
    """

    def __init__(self, table: nn.Parameter, context: WrapContext) -> None:
        self._table, self._context = table, context
        self._added = self._divided = False
        with torch.enable_grad():
            view: Any = table.expand_as(table)
        # Nothing else keeps the function that accumulates; it runs in no pass that asks for
        # gradients (autograd.grad), in which hooks of a tensor do.
        self._accumulates = view.grad_fn.next_functions[0][0]
        self._accumulates.register_prehook(self._before)

        def add(_: Tensor) -> None:
            self._added = True

        add.dgl_heta = True  # type: ignore[attr-defined]
        table.register_post_accumulate_grad_hook(add)

    def _before(self, _: Any) -> None:
        """A pass is about to add to the gradient."""
        if self._divided and self._table.grad is not None:
            give(self._table, self._table.grad * self._context.world.size, self._context.in_place)
        self._divided = False

    def divide(self) -> None:
        """Divide the gradient, unless it is as an earlier pass has left it."""
        if self._added and self._table.grad is not None:
            give(self._table, self._table.grad / self._context.world.size, self._context.in_place)
            self._divided = True
        self._added = False


class Raf(ModuleWrapper):
    """The `raf` wrapper: the plan as it is."""

    name = "raf"

    def wrap(self, module: nn.Module, context: WrapContext) -> WrappedModule:
        return GradientSync(module, context)


class Ddp(Raf):
    """The `ddp` wrapper: every worker has the whole graph and is a group by itself."""

    name = "ddp"

    def plan(self, plan: Plan) -> Plan:
        return data_parallel(plan)


def data_parallel(plan: Plan) -> Plan:
    """The plan of as many workers, each a group by itself with all relations that it needs."""
    whole = make_plan(plan.schema, plan.targets, plan.hops, 1, plan.metapaths or None,
                      method="ddp")
    # One partition is planned and repeated, not the graph cut: each worker is a group by itself and
    # aggregates nothing for others.
    (one,) = whole.partitions
    return replace(whole, partitions=tuple(
        replace(one, index=i, group=i) for i in range(plan.num_parts)))


class RafModule(nn.Module):
    """A model whose cross-relation reductions run over a model-parallel group.

    Raises
    ------
    InputError
        The model has no reduction, but the group has several workers.
    """

    def __init__(self, module: nn.Module, group: Comm) -> None:
        super().__init__()
        self.module = module
        self._exchange = GroupExchange(group)
        self._several = group.size > 1
        reducers = [m for m in module.modules() if isinstance(m, CrossRelation)]
        if not reducers and group.size > 1:
            raise InputError(
                f"{type(module).__name__} cannot run under RAF: it has no CrossRelation module, "
                "so there is no cross-relation aggregation to reduce over the workers"
            )
        for reducer in reducers:
            reducer.exchange = self._exchange

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of the worker's own seeds per target type.

        Raises
        ------
        HetaError
            A reduction is missing, or there is not one row for each seed.
        """
        exchange = self._exchange
        # A forward pass that failed half way may have left links: those of this one must not hang
        # on them.
        exchange.begin()
        outputs = self.module(batch, inputs)
        expected = {(block.layer, t) for block in batch.blocks
                    for t, shares in block.seeds.items() if shares.total}
        expected |= {(block.layer, t) for block in batch.blocks for t in block.remote}
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
        # The loss may not depend on some type, or on some layer, on this worker alone. Anchored,
        # its backward pass comes to every link all the same, as the other workers' do.
        return {t: exchange.anchor(out) for t, out in outputs.items()}
