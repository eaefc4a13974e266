"""GATConv inside HeteroGraphConv, in our attention kernels.

DGL's GATConv is what R-GAT scripts use per relation. Its scores are products of projected rows with
a vector per head, so they are products of the rows with a projected vector, of which there is one:
a_l · (W h) = (W^T a_l) · h. Messages are summed before or after W, whichever is less work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dgl.nn.pytorch import GATConv
from torch import Tensor, nn
from torch.nn import functional

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.relation_call import RelationCall, run_alike
from dgl_heta.nn.joined import elementwise
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.row_parts import Part
from dgl_heta.planning.compute import EDGES_PER_SOURCE
from dgl_heta.sampling.blocks import InEdges


def fits(call: RelationCall) -> bool:
    """Return whether :func:`run_together` gives the call's result."""
    # It reads weights and calls nothing of the module, so there must be no hooks, and no other
    # layers in place of the linear ones.
    module, rows = call.module, call.source
    return (is_plain_module(module, GATConv) and not call.args and not call.kwargs
            and isinstance(rows, Tensor) and rows.dim() == 2
            and rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
            and module._allow_zero_in_degree and module.res_fc is None
            and not any(drop.p and drop.training for drop in (module.feat_drop, module.attn_drop))
            and all(is_plain_module(layer, nn.Linear) for layer in _linears(module))
            and not torch.is_autocast_cpu_enabled())


def run_together(calls: Sequence[RelationCall]) -> list[Part]:
    """Return `GATConv.forward` of several relations, (edges.num_rows, heads, out) each.

    Calls whose rows and heads are of one shape are computed together.
    """
    return [(call.edges, value) for call, value in zip(calls, run_alike(calls, _shapes, _run))]


def _shapes(call: RelationCall) -> tuple[int, ...]:
    return (call.source.shape[1], call.destination.shape[1], call.module._num_heads,
            call.module._out_feats)


def _run(calls: list[RelationCall]) -> list[Tensor]:
    modules, in_edges = [call.module for call in calls], [call.in_edges for call in calls]
    weights = kernel_in_use().edge_softmax(in_edges, _scores(calls, in_edges))
    # Each relation by itself: its edges decide whether W is applied to messages or to their sum.
    before = [len(call.edges.indices) <= EDGES_PER_SOURCE * len(call.source) for call in calls]
    sums: dict[int, Tensor] = {}
    for sum_first in (True, False):
        numbers = [number for number, this in enumerate(before) if this == sum_first]
        if numbers:
            # All of them as they are: a kernel may have joined them in one tensor.
            of_edges = weights if len(numbers) == len(calls) else [weights[i] for i in numbers]
            values = _weighted_sums([calls[i] for i in numbers], of_edges, sum_first)
            sums.update(zip(numbers, values))
    return [_finished(module, sums[number]) for number, module in enumerate(modules)]


def _scores(calls: Sequence[RelationCall], in_edges: Sequence[InEdges]) -> Sequence[Tensor]:
    """Return the attention scores before the softmax, (edges, heads) for each call."""
    kernel, modules = kernel_in_use(), [call.module for call in calls]
    sources = [call.source for call in calls]
    of_destinations = kernel.matmul(
        kernel.gather([call.destination for call in calls], [call.edges.index for call in calls]),
        # Stacked, not listed: one product for all relations.
        torch.stack([_scorer(_weights(module)[1], module.attn_r) for module in modules]))
    scorers = [_scorer(_weights(module)[0], module.attn_l) for module in modules]
    if sum(len(call.edges.indices) for call in calls) <= sum(map(len, sources)):
        # Fewer edges than source rows: only the rows that edges read are multiplied.
        scores = elementwise(torch.add, kernel.u_mm(in_edges, sources, torch.stack(scorers)),
                             kernel.copy_v(in_edges, of_destinations))
    else:
        of_sources = [rows @ scorer for rows, scorer in zip(sources, scorers)]
        scores = kernel.u_add_v(in_edges, of_sources, of_destinations)
    slopes = {module.leaky_relu.negative_slope for module in modules}
    if len(slopes) == 1 and all(type(m.leaky_relu) is nn.LeakyReLU for m in modules):
        slope = slopes.pop()
        return elementwise(lambda x: functional.leaky_relu(x, slope), scores)
    return [module.leaky_relu(x) for module, x in zip(modules, scores)]


def _weighted_sums(calls: Sequence[RelationCall], weights: Sequence[Tensor], sum_first: bool
                   ) -> Sequence[Tensor]:
    """Return Σ w_e W h over in-edges, (rows, heads, out); W is applied last if `sum_first`."""
    kernel, in_edges = kernel_in_use(), [call.in_edges for call in calls]
    of_heads = [_weights(call.module)[0].view(call.module._num_heads, call.module._out_feats, -1)
                for call in calls]
    if sum_first:
        sums = kernel.u_mul_e_sum(in_edges, [call.source for call in calls], weights)
        return kernel.matmul(sums, [weight.transpose(1, 2) for weight in of_heads])
    projected = [functional.linear(call.source, _weights(call.module)[0]).view(
        -1, *weight.shape[:2]) for call, weight in zip(calls, of_heads)]
    return kernel.u_mul_e_sum(in_edges, projected, weights)


def _linears(module: Any) -> list[nn.Module]:
    return [module.fc_src, module.fc_dst] if hasattr(module, "fc_src") else [module.fc]


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """Return the weights of source and destination rows, (heads * out, in) each."""
    layers = _linears(module)
    return layers[0].weight, layers[-1].weight  # type: ignore[return-value]


def _finished(module: Any, rows: Tensor) -> Tensor:
    """Apply what follows the sum over neighbours and W: the bias and the activation."""
    if module.has_explicit_bias:
        rows = rows + module.bias.view(1, module._num_heads, module._out_feats)
    return module.activation(rows) if module.activation else rows


def _scorer(weight: Tensor, attention: Tensor) -> Tensor:
    """Return W^T a per head: (heads * out, in) and (1, heads, out) to (in, heads)."""
    _, heads, out = attention.shape
    return torch.einsum("hdf,hd->fh", weight.view(heads, out, -1), attention[0])
