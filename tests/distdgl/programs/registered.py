"""A class of a program's own in the place of HeteroGraphConv."""

from __future__ import annotations

from typing import Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv
from dgl.nn.pytorch.hetero import get_aggregate_fn
from torch import Tensor, nn

import dgl_heta
from tests.distdgl.programs.usual import HIDDEN, Net, train
from tests.support.programs_worker import Trainer


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
