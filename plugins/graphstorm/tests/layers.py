"""Programs of GraphStorm's layers (tests.support.programs)."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from tests.distdgl.programs.edge_data import WIDTH, Etype, Table, read, tables
from tests.distdgl.programs.usual import HIDDEN, Inputs, train
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
        stacked = [layer(HIDDEN, HIDDEN, etypes, 3, norm="layer", **common) for _ in range(2)]
    elif which == "rgcn":
        stacked = [layer(HIDDEN, HIDDEN, etypes, len(etypes), **common) for _ in range(2)]
    elif which == "rgat":
        stacked = [layer(HIDDEN, HIDDEN, etypes, 2, self_loop=True, **common) for _ in range(2)]
    else:
        stacked = [layer(HIDDEN, HIDDEN, [*t.facts.counts], etypes, 2, norm="layer", **common)
                for _ in range(2)]
    train(t, Stack(t, stacked))


class EdgeStack(Stack):
    """The same with features of edges of some relations."""

    def __init__(self, t: Trainer, stacked: list[nn.Module], every: dict[Etype, Table]) -> None:
        super().__init__(t, stacked)
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
    stacked = [layer(HIDDEN, HIDDEN, etypes, len(etypes), activation=torch.tanh, dropout=0.0,
                  edge_feat_name=names, edge_feat_mp_op=how) for _ in range(2)]
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # in which GraphStorm divides by degrees
    try:
        train(t, EdgeStack(t, stacked, every))
    finally:
        torch.set_default_dtype(kept)
