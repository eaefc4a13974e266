"""`train.wrapper = "model_average"`: workers train apart, and their models are averaged (§3.3).

In place of gradients at each step, parameters and buffers are averaged every `sync_every` epochs,
and at the end. Workers take as many steps as they have training nodes for. Each keeps the state of
its own optimizer, which is not averaged.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import nn

from dgl_heta import ModuleWrapper, WrapContext, WrappedModule
from dgl_heta.tools import data_parallel
from dgl_heta_catgnn.averaging import average_state


class AveragingSettings(BaseModel):
    """Settings of the module wrapper `model_average`."""

    sync_every: int = Field(1, ge=1, description="epochs between two averages of the models")
    inside: bool = Field(True, description="DistDGL scripts: sample and read inside a machine's "
                         "part alone, which sends nothing in a step")


class ModelAveraging(ModuleWrapper):
    """The wrapper `model_average`, in `dgl-heta train` and in scripts on any parts."""

    name = "model_average"
    any_graph = uneven_steps = True
    settings: AveragingSettings = AveragingSettings()

    def plan(self, plan: Any) -> Any:
        """Every worker a group by itself: nothing is exchanged in a step."""
        return data_parallel(plan)

    def own_part(self) -> bool:
        return self.settings.inside

    def wrap(self, module: nn.Module, context: WrapContext) -> WrappedModule:
        return AveragedModule(module, context, self.settings.sync_every)


class AveragedModule(WrappedModule):
    """A module of one worker, which becomes the mean of all workers' now and then.

    Attributes
    ----------
    averages : how often it was averaged.
    sent : bytes that this worker sent for it.
    """

    def __init__(self, module: nn.Module, context: WrapContext, sync_every: int) -> None:
        super().__init__(module)
        self._context, self._every = context, sync_every
        self.averages = self.sent = self._epochs = self._steps = 0
        self._weight, self._changed = 0, False

    def after_backward(self) -> None:
        self._steps += 1
        if not self._changed:
            self._weight, self._changed = self._context.owned(), True

    def epoch_ended(self, epoch: int) -> None:
        self._epochs, self._weight = self._epochs + 1, self._context.owned()
        if epoch % self._every == 0:
            self._average()

    def equal(self) -> bool:
        """By their bits, so that it holds for a model that was loaded, too."""
        digest = hashlib.sha256()
        for tensor in self._state().values():
            row = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(row.view(torch.uint8).numpy().tobytes())
        number = int.from_bytes(digest.digest()[:7], "big")
        ends = self._context.world.all_reduce(torch.tensor([number, -number]), "max", "control")
        return int(ends.sum()) == 0

    def finish(self) -> None:
        """The last average, unless the models are equal."""
        world = self._context.world
        if not self.equal():
            self._weight = self._weight or self._context.owned()
            self._average()
        if world.rank == 0 and world.size > 1:
            self._tell()

    def _average(self) -> None:
        if self._context.world.size == 1:
            return
        world, traffic = self._context.world, self._context.world.traffic
        before = sum(traffic.bytes.values())
        state = self._state()
        with torch.no_grad():
            for name, mean in average_state(state, self._weight, world).items():
                state[name].copy_(mean)
        self.sent += sum(traffic.bytes.values()) - before
        self.averages, self._changed = self.averages + 1, False

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_parameters()) | dict(self.module.named_buffers())

    def _tell(self) -> None:
        """Bytes of an epoch, beside those of averaging gradients at each of this worker's steps."""
        size, epochs = self._context.world.size, max(self._epochs, 1)
        gradients = sum(p.nbytes for p in self.module.parameters() if p.requires_grad)
        steps = self._steps * 2 * (size - 1) * gradients // size
        print(f"dgl-heta: model_average: {type(self.module).__name__} was averaged "
              f"{self.averages} times in {self._epochs} epochs; worker 0 sent "
              f"{self.sent // epochs} bytes per epoch, and would have sent {steps // epochs} with "
              "gradients averaged at each step", file=sys.stderr, flush=True)
