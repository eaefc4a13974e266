"""HAN: attention over each relation's neighbours, then over the relations.

Wang et al. 2019, "Heterogeneous Graph Attention Network", https://arxiv.org/abs/1903.07293.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dgl_heta.graph.schema import Relation
from dgl_heta.models.hgnn import HGNNLayer
from dgl_heta.models.relations import Relations
from dgl_heta.models.rgat import RelationAttention, relation_attention
from dgl_heta.models.spec import ModelSpec, slot
from dgl_heta.nn.joined import elementwise


class HANLayer(HGNNLayer):
    """Semantic attention over the stacked aggregations of all relations (Eq. 7-9).

    z_r = elu(attention_r({h_u}, h_v)), β_r = softmax_r q · tanh(W z_r + b), h_v = Σ_r β_r z_r. The
    scores are a node's own; HAN averages them over all nodes (Eq. 7), which in mini-batches would
    tie a node's result to the batch it is in. Relations stand for the paper's metapaths. States are
    (rows, hidden). `hidden`, `heads` (must divide it), `self_loop`, `layer_norm`, `dropout` are
    used.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__("stack", spec.hidden)
        width = spec.hidden
        self.attention = nn.ModuleDict({
            slot(r): RelationAttention(width, spec.heads) for r in spec.schema.relations})
        self.semantic = nn.Linear(width, width)
        self.query = nn.Parameter(nn.init.xavier_normal_(torch.empty(width, 1)))
        self.loop = nn.Linear(width, width) if spec.self_loop else None
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def aggregate_all(self, relations: Relations) -> Sequence[Tensor]:
        modules = [self.attention[slot(edges.relation)] for edges in relations]
        return elementwise(F.elu, relation_attention(modules, relations))

    def combine(self, ntype: str, stacked: Tensor, relations: tuple[Relation, ...]) -> Tensor:
        if not relations:
            return stacked.sum(1)
        scores = torch.tanh(self.semantic(stacked)) @ self.query
        return (torch.softmax(scores, 1) * stacked).sum(1)

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        if self.loop is not None and state is not None:
            aggregated = aggregated + self.loop(state)
        if self.norm is not None:
            aggregated = self.norm(aggregated)
        out: Tensor = self.dropout(F.elu(aggregated))
        return out
