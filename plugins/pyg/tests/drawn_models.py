"""Models that are drawn: people's layers, skips, norms and heads, in any combination."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyg_models import CLASSES, KINDS, TARGET, WIDTH, Inputs, Metadata, Rows, convolution
from torch import Tensor, nn
from torch_geometric.nn import MLP, HANConv, HeteroConv, HGTConv, JumpingKnowledge

LAYER = st.fixed_dictionaries({
    "merges": st.sampled_from(["sum", "mean", "max", "min", "cat", "prod", "hgt", "han", "by hand",
                               "gated relations", "attended relations"]),
    "conv": st.sampled_from([*KINDS, None]),
    "skip": st.sampled_from([None, "residual", "gate", "initial", "dense", "highway"]),
    "norm": st.sampled_from([None, "layer", "batch", "l2"]),
    "act": st.sampled_from(["relu", "elu", "tanh", "gelu", "prelu"]),
    "order": st.sampled_from(["norm first", "act first"])})
MODEL = st.fixed_dictionaries({
    "layers": st.lists(LAYER, min_size=1, max_size=3), "shared": st.booleans(),
    "jump": st.sampled_from([None, "cat", "max", "sum", "lstm"]),
    "head": st.sampled_from(["linear", "mlp", "cosine", "of all types"]),
    "seed": st.integers(0, 2**16)})


def drawn_models(metadata: Metadata, count: int) -> dict[str, Callable[[], nn.Module]]:
    """So many models, the same in every process, each named by what was drawn for it."""
    drawn: dict[int, dict[str, Any]] = {}

    @settings(max_examples=5 * count, phases=[Phase.generate], derandomize=True, database=None,
              deadline=None, suppress_health_check=list(HealthCheck))
    @given(MODEL)
    def draw(model: dict[str, Any]) -> None:
        drawn.setdefault(model["seed"], model)  # others of a seed are almost the same

    draw()
    return {f"drawn {number} {model}": partial(Drawn, metadata, model)
            for number, model in enumerate([*drawn.values()][:count])}


class Drawn(nn.Module):
    """A model of a draw."""

    def __init__(self, metadata: Metadata, drawn: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(drawn["seed"])
        self.inputs, layers = Inputs(metadata), drawn["layers"]
        if drawn["shared"]:
            self.layers = nn.ModuleList([_Layer(metadata, layers[0])] * len(layers))
        else:
            self.layers = nn.ModuleList(_Layer(metadata, layer) for layer in layers)
        jump = drawn["jump"]
        self.jump, self.head = jump, drawn["head"]
        if jump in ("cat", "max", "lstm"):
            self.knowledge = JumpingKnowledge(jump, WIDTH, len(layers))
        width = WIDTH * (len(layers) if jump == "cat" else 1)
        self.heads = nn.ModuleDict({t: MLP([width, WIDTH, CLASSES], norm=None)
                                    if self.head == "mlp" else nn.Linear(width, CLASSES)
                                    for t in metadata[0]})

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        x_dict = first = self.inputs(x_dict)
        every: list[Rows] = []
        for layer in self.layers:
            x_dict = layer(x_dict, first, edge_index_dict)
            every.append(x_dict)
        rows = {t: self._jumped([of[t] for of in every]) for t in x_dict}
        if self.head == "cosine":
            return 5 * nn.functional.normalize(rows[TARGET]) @ nn.functional.normalize(
                self.heads[TARGET].weight).T
        if self.head == "of all types":
            return {t: self.heads[t](x) for t, x in rows.items()}[TARGET]
        return self.heads[TARGET](rows[TARGET])

    def _jumped(self, layers: list[Tensor]) -> Tensor:
        if self.jump is None:
            return layers[-1]
        return torch.stack(layers).sum(0) if self.jump == "sum" else self.knowledge(layers)


class _Layer(nn.Module):
    def __init__(self, metadata: Metadata, drawn: dict[str, Any]) -> None:
        super().__init__()
        self.drawn, self.relations, merges = drawn, metadata[1], drawn["merges"]

        def conv(number: int) -> nn.Module:
            kind = drawn["conv"] or KINDS[number % len(KINDS)]
            return convolution(kind, self.relations[number][0] == self.relations[number][2])

        numbers = range(len(self.relations))
        if merges == "hgt":
            self.conv: nn.Module = HGTConv(WIDTH, WIDTH, metadata, 2)
        elif merges == "han":
            self.conv = HANConv(WIDTH, WIDTH, metadata, 2)
        elif "relations" in merges or merges == "by hand":
            self.convs = nn.ModuleList(map(conv, numbers))
        else:
            self.conv = HeteroConv({self.relations[n]: conv(n) for n in numbers}, merges)
        into = {t: sum(r[2] == t for r in metadata[1]) for t in metadata[0]}
        self.narrow = nn.ModuleDict({t: nn.Linear(WIDTH * (n if merges == "cat" else 1), WIDTH)
                                     for t, n in into.items()})
        self.gates = nn.Parameter(torch.randn(len(self.relations), WIDTH))
        self.gate = nn.ModuleDict({t: nn.Linear(2 * WIDTH, WIDTH) for t in metadata[0]})
        self.norms = nn.ModuleDict({t: nn.BatchNorm1d(WIDTH) if drawn["norm"] == "batch"
                                    else nn.LayerNorm(WIDTH) for t in metadata[0]})
        self.act: Any = nn.PReLU() if drawn["act"] == "prelu" else getattr(
            torch.nn.functional, drawn["act"])

    def forward(self, x_dict: Rows, first: Rows, edges: Any) -> Rows:
        merged = (self.conv(x_dict, edges) if hasattr(self, "conv") else self._one_by_one(
            x_dict, edges))
        out = {}
        for t, x in merged.items():
            x = self.narrow[t](x)
            x = (self.act(self._normed(t, x)) if self.drawn["order"] == "norm first" else
                 self._normed(t, self.act(x)))
            out[t] = self._skipped(t, x, x_dict[t], first[t])
        return out

    def _one_by_one(self, x_dict: Rows, edges: Any) -> Rows:
        of: dict[str, list[Any]] = {}
        for number, (conv, (s, e, t)) in enumerate(zip(self.convs, self.relations)):
            rows = conv(x_dict[s] if s == t else (x_dict[s], x_dict[t]), edges[s, e, t])
            if self.drawn["merges"] == "gated relations":
                rows = rows * torch.sigmoid(self.gates[number])
            of.setdefault(t, []).append(rows)
        if self.drawn["merges"] != "attended relations":
            return {t: sum(rows) / len(rows) for t, rows in of.items()}
        weighed = {t: torch.stack([rows + 0 for rows in every], 1) for t, every in of.items()}
        return {t: (x * torch.softmax((x * self.gates[0]).sum(-1, keepdim=True), 1)).sum(1)
                for t, x in weighed.items()}

    def _normed(self, ntype: str, x: Tensor) -> Tensor:
        if self.drawn["norm"] == "l2":
            return nn.functional.normalize(x + 0.1)
        return x if self.drawn["norm"] is None else self.norms[ntype](x)

    def _skipped(self, ntype: str, x: Tensor, before: Tensor, first: Tensor) -> Tensor:
        kind = self.drawn["skip"]
        if kind in (None, "residual", "initial"):
            return x if kind is None else x + (before if kind == "residual" else first)
        if kind == "dense":
            return x + before * 0.5 + first
        gate = torch.sigmoid(self.gate[ntype](torch.cat([x, before], 1)))
        return gate * x + (1 - gate) * before if kind == "gate" else gate * x + before
