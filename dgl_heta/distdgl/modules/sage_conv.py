"""SAGEConv inside HeteroGraphConv: all relations' means and products in the kernel in use.

DGL's SAGEConv with the mean is W_self h_v + W_neigh mean(h_u). The mean comes before or after
W_neigh, whichever makes rows narrower, as in DGL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dgl.nn.pytorch import SAGEConv
from torch import Tensor, nn
from torch.nn import functional

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.relation_call import RelationCall, run_alike
from dgl_heta.nn.aggregate import reduce_each
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.row_parts import Part


def fits(call: RelationCall) -> bool:
    """Return whether :func:`run_together` gives the call's result."""
    # It calls nothing of the module, so there must be no hooks and no dropout; and its kernels
    # know nothing of autocast.
    module = call.module
    return (is_plain_module(module, SAGEConv) and module._aggre_type == "mean"
            and not call.args and not call.kwargs
            and type(module.feat_drop) is nn.Dropout
            and not (module.feat_drop.p and module.feat_drop.training)
            and all(is_plain_module(layer, nn.Linear)
                    for layer in (module.fc_self, module.fc_neigh))
            and module.fc_neigh.bias is None
            and all(isinstance(x, Tensor) and x.dim() == 2
                    and x.dtype == module.fc_self.weight.dtype
                    for x in (call.source, call.destination))
            and not torch.is_autocast_enabled() and not torch.is_autocast_cpu_enabled())


def run_together(calls: Sequence[RelationCall]) -> list[Part]:
    """Return `SAGEConv.forward` of several relations, (edges.num_rows, out) each.

    Calls whose weights are of one shape are computed together.
    """
    return [(call.edges, value) for call, value in zip(calls, run_alike(calls, _shapes, _run))]


def _shapes(call: RelationCall) -> tuple[torch.Size, torch.Size]:
    return call.module.fc_neigh.weight.shape, call.module.fc_self.weight.shape


def _run(calls: list[RelationCall]) -> list[Tensor]:
    kernel, modules = kernel_in_use(), [call.module for call in calls]
    in_edges, sources = [call.in_edges for call in calls], [call.source for call in calls]
    out, width = modules[0].fc_neigh.weight.shape
    if width > out:  # the shorter rows are the ones to average
        projected = [functional.linear(x, m.fc_neigh.weight) for m, x in zip(modules, sources)]
        means = reduce_each(in_edges, projected, "mean")
    else:
        means = kernel.matmul(reduce_each(in_edges, sources, "mean"),
                              [m.fc_neigh.weight.t() for m in modules])
    of_self = kernel.matmul(
        kernel.gather([call.destination for call in calls], [call.edges.index for call in calls]),
        [m.fc_self.weight.t() for m in modules])
    return [_finished(m, x + mean) for m, x, mean in zip(modules, of_self, means)]


def _finished(module: Any, rows: Tensor) -> Tensor:
    """Apply what follows the two products: the bias, the activation, the norm."""
    if module.fc_self.bias is not None:  # DGL has the one bias there
        rows = rows + module.fc_self.bias
    if module.activation is not None:
        rows = module.activation(rows)
    return rows if module.norm is None else module.norm(rows)
