"""The kernel `merged`: the relations of a layer in one pass (Wu et al. 2024, Algorithm 1).

Layers of dgl-heta's models are taken as a whole (:mod:`dgl_heta_hifuse.layer`). Of others, and
where that cannot be, all relations' sums are one operator, and the rest is the kernel `fused`: more
operators were merged once, which saved few kernels and took longer on an H200. On CPU, in single
and double precision, all of it is `fused`, whose compiled passes leave nothing to merge.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dgl_heta.nn import BaseKernel, FusedKernel, Joined, kernel_in_use
from dgl_heta.tools import COMPILES, InEdges

if TYPE_CHECKING:
    from dgl_heta.nn import Prepared
    from dgl_heta.tools import Block

_one = BaseKernel()


class MergedSettings(BaseModel):
    """Settings `[plugins.merged]`."""

    model_config = ConfigDict(extra="forbid")

    few: int = Field(16, ge=0, description="below so many relations sums are those of fused, where "
                     "a layer is not taken as a whole: little is gained by one call then")


class MergedKernel(FusedKernel):
    """Whole layers at once; of those that it does not know, the sums of all relations."""

    name = "merged"
    serves_gpus = True
    settings = MergedSettings()

    def prepare(self, block: Block, device: torch.device) -> Prepared | None:
        if (COMPILES and device.type == "cpu") or block.offloads or block.remote or any(
                edges.shared is not None for edges in block.edges) or not any(
                len(edges.indices) for edges in block.edges):
            return None
        from dgl_heta_hifuse.layer import WholeLayer  # with the models

        return WholeLayer(block, lambda: kernel_in_use() is self)

    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
               ) -> Sequence[Tensor]:
        if len(edges) < self.settings.few or not _merges(states):
            return super().reduce(edges, states, op)
        whole, starts = _together(states)
        return Joined(_one.reduce([_merged(edges, starts)], [whole], op)[0],
                      [len(csc.indptr) - 1 for csc in edges])


def _merges(states: Sequence[Tensor]) -> bool:
    """Return whether states differ in the number of their rows alone, and no compiled pass of
    `fused` takes them."""
    first = states[0]
    fused = COMPILES and first.device.type == "cpu" and first.dtype in (torch.float32,
                                                                        torch.float64)
    return not fused and first.dim() == 2 and all(
        x.dtype == first.dtype and x.device == first.device and x.shape[1:] == first.shape[1:]
        for x in states)


def _together(states: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Each tensor once, one after the other, and where the one of each relation begins."""
    unique = {id(x): x for x in states}
    starts = dict(zip(unique, itertools.accumulate((len(x) for x in unique.values()), initial=0)))
    tensors = list(unique.values())
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors),
            [starts[id(x)] for x in states])


def _merged(edges: Sequence[InEdges], starts: Sequence[int]) -> InEdges:
    """The in-edges of several relations as those of one, whose sources begin at `starts`."""
    rows, counts = zip(*((len(csc.indptr) - 1, len(csc.indices)) for csc in edges))
    device = edges[0].indices.device
    indices = torch.cat([csc.indices for csc in edges]).long() + _repeated(starts, counts, device)
    indptr = torch.cat([csc.indptr[:-1] for csc in edges])
    indptr = indptr + _repeated(list(itertools.accumulate(counts, initial=0))[:-1], rows, device)
    return InEdges(torch.cat([indptr, indptr.new_full((1,), sum(counts))]), indices)


def _repeated(values: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Each value as often as its count says."""
    both = torch.tensor([[*values], [*counts]], dtype=torch.int64,
                        pin_memory=device.type == "cuda")  # else the copy is waited for
    of, times = both.to(device, non_blocking=True)
    return torch.repeat_interleave(of, times, output_size=sum(counts))


def is_autocast(tensor: Tensor) -> bool:
    """Return whether mixed precision is on where a tensor is."""
    return (torch.is_autocast_cpu_enabled() if tensor.device.type == "cpu"
            else torch.is_autocast_enabled())
