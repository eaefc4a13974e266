"""DGL's message passing on a relation of a RAF block, by our kernels where they fit.

A script's own modules (GATConv, a hand-written attention) call DGL's message functions on the
graph of one relation. That graph was made from CSC, and carries it; the usual functions then run in
one pass over the edges, forward and backward. Whatever does not fit is DGL's own, as before: other
functions and shapes, other graphs, other devices, half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from dgl.base import is_all
from torch import Tensor

from dgl_heta.distdgl.blocks.block_names import EDGES, refuse, refuse_partial
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.nn.aggregate import segment_reduce
from dgl_heta.nn.attended import Reads, edge_dots, weighted_sums
from dgl_heta.nn.gradient_hub import shaped
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.system.patching import patch_all


class Edges(NamedTuple):
    """CSC of a relation's graph, its attribute `heta_edges`; edge ids are in its order.

    `whole` says whether the edges out of each source are there, too, as in plain DGL; `reads`
    counts all relations of the layer from the same sources.
    """

    indptr: Tensor
    indices: Tensor
    sources: int
    whole: bool
    reads: Reads

    @property
    def in_edges(self) -> InEdges:
        return InEdges(self.indptr, self.indices)

    def fits(self, rows: Tensor) -> bool:
        """Whether these are the rows of the sources; DGL says what is wrong if not."""
        return len(rows) == self.sources


def spmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replaces DGL's `gspmm`: messages from sources and edges, reduced per destination."""
    def gspmm(gidx: Any, op: str, reduce_op: str, lhs: Any, rhs: Any) -> Tensor:
        refuse_partial(gidx, f"gspmm ({op}, {reduce_op})")
        edges = getattr(gidx, "heta_edges", None)
        if edges is not None and reduce_op == "sum":
            if op == "copy_lhs" and _ours(lhs) and edges.fits(lhs):
                rows = segment_reduce(edges.indptr, edges.indices,
                                      shaped(lhs, len(lhs), lhs.shape[1:].numel()), "sum")
                return rows.view(-1, *lhs.shape[1:])
            if op == "mul" and _ours(lhs, rhs) and edges.fits(lhs) and _per_head(lhs, rhs):
                heads = lhs.shape[1:-1].numel()
                rows = weighted_sums(edges.in_edges, shaped(lhs, len(lhs), heads, lhs.shape[-1]),
                                     rhs.reshape(-1, heads), edges.reads)
                return rows.view(-1, *lhs.shape[1:])
        if edges is not None and reduce_op in ("max", "min") and not edges.sources and (
                len(edges.indptr) > 1):
            # DGL's own backward pass would look for a source row.
            lhs, rhs = (x.detach() if isinstance(x, Tensor) else x for x in (lhs, rhs))
        return original(gidx, op, reduce_op, lhs, rhs)
    return gspmm


def sddmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replaces DGL's `gsddmm`: a value per edge from its ends."""
    def gsddmm(gidx: Any, op: str, lhs: Any, rhs: Any, lhs_target: str = "u",
               rhs_target: str = "v") -> Tensor:
        refuse_partial(gidx, f"gsddmm ({op})")
        edges = getattr(gidx, "heta_edges", None)
        if edges is not None and op in ("add", "dot") and _ours(lhs, rhs) and (
                {lhs_target, rhs_target} == {"u", "v"} and lhs.shape[1:] == rhs.shape[1:]):
            source, destination = (lhs, rhs) if lhs_target == "u" else (rhs, lhs)
            if not edges.fits(source) or len(destination) != len(edges.indptr) - 1:
                return original(gidx, op, lhs, rhs, lhs_target, rhs_target)
            if op == "add":
                (values,) = kernel_in_use().u_add_v(
                    [edges.in_edges], [shaped(source, len(source), source.shape[1:].numel())],
                    [destination.flatten(1)])
                return values.view(-1, *source.shape[1:])
            heads = (source.shape[1:-1].numel(), source.shape[-1])
            values = edge_dots(edges.in_edges, shaped(source, len(source), *heads),
                               destination.reshape(len(destination), *heads), edges.reads)
            return values.view(-1, *source.shape[1:-1], 1)
        return original(gidx, op, lhs, rhs, lhs_target, rhs_target)
    return gsddmm


def softmax(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replaces DGL's `edge_softmax`: over the in-edges of a destination."""
    def edge_softmax(gidx: Any, logits: Any, eids: Any = "__ALL__", norm_by: str = "dst"
                     ) -> Tensor:
        if getattr(gidx, "partial", False):
            if gidx.number_of_etypes() > 1 or not is_all(eids):
                refuse("edge_softmax of several relations, or of some edges", EDGES)
            if norm_by == "src":
                raise HetaError(_BY_SOURCE)
            return gidx.of_edges(logits, lambda index, rows: edge_softmax(
                index, rows, norm_by=norm_by))
        edges = getattr(gidx, "heta_edges", None)
        if edges is not None and norm_by == "src" and not edges.whole:
            raise HetaError(_BY_SOURCE)
        if edges is not None and norm_by == "dst" and is_all(eids) and _ours(logits) and (
                len(logits) == len(edges.indices)):
            (values,) = kernel_in_use().edge_softmax([edges.in_edges], [logits.flatten(1)])
            return values.view(logits.shape)
        return original(gidx, logits, eids=eids, norm_by=norm_by)
    return edge_softmax


_BY_SOURCE = ("edge_softmax with norm_by='src' cannot be used on a meta-partitioned graph: edges "
              "are those of the seeds of all trainers, so it would depend on theirs; use "
              "norm_by='dst'")


def _ours(*tensors: Any) -> bool:
    """Rows of one kind of number that the compiled kernels take."""
    return all(isinstance(t, Tensor) and t.dim() > 1 and t.device.type == "cpu"
               and t.dtype == tensors[0].dtype for t in tensors) and (
        tensors[0].dtype in (torch.float32, torch.float64))


def _per_head(lhs: Tensor, rhs: Tensor) -> bool:
    """Whether each edge has one weight per head, (E, heads, 1) for (S, heads, width)."""
    return lhs.dim() == rhs.dim() and rhs.shape[-1] == 1 and lhs.shape[1:-1] == rhs.shape[1:-1]


PATCHES = (
    *patch_all(homes("gspmm"), spmm, "our kernels on relations of RAF blocks"),
    *patch_all(homes("gsddmm"), sddmm, "our kernels on relations of RAF blocks"),
    *patch_all(homes("edge_softmax"), softmax, "our kernels on relations of RAF blocks"),
)
