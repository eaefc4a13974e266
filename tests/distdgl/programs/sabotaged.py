"""Programs that are wrong if a repair is switched off (:mod:`tests.support.sabotage`)."""

from __future__ import annotations

import importlib
import json
import zlib
from typing import Any

import dgl
import torch
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn

from tests.distdgl.programs.multi_update import FUNCTIONS, Layer
from tests.distdgl.programs.usual import HIDDEN, Net, train
from tests.support.programs_worker import Trainer


class OwnOperations(nn.Module):
    """Sums over in-edges by `dgl.ops`, over what relations the block has."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = {t: self.linear(states[t][:block.num_dst_nodes(t)]) for t in block.dsttypes}
        for relation in block.canonical_etypes:
            src, _, dst = relation
            if block.num_edges(relation):
                outputs[dst] = outputs[dst] + dgl.ops.copy_u_sum(
                    block[relation], self.linear(states[src]))
        return outputs


def own_operations(t: Trainer) -> None:
    train(t, Net(t.facts, OwnOperations, 1), layers=1)


def few_edges(t: Trainer, name: str) -> None:
    """Two seeds a trainer: those of some that nobody cites first, those of others last."""
    cited = t.whole.in_degrees(t.nodes, etype="cites")
    nodes = t.nodes[torch.argsort(cited, descending=t.rank % 2 > 0, stable=True)]
    make, cross = FUNCTIONS[name]
    layer = Layer(t.facts, HIDDEN, 4, make, cross).double()
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(batch_size=2, layers=1, nodes=nodes)):
        states = {n: torch.sin(i.double()[:, None] * torch.arange(1., HIDDEN + 1).double())
                  for n, i in ids.items()}
        t.record("out", layer(blocks[0], states)["paper"], seeds["paper"])


class Shortened(Net):
    """Gradients of the rows between two layers are shortened, long ones more so."""

    def __init__(self, facts: Any, layer: Any) -> None:
        super().__init__(facts, layer)
        self.between = nn.Linear(HIDDEN, HIDDEN)
        self.between.register_full_backward_pre_hook(
            lambda _, above: tuple(g / (1 + 100 * g.norm(dim=1, keepdim=True)) for g in above))

    def forward(self, blocks: list[Any], ids: Any, features: Any) -> Tensor:
        states = self.layers[0](blocks[0], self.inputs(ids, features))
        return self.layers[1](blocks[1], {t: self.between(x) for t, x in states.items()})["paper"]


def shortened(t: Trainer) -> None:
    """A hook is given this machine's part of gradients."""
    train(t, Shortened(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "sum")))


def unproved(t: Trainer, program: str) -> None:
    """Another program as it is, without the proof."""
    torch.manual_seed(zlib.crc32(program.encode()))
    assert t.session is not None
    settings = t.session.settings
    t.session.settings = settings.model_copy(
        update={"run": settings.run.model_copy(update={"prove": "off"})})
    name, _, argument = program.partition(" ")
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(
        t, *([json.loads(argument)] if argument else []))
