"""R-GCN (Schlichtkrull et al. 2018, https://arxiv.org/abs/1703.06103), as Heta Eq. (1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.models.hgnn import HGNNLayer
from dgl_heta.models.relations import Relations
from dgl_heta.models.spec import ModelSpec, slot


class RGCNLayer(HGNNLayer):
    """h_v = σ( AGG_all_r AGG_r({h_u : u in N_r(v)}) W_r + h_v W_0 + b ), Eq. (2) of the paper.

    With bases, W_r = Σ_b a_rb V_b (Eq. 3). AGG_r is linear in h for sum and mean, so states are
    aggregated before they are multiplied: one product per destination row and not per source row.
    σ is ReLU, at the last layer too: a linear head follows. States are (rows, hidden).

    Parameters
    ----------
    spec : `hidden`, `bases` (0: a W_r per relation), `self_loop` (W_0), `aggregate` (AGG_r: sum,
        mean, max, min), `reduce` (AGG_all), `layer_norm` and `dropout` are used.

    Raises
    ------
    InputError
        `bases` is negative.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.reduce, spec.hidden, reads_state=spec.self_loop,
                         zero_without_edges=True, attends=False)
        width, relations = spec.hidden, spec.schema.relations
        self._spec = spec
        self._index = {r: i for i, r in enumerate(relations)}
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
            mixture = self.coefficients[self._index[relation]]
            return torch.einsum("b,bio->io", mixture, self.bases)
        return self.weights[slot(relation)]

    def aggregate_all(self, relations: Relations) -> Sequence[Tensor]:
        return relations.reduce_projected(
            self._spec.aggregate, [self.weight(edges.relation) for edges in relations])

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        if state is not None:
            aggregated = aggregated + state @ self.loop
        aggregated = aggregated + self.bias
        if self.norm is not None:
            aggregated = self.norm(aggregated)
        return self.dropout(torch.relu(aggregated))
