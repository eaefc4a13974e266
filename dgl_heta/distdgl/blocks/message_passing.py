"""DGL's message passing on a relation of a RAF block, by our kernels where they fit.

A script's own modules (GATConv, a hand-written attention) call DGL's message functions on the
graph of one relation. That graph was made from CSC, and carries it; the usual functions then run in
one pass over the edges, forward and backward. Whatever does not fit is DGL's own, as before: other
functions and shapes, other graphs, other devices, half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dgl.base import is_all
from torch import Tensor

from dgl_heta.distdgl.blocks.relation_graph import RelationEdges
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.versions import homes
from dgl_heta.nn.aggregate import segment_reduce
from dgl_heta.nn.attended import edge_dots, weighted_sums
from dgl_heta.nn.gradient_hub import shaped
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.system.patching import patch_all


def spmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replace DGL's `gspmm`: messages from sources and edges, reduced per destination."""
    def gspmm(gidx: Any, op: str, reduce_op: str, lhs: Any, rhs: Any) -> Tensor:
        edges = _edges_of(gidx, f"gspmm ({op}, {reduce_op})")
        if edges is None:
            return original(gidx, op, reduce_op, lhs, rhs)
        if reduce_op == "sum":  # a mean is a sum that DGL divides by degrees
            rows = _summed(edges, op, lhs, rhs)
            if rows is not None:
                return rows
        if reduce_op in EXTREMES and not edges.sources and len(edges.indptr) > 1:
            # DGL's own backward pass would look for a source row.
            lhs, rhs = (x.detach() if isinstance(x, Tensor) else x for x in (lhs, rhs))
        return original(gidx, op, reduce_op, lhs, rhs)
    return gspmm


def _summed(edges: RelationEdges, op: str, lhs: Any, rhs: Any) -> Tensor | None:
    """Return sums over in-edges by our kernels, (destinations, …), or None where none fits."""
    if op == "copy_lhs" and _ours(lhs) and edges.fits(lhs):
        rows = segment_reduce(edges.indptr, edges.indices,
                              shaped(lhs, len(lhs), lhs.shape[1:].numel()), "sum")
        return rows.view(-1, *lhs.shape[1:])
    if op == "mul" and _ours(lhs, rhs) and edges.fits(lhs) and _per_head(lhs, rhs):
        heads = lhs.shape[1:-1].numel()
        rows = weighted_sums(edges.in_edges, shaped(lhs, len(lhs), heads, lhs.shape[-1]),
                             rhs.reshape(-1, heads), edges.reads)
        return rows.view(-1, *lhs.shape[1:])
    return None


def sddmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replace DGL's `gsddmm`: a value per edge from its ends."""
    def gsddmm(gidx: Any, op: str, lhs: Any, rhs: Any, lhs_target: str = "u",
               rhs_target: str = "v") -> Tensor:
        edges = _edges_of(gidx, f"gsddmm ({op})")
        if edges is not None and op in ("add", "dot") and _ours(lhs, rhs) and (
                {lhs_target, rhs_target} == {"u", "v"} and lhs.shape[1:] == rhs.shape[1:]):
            source, destination = (lhs, rhs) if lhs_target == "u" else (rhs, lhs)
            if edges.fits(source) and len(destination) == len(edges.indptr) - 1:
                return _of_ends(edges, op, source, destination)
        return original(gidx, op, lhs, rhs, lhs_target, rhs_target)
    return gsddmm


def _of_ends(edges: RelationEdges, op: str, source: Tensor, destination: Tensor) -> Tensor:
    """Return sums or dot products of both ends' rows, (edges, …)."""
    if op == "add":
        (values,) = kernel_in_use().u_add_v(
            [edges.in_edges], [shaped(source, len(source), source.shape[1:].numel())],
            [destination.flatten(1)])
        return values.view(-1, *source.shape[1:])
    # DGL's dot product is over the last dimension, for each of the others.
    heads = (source.shape[1:-1].numel(), source.shape[-1])
    values = edge_dots(edges.in_edges, shaped(source, len(source), *heads),
                       destination.reshape(len(destination), *heads), edges.reads)
    return values.view(-1, *source.shape[1:-1], 1)


def softmax(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replace DGL's `edge_softmax`: over the in-edges of a destination."""
    def edge_softmax(gidx: Any, logits: Any, eids: Any = "__ALL__", norm_by: str = "dst"
                     ) -> Tensor:
        edges = getattr(gidx, "heta_edges", None)
        partial = getattr(gidx, "partial", False)
        if partial and (gidx.number_of_etypes() > 1 or not is_all(eids)):
            refuse("edges of a block",
                   operation="edge_softmax of several relations, or of some edges")
        if norm_by == "src" and (partial or (edges is not None and not edges.whole)):
            refuse("edge_softmax by sources")
        if partial:  # a slice: its logits are rows of edges, its graph is that of the layer
            return gidx.of_edges(logits, lambda index, rows: edge_softmax(
                index, rows, norm_by=norm_by))
        if edges is not None and norm_by == "dst" and is_all(eids) and _ours(logits) and (
                len(logits) == len(edges.indices)):
            (values,) = kernel_in_use().edge_softmax([edges.in_edges], [logits.flatten(1)])
            return values.view(logits.shape)
        return original(gidx, logits, eids=eids, norm_by=norm_by)
    return edge_softmax


def _edges_of(gidx: Any, operation: str) -> RelationEdges | None:
    """Return the edges that the index of a relation's graph carries, None of any other; refuse that
    of a block, whose operation would leave out other machines' relations."""
    if getattr(gidx, "partial", False):
        refuse("edges of a block", operation=operation)
    edges: RelationEdges | None = getattr(gidx, "heta_edges", None)
    return edges


def _ours(*tensors: Any) -> bool:
    """Return whether these are rows of one dtype that the compiled kernels take."""
    return all(isinstance(t, Tensor) and t.dim() > 1 and t.device.type == "cpu"
               and t.dtype == tensors[0].dtype for t in tensors) and (
        tensors[0].dtype in (torch.float32, torch.float64))


def _per_head(lhs: Tensor, rhs: Tensor) -> bool:
    """Return whether each edge has one weight per head, (E, heads, 1) for (S, heads, width)."""
    return lhs.dim() == rhs.dim() and rhs.shape[-1] == 1 and lhs.shape[1:-1] == rhs.shape[1:-1]


PATCHES = (
    *patch_all(homes("gspmm"), spmm, "our kernels on relations of RAF blocks"),
    *patch_all(homes("gsddmm"), sddmm, "our kernels on relations of RAF blocks"),
    *patch_all(homes("edge_softmax"), softmax, "our kernels on relations of RAF blocks"),
)
