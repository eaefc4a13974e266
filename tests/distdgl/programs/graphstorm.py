"""GraphStorm's layers, and a class of a program's own in the place of HeteroGraphConv."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv
from dgl.nn.pytorch.hetero import get_aggregate_fn
from torch import Tensor, nn
from torch.nn.functional import dropout

import dgl_heta
from tests.distdgl.programs.edge_data import WIDTH, Etype, Table, read, tables
from tests.distdgl.programs.usual import HIDDEN, Inputs, Net, train
from tests.support.programs_worker import Trainer

LAYERS = {"rgcn": ("rgcn_encoder", "RelGraphConvLayer"), "rgat": ("rgat_encoder",
          "RelationalAttLayer"), "hgt": ("hgt_encoder", "HGTLayer")}


class Stack(nn.Module):
    """Inputs, layers of GraphStorm's, and a linear layer."""

    def __init__(self, t: Trainer, layers: list[nn.Module]) -> None:
        super().__init__()
        self.inputs, self.layers = Inputs(t.facts), nn.ModuleList(layers)
        self.head = nn.Linear(HIDDEN, t.facts.classes)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return self.head(states["paper"])


def layers(t: Trainer, which: str) -> None:
    """Two layers of an encoder, made as GraphStorm's encoders make them, and trained."""
    module, name = LAYERS[which.partition(" ")[0]]
    layer = getattr(importlib.import_module(f"graphstorm.model.{module}"), name)
    etypes, common = t.facts.etypes, {"activation": torch.tanh, "dropout": 0.0}
    if which == "rgcn few bases":
        made = [layer(HIDDEN, HIDDEN, etypes, 3, norm="layer", **common) for _ in range(2)]
    elif which == "rgcn":
        made = [layer(HIDDEN, HIDDEN, etypes, len(etypes), **common) for _ in range(2)]
    elif which == "rgat":
        made = [layer(HIDDEN, HIDDEN, etypes, 2, self_loop=True, **common) for _ in range(2)]
    else:
        made = [layer(HIDDEN, HIDDEN, [*t.facts.counts], etypes, 2, norm="layer", **common)
                for _ in range(2)]
    train(t, Stack(t, made))


class EdgeStack(Stack):
    """The same with features of edges of some relations."""

    def __init__(self, t: Trainer, made: list[nn.Module], every: dict[Etype, Table]) -> None:
        super().__init__(t, made)
        self.every = every
        self.encoders = nn.ModuleDict({" ".join(e): nn.Linear(2 * WIDTH, HIDDEN) for e in every})

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            there = {e: self.every[e] for e in self.every if block.num_edges(e)}
            rows = {e: torch.cat([x, x * 2], dim=1) for e, x in read(block, there).items()}
            encoded = {e: dropout(torch.relu(self.encoders[" ".join(e)](x)), 0.0)
                       for e, x in rows.items()}
            states = layer(block, states, encoded)
        return self.head(states["paper"])


def edge_features(t: Trainer, how: str) -> None:
    """Two layers of GraphStorm's RGCN; messages of every second relation have features of edges,
    and are made of both as `how` says."""
    layer = importlib.import_module("graphstorm.model.rgcn_encoder").RelGraphConvLayer
    every = dict([*tables(t, WIDTH).items()][::2])
    etypes, names = t.facts.etypes, {e: ["weight"] for e in every}
    made = [layer(HIDDEN, HIDDEN, etypes, len(etypes), activation=torch.tanh, dropout=0.0,
                  edge_feat_name=names, edge_feat_mp_op=how) for _ in range(2)]
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # in which GraphStorm divides by degrees
    try:
        train(t, EdgeStack(t, made, every))
    finally:
        torch.set_default_dtype(kept)


class Convolutions(nn.Module):
    """What another program may have in the place of DGL's class, with arguments by whole types."""

    def __init__(self, modules: dict[Any, nn.Module], merge: str) -> None:
        super().__init__()
        self.modules_of = nn.ModuleDict({" ".join(e): module for e, module in modules.items()})
        self.agg_fn = get_aggregate_fn(merge)

    def _get_module(self, etype: tuple[str, str, str]) -> nn.Module:
        return self.modules_of[" ".join(etype)]

    def forward(self, g: Any, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None
                ) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for e in sorted(g.canonical_etypes):
            rows = inputs[0][e[0]], inputs[1][e[2]]
            found.setdefault(e[2], []).append(self._get_module(e)(
                g[e], rows, *(mod_args or {}).get(e, ()), **(mod_kwargs or {}).get(e, {})))
        return {t: self.agg_fn(values, t) for t, values in found.items()}


dgl_heta.register_hetero_conv(Convolutions)


class Called(nn.Module):
    """A layer that gives it a pair, a triple, and weights by canonical edge types."""

    def __init__(self, etypes: Any, inner: str, merge: str, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.weighted = inner == "weights"
        self.conv = Convolutions({e: (
            GraphConv(*sizes, norm="right", weight=False, bias=False, allow_zero_in_degree=True)
            if self.weighted else GATConv(*sizes, 2, allow_zero_in_degree=True))
            for e in etypes}, merge)
        self.weights = nn.ParameterDict({" ".join(e): nn.Parameter(torch.randn(sizes) / 3)
                                         for e in etypes} if self.weighted else {})
        self.own = nn.Linear(sizes[0], sizes[1] * (2 - self.weighted))

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {t: x[:block.num_dst_nodes(t)] for t, x in states.items()}
        kwargs = {tuple(name.split(" ")): {"weight": w} for name, w in self.weights.items()}
        out = self.conv(block, (states, own), mod_kwargs=kwargs)
        return {t: x.flatten(1) + self.own(own[t]) for t, x in out.items()}


def registered(t: Trainer, how: tuple[str, str]) -> None:
    """A registered class, with GraphConv whose weights are given, or with attention."""
    inner, merge = how
    heads = 1 if inner == "weights" else 2
    sizes = iter([(HIDDEN, HIDDEN), (HIDDEN * heads, t.facts.classes)])
    train(t, Net(t.facts, lambda _a, _b: Called(t.facts.etypes, inner, merge, next(sizes))))
