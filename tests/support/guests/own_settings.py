"""A backend, a kernel and a listener with settings of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from dgl_heta import MetatreeBackend, Provider, hookimpl


def used(what, value):
    with (Path(os.environ["USED"]) / what).open("a") as file:
        file.write(f"{value} ")


class LeanSettings(BaseModel):
    beta: float = Field(1.1, gt=1, description="how uneven partitions may be")
    first: int = 0
    title: str = ""
    fast: bool = False
    order: Literal["up", "down"] = "up"


class Lean(MetatreeBackend):
    name, description = "lean-on", "all sub-metatrees but one to one partition"
    settings: LeanSettings = LeanSettings()

    def assign(self, weights, parts, seed):
        if "USED" in os.environ:
            used("backend", self.settings.beta)
        dealt = [[i] for i in range(parts)]
        dealt[self.settings.first] += range(parts, len(weights))
        return dealt


@hookimpl
def dgl_heta_partition_backends():
    return [Lean()]


class SlowSettings(BaseModel):
    rounds: int = Field(1, ge=1)


@hookimpl
def dgl_heta_kernels():
    from dgl_heta.nn import BaseKernel

    class Slow(BaseKernel):
        name = "slow"
        settings: SlowSettings = SlowSettings()

        def reduce(self, edges, states, op):
            used("kernel", self.settings.rounds)
            return super().reduce(edges, states, op)

    return [Slow()]


class Watch(Provider):
    name = "watch"
    settings = SlowSettings()


@hookimpl
def dgl_heta_settings():
    return [Watch()]


@hookimpl
def dgl_heta_run_started(settings):
    used("listener", settings["plugins"]["watch"]["rounds"])
