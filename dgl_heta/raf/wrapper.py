"""Module wrappers: how a single-process model runs on several workers.

`raf` exchanges partial aggregations inside a model-parallel group; `ddp` is plain data
parallelism for comparison, where every worker holds the whole graph. Both average the
gradients of dense parameters over all workers.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.gradients import GradientAverage
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.protocols import ModuleWrapper
from dgl_heta.nn.cross import CrossRelation
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.raf.exchange import GroupExchange, _Anchor
from dgl_heta.sampling.blocks import MiniBatch


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


class Raf(ModuleWrapper):
    """The `raf` wrapper."""

    name = "raf"

    def plan(self, plan: Plan) -> Plan:
        return plan

    def wrap(self, module: nn.Module, world: Comm, group: Comm) -> RafModule:
        return RafModule(module, world, group)


class Ddp(ModuleWrapper):
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
