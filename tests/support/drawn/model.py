"""A model out of a description."""

from __future__ import annotations

from typing import Any

import torch
from dgl.nn.pytorch import HeteroGraphConv
from torch import Tensor, nn

from tests.support.drawn.children import AROUND, CHILDREN, HEADS, Flat
from tests.support.drawn.description import Layer, Program
from tests.support.drawn.messages import APPLIES, CHOICES, MESSAGES, REDUCES, reducer
from tests.support.drawn.operations import OPERATIONS, STEPS
from tests.support.programs_worker import Facts

States = dict[str, Tensor]
INPUTS = ("no bias", "sparse tables", "type norm", "tanh", "table for all", "table of classes",
          "raw features", "frozen tables", "shared linear", "half")
EXTRAS = ("", "weight", "edge_weight", "scale", "one scale", "bound scale")
"""What HeteroGraphConv's children are given beside rows."""


class Inputs(nn.Module):
    """A linear layer for each type with features, a table for each without."""

    def __init__(self, program: Program, facts: Facts) -> None:
        super().__init__()
        self.kinds, width = program.inputs, program.first_width
        sparse = "sparse tables" in self.kinds
        self.linear = nn.ModuleDict({t: nn.Linear(w, width, "no bias" not in self.kinds)
                                     for t, w in facts.widths.items()})
        self.tables = nn.ModuleDict({t: nn.Embedding(n, width, sparse=sparse)
                                     for t, n in facts.counts.items()
                                     if t not in facts.widths or "table for all" in self.kinds})
        if "frozen tables" in self.kinds:
            self.tables.requires_grad_(False)
        self.norm = nn.ModuleDict({t: nn.LayerNorm(width) for t in facts.counts})
        self.shared = nn.Linear(width, width)

    def forward(self, ids: States, features: States) -> States:
        h = {t: self.linear[t](x) for t, x in features.items()}
        if "half" in self.kinds:
            h = {t: x + self.linear[t](2 * features[t]) * 0.5 for t, x in h.items()}
        for t, table in self.tables.items():
            h[t] = h[t] + table(ids[t]) if t in h else table(ids[t])
        if "raw features" in self.kinds:
            h = {t: x + features[t][:, :1] if t in features else x for t, x in h.items()}
        if "type norm" in self.kinds:
            h = {t: self.norm[t](x) for t, x in h.items()}
        if "shared linear" in self.kinds:
            h = {t: self.shared(x) for t, x in h.items()}
        if "tanh" in self.kinds:
            h = {t: torch.tanh(x) for t, x in h.items()}
        return h


