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

from dgl_heta.nn.attention import attend, segment_softmax
from dgl_heta.nn.messages import edge_add, weighted_sum
from dgl_heta.sampling.blocks import RelationBlock

_EDGES_PER_SOURCE = 2
"""Below so many edges per source row summing rows before W is less work (measured on CPU)."""


def known(module: Any, rows: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether :func:`run` gives a relation's module's result; else its own `forward` does.

    It reads weights and calls nothing of the module, so there must be no hooks, and no other
    layers in place of the linear ones.
    """
    return (type(module) is GATConv and not args and not kwargs
            and isinstance(rows, Tensor) and rows.dim() == 2
            and rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
            and module._allow_zero_in_degree and module.res_fc is None
            and not any(drop.p and drop.training for drop in (module.feat_drop, module.attn_drop))
            and all(type(layer) is nn.Linear for layer in _linears(module))
            and not any(hooks for part in module.modules() for hooks in (
                part._forward_hooks, part._forward_pre_hooks, part._backward_hooks,
                part._backward_pre_hooks))
            and not torch.is_autocast_cpu_enabled())


def _linears(module: Any) -> list[nn.Module]:
    return [module.fc_src, module.fc_dst] if hasattr(module, "fc_src") else [module.fc]


def run(module: Any, edges: RelationBlock, source: Tensor, destination: Tensor) -> Tensor:
    """`GATConv.forward` from rows of both ends, (edges.num_rows, heads, out)."""
    heads, out = module._num_heads, module._out_feats
    both = hasattr(module, "fc_src")
    to_source = (module.fc_src if both else module.fc).weight
    to_destination = (module.fc_dst if both else module.fc).weight
    left = source @ _scorer(to_source, module.attn_l)
    right = destination @ _scorer(to_destination, module.attn_r)
    scores = module.leaky_relu(edge_add(edges.indptr, edges.indices, left, right))
    weights = segment_softmax(edges.indptr, scores)
    if len(edges.indices) <= _EDGES_PER_SOURCE * len(source):
        summed = attend(edges.indptr, edges.indices, weights, source)
        rows = torch.einsum("rhf,hdf->rhd", summed, to_source.view(heads, out, -1))
    else:
        rows = weighted_sum(edges.indptr, edges.indices,
                            functional.linear(source, to_source).view(-1, heads, out), weights)
    if module.has_explicit_bias:
        rows = rows + module.bias.view(1, heads, out)
    return module.activation(rows) if module.activation else rows


def _scorer(weight: Tensor, attention: Tensor) -> Tensor:
    """W^T a per head: (heads * out, in) and (1, heads, out) to (in, heads)."""
    _, heads, out = attention.shape
    return torch.einsum("hdf,hd->fh", weight.view(heads, out, -1), attention[0])
