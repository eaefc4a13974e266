"""Samplers whose classes scripts derive from DGL's NeighborSampler."""

from __future__ import annotations

from typing import Any

import torch
from dgl import NID
from dgl.dataloading import MultiLayerFullNeighborSampler
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch.nn.functional import cross_entropy

from tests.distdgl.programs.usual import Net
from tests.support.programs_worker import Trainer


class Adding(MultiLayerFullNeighborSampler):
    """Puts labels, weights of nodes and their degrees in the whole graph on the blocks."""

    def __init__(self, t: Trainer) -> None:
        super().__init__(2)
        self.t = t

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        inputs, outputs, blocks = super().sample_blocks(g, seed_nodes, exclude_eids)
        for block in blocks:
            for n in block.srctypes:
                ids = block.srcnodes[n].data[NID]
                block.srcnodes[n].data["weight"] = 1 + torch.sin(ids.double())[:, None] / 9
        blocks[-1].dstnodes["paper"].data["label"] = self.t.labels(outputs)
        return inputs, outputs, blocks


class More(Adding):
    """Samples for more nodes than it was asked for, which differ between trainers."""

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        others = self.t.nodes[~torch.isin(self.t.nodes, seed_nodes["paper"])][:2 + self.t.rank]
        seeds = torch.cat([seed_nodes["paper"], others])
        return super().sample_blocks(g, {"paper": seeds}, exclude_eids)


class Twice(Adding):
    """Samples the seeds in two halves, and gives one."""

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        first, second = seed_nodes["paper"].chunk(2)
        self.other = super().sample_blocks(g, {"paper": first}, exclude_eids)
        return super().sample_blocks(g, {"paper": second}, exclude_eids)


class Weighted(Net):
    def forward(self, blocks: Any, ids: Any, features: Any) -> torch.Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            states = layer(block, {n: x * block.srcnodes[n].data["weight"]
                                   for n, x in states.items()})
        return states["paper"]


def derived(t: Trainer, name: str) -> None:
    net = t.parallel(Weighted(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "mean")))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    sampler = globals()[name](t)
    for _, batch in zip(range(2), t.loader(sampler=sampler)):
        loss = torch.zeros(())
        for ids, seeds, blocks in [batch, *([sampler.other] if name == "Twice" else [])]:
            out = net(blocks, ids, t.features(ids))
            loss = loss + cross_entropy(out, blocks[-1].dstnodes["paper"].data["label"])
            t.record("out", out, seeds["paper"])
        optimizer.zero_grad()
        loss.backward()
        t.gradients(net)
        optimizer.step()
    t.parameters(net)
