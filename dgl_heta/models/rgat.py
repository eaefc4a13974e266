"""R-GAT: a graph attention network per relation, merged over relations (Heta §2.1).

Veličković et al. 2018, "Graph Attention Networks", https://arxiv.org/abs/1710.10903.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.models.hgnn import HGNNLayer
from dgl_heta.models.relations import Relations
from dgl_heta.models.spec import ModelSpec, slot


class RelationAttention(nn.Module):
    """Weights of an attention of several heads over one relation's neighbours (GAT, Eq. 3 and 5).

    α_uv = softmax_u LeakyReLU(a · W h_u + b · W h_v), result ‖_heads Σ_u α_uv W h_u. Products
    with W are taken after the sum, per destination row: W h_u would be one per source row.

    Parameters
    ----------
    width : of states in and out; W is (width, heads, width / heads), a and b are (heads, width /
        heads).
    heads : must divide `width`, else an :class:`InputError` is raised.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        each = head_width(width, heads)
        weight = nn.init.xavier_uniform_(torch.empty(width, width), nn.init.calculate_gain("relu"))
        self.weight = nn.Parameter(weight.view(width, heads, each))
        self.source = nn.Parameter(nn.init.xavier_normal_(torch.empty(heads, each)))
        self.destination = nn.Parameter(nn.init.xavier_normal_(torch.empty(heads, each)))


def relation_attention(modules: Sequence[RelationAttention], relations: Relations
                       ) -> Sequence[Tensor]:
    """Each relation's attention over its neighbours, (rows, width), by its own module."""
    return relations.attention([m.weight for m in modules], [m.source for m in modules],
                               [m.destination for m in modules])


def head_width(width: int, heads: int) -> int:
    """Width of one of `heads` equal heads.

    Raises
    ------
    InputError
        They do not divide `width`.
    """
    if heads < 1 or width % heads:
        raise InputError(f"model.hidden is {width}, which {heads} attention heads (model.heads) "
                         "do not divide; choose a multiple")
    return width // heads


class RGATLayer(HGNNLayer):
    """h_v = σ( AGG_all_r attention_r({h_u : u in N_r(v)}, h_v) + h_v W_0 + b ), σ = ReLU.

    States are (rows, hidden). `hidden`, `heads`, `self_loop`, `reduce`, `layer_norm` and `dropout`
    of the spec are used.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.reduce, spec.hidden, zero_without_edges=True)
        width = spec.hidden
        self.attention = nn.ModuleDict({
            slot(r): RelationAttention(width, spec.heads) for r in spec.schema.relations})
        self.bias = nn.Parameter(torch.zeros(width))
        self.loop = nn.Linear(width, width, bias=False) if spec.self_loop else None
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def aggregate_all(self, relations: Relations) -> Sequence[Tensor]:
        return relation_attention([self.attention[slot(edges.relation)] for edges in relations],
                                  relations)

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        aggregated = aggregated + self.bias
        if self.loop is not None and state is not None:
            aggregated = aggregated + self.loop(state)
        if self.norm is not None:
            aggregated = self.norm(aggregated)
        out: Tensor = self.dropout(torch.relu(aggregated))
        return out
