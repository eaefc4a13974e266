"""A small DistDGL script for `dgl-heta prove`: it trains and evaluates the model that is asked for.

It knows nothing of dgl-heta, unless it is told to switch off a repair, or asks for all seeds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch
from dgl.nn.pytorch import HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, relu

import dgl_heta

HIDDEN, CLASSES, TARGET = 8, 4, "paper"


class Centred(nn.Module):
    """A layer that takes the mean over all rows from each, whichever rows there are."""

    def forward(self, states: Tensor) -> Tensor:
        return states - states.mean(0)


class Noise(nn.Module):
    """A layer that draws a number for each row."""

    def forward(self, states: Tensor) -> Tensor:
        return states + 0.1 * torch.randn_like(states)


class Layer(nn.Module):
    """One SAGEConv per relation, merged, and what a case does to the result."""

    def __init__(self, etypes: list[str], after: nn.Module) -> None:
        super().__init__()
        self.conv = HeteroGraphConv({e: SAGEConv(HIDDEN, HIDDEN, "mean") for e in etypes}, "sum")
        self.after = after

    def forward(self, block, states):
        return {t: self.after(dropout(relu(x), 0.5, self.training))
                for t, x in self.conv(block, states).items()}


class Net(nn.Module):
    """Projected features and learnable rows, two layers, a head that begins with zeros."""

    def __init__(self, g, case: str) -> None:
        super().__init__()
        widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes
                  if "feat" in g.nodes[t].data}
        self.project = nn.ModuleDict({t: nn.Linear(w, HIDDEN) for t, w in widths.items()})
        after = {"centred": Centred, "noise": Noise, "norm, labels, no evaluation":
                 lambda: nn.BatchNorm1d(HIDDEN)}.get(case, nn.Identity)
        self.layers = nn.ModuleList(Layer(g.etypes, after()) for _ in range(2))
        self.head = nn.Linear(HIDDEN, CLASSES)
        nn.init.zeros_(self.head.weight)

    def forward(self, blocks, states):
        states = {t: self.project[t](x) if t in self.project else x for t, x in states.items()}
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return self.head(states[TARGET])


def with_labels(g, states: dict[str, Tensor], blocks: list, hidden: Tensor) -> None:
    """Labels of neighbours as one more input, but for those of hidden nodes."""
    ids = blocks[0].srcnodes[TARGET].data[dgl.NID]
    labels = g.nodes[TARGET].data["labels"][ids].float() + 1
    states[TARGET] = states[TARGET] + labels.masked_fill(torch.isin(ids, hidden), 0)[:, None]


def ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches, each when the next one has been drawn."""
    waiting = None
    for batch in loader:
        if waiting is not None:
            yield waiting
        waiting = batch
    if waiting is not None:
        yield waiting


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip-config", required=True)
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--case", default="right")
    parser.add_argument("--off", help="a function of tests.support.sabotage to call first")
    options = parser.parse_args()
    if options.off:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        getattr(importlib.import_module("tests.support.sabotage"), options.off)()
    torch.set_num_threads(1)
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    g = dgl.distributed.DistGraph("academic", part_config=options.part_config)
    tables = {t: dgl.distributed.DistEmbedding(
        g.num_nodes(t), HIDDEN, f"table-{t}", part_policy=g.get_node_partition_policy(t))
        for t in g.ntypes if "feat" not in g.nodes[t].data}
    sampler = dgl.dataloading.MultiLayerNeighborSampler([3, 3])
    loaders = {}
    for mask in ("train_mask", "val_mask"):
        nodes = dgl.distributed.node_split(g.nodes[TARGET].data[mask], g.get_partition_book(),
                                           ntype=TARGET, force_even=True)
        loaders[mask] = dgl.dataloading.DistNodeDataLoader(
            g, {TARGET: nodes}, sampler, batch_size=16, shuffle=True)
    net = nn.parallel.DistributedDataParallel(Net(g, options.case), find_unused_parameters=True)
    dense = torch.optim.AdamW(net.parameters(), 0.01)
    sparse = dgl.distributed.optim.SparseAdam([*tables.values()], lr=0.01)

    def run(ids: dict[str, Tensor], blocks: list) -> Tensor:
        states = {t: tables[t](i) if t in tables else g.nodes[t].data["feat"][i].float()
                  for t, i in ids.items()}
        if "labels" in options.case:
            with_labels(g, states, blocks, dgl_heta.all_seeds(blocks)[TARGET])
        return net(blocks, states)

    for _ in range(3):
        net.train()
        batches = loaders["train_mask"]
        for ids, seeds, blocks in ahead(batches) if options.case == "ahead" else batches:
            labels = g.nodes[TARGET].data["labels"][seeds[TARGET]].long()
            loss = cross_entropy(run(ids, blocks), labels)
            dense.zero_grad()
            sparse.zero_grad()
            loss.backward()
            dense.step()
            sparse.step()
        if "no evaluation" not in options.case:
            net.eval()
            with torch.no_grad():
                for ids, _, blocks in loaders["val_mask"]:
                    run(ids, blocks)
    print("the script has reached its end", flush=True)


if __name__ == "__main__":
    main()
