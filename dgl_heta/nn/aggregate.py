"""AGG_r: aggregate source rows over the in-edges of each destination row.

The kernel that does it is a provider (hook `dgl_heta_kernels`). Two are built in: `fused`
reads each source row once and writes no per-edge message; `torch` uses PyTorch operators
alone and runs on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dgl_heta.errors import InputError
from dgl_heta.features.deferred import LazyRows, aggregated, shorter_aggregated
from dgl_heta.features.row_kernels import add_edges
from dgl_heta.hooks.protocols import Kernel
from dgl_heta.system.jit import kernel

SEGMENT_OPS = ("sum", "mean", "max", "min")


class TorchKernel(Kernel):
    """Gather, then scatter-reduce: PyTorch operators only, on any device."""

    name = "torch"

    def __call__(self, indptr: Tensor, indices: Tensor, states: Tensor, op: str) -> Tensor:
        degrees = indptr[1:] - indptr[:-1]
        rows = torch.repeat_interleave(torch.arange(len(degrees), device=indptr.device), degrees)
        messages = states.index_select(0, indices.long())
        out = states.new_zeros((len(degrees), states.shape[1]))
        if op in ("sum", "mean"):
            out = out.index_add(0, rows, messages)
            return out / degrees.clamp(min=1).unsqueeze(1) if op == "mean" else out
        index = rows.unsqueeze(1).expand_as(messages)
        return out.scatter_reduce(0, index, messages, "a" + op, include_self=False)


class FusedKernel(Kernel):
    """One pass over the edges on CPU (compiled); `torch` on other devices."""

    name = "fused"

    def __init__(self) -> None:
        self._fallback = TorchKernel()

    def __call__(self, indptr: Tensor, indices: Tensor, states: Tensor, op: str) -> Tensor:
        if not _compiled(states):
            return self._fallback(indptr, indices, states, op)
        if op in ("sum", "mean"):
            return _FusedSums.apply(states, op == "mean", indptr, indices)[0]
        return _FusedExtreme.apply(indptr, indices, states, op == "max")


_kernel: Kernel = FusedKernel()


def use_kernel(kernel: Kernel) -> None:
    """Aggregate with this kernel from now on, in this process."""
    global _kernel
    _kernel = kernel


def segment_reduce(indptr: Tensor, indices: Tensor, states: Tensor, op: str = "mean") -> Tensor:
    """Aggregate `states` over in-edges with the kernel in use; see
    :class:`dgl_heta.hooks.protocols.Kernel`."""
    if op not in SEGMENT_OPS:
        raise InputError(f"aggregation '{op}' is unknown; known are {', '.join(SEGMENT_OPS)}")
    if _before_product(states, [(indptr, indices)], op):
        return aggregated(states, indptr, indices, op)
    return _kernel(indptr, indices, states, op)


def segment_reduce_each(edges: Sequence[tuple[Tensor, Tensor]], states: Tensor, op: str
                        ) -> list[Tensor]:
    """Aggregate the same `states` over several relations' in-edges; see :func:`segment_reduce`.

    `edges` are pairs of `indptr` and `indices`. Rows that wait
    (:mod:`dgl_heta.features.deferred`) may be aggregated before their product with a weight, in
    all relations or in none. With the kernel `fused`, sums and means add their
    gradients to one array of the size of `states`, instead of each to an array of its own.
    """
    if _before_product(states, edges, op):
        return [aggregated(states, indptr, indices, op) for indptr, indices in edges]
    if (len(edges) < 2 or op not in ("sum", "mean") or type(_kernel) is not FusedKernel
            or not _compiled(states)):
        return [segment_reduce(indptr, indices, states, op) for indptr, indices in edges]
    return list(_FusedSums.apply(states, op == "mean", *(t for pair in edges for t in pair)))


def _before_product(states: Tensor, edges: Sequence[tuple[Tensor, Tensor]], op: str
                    ) -> TypeGuard[LazyRows]:
    return (op in ("sum", "mean") and type(_kernel) is FusedKernel
            and shorter_aggregated(states, edges))


def _compiled(states: Tensor) -> bool:
    return states.device.type == "cpu" and states.dtype in (torch.float32, torch.float64)


class _FusedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, mean: bool, *edges: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*edges)
        ctx.mean, ctx.rows = mean, states.shape[0]
        ctx.set_materialize_grads(False)
        rows, found = states.detach().contiguous().numpy(), []
        for indptr, indices in zip(edges[::2], edges[1::2]):
            out = states.new_zeros((len(indptr) - 1, states.shape[1]))
            add_edges(indptr.numpy(), indices.numpy(), rows, mean, out.numpy())
            found.append(out)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        edges = ctx.saved_tensors
        given = [(g, *pair) for g, pair in zip(grads, zip(edges[::2], edges[1::2]))
                 if g is not None]
        if not given:
            return (None,) * (2 + len(edges))
        out = given[0][0].new_zeros((ctx.rows, given[0][0].shape[1]))
        for grad, indptr, indices in given:
            _sum_backward(indptr.numpy(), indices.numpy(), grad.contiguous().numpy(), ctx.mean,
                          out.numpy())
        return out, None, *(None,) * len(edges)


class _FusedExtreme(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indptr: Tensor, indices: Tensor, states: Tensor, largest: bool) -> Tensor:
        out = states.new_zeros((len(indptr) - 1, states.shape[1]))
        winner = torch.full(out.shape, -1, dtype=torch.int32)
        _extreme_forward(indptr.numpy(), indices.numpy(), states.detach().contiguous().numpy(),
                         largest, out.numpy(), winner.numpy())
        ctx.save_for_backward(winner)
        ctx.rows = states.shape[0]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, None]:  # type: ignore[override]
        (winner,) = ctx.saved_tensors
        out = grad.new_zeros((ctx.rows, grad.shape[1]))
        _extreme_backward(winner.numpy(), grad.contiguous().numpy(), out.numpy())
        return None, None, out, None


@kernel
def _sum_backward(indptr, indices, grad, mean, out):  # type: ignore[no-untyped-def]
    width = grad.shape[1]
    scaled = np.empty(width, grad.dtype)
    for row in range(len(indptr) - 1):
        count = indptr[row + 1] - indptr[row] if mean else 1
        for k in range(width):
            scaled[k] = grad[row, k] / max(count, 1)
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for k in range(width):
                out[source, k] += scaled[k]


@kernel
def _extreme_forward(indptr, indices, states, largest, out, winner):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for k in range(states.shape[1]):
                value = states[source, k]
                better = value > out[row, k] if largest else value < out[row, k]
                if winner[row, k] < 0 or better or value != value:  # NaN stays NaN
                    out[row, k] = value
                    winner[row, k] = source


@kernel
def _extreme_backward(winner, grad, out):  # type: ignore[no-untyped-def]
    for row in range(grad.shape[0]):
        for k in range(grad.shape[1]):
            if winner[row, k] >= 0:
                out[winner[row, k], k] += grad[row, k]
