"""What most scripts do: features and tables, layers of HeteroGraphConv, a loss over own seeds."""

from __future__ import annotations

import itertools
from typing import Any

import dgl.function as fn
import torch
from dgl.nn.functional import edge_softmax
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dgl_heta.features.deferred import LazyRows
from tests.support.programs_worker import Facts, Trainer

HIDDEN = 6


class Inputs(nn.Module):
    """A linear layer for each type with features, a table for each without."""

    def __init__(self, facts: Facts, size: int = HIDDEN) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({t: nn.Linear(w, size) for t, w in facts.widths.items()})
        self.tables = nn.ModuleDict({t: nn.Embedding(n, size) for t, n in facts.counts.items()
                                     if t not in facts.widths})

    def forward(self, ids: dict[str, Tensor], features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**{t: self.linear[t](x) for t, x in features.items()},
                **{t: table(ids[t]) for t, table in self.tables.items()}}


class Net(nn.Module):
    """Inputs, then layers made by `layer(in size, out size)`, with tanh between them."""

    def __init__(self, facts: Facts, layer: Any, layers: int = 2) -> None:
        super().__init__()
        self.inputs = Inputs(facts)
        sizes = [HIDDEN] * layers + [facts.classes]
        self.layers = nn.ModuleList(layer(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for number, (layer, block) in enumerate(zip(self.layers, blocks)):
            states = {t: x.flatten(1) for t, x in layer(block, states).items()}
            if number + 1 < len(self.layers):
                states = {t: torch.tanh(x) for t, x in states.items()}
        return states["paper"]


def train(t: Trainer, net: nn.Module, steps: int = 2, layers: int = 2) -> None:
    """Steps of Adam on a net that is called with (blocks, ids, features)."""
    net = t.parallel(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _, (ids, seeds, blocks) in zip(range(steps), t.loader(layers=layers)):
        out = net(blocks, ids, t.features(ids))
        loss = cross_entropy(out, t.labels(seeds))
        optimizer.zero_grad()
        loss.backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
        optimizer.step()
    t.parameters(net)


def graph_conv(t: Trainer) -> None:
    train(t, Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "mean")))


class Attention(nn.Module):
    """Attention over one relation, from keys and values of its sources and queries."""

    def forward(self, graph: Any, rows: Any) -> Tensor:
        (keys, values), queries = rows
        with graph.local_scope():
            graph.srcdata["key"], graph.srcdata["value"] = (x.view(-1, 4, 16) for x in (
                keys, values))
            graph.dstdata["query"] = queries.view(-1, 4, 16)
            graph.apply_edges(fn.u_dot_v("key", "query", "score"))
            graph.edata["weight"] = edge_softmax(graph, graph.edata["score"] / 4)
            graph.update_all(fn.u_mul_e("value", "weight", "m"), fn.sum("m", "out"))
            return graph.dstdata["out"].flatten(1)


class Transformer(nn.Module):
    """Keys and values are products of projected features, queries of features themselves."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.inputs = Inputs(facts)
        self.keys, self.values = (nn.ModuleDict({t: nn.Linear(HIDDEN, 64) for t in facts.counts})
                                  for _ in range(2))
        self.queries = nn.ModuleDict({t: nn.Linear(w, 64) for t, w in facts.widths.items()})
        self.conv = HeteroGraphConv({e: Attention() for _, e, d in facts.etypes
                                     if d in facts.widths}, "mean")
        self.out = nn.Linear(64, facts.classes)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        sources = {t: (self.keys[t](x), self.values[t](x)) for t, x in states.items()}
        (block,) = blocks
        own = {t: self.queries[t](features[t][:block.num_dst_nodes(t)]) for t in block.dsttypes
               if t in features}
        merged = self.conv(block, (sources, own))["paper"]
        made = [*itertools.chain(*sources.values()), *states.values()]
        waiting = [x for x in made if isinstance(x, LazyRows)]
        assert all(x.waits for x in waiting)
        assert len(waiting) == 3 * sum(isinstance(x, LazyRows) for x in features.values())
        return self.out(merged.tanh())


def keys_and_values(t: Trainer) -> None:
    train(t, Transformer(t.facts), layers=1)
