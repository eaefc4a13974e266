"""A training step on a GPU, from a data sheet's figures, counted kernels and bytes, and what steps
on one H200 took (docs/measurements/cost-model.md)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import mul
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Schema
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Settings
from dgl_heta.system.memory import DEFAULT_BYTES

if TYPE_CHECKING:
    from dgl_heta.planning.cluster_estimate import Load


class Gpu(BaseModel):
    """A GPU at most: GB of memory, GB/s of it and (one way) to the host, 10¹² operations
    of dense products a second in float32 and in bfloat16 (default: the same). `launch_us` is what a
    kernel costs the host, with the operator that calls it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    memory_gb: float = Field(gt=0, le=1e5)
    memory_bandwidth: float = Field(ge=1, le=1e6)
    host_bandwidth: float = Field(ge=0.1, le=1e5)
    tflops: float = Field(ge=0.01, le=1e6)
    bf16_tflops: float | None = Field(None, ge=0.01, le=1e6)
    launch_us: float = Field(31.7, ge=0, le=1e5)


GPUS = {name: dict(zip(Gpu.model_fields, figures)) for name, figures in {
    "a100": (80.0, 2039.0, 32.0, 19.5, 312.0), "h100": (80.0, 3350.0, 64.0, 67.0, 989.0),
    "h200": (141.0, 4800.0, 64.0, 67.0, 989.0), "l4": (24.0, 300.0, 32.0, 30.3, 121.0)}.items()}
"""NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM and L4: without sparsity, float32
without TF32 (PyTorch's default), to the host one way of PCIe x16 (Gen4, Gen5)."""
REACHED = {"memory": 0.27, "host": 0.86, "products": 0.4}
"""Shares of the bandwidths and of the peak that are reached: as `launch_us` and :data:`HOST` fitted
to steps on an H200 (`memory`: of what kernels add to the host's time), or measured there (pinned
copies; products of 262,144 × 64 with 64 × 64)."""
HOST = {"step": 1.4e-3, "merged relation": 2.6e-4}
"""Seconds of the host for a step, and with `merged` for each relation that is run."""
SAMPLERS = 4
"""Batches that are sampled side by side at most (`plugins.pipeline.at_once`), each by a core."""
COUNTED = {
    "fused": {"rgcn": (85.8, 21.8, 10.4, 12.8, 3.0, 1.3, 0.4, 1.1),
              "rgat": (106.1, 78.3, 59.0, 24.0, 5.1, 7.5, 0.2, 1.3),
              "hgt": (250.0, 103.6, 118.9, 22.0, 12.8, 11.6, 0.3, 1.7)},
    "merged": {"rgcn": (99.8, 0.0, 12.6, 7.7, 4.4, 1.2, 0.4, 1.2),
               "rgat": (170.0, 0.0, 48.1, 9.1, 7.0, 7.0, 0.5, 1.4),
               "hgt": (418.3, 0.1, 64.1, 11.5, 12.1, 10.7, 0.4, 0.9)}}
"""Kernel → model → what tests/support/pretended/coefficients.py counted: kernels, and kernels for
each relation that is run; bytes that they read and write, by bytes of messages, of the rows at both
ends of relations and of input rows; the same of bytes that a step holds."""
EDGE_BYTES = {"fused": 4, "merged": 12}
"""Kernel → bytes of an edge that are copied to the GPU."""


def check(gpu: Gpu, settings: Settings) -> None:
    """Refuse settings that use no GPU, do not fit on it, or were not counted."""
    train, size = settings.train, settings.cache.capacity_mb or 0
    for name, value, fits, right in (
            ("train.device", train.device, train.device != "cpu", "cuda or auto"),
            ("train.dtype", train.dtype, train.dtype == "float32", "float32"),
            ("train.kernel", train.kernel, train.kernel in COUNTED, listing(COUNTED)),
            ("cache.capacity_mb", size, size <= gpu.memory_gb * 1e3,
             f"at most {gpu.memory_gb * 1e3:g}")):
        if not fits:
            raise InputError(f"{name} is {value}, with which no step on the cluster's gpu can be "
                             f"forecast; it must be {right}, or leave gpu out")


def forecast(load: Load, schema: Schema, work: Workload, gpu: Gpu, settings: Settings,
             cpu: Mapping[str, float], exchange: float) -> dict[str, Any]:
    """Add up a trainer's step on its GPU, with the same share of each type's rows cached.

    `cpu` has the seconds of a unit of work on its CPU, of an edge on its samplers together;
    `exchange` is in seconds. Returns seconds (`stages`, their sum, and `pipelined`, where batches
    are sampled ahead), the number of `kernels`, and bytes on the GPU: `batch`, `cached` of
    `cacheable`, and whether that `fits`.
    """
    kernel = settings.train.kernel
    if kernel == "auto" or settings.train.autocast != "off":
        kernel = "fused"  # which `merged` is in mixed precision, where it takes no whole layer
    step, counted, row = load.step, COUNTED[kernel][work.model], work.row_bytes
    assert step is not None
    width = {t: schema.feature_bytes.get(t, 0) for t in step.inputs}
    tables = {t: schema.node_counts[t] * (width[t] or 3 * row) for t in {*width} - load.shared}
    cacheable, room = sum(tables.values()), settings.cache.capacity_mb
    if settings.cache.policy_on(gpu=True) == "none":
        room = 0
    cached = min(cacheable, room * 1e6 if room is not None
                 else min(DEFAULT_BYTES, gpu.memory_gb * 5e8))
    read = {t: rows * (width[t] or row) for t, rows in step.inputs.items()}
    missed = {t: n * (1 - cached / max(cacheable, 1) * (t in tables)) for t, n in read.items()}
    fetched, trained = sum(missed.values()), sum(n for t, n in missed.items() if not width[t])
    ends = row * sum(rows + layer.sources.get(r.src, 0) + step.own.get(r.src, 0)
                     for layer in step.layers for r, rows in layer.rows.items())
    moved, batch = (sum(map(mul, (load.work["message"], ends, sum(read.values())), counted[at:]))
                    for at in (2, 5))
    kernels, edges = counted[0] + counted[1] * load.work["call"], load.work["edge"]
    calls = load.work["call"] if kernel == "merged" else 0
    mixed = gpu.bf16_tflops if settings.train.autocast == "bfloat16" else None
    memory, host, peak = map(mul, REACHED.values(), (
        gpu.memory_bandwidth * 1e9, gpu.host_bandwidth * 1e9, (mixed or gpu.tflops) * 1e12))
    sent = EDGE_BYTES[kernel] * edges
    stages = {"sample": cpu["edge"] * edges + cpu["gathered"] * fetched,
              "up": (fetched + sent) / host, "launch": (
                  HOST["step"] + kernels * gpu.launch_us * 1e-6 + calls * HOST["merged relation"]),
              "memory": moved / memory, "products": load.work["flop"] / peak,
              "down": trained / host + cpu["updated"] * trained, "exchange": exchange}
    seconds = sum(stages.values())
    return {"stages": stages, "seconds_per_step": seconds,
            "pipelined": max(stages["sample"], seconds - stages["sample"]), "kernels": kernels,
            "batch": batch, "cached": cached, "cacheable": cacheable,
            "fits": bool(batch + cached <= gpu.memory_gb * 1e9)}