class DrawnLayer(nn.Module):
    """One layer: own operations, the merge over relations, steps on what comes out."""

    def __init__(self, layer: Layer, facts: Facts, before: int) -> None:
        super().__init__()
        self.layer, self.etypes = layer, facts.etypes
        width = layer.width
        if layer.kind == "hetero":
            self.merge = HeteroGraphConv(self._modules_of(before), reducer(layer.aggregate))
        elif layer.kind == "multi":
            self.project = nn.ModuleDict({e: nn.Linear(before, width) for _, e, _ in facts.etypes})
            self.own = nn.ModuleDict({t: nn.Linear(before, width) for t in facts.counts})
        self.loops = nn.ModuleDict({t: nn.Linear(before, width) for t in facts.counts}
                                   if layer.self_loop or layer.kind == "own" else {})
        self.steps = nn.ModuleDict({t: nn.Sequential(*(STEPS[s](width) for s in layer.after))
                                    for t in facts.counts})
        if layer.extra == "weight":
            self.weights = nn.ParameterDict({
                e: nn.Parameter(torch.randn(before, width)) for _, e, _ in facts.etypes})
        if "scale" in layer.extra:
            self.scales = nn.ParameterDict({
                e: nn.Parameter(torch.rand(1) + 0.5) for _, e, _ in facts.etypes})

    def _modules_of(self, before: int) -> dict[str, nn.Module]:
        layer, made, modules = self.layer, {}, {}
        for place, (_, e, _) in enumerate(self.etypes):
            number = layer.deal[place % len(layer.deal)] % len(layer.children)
            child = layer.children[number]
            if number in made and layer.shared:
                modules[e] = made[number]
                continue
            options = dict(child.options)
            if layer.extra == "weight" and child.kind == "GraphConv":
                options["weight"] = False
            module = CHILDREN[child.kind](before, layer.width, **options)
            for name in child.around:
                module = AROUND[name](module)
            if child.kind in HEADS and any(c.kind not in HEADS for c in layer.children):
                module = Flat(module)
            made[number] = modules[e] = module
        return modules

    def forward(self, block: Any, h: States) -> States:
        layer = self.layer
        for name in layer.before:
            h = OPERATIONS[name](block, h)
        given = {t: x for t, x in h.items() if t not in layer.without}
        out: States = {}
        if layer.kind == "hetero":
            with block.local_scope():
                for t, x in given.items():
                    block.srcnodes[t].data["scale"] = x[:, :1]
                    block.dstnodes[t].data["scale"] = x[:block.num_dst_nodes(t), :1]
                out = self._convolved(block, given)
        elif layer.kind == "multi":
            out = self._updated(block, given)
        out = {t: self._flat(x) for t, x in out.items()}
        for t, linear in self.loops.items():
            if t in h:
                own = linear(h[t][:block.num_dst_nodes(t)])
                out[t] = out[t] + own if t in out else own
        return {t: self.steps[t](x) for t, x in out.items()}

    def _flat(self, x: Tensor) -> Tensor:
        """Rows of the layer's width; what was stacked is summed."""
        if "stack" in (self.layer.aggregate, self.layer.cross):
            x = x.sum(1)
        return x.flatten(1)

    def _convolved(self, block: Any, h: States) -> States:
        layer = self.layer
        options: dict[str, Any] = {}
        if layer.extra == "weight":
            options["mod_kwargs"] = {e: {"weight": w} for e, w in self.weights.items()}
        elif layer.extra == "scale":
            options["mod_kwargs"] = {e: {"scale": s} for e, s in self.scales.items()}
        elif layer.extra == "one scale":
            options["mod_args"] = {e: (s,) for e, s in self.scales.items()}
        elif layer.extra == "bound scale":
            options["mod_kwargs"] = {e: {"scale": torch.sigmoid(s)} for e, s in self.scales.items()}
        elif layer.extra == "edge_weight":
            options["mod_kwargs"] = {e[1]: {"edge_weight": torch.full(
                (block.num_edges(e),), 0.5, dtype=torch.float64)} for e in self.etypes}
        if layer.given == "pair":
            return self.merge(block, (h, {t: x[:block.num_dst_nodes(t)] * 2
                                          for t, x in h.items() if block.num_dst_nodes(t)}),
                              **options)
        return self.merge(block, h, **options)

    def _updated(self, block: Any, h: States) -> States:
        layer, functions = self.layer, {}
        etypes = [e for e in self.etypes if e[0] in h and e[2] in h]
        with block.local_scope():
            for t, x in h.items():
                block.dstnodes[t].data["y"] = self.own[t](x[:block.num_dst_nodes(t)])
            for e in CHOICES[layer.chosen](block, etypes):
                what = layer.messages[self.etypes.index(e) % len(layer.messages)]
                block.srcnodes[e[0]].data[e[1]] = self.project[e[1]](h[e[0]])
                if what.message == "u_mul_e":
                    block.edges[e].data["e"] = torch.full((block.num_edges(e), 1), 0.5,
                                                          dtype=torch.float64)
                out = "r" if layer.fields == "same" else f"r_{e[1]}"
                functions[e] = (MESSAGES[what.message](e[1]), REDUCES[what.reduce](out))
                if what.apply:
                    functions[e] += (APPLIES[what.apply](out),)
            block.multi_update_all(functions, reducer(layer.cross))
            written = {t: [x for name, x in block.dstnodes[t].data.items() if name[0] == "r"]
                       for t in h}
            return {t: sum(values) for t, values in written.items() if values}


class Model(nn.Module):
    """(blocks, input ids, features) to rows of the seeds."""

    def __init__(self, program: Program, facts: Facts) -> None:
        super().__init__()
        self.program = program
        self.inputs = Inputs(program, facts)
        widths = [program.first_width, *(layer.width for layer in program.layers)]
        self.layers = nn.ModuleList(DrawnLayer(layer, facts, width)
                                    for layer, width in zip(program.layers, widths))
        self.jumps = nn.ModuleList(nn.Linear(w, widths[-1]) for w in widths[:-1])
        self.head = nn.Linear(widths[-1], facts.classes)

    def forward(self, blocks: list[Any], ids: States, features: States) -> Tensor:
        h = self.inputs(ids, features)
        seen = [h]
        for layer, block in zip(self.layers, blocks):
            h = layer(block, h)
            seen.append(h)
        out = h["paper"]
        if self.program.jumping:
            out = out + sum(jump(states["paper"][:len(out)])
                            for jump, states in zip(self.jumps, seen) if "paper" in states)
        return self.head(out) if self.program.head == "inside" else out
