"""The kernel `merged`: the relations of a layer in one pass (Wu et al. 2024, Algorithm 1).

Compiled on CPU in single and double precision (:mod:`dgl_heta_hifuse.passes`); by PyTorch's
operators on the relations put one after the other elsewhere (:mod:`dgl_heta_hifuse.operators`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dgl_heta.nn import FusedKernel, Joined, is_read, kernel_in_use
from dgl_heta_hifuse import operators

try:
    from dgl_heta_hifuse import passes, projected
except ImportError:  # numba is optional
    passes = None  # type: ignore[assignment]

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
        if (passes is not None and device.type == "cpu") or block.offloads or block.remote or any(
                edges.shared is not None for edges in block.edges) or not any(
                len(edges.indices) for edges in block.edges):
            return None
        from dgl_heta_hifuse.layer import WholeLayer  # with the models

        return WholeLayer(block, lambda: kernel_in_use() is self)

    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
               ) -> Sequence[Tensor]:
        if len(edges) < self.settings.few or not _alike(states) or _first(states).dim() != 2:
            return super().reduce(edges, states, op)
        if not _compiled(edges, states):
            return operators.reduce(edges, states, op)
        if op in ("sum", "mean"):
            return passes.reduce(edges, states, op == "mean")
        return super().reduce(edges, states, op)

    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(sources) or not _alike(destinations):
            return super().u_dot_v(edges, sources, destinations)
        if _compiled(edges, sources, destinations):
            return passes.dot(edges, sources, destinations)
        return operators.dot(edges, sources, destinations)

    def u_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
        if not (_alike(sources) and _alike(weights) and _plain(sources)) or (
                _first(sources).dim() != 2 or is_autocast(_first(sources))):
            return super().u_mm(edges, sources, weights)
        if _compiled(edges, sources, weights if not isinstance(weights, Tensor) else [weights]):
            return passes.dot(edges, sources, passes.heads_first(weights))
        return operators.products(edges, sources, weights)

    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(sources) or not _alike(destinations) or _first(sources).dim() != 2:
            return super().u_add_v(edges, sources, destinations)
        if _compiled(edges, sources, destinations):
            return passes.add(edges, sources, destinations)
        return operators.add(edges, sources, destinations)

    def copy_v(self, edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(rows) or _first(rows).dim() != 2:
            return super().copy_v(edges, rows)
        if _compiled(edges, rows):
            return passes.spread(edges, rows)
        return operators.spread(edges, rows)

    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(scores) or _first(scores).dim() != 2:
            return super().edge_softmax(edges, scores)
        if _compiled(edges, scores):
            return passes.softmax(edges, scores)
        return operators.softmax(edges, scores)

    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(scores) or _first(scores).dim() != 2:
            return super().e_max(edges, scores)
        if _compiled(edges, scores):
            return passes.maxima(edges, scores)
        return operators.maxima(edges, scores)

    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(values) or _first(values).dim() != 2:
            return super().e_sum(edges, values)
        if _compiled(edges, values):
            return passes.totals(edges, values)
        return operators.totals(edges, values)

    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> Sequence[Tensor]:
        if not _alike(sources) or not _alike(weights):
            return super().u_mul_e_sum(edges, sources, weights)
        if _compiled(edges, sources, weights):
            return passes.weighted(edges, sources, weights)
        return operators.weighted(edges, sources, weights)

    def gather(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]
               ) -> Sequence[Tensor]:
        if not _alike(states) or not _plain(states) or (
                len(states) == 1 and not is_read(states[0])):
            return super().gather(states, rows)
        if _compiled((), states):
            return passes.gather(states, rows)
        return operators.gather(states, rows)

    def scatter_sum(self, values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor
                    ) -> Tensor:
        if not isinstance(values, Joined) or not _alike(values):
            return super().scatter_sum(values, rows, like)
        if _compiled((), values) and like.dtype == _first(values).dtype:
            return passes.scatter_sum(values, rows, like)
        return operators.scatter_sum(values, rows, like)

    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        if len(weights) < self.settings.few and not isinstance(rows, Joined) and rows[0].dim() == 2:
            return super().matmul(rows, weights)
        if not _alike(rows) or not _alike(weights) or not _plain(rows) or (
                _first(rows).dtype != _first(weights).dtype) or is_autocast(_first(rows)):
            return super().matmul(rows, weights)
        return operators.matmul(rows, weights)

    def u_dot_v_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                   destinations: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
                   ) -> Sequence[Tensor]:
        if _projectable(edges, sources, destinations, weights):
            return projected.dot(edges, sources, destinations, weights)
        return super().u_dot_v_mm(edges, sources, destinations, weights)

    def u_mul_e_sum_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                       values: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
                       ) -> Sequence[Tensor]:
        if _projectable(edges, sources, values, weights):
            return projected.weighted(edges, sources, values, weights)
        return super().u_mul_e_sum_mm(edges, sources, values, weights)


def _projectable(edges: Sequence[InEdges], sources: Sequence[Tensor], others: Sequence[Tensor],
                 weights: Sequence[Tensor] | Tensor) -> bool:
    """Return whether products can be taken inside the compiled passes: source rows that heads
    share."""
    return (_alike(sources) and _alike(others) and _alike(weights)
            and _first(sources).dim() == 2 and _first(weights).dim() == 3
            and len({weight.shape for weight in weights}) == 1
            and _first(weights).dtype == _first(sources).dtype
            and _compiled(edges, sources, others) and not is_autocast(_first(sources)))


def _first(tensors: Sequence[Tensor] | Tensor) -> Tensor:
    """One of them, or all in one tensor: what all have in common can be seen."""
    return tensors.whole if isinstance(tensors, Joined) else tensors[0]


def _plain(tensors: Sequence[Tensor] | Tensor) -> bool:
    """Return whether these are tensors with memory, not rows that wait for their values."""
    return all(type(x) in (Tensor, torch.nn.Parameter) for x in _each(tensors))


def _alike(tensors: Sequence[Tensor] | Tensor) -> bool:
    """Return whether tensors differ in the number of their rows alone."""
    first = _first(tensors)
    return isinstance(tensors, Tensor) or all(
        x.dtype == first.dtype and x.device == first.device and x.shape[1:] == first.shape[1:]
        for x in _each(tensors))


def _each(tensors: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    if isinstance(tensors, Joined):
        return (tensors.whole,)
    return (tensors,) if isinstance(tensors, Tensor) else tensors


def _compiled(edges: Sequence[InEdges], *lists: Sequence[Tensor]) -> bool:
    """Return whether the compiled passes take these: on CPU, in single or double precision."""
    dtype = _first(lists[0]).dtype
    return (passes is not None and dtype in (torch.float32, torch.float64)
            and all(_first(values).device.type == "cpu" and _first(values).dtype == dtype
                    for values in lists)
            and all(csc.indices.dtype == torch.int32 and csc.indptr.dtype == torch.int64
                    for csc in edges))


def is_autocast(tensor: Tensor) -> bool:
    """Return whether mixed precision is on where a tensor is."""
    return (torch.is_autocast_cpu_enabled() if tensor.device.type == "cpu"
            else torch.is_autocast_enabled())
