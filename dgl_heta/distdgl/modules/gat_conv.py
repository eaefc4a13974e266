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

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.nn.joined import elementwise
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

    `calls` are modules with their relation's edges, the source rows and those of all destinations.
    Calls whose rows and heads are of one shape are computed together.
    """
    results: dict[int, Tensor] = {}
    alike: dict[Any, list[int]] = {}
    for place, (module, _, source, rows) in enumerate(calls):
        alike.setdefault((source.shape[1], rows.shape[1], module._num_heads, module._out_feats),
                         []).append(place)
    for places in alike.values():
        results.update(zip(places, _together([calls[place] for place in places])))
    return [results[place] for place in range(len(calls))]


def _together(calls: Sequence[tuple[Any, RelationBlock, Tensor, Tensor]]) -> list[Tensor]:
    kernel, in_edges = kernel_in_use(), [edges.in_edges for _, edges, _, _ in calls]
    sources = [source for _, _, source, _ in calls]
    counts = [len(edges.indices) for _, edges, _, _ in calls]
    of_rows = kernel.matmul(
        kernel.gather([rows for *_, rows in calls], [edges.index for _, edges, _, _ in calls]),
        torch.stack([_scorer(_weights(m)[1], m.attn_r) for m, *_ in calls]))
    scorers = [_scorer(_weights(m)[0], m.attn_l) for m, *_ in calls]
    if sum(counts) <= sum(map(len, sources)):
        scores = elementwise(torch.add, kernel.u_mm(in_edges, sources, torch.stack(scorers)),
                             kernel.copy_v(in_edges, of_rows))
    else:
        scores = kernel.u_add_v(in_edges, [x @ scorer for x, scorer in zip(sources, scorers)],
                                of_rows)
    slopes = {m.leaky_relu.negative_slope for m, *_ in calls}
    if len(slopes) == 1 and all(type(m.leaky_relu) is nn.LeakyReLU for m, *_ in calls):
        slope = slopes.pop()
        scores = elementwise(lambda x: functional.leaky_relu(x, slope), scores)
    else:
        scores = [m.leaky_relu(x) for (m, *_), x in zip(calls, scores)]
    weights = kernel.edge_softmax(in_edges, scores)
    # Messages are summed before or after W, whichever is less work.
    before = [count <= _EDGES_PER_SOURCE * len(source) for count, source in zip(counts, sources)]
    found: dict[int, Tensor] = {}
    for alone in (True, False):
        places = [place for place, this in enumerate(before) if this == alone]
        if not places:
            continue
        summed = kernel.u_mul_e_sum(
            [in_edges[i] for i in places],
            [sources[i] if alone else functional.linear(
                sources[i], _weights(calls[i][0])[0]).view(
                    -1, calls[i][0]._num_heads, calls[i][0]._out_feats) for i in places],
            weights if len(places) == len(calls) else [weights[i] for i in places])
        if alone:
            summed = kernel.matmul(summed, [
                _weights(calls[i][0])[0].view(calls[i][0]._num_heads, calls[i][0]._out_feats, -1)
                .transpose(1, 2) for i in places])
        found.update(zip(places, summed))
    return [_finished(m, found[place]) for place, (m, *_) in enumerate(calls)]


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """The weights of source and destination rows, (heads * out, in) each."""
    layers = _linears(module)
    return layers[0].weight, layers[-1].weight  # type: ignore[return-value]


def _finished(module: Any, rows: Tensor) -> Tensor:
    """What follows the sum over neighbours and W: the bias and the activation."""
    if module.has_explicit_bias:
        rows = rows + module.bias.view(1, module._num_heads, module._out_feats)
    return module.activation(rows) if module.activation else rows


def _scorer(weight: Tensor, attention: Tensor) -> Tensor:
    """W^T a per head: (heads * out, in) and (1, heads, out) to (in, heads)."""
    _, heads, out = attention.shape
    return torch.einsum("hdf,hd->fh", weight.view(heads, out, -1), attention[0])
