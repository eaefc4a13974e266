"""SAGEConv inside HeteroGraphConv: all relations' means and products in the kernel in use.

DGL's SAGEConv with the mean is W_self h_v + W_neigh mean(h_u). The mean comes before or after
W_neigh, whichever makes rows narrower, as in DGL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from dgl.nn.pytorch import SAGEConv
from torch import Tensor, nn
from torch.nn import functional

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.nn.aggregate import reduce_each
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.sampling.blocks import InEdges, RelationBlock


def known(module: Any, source: Any, rows: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
          ) -> bool:
    """Whether :func:`run_together` gives a relation's module's result; else its own `forward` does.

    `source` and `rows` are the rows of both ends.
    """
    return (is_plain_module(module, SAGEConv) and module._aggre_type == "mean"
            and not args and not kwargs
            and not (module.feat_drop.p and module.feat_drop.training)
            and all(is_plain_module(layer, nn.Linear) for layer in (module.fc_self,
                                                                    module.fc_neigh))
            and module.fc_neigh.bias is None
            and all(isinstance(x, Tensor) and x.dim() == 2
                    and x.dtype == module.fc_self.weight.dtype for x in (source, rows))
            and not torch.is_autocast_enabled() and not torch.is_autocast_cpu_enabled())


def run_together(calls: Sequence[tuple[Any, RelationBlock, Tensor, Tensor]]) -> list[Tensor]:
    """`SAGEConv.forward` of several relations, each (edges.num_rows, out).

    `calls` are modules with their relation's edges, the source rows and those of all destinations.
    Calls whose weights are of one shape are computed together.
    """
    results: dict[int, Tensor] = {}
    alike: dict[Any, list[int]] = {}
    for place, (module, *_) in enumerate(calls):
        alike.setdefault((module.fc_neigh.weight.shape, module.fc_self.weight.shape),
                         []).append(place)
    for places in alike.values():
        results.update(zip(places, _together([calls[place] for place in places])))
    return [results[place] for place in range(len(calls))]


def _together(calls: Sequence[tuple[Any, RelationBlock, Tensor, Tensor]]) -> list[Tensor]:
    kernel = kernel_in_use()
    modules = [module for module, *_ in calls]
    edges = [InEdges(each.indptr.to(source.device), each.indices.to(source.device))
             for _, each, source, _ in calls]
    sources: Sequence[Tensor] = [source for _, _, source, _ in calls]
    out, width = modules[0].fc_neigh.weight.shape
    if width > out:
        means = reduce_each(edges, [functional.linear(x, m.fc_neigh.weight)
                                    for m, x in zip(modules, sources)], "mean")
    else:
        means = kernel.matmul(reduce_each(edges, sources, "mean"),
                              [m.fc_neigh.weight.t() for m in modules])
    own = kernel.matmul(
        kernel.gather([rows for *_, rows in calls], [each.index for _, each, _, _ in calls]),
        [m.fc_self.weight.t() for m in modules])
    return [_finished(*each) for each in zip(modules, own, means)]


def _finished(module: Any, own: Tensor, mean: Tensor) -> Tensor:
    """What follows the two products: the bias, the activation, the norm."""
    rows = own + mean
    if module.fc_self.bias is not None:
        rows = rows + module.fc_self.bias
    if module.activation is not None:
        rows = module.activation(rows)
    return rows if module.norm is None else module.norm(rows)
