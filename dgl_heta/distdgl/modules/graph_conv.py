"""GraphConv inside HeteroGraphConv, without a DGL graph per relation.

DGL's GraphConv is what R-GCN scripts use per relation. Its aggregation runs in the kernel in use,
for all relations at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dgl.nn.pytorch import GraphConv
from torch import Tensor

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.relation_call import RelationCall, run_alike
from dgl_heta.nn.aggregate import reduce_each, segment_reduce
from dgl_heta.nn.gradient_hub import shaped
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.row_parts import Part
from dgl_heta.sampling.blocks import InEdges


def is_graph_conv(module: Any) -> bool:
    """Return whether a module is DGL's GraphConv, which reads no destinations."""
    return type(module) is GraphConv


def fits(call: RelationCall) -> bool:
    """Return whether :func:`run_together` gives the call's result."""
    # With another norm than 'right' and 'none' the module itself is called, and its graph says
    # whether the out-degrees that it asks for can be had (:mod:`...blocks.relation_graph`).
    module, rows = call.module, call.source
    return (is_plain_module(module, GraphConv) and isinstance(rows, Tensor)
            and rows.is_floating_point() and module._norm in ("right", "none")
            and module._allow_zero_in_degree and not call.args and set(call.kwargs) <= {"weight"}
            and (call.kwargs.get("weight") is None or module.weight is None))


def weight_of(module: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the weight of a call, (in, out): the script's, or the module's own."""
    given = kwargs.get("weight")
    return module.weight if given is None else given


def aggregate(module: Any, in_edges: InEdges, rows: Tensor) -> Tensor:
    """Return the sum or mean of source rows over in-edges, (destinations, …)."""
    flat = shaped(rows, len(rows), rows.shape[1:].numel())
    return segment_reduce(*in_edges, flat, _operation(module)).view(-1, *rows.shape[1:])


def run_together(calls: Sequence[RelationCall]) -> list[Part]:
    """Return `GraphConv.forward` of several relations, (rows, out) each, with the rows.

    One call of the kernel makes all sums or means, one all products with weights of a shape.
    """
    calls = [replace(call, edges=call.edges.with_edges())
             if call.summed and _is_zero_without_edges(call.module) else call for call in calls]
    return [(call.edges, _finished(call.module, value))
            for call, value in zip(calls, run_alike(calls, _kind, _run))]


def _kind(call: RelationCall) -> Hashable:
    """Return what calls have in common that run together."""
    if _is_apart(call):
        return "apart"
    weight = weight_of(call.module, call.kwargs)
    shape = None if weight is None else (*weight.shape, call.source.dtype == weight.dtype)
    return _operation(call.module), shape


def _is_apart(call: RelationCall) -> bool:
    """Return whether a call runs by itself: its rows are no vectors, or the weights come first."""
    return call.source.dim() != 2 or _narrows(call)


def _narrows(call: RelationCall) -> bool:
    """Return whether weights make rows narrower, so that they come first, as in DGL."""
    return (weight_of(call.module, call.kwargs) is not None
            and call.module._in_feats > call.module._out_feats)


def _run(calls: list[RelationCall]) -> Sequence[Tensor]:
    if _is_apart(calls[0]):
        return [_run_apart(call) for call in calls]
    weights = [weight_of(call.module, call.kwargs) for call in calls]
    values = reduce_each([call.in_edges for call in calls], [call.source for call in calls],
                         _operation(calls[0].module))
    if weights[0] is None:
        return values
    if calls[0].source.dtype == weights[0].dtype:
        return kernel_in_use().matmul(values, weights)  # type: ignore[arg-type]
    # Under autocast rows and weights differ, which PyTorch's own product serves.
    return [value @ weight for value, weight in zip(values, weights) if weight is not None]


def _run_apart(call: RelationCall) -> Tensor:
    weight = weight_of(call.module, call.kwargs)
    if weight is None:
        return aggregate(call.module, call.in_edges, call.source)
    if _narrows(call):
        return aggregate(call.module, call.in_edges, call.source @ weight)
    return aggregate(call.module, call.in_edges, call.source) @ weight


def _operation(module: Any) -> str:
    return "mean" if module._norm == "right" else "sum"


def _is_zero_without_edges(module: Any) -> bool:
    return module.bias is None and module._activation is None


def _finished(module: Any, rows: Tensor) -> Tensor:
    if module.bias is not None:
        rows = rows + module.bias
    return rows if module._activation is None else module._activation(rows)
