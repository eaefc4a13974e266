"""HGT, the heterogeneous graph transformer (Hu et al. 2020, https://arxiv.org/abs/2003.01332)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dgl_heta.models.hgnn import HGNNLayer
from dgl_heta.models.relations import Relations
from dgl_heta.models.rgat import head_width
from dgl_heta.models.spec import ModelSpec, slot
from dgl_heta.nn.joined import elementwise


class HGTLayer(HGNNLayer):
    """Attention whose softmax ranges over all in-edges, by whatever relation (Eq. 3-5).

    For an edge of type e from u (type s) to v (type t), relation r, each of H heads of width d:

        score   = (K_s h_u) A_e (Q_t h_v)ᵀ μ_r / √d
        h̃_v     = Σ_u softmax_u(score) (V_s h_u) M_e
        h_v     ← a_t O_t gelu(h̃_v) + (1 - a_t) h_v,  a_t = sigmoid(skip_t)

    (The paper adds h_v without the weight a_t, which its authors' code has.) Keys, queries, values
    and outputs have weights per node type, attention and message per edge type, and the prior μ per
    relation. Keys and values are never formed per source row: their weights are multiplied with the
    destination row's query and with its weighted sum. States are (rows, hidden). `hidden`, `heads`
    (must divide it), `layer_norm` and `dropout` of the spec are used.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__("softmax", spec.hidden, spec.heads)
        width, heads = spec.hidden, spec.heads
        each = self._each = head_width(width, heads)
        types, schema = spec.schema.node_types, spec.schema
        self.keys, self.queries, self.values, self.outputs = (
            nn.ModuleDict({slot(t): nn.Linear(width, width) for t in types}) for _ in range(4))
        self.skip = nn.ParameterDict({slot(t): nn.Parameter(torch.ones(1)) for t in types})
        edge_types = dict.fromkeys(r.etype for r in schema.relations)
        self.attention, self.message = (
            nn.ParameterDict({slot(e): nn.Parameter(torch.stack([
                nn.init.xavier_uniform_(torch.empty(each, each)) for _ in range(heads)]))
                for e in edge_types}) for _ in range(2))
        self.prior = nn.ParameterDict({slot(r): nn.Parameter(torch.ones(heads))
                                       for r in schema.relations})
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def score_all(self, relations: Relations) -> Sequence[Tensor]:
        prior = relations.stack([self.prior[slot(edges.relation)] for edges in relations])
        attention = self._weights(self.attention, relations) * (
            prior / math.sqrt(self._each)).unsqueeze(2).unsqueeze(3)
        return relations.dot_linear(relations.project(self.queries, self.heads), self.keys,
                                    attention)

    def attend_all(self, relations: Relations, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        sums = relations.attend_linear(weights, self.values,
                                       self._weights(self.message, relations))
        return elementwise(lambda rows: rows.flatten(1), sums)

    @staticmethod
    def _weights(of_types: nn.ParameterDict, relations: Relations) -> Tensor:
        """The weights of each relation's edge type, (relations, heads, D, D)."""
        return relations.stack([of_types[slot(edges.relation.etype)] for edges in relations])

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        assert state is not None
        return self.skipped(self.outputs[slot(ntype)](F.gelu(aggregated)), state,
                            self.skip[slot(ntype)])

    def skipped(self, out: Tensor, state: Tensor, skip: Tensor) -> Tensor:
        """a_t of the outputs and the rest of the rows' own states; `skip` of a type or of rows."""
        share = torch.sigmoid(skip)
        out = share * self.dropout(out) + (1 - share) * state
        return out if self.norm is None else self.norm(out)
