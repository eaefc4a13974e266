"""SeHGNN (Yang et al. 2023, https://arxiv.org/abs/2207.02547): a model over neighbour averages.

It samples nothing: per metapath its input is the mean of features over the nodes at the metapath's
far end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dgl_heta import ModelSpec, slot
from dgl_heta.nn import CrossStack
from dgl_heta.tools import Block, MiniBatch, head_width
from dgl_heta_precomputed.inputs import part_key


class SeHGNN(nn.Module):
    """A projection per metapath, a transformer over metapaths, an MLP (§5 of the paper).

    For the own features and K metapaths: x_k = MLP_k(average_k), k = 0 … K; then
    y = X + β softmax(Q Kᵀ / √d) V over the K + 1 rows of a node, and MLP([y_0; …; y_K]).
    Without label propagation: the inputs are features alone. `inputs` has a node type's own
    features by its name, for the own seeds, and metapaths' averages by :func:`part_key`.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden
        self.targets, self._paths = tuple(spec.num_classes), spec.paths
        self._heads, self._each = spec.heads, head_width(width, spec.heads)
        self.own = nn.ModuleDict({
            slot(t): Projections([spec.input_dims[t]], width, spec.dropout) for t in self.targets})
        self.project = nn.ModuleDict({
            slot(t): Projections([dim for _, dim in spec.paths[t]], width, spec.dropout)
            for t in self.targets})
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.gain = nn.Parameter(torch.zeros(1))
        self.dropout = nn.Dropout(spec.dropout)
        self.heads = nn.ModuleDict({
            slot(t): nn.Sequential(
                nn.Linear(width * (1 + len(spec.paths[t])), width), nn.LayerNorm(width), nn.PReLU(),
                nn.Dropout(spec.dropout), nn.Linear(width, outputs))
            for t, outputs in spec.num_classes.items()})
        self.width = width
        self.cross = CrossStack()

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs per target type, (own seeds, classes)."""
        (block,) = batch.blocks
        return {t: self._of(block, t, inputs) for t in self.targets}

    def _of(self, block: Block, ntype: str, inputs: Mapping[str, Tensor]) -> Tensor:
        (own,) = self.own[slot(ntype)]([0], [inputs[ntype]])
        edges = block.into(ntype)
        parts = list(zip(edges, self.project[slot(ntype)](
            [part.place for part in edges], [inputs[part_key(part)] for part in edges])))
        fused: Tensor = self.cross(
            block, ntype, parts, self.width, own,
            lambda stacked, _: self._fuse(torch.cat([own.unsqueeze(1), stacked], 1)),
            len(self._paths[ntype]))
        out: Tensor = self.heads[slot(ntype)](fused)
        return out

    def _fuse(self, states: Tensor) -> Tensor:
        """(rows, metapaths, width) to (rows, metapaths × width)."""
        rows, tokens, _ = states.shape

        def split(x: Tensor) -> Tensor:
            return x.view(rows, tokens, self._heads, self._each).transpose(1, 2)

        attended = nn.functional.scaled_dot_product_attention(
            split(self.query(states)), split(self.key(states)), split(self.value(states)))
        attended = attended.transpose(1, 2).reshape(rows, tokens, self.width)
        return self.dropout(states + self.gain * attended).flatten(1)


class Projections(nn.Module):
    """An MLP per metapath: twice a linear map, layer normalisation, PReLU.

    Inputs of one width and number of rows are multiplied as a batch: a model has a hundred of
    them or more, each small.
    """

    def __init__(self, dims: Sequence[int], width: int, dropout: float) -> None:
        super().__init__()
        self._dims, self._slot = list(dims), []
        counts: dict[int, int] = {}
        for dim in dims:
            self._slot.append(counts.get(dim, 0))
            counts[dim] = counts.get(dim, 0) + 1
        self.first = nn.ModuleDict({str(d): _Batched(n, d, width) for d, n in counts.items()})
        self.second = nn.ModuleDict({str(d): _Batched(n, width, width)
                                     for d, n in counts.items()})
        self.dropout = nn.Dropout(dropout)

    def forward(self, places: Sequence[int], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Projections (rows, width) of `inputs[i]` (rows, dim) by the MLP number `places[i]`."""
        batches: dict[tuple[int, int], list[int]] = {}
        for i, (number, rows) in enumerate(zip(places, inputs)):
            batches.setdefault((self._dims[number], len(rows)), []).append(i)
        projected: dict[int, Tensor] = {}
        for (dim, _), members in batches.items():
            chosen = torch.tensor([self._slot[places[i]] for i in members])
            states = torch.stack([inputs[i] for i in members])
            states = self.dropout(self.first[str(dim)](chosen, states))
            projected.update(zip(members, self.second[str(dim)](chosen, states).unbind(0)))
        return [projected[i] for i in range(len(places))]


class _Batched(nn.Module):
    """`count` linear maps, each with layer normalisation and PReLU."""

    def __init__(self, count: int, dim: int, width: int) -> None:
        super().__init__()
        bound = 1 / max(dim, 1) ** 0.5
        self.weight = nn.Parameter(torch.empty(count, dim, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, width).uniform_(-bound, bound))
        self.gain = nn.Parameter(torch.ones(count, 1, width))
        self.shift = nn.Parameter(torch.zeros(count, 1, width))
        self.slope = nn.Parameter(torch.full((count, 1, 1), 0.25))

    def forward(self, chosen: Tensor, states: Tensor) -> Tensor:
        """(maps, rows, dim) to (maps, rows, width) by the maps number `chosen`."""
        out = torch.baddbmm(self.bias[chosen], states, self.weight[chosen])
        out = nn.functional.layer_norm(out, out.shape[-1:]) * self.gain[chosen] + self.shift[chosen]
        return torch.where(out > 0, out, self.slope[chosen] * out)
