"""Merged relation kernels and a pipeline of batches for dgl-heta, after HiFuse (Wu et al., 2024).

For graphs with many relations, whose training spends its time on many small operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgl_heta import hookimpl

if TYPE_CHECKING:
    from dgl_heta import BatchSource, Dataset, Kernel


@hookimpl
def dgl_heta_kernels() -> list[Kernel]:
    from dgl_heta_hifuse.kernel import MergedKernel  # with torch, which planning needs not

    return [MergedKernel()]


@hookimpl
def dgl_heta_datasets() -> list[Dataset]:
    from dgl_heta_hifuse.datasets import every

    return every()


@hookimpl
def dgl_heta_batch_sources() -> list[BatchSource]:
    from dgl_heta_hifuse.gpu_source import GpuSampling
    from dgl_heta_hifuse.pipeline import Pipeline

    return [Pipeline(), GpuSampling()]
