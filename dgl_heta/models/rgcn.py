"""R-GCN (Schlichtkrull et al. 2018), in the form of Heta Eq. (1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.models.hgnn import HGNNLayer, Relations
from dgl_heta.models.spec import ModelSpec, slot


class RGCNLayer(HGNNLayer):
    """h_v = σ( AGG_all_r AGG_r({h_u}) W_r + h_v W_0 + b ).

    With bases, W_r = Σ_b a_rb V_b (Schlichtkrull et al., Eq. 3). AGG_r is linear in h for sum
    and mean, so states are aggregated before they are multiplied: one product per destination
    row and not per source row.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.reduce, spec.hidden, reads_state=spec.self_loop,
                         zero_without_edges=True)
        width, relations = spec.hidden, spec.schema.relations
        self._spec = spec
        self._place = {r: i for i, r in enumerate(relations)}
        if spec.bases < 0:
            raise InputError(f"model.bases is {spec.bases}; it must be 0 (no bases) or more")
        gain = nn.init.calculate_gain("relu")
        if spec.bases:
            self.bases = nn.Parameter(torch.empty(spec.bases, width, width))
            self.coefficients = nn.Parameter(torch.empty(len(relations), spec.bases))
            nn.init.xavier_uniform_(self.bases, gain=gain)
            nn.init.xavier_uniform_(self.coefficients, gain=gain)
        else:
            self.weights = nn.ParameterDict({
                slot(r): nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width), gain=gain))
                for r in relations})
        self.bias = nn.Parameter(torch.zeros(width))
        if spec.self_loop:
            self.loop = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width), gain=gain))
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def weight(self, relation: Relation) -> Tensor:
        """W_r, shape (hidden, hidden)."""
        if self._spec.bases:
            mixture = self.coefficients[self._place[relation]]
            return torch.einsum("b,bio->io", mixture, self.bases)
        return self.weights[slot(relation)]

    def aggregate_all(self, relations: Relations) -> Sequence[Tensor]:
        weights, op = [self.weight(edges.relation) for edges in relations], self._spec.aggregate
        if op in ("sum", "mean"):
            return [rows @ weight for rows, weight in zip(relations.reduce(op), weights)]
        return relations.reduce(op, [edges.source @ weight
                                     for edges, weight in zip(relations, weights)])

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        if state is not None:
            aggregated = aggregated + state @ self.loop
        aggregated = aggregated + self.bias
        if self.norm is not None:
            aggregated = self.norm(aggregated)
        return self.dropout(torch.relu(aggregated))
