"""GATConv inside HeteroGraphConv, in our attention kernels.

DGL's GATConv is what R-GAT scripts use per relation. Its scores are products of projected rows with
a vector per head, so they are products of the rows with a projected vector, of which there is one:
a_l · (W h) = (W^T a_l) · h. Messages are summed before or after W, whichever is less work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from dgl.nn.pytorch import GATConv
from torch import Tensor, nn

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.relation_call import RelationCall, run_alike
from dgl_heta.nn.aggregate import attend_each
from dgl_heta.nn.graph_attention import SLOPE
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.row_parts import Part
from dgl_heta.planning.compute import attended_before
from dgl_heta.sampling.blocks import RelationBlock


def fits(call: RelationCall) -> bool:
    """Return whether :func:`run_together` gives the call's result."""
    # It reads weights and calls nothing of the module, so there must be no hooks, and no other
    # layers in place of its own.
    module, rows = call.module, call.source
    return (is_plain_module(module, GATConv) and not call.args and not call.kwargs
            and isinstance(rows, Tensor) and rows.dim() == 2
            and rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
            and module._allow_zero_in_degree and module.res_fc is None
            and all(type(drop) is nn.Dropout and not (drop.p and drop.training)
                    for drop in (module.feat_drop, module.attn_drop))
            and all(is_plain_module(layer, nn.Linear) and layer.bias is None
                    for layer in _linears(module))
            and is_plain_module(module.leaky_relu, nn.LeakyReLU)
            and module.leaky_relu.negative_slope == SLOPE
            and module.attn_l.shape == module.attn_r.shape == (
                1, module._num_heads, module._out_feats)
            and not torch.is_autocast_cpu_enabled())


def run_together(calls: Sequence[RelationCall]) -> list[Part]:
    """Return `GATConv.forward` of several relations, (rows, heads, out) each, with the rows.

    Calls whose rows and heads are of one shape are computed together.
    """
    calls = [replace(call, edges=call.edges.with_edges())
             if call.summed and _is_zero_without_edges(call.module) else call for call in calls]
    of_rows = _of_rows(calls)
    values = run_alike(calls, _kind, lambda some: _run(some, [of_rows[id(x)] for x in some]))
    return [(call.edges, _finished(call.module, value)) for call, value in zip(calls, values)]


def _kind(call: RelationCall) -> tuple[int, int, int, bool]:
    """Return what calls have in common that run together: the width of rows, heads, their width,
    and whether weights come before sums, which each relation's edges decide."""
    width, heads, out = call.source.shape[1], call.module._num_heads, call.module._out_feats
    edges = len(call.edges.indices)
    return width, heads, out, attended_before(
        min(len(call.source), edges), edges, call.edges.num_rows, width, heads, out)


def _of_rows(calls: Sequence[RelationCall]) -> dict[int, Tensor]:
    """Return by a call's identity what its rows add to scores, (rows, heads): one product for all
    relations into a node type."""
    into: dict[int, list[RelationCall]] = {}
    for call in calls:
        into.setdefault(id(call.destination), []).append(call)
    values: dict[int, Tensor] = {}
    for some in into.values():
        scorers = [_scorer(_weights(call.module)[1], call.module.attn_r) for call in some]
        (states,) = kernel_in_use().gather(
            [some[0].destination], [slice(0, max(_end(call.edges) for call in some))])
        scores = (states @ torch.cat(scorers, 1)).split([x.shape[1] for x in scorers], 1)
        values.update((id(call), call.edges.of(x)) for call, x in zip(some, scores))
    return values


def _end(edges: RelationBlock) -> int:
    """Return up to which destination row there are some of the edges' rows."""
    return edges.stop if edges.rows is None else int(edges.rows.max()) + 1 if edges.num_rows else 0


def _run(calls: list[RelationCall], of_rows: list[Tensor]) -> Sequence[Tensor]:
    modules = [call.module for call in calls]
    _, heads, out, before = _kind(calls[0])
    weights = torch.stack([_weights(module)[0].t().view(-1, heads, out) for module in modules])
    return attend_each([call.in_edges for call in calls], [call.source for call in calls], weights,
                       [module.attn_l[0] for module in modules], of_rows, before)


def _linears(module: Any) -> list[nn.Module]:
    return [module.fc_src, module.fc_dst] if hasattr(module, "fc_src") else [module.fc]


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """Return the weights of source and destination rows, (heads * out, in) each."""
    layers = _linears(module)
    return layers[0].weight, layers[-1].weight  # type: ignore[return-value]


def _is_zero_without_edges(module: Any) -> bool:
    return not module.has_explicit_bias and not module.activation


def _finished(module: Any, rows: Tensor) -> Tensor:
    """Apply what follows the sum over neighbours and W: the bias and the activation."""
    if module.has_explicit_bias:
        rows = rows + module.bias.view(1, module._num_heads, module._out_feats)
    return module.activation(rows) if module.activation else rows


def _scorer(weight: Tensor, attention: Tensor) -> Tensor:
    """Return W^T a per head: (heads * out, in) and (1, heads, out) to (in, heads)."""
    _, heads, out = attention.shape
    return torch.einsum("hdf,hd->fh", weight.view(heads, out, -1), attention[0])
