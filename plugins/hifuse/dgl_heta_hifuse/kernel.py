"""The kernel `merged`: the relations of a layer in one pass (Wu et al. 2024, Algorithm 1).

By PyTorch's operators on the relations put one after the other (:mod:`dgl_heta_hifuse.operators`).
On CPU, in single and double precision, it is `fused`, whose compiled passes leave nothing to merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dgl_heta.nn import FusedKernel, Joined, is_read, kernel_in_use
from dgl_heta.tools import COMPILES
from dgl_heta_hifuse import operators

if TYPE_CHECKING:
    from dgl_heta.nn import Prepared
    from dgl_heta.tools import Block, InEdges


class MergedSettings(BaseModel):
    """Settings `[plugins.merged]`."""

    model_config = ConfigDict(extra="forbid")

    few: int = Field(16, ge=0, description="below so many relations sums and products are those "
                     "of fused: little is gained by one call then")


class MergedKernel(FusedKernel):
    """All relations in one gather and one reduction; gradients of a source type in one array."""

    name = "merged"
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
        if len(edges) < self.settings.few or not _merges(states) or _first(states).dim() != 2:
            return super().reduce(edges, states, op)
        return operators.reduce(edges, states, op)

    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(sources) or not _merges(destinations):
            return super().u_dot_v(edges, sources, destinations)
        return operators.dot(edges, sources, destinations)

    def u_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
        if not (_merges(sources) and _merges(weights) and _plain(sources)) or (
                _first(sources).dim() != 2 or is_autocast(_first(sources))):
            return super().u_mm(edges, sources, weights)
        return operators.products(edges, sources, weights)

    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(sources) or not _merges(destinations) or _first(sources).dim() != 2:
            return super().u_add_v(edges, sources, destinations)
        return operators.add(edges, sources, destinations)

    def copy_v(self, edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(rows) or _first(rows).dim() != 2:
            return super().copy_v(edges, rows)
        return operators.spread(edges, rows)

    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(scores) or _first(scores).dim() != 2:
            return super().edge_softmax(edges, scores)
        return operators.softmax(edges, scores)

    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(scores) or _first(scores).dim() != 2:
            return super().e_max(edges, scores)
        return operators.maxima(edges, scores)

    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(values) or _first(values).dim() != 2:
            return super().e_sum(edges, values)
        return operators.totals(edges, values)

    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _merges(sources) or not _merges(weights):
            return super().u_mul_e_sum(edges, sources, weights)
        return operators.weighted(edges, sources, weights)

    def gather(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]
               ) -> Sequence[Tensor]:
        if not _merges(states) or not _plain(states) or (
                len(states) == 1 and not is_read(states[0])):
            return super().gather(states, rows)
        return operators.gather(states, rows)

    def scatter_sum(self, values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor
                    ) -> Tensor:
        if not isinstance(values, Joined) or not _merges(values):
            return super().scatter_sum(values, rows, like)
        return operators.scatter_sum(values, rows, like)

    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        if len(weights) < self.settings.few and not isinstance(rows, Joined) and rows[0].dim() == 2:
            return super().matmul(rows, weights)
        if not _merges(rows) or not _merges(weights) or not _plain(rows) or (
                _first(rows).dtype != _first(weights).dtype) or is_autocast(_first(rows)):
            return super().matmul(rows, weights)
        return operators.matmul(rows, weights)


def _merges(tensors: Sequence[Tensor] | Tensor) -> bool:
    """Return whether tensors differ in the number of their rows alone, and no compiled pass of
    `fused` takes them."""
    first = _first(tensors)
    fused = COMPILES and first.device.type == "cpu" and first.dtype in (torch.float32,
                                                                        torch.float64)
    return not fused and (isinstance(tensors, Tensor) or all(
        x.dtype == first.dtype and x.device == first.device and x.shape[1:] == first.shape[1:]
        for x in _each(tensors)))


def _first(tensors: Sequence[Tensor] | Tensor) -> Tensor:
    """One of them, or all in one tensor: what all have in common can be seen."""
    return tensors.whole if isinstance(tensors, Joined) else tensors[0]


def _plain(tensors: Sequence[Tensor] | Tensor) -> bool:
    """Return whether these are tensors with memory, not rows that wait for their values."""
    return all(type(x) in (Tensor, torch.nn.Parameter) for x in _each(tensors))


def _each(tensors: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    if isinstance(tensors, Joined):
        return (tensors.whole,)
    return (tensors,) if isinstance(tensors, Tensor) else tensors


def is_autocast(tensor: Tensor) -> bool:
    """Return whether mixed precision is on where a tensor is."""
    return (torch.is_autocast_cpu_enabled() if tensor.device.type == "cpu"
            else torch.is_autocast_enabled())
