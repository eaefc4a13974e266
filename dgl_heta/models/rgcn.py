"""R-GCN (Schlichtkrull et al. 2018), in the form of Heta Eq. (1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dgl_heta.block import Block, MiniBatch
from dgl_heta.errors import InputError
from dgl_heta.nn import CrossRelation, segment_reduce
from dgl_heta.schema import Relation, Schema


@dataclass(frozen=True)
class ModelSpec:
    """What a model provider gets to build a model.

    Attributes
    ----------
    input_dims : width of the input features per node type; learnable features are `hidden`
        wide.
    static : node types with static features, which are projected to `hidden`.
    num_classes : target node type → number of outputs.
    """

    schema: Schema
    input_dims: Mapping[str, int]
    static: frozenset[str]
    num_classes: Mapping[str, int]
    layers: int
    hidden: int = 64
    bases: int = 0
    self_loop: bool = True
    layer_norm: bool = False
    dropout: float = 0.0
    aggregate: str = "mean"
    reduce: str = "sum"


def slot(name: str | Relation) -> str:
    """A key for a node type or relation that `nn.ModuleDict` accepts."""
    text = name if isinstance(name, str) else ":".join(name)
    return "of " + text.replace("%", "%25").replace(".", "%2E")


class RGCNLayer(nn.Module):
    """h_v = σ( AGG_all_r AGG_r({h_u}) W_r + h_v W_0 + b ).

    With bases, W_r = Σ_b a_rb V_b (Schlichtkrull et al., Eq. 3). AGG_r is linear in h for sum
    and mean, so states are aggregated before they are multiplied: one product per destination
    row and not per source row.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width, relations = spec.hidden, spec.schema.relations
        self._spec = spec
        self._place = {r: i for i, r in enumerate(relations)}
        if spec.bases:
            self.bases = nn.Parameter(torch.empty(spec.bases, width, width))
            self.coefficients = nn.Parameter(torch.empty(len(relations), spec.bases))
            nn.init.xavier_uniform_(self.bases, gain=nn.init.calculate_gain("relu"))
            nn.init.xavier_uniform_(self.coefficients, gain=nn.init.calculate_gain("relu"))
        else:
            self.weights = nn.ParameterDict()
            for relation in relations:
                weight = nn.Parameter(torch.empty(width, width))
                nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
                self.weights[slot(relation)] = weight
        self.bias = nn.Parameter(torch.zeros(width))
        if spec.self_loop:
            self.loop = nn.Parameter(torch.empty(width, width))
            nn.init.xavier_uniform_(self.loop, gain=nn.init.calculate_gain("relu"))
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)
        self.cross = CrossRelation(spec.reduce)

    def weight(self, relation: Relation) -> Tensor:
        """W_r, shape (hidden, hidden)."""
        if self._spec.bases:
            mixture = self.coefficients[self._place[relation]]
            return torch.einsum("b,bio->io", mixture, self.bases)
        return self.weights[slot(relation)]

    def forward(self, block: Block, states: dict[str, Tensor]) -> dict[str, Tensor]:
        spec, out = self._spec, {}
        like = next(iter(states.values()))
        linear = spec.aggregate in ("sum", "mean")
        for ntype in block.num_dst:
            parts = []
            for edges in block.into(ntype):
                source = states[edges.relation.src]
                weight = self.weight(edges.relation)
                if linear:
                    value = segment_reduce(edges.indptr, edges.indices, source,
                                           spec.aggregate) @ weight
                else:
                    value = segment_reduce(edges.indptr, edges.indices, source @ weight,
                                           spec.aggregate)
                parts.append((edges, value))
            state = self.cross(block, ntype, parts, spec.hidden, like)
            if spec.self_loop:
                state = state + block.destination(states, ntype) @ self.loop
            state = state + self.bias
            if self.norm is not None:
                state = self.norm(state)
            out[ntype] = self.dropout(torch.relu(state))
        return out


class RGCN(nn.Module):
    """Input projections, R-GCN layers, a linear head per target type."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        if spec.bases < 0:
            raise InputError(f"model.bases is {spec.bases}; it must be 0 (no bases) or more")
        self.targets = tuple(spec.num_classes)
        self.project = nn.ModuleDict({
            slot(t): nn.Linear(spec.input_dims[t], spec.hidden)
            for t in spec.schema.node_types if t in spec.static})
        self.layers = nn.ModuleList(RGCNLayer(spec) for _ in range(spec.layers))
        self.heads = nn.ModuleDict({slot(t): nn.Linear(spec.hidden, n)
                                    for t, n in spec.num_classes.items()})

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits per target type, (own seeds, classes).

        `inputs` are the input features per node type in the order of `batch.input_nodes`.
        """
        states = {t: self.project[slot(t)](x) if slot(t) in self.project else x
                  for t, x in inputs.items()}
        for layer, block in zip(self.layers, batch.blocks):
            states = layer(block, states)
        return {t: self.heads[slot(t)](states[t]) for t in self.targets}
