"""Reference mode (`run.reference`): a script runs as with plain DGL, on the store of a partition.

It is what `dgl-heta prove` compares a run with RAF to. Each trainer samples all relations for its
own seeds, by the same stateless draws; the script gets DGL's own blocks with every relation of the
schema, so no operator that is patched does anything; DistEmbedding and its optimizers are DGL's;
gradients are averaged plainly. It needs the complete store on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.gradient_average import average_rows, give
from dgl_heta.distdgl.refusals import refuse
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
        """Return the plan by which every machine has all relations."""
        if plan.metapaths:
            refuse("reference of metapaths")
        return data_parallel(plan)

    def wrap(self, module: nn.Module, context: WrapContext) -> WrappedModule:
        """Return the module with plain averages."""
        return PlainAverage(module, context.world)


class PlainAverage(WrappedModule):
    """Averages of gradients, 1 / n Σ_w g_w over all n trainers.

    A parameter keeps no gradient if no trainer has one.
    """

    def __init__(self, module: nn.Module, world: Comm) -> None:
        super().__init__(module)
        self._world = world

    def after_backward(self) -> None:
        """Average the gradients; all trainers call it."""
        if self._world.size == 1:
            return
        params = [p for p in self.module.parameters() if p.requires_grad]
        # Trainers may have gradients of different parameters (a relation that a batch lacks), so
        # they agree first on which collectives there are.
        has = torch.tensor([[p.grad is not None, p.grad is not None and p.grad.is_sparse]
                            for p in params], dtype=torch.int64)
        used = self._world.all_reduce(has, cause="gradients").tolist()
        for param, (trainers, sparse) in zip(params, used):
            if sparse:
                average_rows(param, self._world, in_place=True)
            elif trainers:
                grad = param.grad if param.grad is not None else torch.zeros_like(param)
                total: Tensor = self._world.all_reduce(grad, cause="gradients")
                give(param, total / self._world.size, in_place=True)


def plain_settings(settings: Settings) -> Settings:
    """Return the settings of a reference: features are gathered at once, embeddings are one table.
    """
    train = settings.train.model_copy(update={
        "lazy_features": False, "learnable": "exact", "complete_states": False})
    cache = settings.cache.model_copy(update={"policy": "none"})
    return settings.model_copy(update={"train": train, "cache": cache})
