"""Small batches that reach not every node type, seeds and relations without an edge.

In plain DGL a relation's module runs without edges and rows, too, and its parameters have zeros for
a gradient; AdamW, whose weight decay moves these and not those that have none, shows which.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dgl.function as fn
import torch
from dgl.heterograph import DGLBlock
from dgl.nn.pytorch import GATConv, GATv2Conv, GINConv, GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.distdgl.programs.proofs import watched
from tests.distdgl.programs.scopes import OnSlices
from tests.distdgl.programs.usual import HIDDEN, Inputs
from tests.support.programs_worker import Facts, Trainer

CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "graph": lambda a, b: GraphConv(a, b, norm="right", allow_zero_in_degree=True),
    "plain graph": lambda a, b: GraphConv(a, b, norm="right", bias=False,
                                          allow_zero_in_degree=True),
    "sage": lambda a, b: SAGEConv(a, b, "mean"),
    "gcn": lambda a, b: SAGEConv(a, b, "gcn", activation=torch.tanh),
    "gat": lambda a, b: GATConv((a, a), b // 2, 2, allow_zero_in_degree=True),
    "gatv2": lambda a, b: GATv2Conv((a, a), b // 2, 2, allow_zero_in_degree=True),
    "gin": lambda a, b: GINConv(nn.Linear(a, b), "mean", learn_eps=True)}
"""None that takes maxima over neighbours: DGL's backward pass fails where there are none at all."""
MERGES = {"product": lambda values, ntype: torch.stack(values).tanh().prod(0)}


class Updated(nn.Module):
    """Built-in message functions on rows of a linear layer for each relation."""

    def __init__(self, facts: Facts, a: int, b: int, reduce: str, cross: str) -> None:
        super().__init__()
        self.etypes, self.reduce, self.cross = facts.etypes, getattr(fn, reduce), cross
        self.linear = nn.ModuleDict({e: nn.Linear(a, b) for _, e, _ in facts.etypes})

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        with block.local_scope():
            for s, e, _ in self.etypes:
                block.srcnodes[s].data[e] = self.linear[e](states[s])
            block.multi_update_all({(s, e, d): (fn.copy_u(e, "m"), self.reduce("m", "out"))
                                    for s, e, d in self.etypes}, self.cross)
            return {t: block.dstnodes[t].data["out"] for t in block.dsttypes
                    if "out" in block.dstnodes[t].data}


class Layer(nn.Module):
    """A merge, and what scripts put around it."""

    def __init__(self, facts: Facts, how: dict[str, Any], a: int, b: int) -> None:
        super().__init__()
        self.how = how
        kind, merge = how["kind"], how["merge"]
        if kind.startswith("slices"):
            self.merge: nn.Module = OnSlices({e: CONVS[kind.split()[1]](a, b)
                                              for _, e, _ in facts.etypes})
        elif kind.startswith("update"):
            self.merge = Updated(facts, a, b, kind.split()[1], merge)
        else:
            self.merge = HeteroGraphConv({e: CONVS[kind](a, b) for _, e, _ in facts.etypes},
                                         MERGES.get(merge, merge))
        self.loops = nn.ModuleDict({t: nn.Linear(a, b) for t in facts.counts}
                                   if "loops" in how["parts"] else {})
        self.norm = nn.LayerNorm(b) if "norm" in how["parts"] else nn.Identity()

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        out = self.merge(block, states)
        if self.how["merge"] == "stack":
            out = {t: x.sum(1) for t, x in out.items()}
        out = {t: x.flatten(1) for t, x in out.items()}
        for t, loop in self.loops.items():
            if t in out:
                out[t] = out[t] + loop(states[t][:block.num_dst_nodes(t)])
        return {t: torch.tanh(self.norm(x)) for t, x in out.items()}


class Net(nn.Module):
    def __init__(self, facts: Facts, how: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = Inputs(facts)
        self.layers = nn.ModuleList(Layer(facts, how, HIDDEN, HIDDEN) for _ in how["fanouts"])
        self.head = nn.Linear(HIDDEN, facts.classes)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return self.head(states["paper"])


def drawn(number: int) -> dict[str, Any]:
    """How a program is: by its number, so that a few numbers have every kind."""
    dice = random.Random(number)
    kinds = [*CONVS, "update sum", "update mean", "slices sage", "slices gatv2"]
    kind = kinds[number % len(kinds)]
    merges = ["sum"] if "slices" in kind else ["sum", "mean", "max", "stack", "min"] + (
        [] if "update" in kind else [*MERGES])
    layers = dice.choice([1, 2, 2])
    return {"kind": kind, "merge": merges[number % len(merges)],
            "fanouts": [dice.choice(["all", "all", "some", 0]) for _ in range(layers)],
            "batch": dice.choice([1, 2, 3, 5]), "number": number,
            "parts": dice.sample(["loops", "norm", "evaluate", "inference"], dice.choice([0, 1, 2]))
            }


def small(t: Trainer, number: int) -> None:
    """A drawn program."""
    how = drawn(number)
    reached = [{e: -((place + layer + number) % 3 > 0) for place, (_, e, _) in enumerate(
        t.facts.etypes)} for layer in range(3)]
    fanouts = [{"all": -1, "some": reached[layer]}.get(given, given)
               for layer, given in enumerate(how["fanouts"])]
    net = t.parallel(Net(t.facts, how))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1)
    for step, (ids, seeds, blocks) in enumerate(t.loader(how["batch"], fanouts=fanouts)):
        out = net(blocks, ids, t.features(ids))
        optimizer.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
        optimizer.step()
        if step == 2:
            break
    if {"evaluate", "inference"} & {*how["parts"]}:
        some = torch.arange(t.rank, 2 * how["batch"] * t.world, t.world)
        batches = t.loader(how["batch"], nodes=some, fanouts=fanouts)
        with torch.inference_mode() if "inference" in how["parts"] else torch.no_grad():
            for ids, seeds, blocks in batches:
                out = net.module(blocks, ids, t.features(ids))
                t.record("evaluated", out, seeds["paper"])
    t.parameters(net)
    if t.session is not None:
        watched(t, 3)


WRONG = ["mixed", "counted", "unused"]


def wrong(t: Trainer, way: str) -> None:
    """Rows of a batch are mixed; divided by what is on a machine; or types without rows are left
    out the plain way alone, where parameters have no gradient then, and with RAF zeros."""
    class Wrong(Net):
        def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                    ) -> Tensor:
            states = self.inputs(ids, features)
            if way == "mixed":
                states = {k: x - x.mean(0) if len(x) else x for k, x in states.items()}
            if way == "counted":
                states = {k: x / max(len(x), 1) for k, x in states.items()}
            if way == "unused" and type(blocks[0]) is DGLBlock:
                states = {k: x for k, x in states.items() if len(x)}
            for layer, block in zip(self.layers, blocks):
                states = layer(block, states)
            return self.head(states["paper"])

    net = t.parallel(Wrong(t.facts, {**drawn(0), "fanouts": [-1, -1], "parts": []}))
    for ids, seeds, blocks in t.loader(3):
        cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds)).backward()
        net.zero_grad()
