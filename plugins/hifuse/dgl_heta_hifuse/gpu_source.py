"""The source of batches `gpu`: they are sampled on the GPU that trains, ahead of training."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field

from dgl_heta import BatchSource, InputError, Stage
from dgl_heta_hifuse.device_sampling import DeviceLayers
from dgl_heta_hifuse.pipeline import ahead

log = logging.getLogger(__name__)


class GpuSettings(BaseModel):
    depth: int = Field(2, ge=1, le=64, description="batches that are made ahead of the one that "
                       "training computes on; the GPU's memory holds the edges of so many more")
    graph_mb: int | None = Field(None, ge=1, description="most memory of the GPU for the graph; "
                                 "default: half of what is free")


class GpuSampling(BatchSource):
    """Batches sampled on the GPU, on a stream of its own, each stage on a thread. Where workers
    compute on CPUs, they sample there, on demand."""

    name = "gpu"
    settings = GpuSettings()
    in_scripts = False

    def batches(self, steps: int, sample: Any, in_order: bool) -> Iterator[Any]:
        return map(sample, range(steps))

    def staged(self, steps: int, stages: Sequence[Stage], in_order: bool
               ) -> Generator[Any, None, None]:
        if torch.cuda.is_initialized():
            yield from ahead(steps, stages, in_order, self.settings.depth, samplers=1)
        else:
            yield from super().staged(steps, stages, in_order)

    def layers(self, sampler: Any, device: torch.device) -> DeviceLayers | None:
        if device.type != "cuda":
            log.warning("train.batches = gpu: workers compute on CPUs, and sample there; batches "
                        "are the same")
            return None
        check(sampler)
        layers = DeviceLayers(sampler, device)
        free = torch.cuda.mem_get_info(device)[0] // 2
        most = free if self.settings.graph_mb is None else self.settings.graph_mb << 20
        if layers.bytes > most:
            raise _refused(
                f"the edges of {len(sampler.graph)} relations take {layers.bytes:,} bytes there, "
                f"and {most:,} may be used (plugins.gpu.graph_mb, by default half of what is free)",
                "train.batches = pipeline, which samples on the CPU's cores")
        layers.load()
        return layers


def _refused(why: str, remedy: str) -> InputError:
    return InputError(f"train.batches = gpu samples on GPUs, but {why}; use {remedy}")


def check(sampler: Any) -> None:
    """
    Raises
    ------
    InputError
        What the sampler samples is not sampled on a device.
    """
    pipeline = "train.batches = pipeline"
    if not hasattr(sampler, "graph"):
        raise _refused("the model reads inputs that were computed before and samples nothing",
                       pipeline)
    if not sampler.scope.replicated:
        raise _refused("workers agree on what they sample where nothing is replicated",
                       f"partition.replication = full, or {pipeline}")
    if sampler.scope.offloading is not None:
        raise _refused("the plan delegates relations, whose rows workers tell each other",
                       f"partition.shared = rows, or {pipeline}")
    if sampler.held_out is not None:
        raise _refused("links that are predicted are left out of what is sampled", pipeline)
    for relation, csc in sampler.graph.items():
        if sampler.weights[relation] is not None:
            raise _refused(f"edges of '{relation}' have weights", pipeline)
        if csc.indices.dtype != np.int32:
            raise _refused(f"'{relation}' has 2^31 source nodes or more", pipeline)
