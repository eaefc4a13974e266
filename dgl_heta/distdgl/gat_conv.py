"""GATConv inside HeteroGraphConv, in our attention kernels.

DGL's GATConv is what R-GAT scripts use per relation. Its scores are products of projected rows with
a vector per head, so they are products of the rows with a projected vector, of which there is one:
a_l · (W h) = (W^T a_l) · h. Messages are summed before or after W, whichever is less work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from dgl.nn.pytorch import GATConv
from torch import Tensor, nn
from torch.nn import functional

from dgl_heta.distdgl.plain import is_plain_module
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.sampling.blocks import RelationBlock

_EDGES_PER_SOURCE = 2
"""Below so many edges per source row summing rows before W is less work (measured on CPU)."""


def known(module: Any, rows: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether :func:`run_together` gives a relation's module's result; else its own `forward` does.

    It reads weights and calls nothing of the module, so there must be no hooks, and no other
    layers in place of the linear ones.
    """
    return (is_plain_module(module, GATConv) and not args and not kwargs
            and isinstance(rows, Tensor) and rows.dim() == 2
            and rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
            and module._allow_zero_in_degree and module.res_fc is None
            and not any(drop.p and drop.training for drop in (module.feat_drop, module.attn_drop))
            and all(is_plain_module(layer, nn.Linear) for layer in _linears(module))
            and not torch.is_autocast_cpu_enabled())


def _linears(module: Any) -> list[nn.Module]:
    return [module.fc_src, module.fc_dst] if hasattr(module, "fc_src") else [module.fc]


def run_together(calls: Sequence[tuple[Any, RelationBlock, Tensor, Tensor]]) -> list[Tensor]:
    """`GATConv.forward` of several relations, each (edges.num_rows, heads, out).

    `calls` are modules with their relation's edges and rows of both ends.
    """
    kernel, in_edges = kernel_in_use(), [edges.in_edges for _, edges, _, _ in calls]
    scores = kernel.u_add_v(
        in_edges,
        [source @ _scorer(_weights(m)[0], m.attn_l) for m, _, source, _ in calls],
        [destination @ _scorer(_weights(m)[1], m.attn_r) for m, _, _, destination in calls])
    weights = kernel.edge_softmax(
        in_edges, [m.leaky_relu(x) for (m, *_), x in zip(calls, scores)])
    before = [len(edges.indices) <= _EDGES_PER_SOURCE * len(source)
              for _, edges, source, _ in calls]
    summed = kernel.u_mul_e_sum(in_edges, [
        source if alone else functional.linear(source, _weights(m)[0]).view(
            -1, m._num_heads, m._out_feats)
        for (m, _, source, _), alone in zip(calls, before)], weights)
    return [_finished(m, rows, alone) for (m, *_), rows, alone in zip(calls, summed, before)]


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """The weights of source and destination rows, (heads * out, in) each."""
    layers = _linears(module)
    return layers[0].weight, layers[-1].weight  # type: ignore[return-value]


def _finished(module: Any, rows: Tensor, alone: bool) -> Tensor:
    """What follows the sum over neighbours: W, where it was not taken before, and the bias."""
    heads, out = module._num_heads, module._out_feats
    if alone:
        rows = torch.einsum("rhf,hdf->rhd", rows, _weights(module)[0].view(heads, out, -1))
    if module.has_explicit_bias:
        rows = rows + module.bias.view(1, heads, out)
    return module.activation(rows) if module.activation else rows


def _scorer(weight: Tensor, attention: Tensor) -> Tensor:
    """W^T a per head: (heads * out, in) and (1, heads, out) to (in, heads)."""
    _, heads, out = attention.shape
    return torch.einsum("hdf,hd->fh", weight.view(heads, out, -1), attention[0])
