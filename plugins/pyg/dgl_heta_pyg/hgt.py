"""HGTConv over the workers of a group: one softmax over the in-edges by all relations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.nn import HGTConv
from torch_geometric.utils import scatter

from dgl_heta.tools import Block
from dgl_heta_pyg.hops import Hops
from dgl_heta_pyg.partial import complete
from dgl_heta_pyg.relation_edges import RelationEdges

if TYPE_CHECKING:
    from dgl_heta_pyg.merging import Merging


def attending(conv: HGTConv, merging: Merging) -> None:
    """Let a convolution attend over the edges of all workers."""
    # Its class is derived once, so that a model may have several, and its state stays as it is.
    if not isinstance(conv, _Attending):
        kind = type(conv)
        conv.__class__ = type(kind.__name__, (_Attending, kind), {"__module__": kind.__module__})
    # Past nn.Module's own attributes: the model has no part of this.
    conv.__dict__["merging"], conv.__dict__["rows"] = merging, {}


class _Attending(HGTConv):
    """The message passing of HGTConv (Hu et al. 2020, Eq. 3-5), as an online softmax.

    Of the scores of a seed's in-edges the maxima are merged first, and then the sums of
    exp(s - max) and of the messages weighted by it.
    """

    merging: Merging
    rows: dict[str, int]

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        if self.merging.hops is None:
            return super().forward(x_dict, edge_index_dict)
        x_dict = complete(x_dict)
        # In the order in which it puts the types' rows one after the other.
        self.rows = {t: len(x_dict[t]) for t in self.kqv_lin.lins if t in x_dict}
        return super().forward(x_dict, {
            r: edges.open() if isinstance(edges, RelationEdges) else edges
            for r, edges in edge_index_dict.items()})

    def propagate(self, edge_index: Any, k: Tensor, q: Tensor, v: Tensor, edge_attr: Tensor,  # type: ignore[override]
                  size: Any = None) -> Tensor:
        if self.merging.hops is None:
            return super().propagate(edge_index, k=k, q=q, v=v, edge_attr=edge_attr, size=size)
        source, row = edge_index
        hops, rows = self.merging.hops, len(q)
        scores = (q[row] * k[source]).sum(-1) * edge_attr / math.sqrt(q.shape[-1])
        top = torch.full((rows, self.heads), -torch.inf, dtype=scores.dtype, device=scores.device)
        top = top.scatter_reduce(0, row[:, None].expand_as(scores), scores.detach(), "amax")
        top = self._of_types(top, hops, "reduce_max")
        # A row without edges has no maximum, and none asks for it.
        weights = torch.exp(scores - top[row])
        messages = (v[source] * weights.unsqueeze(2)).flatten(1)
        sums = scatter(torch.cat([messages, weights], 1), row, 0, rows, "sum")
        sums = self._of_types(sums, hops, "reduce_sum")
        width = messages.shape[1]
        total = sums[:, width:].where(sums[:, width:] != 0, 1)
        return (sums[:, :width].view(rows, self.heads, -1) / total.unsqueeze(2)).flatten(1)

    def _of_types(self, rows: Tensor, hops: Hops, method: str) -> Tensor:
        """The rows of all types, those of seeds merged."""
        whole = []
        for (ntype, count), part in zip(self.rows.items(), rows.split([*self.rows.values()])):
            if ntype in hops.seeds and hops.seeds[ntype].total:
                layer = self.merging.agree(f"HGTConv's {method} of {ntype} ({part.shape[1]})")
                block = Block(layer, {}, {ntype: count}, [], hops.seeds, False, {}, {})
                part = getattr(self.merging.exchange, method)(part, block, ntype)
            whole.append(part)
        return torch.cat(whole)
