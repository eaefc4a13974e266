"""A guest: model averaging over workers that take different numbers of steps.

Every worker trains on the nodes that it owns. After some epochs the parameters become their mean,
weighted by the numbers of these nodes. What it did goes to $USED/RANK.npz.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import hookimpl
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext, WrappedModule


class AveragingSettings(BaseModel):
    every: int = Field(1, ge=1, description="epochs between two averages")


class Averaging(ModuleWrapper):
    name = "averaging"
    any_graph = uneven_steps = True
    settings = AveragingSettings()

    def plan(self, plan: Any) -> Any:
        from dgl_heta.raf.wrapper import data_parallel

        return data_parallel(plan)

    def wrap(self, module: Any, context: WrapContext) -> WrappedModule:
        return Averaged(module, context, self.settings.every)

    def owned(self, nodes: np.ndarray, worker: int, workers: int) -> np.ndarray:
        """The first worker owns a quarter of what an even share is."""
        cut = len(nodes) // (4 * workers)
        rest = nodes[cut:]
        return nodes[:cut] if worker == 0 else np.array_split(rest, workers - 1)[worker - 1]


class Averaged(WrappedModule):
    def __init__(self, module: Any, context: WrapContext, every: int) -> None:
        super().__init__(module)
        self._context, self._every = context, every
        self._did: dict[str, Any] = {"steps": 0, "finished": 0}

    def after_backward(self) -> None:
        self._did["steps"] += 1

    def epoch_ended(self, epoch: int) -> None:
        self._did |= {f"{epoch}/steps": self._did["steps"], f"{epoch}/owned": self._context.owned(),
                      f"{epoch}/before": self._flat()}
        if epoch % self._every == 0:
            self._average()
        self._did[f"{epoch}/after"] = self._flat()
        self._save()

    def finish(self) -> None:
        self._did["finished"] += 1
        self._save()

    def _average(self) -> None:
        import torch

        world, weight = self._context.world, float(self._context.owned())
        total = float(world.all_reduce(torch.tensor([weight]), cause="gradients"))
        for parameter in self.module.parameters():
            mean = world.all_reduce(parameter.data * weight, cause="gradients") / total
            parameter.data.copy_(mean)

    def _flat(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().ravel() for p in self.module.parameters()])

    def _save(self) -> None:
        np.savez(Path(os.environ["USED"]) / f"{self._context.world.rank}.npz", **self._did)


@hookimpl
def dgl_heta_module_wrappers() -> list[Averaging]:
    return [Averaging()]
