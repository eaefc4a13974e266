"""Reference mode (`run.reference`): a script runs as with plain DGL, on the store of a partition.

What `dgl-heta prove` compares a run with RAF to. Each trainer samples all relations for its own
seeds, by the same stateless draws; the script gets DGL's own blocks with every relation of the
schema, so no operator that is patched does anything; DistEmbedding and its optimizers are DGL's;
gradients are averaged plainly. It needs the complete store on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.gradient_average import average_rows
from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext, WrappedModule
from dgl_heta.planning.plan import Plan
from dgl_heta.raf.wrapper import data_parallel
from dgl_heta.settings import Settings


class Reference(ModuleWrapper):
    """Every trainer by itself on the whole graph, with gradients averaged after each backward pass.

    Raises
    ------
    InputError
        The plan follows metapaths: plain blocks have other edges.
    """

    name = "reference"

    def plan(self, plan: Plan) -> Plan:
        if plan.metapaths:
            raise InputError("the partition follows metapaths, so plain DGL samples other edges "
                             "and there is nothing to compare with; partition it by hops")
        return data_parallel(plan)

    def wrap(self, module: nn.Module, context: WrapContext) -> WrappedModule:
        return PlainAverage(module, context.world)


class PlainAverage(WrappedModule):
    """1 / n Σ_w g_w over all n trainers; a parameter keeps no gradient if no trainer has one."""

    def __init__(self, module: nn.Module, world: Comm) -> None:
        super().__init__(module)
        self._world = world

    def after_backward(self) -> None:
        if self._world.size == 1:
            return
        params = [p for p in self.module.parameters() if p.requires_grad]
        has = torch.tensor([[p.grad is not None, p.grad is not None and p.grad.is_sparse]
                            for p in params], dtype=torch.int64)
        used = self._world.all_reduce(has, cause="gradients").tolist()
        for param, (trainers, sparse) in zip(params, used):
            if sparse:
                average_rows(param, self._world)
            elif trainers:
                own = param.grad if param.grad is not None else torch.zeros_like(param)
                total: Tensor = self._world.all_reduce(own, cause="gradients")
                param.grad = total / self._world.size


def plain_settings(settings: Settings) -> Settings:
    """The settings of a reference: features are gathered at once, embeddings are one table."""
    train = settings.train.model_copy(update={
        "lazy_features": False, "learnable": "exact", "complete_states": False})
    cache = settings.cache.model_copy(update={"policy": "none"})
    return settings.model_copy(update={"train": train, "cache": cache})
