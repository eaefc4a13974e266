"""NARS (Yu et al. 2020, https://arxiv.org/abs/2011.09679): a model over neighbour averages.

It samples nothing: its inputs are means of features over the neighbours of 1 … L hops, by each of K
subsets of the relations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_heta import ModelSpec, slot
from dgl_heta.nn import CrossRelation
from dgl_heta.tools import MiniBatch
from dgl_heta_precomputed.inputs import part_key


class NARS(nn.Module):
    """A learned mean over subsets per hop, a projection per hop, an MLP (§4 of the paper).

    h_l = Σ_k a_kl ⊙ average_kl, out = MLP([W_0 x; W_1 h_1; …; W_L h_L]); a_kl is (input width).

    The mean over subsets and the projection are linear, so partitions add up their projections.
    `inputs` has the averages of subset k and hop l by :func:`part_key`.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width, self._hops, self._subsets = spec.hidden, spec.layers, spec.subsets
        self.targets, self.width = tuple(spec.num_classes), width
        dims = spec.input_dims
        self.weights = nn.ParameterDict({
            slot(t): nn.Parameter(torch.full((self._subsets, self._hops, dims[t]),
                                             1 / self._subsets)) for t in self.targets})
        self.own = nn.ModuleDict({slot(t): nn.Linear(dims[t], width) for t in self.targets})
        self.project = nn.ModuleDict({
            slot(t): nn.ModuleList(nn.Linear(dims[t], width, bias=False)
                                   for _ in range(self._hops)) for t in self.targets})
        self.heads = nn.ModuleDict({
            slot(t): nn.Sequential(
                nn.PReLU(), nn.Dropout(spec.dropout), nn.Linear(width * (1 + self._hops), width),
                nn.PReLU(), nn.Dropout(spec.dropout), nn.Linear(width, outputs))
            for t, outputs in spec.num_classes.items()})
        self.cross = CrossRelation("sum")

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs per target type, (own seeds, classes)."""
        (block,) = batch.blocks
        out = {}
        for ntype in self.targets:
            own = self.own[slot(ntype)](inputs[ntype])
            parts = []
            for edges in block.into(ntype):
                hops = []
                for hop, project in enumerate(self.project[slot(ntype)]):
                    weighted = [inputs[part_key(edges, k, hop)] * self.weights[slot(ntype)][k, hop]
                                for k in range(self._subsets)]
                    hops.append(project(torch.stack(weighted).sum(0)))
                parts.append((edges, torch.cat(hops, 1)))
            merged = self.cross(block, ntype, parts, self.width * self._hops, own)
            out[ntype] = self.heads[slot(ntype)](torch.cat([own, merged], 1))
        return out
