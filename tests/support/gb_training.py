"""A GraphBolt script that learns from nodes, as a user would write it; it knows nothing of
dgl-heta.

usage: gb_training.py DATASET OUT REPLICAS [FANOUT [WORKERS [DEVICE]]]

One process, or several of torchrun. One process takes the batches that REPLICAS processes have,
joined. With a negative FANOUT all neighbours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
import torch.distributed as dist
from dgl import graphbolt as gb
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

HIDDEN, CLASSES, BATCH = 6, 3, 8


class Net(nn.Module):
    """Features or embeddings per node type, then two layers over blocks."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        etypes = [gb.etype_str_to_tuple(e)[1] for e in sorted(graph.edge_type_to_id)]
        self.paper, self.author = nn.Linear(5, HIDDEN), nn.Linear(4, HIDDEN)
        self.field = nn.Embedding(int(graph.num_nodes["field"]), HIDDEN)
        self.layers = nn.ModuleList((
            HeteroGraphConv({e: GATConv((HIDDEN, HIDDEN), HIDDEN // 2, 2) for e in etypes}, "sum"),
            HeteroGraphConv({e: GraphConv(HIDDEN, CLASSES, norm="right") for e in etypes}, "mean")))

    def forward(self, blocks: list[Any], features: dict[Any, Tensor]) -> Tensor:
        ids = blocks[0].srcdata[dgl.NID]
        states = {"paper": self.paper(features["paper", "feat"]),
                  "author": self.author(features["author", "feat"]),
                  "field": self.field(ids["field"].long())}
        for layer, block in zip(self.layers, blocks):
            states = {t: torch.tanh(x.flatten(1)) for t, x in layer(block, states).items()}
        return states["paper"]


def joined(items: Any, replicas: int) -> Any:
    """An item set in the order in which the batches of so many replicas come, step by step; as it
    is where replicas have unequal batches."""
    count = len(items)
    if count % (replicas * BATCH):
        return items
    order = torch.arange(count).view(replicas, -1, BATCH).transpose(0, 1).flatten()
    pieces = tuple(x[order] for x in items[0:count]["paper"])
    return gb.ItemSetDict({"paper": gb.ItemSet(pieces, names=("seed_nodes", "labels"))})


class Script:
    def __init__(self, directory: str, replicas: int, fanout: int, workers: int,
                 device: str) -> None:
        self.replicas, self.workers = replicas, workers
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        if self.world > 1:
            dist.init_process_group("gloo")
        self.device = torch.device(device)
        if device == "cuda":
            self.device = torch.device(device, int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        self.dataset = gb.OnDiskDataset(directory).load()
        self.fanouts = [torch.full((len(self.dataset.graph.num_edges),), fanout)] * 2

    def loader(self, items: Any) -> Any:
        if self.world > 1:
            pipe = gb.DistributedItemSampler(items, BATCH)
        else:
            pipe = gb.ItemSampler(joined(items, self.replicas), BATCH * self.replicas)
        pipe = pipe.sample_neighbor(self.dataset.graph, self.fanouts)
        pipe = pipe.fetch_feature(self.dataset.feature,
                                  {"paper": ["feat"], "author": ["feat"]})
        return gb.DataLoader(pipe.copy_to(self.device), num_workers=self.workers)

    def run(self, out: Path) -> None:
        torch.manual_seed(1)
        task, found = self.dataset.tasks[0], {}
        net: Any = Net(self.dataset.graph).double().to(self.device)
        plain = net
        if self.world > 1:
            net = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        train, valid = self.loader(task.train_set), self.loader(task.validation_set)
        for epoch in range(2):
            net.train()
            for step, batch in enumerate(train):
                logits = net(batch.blocks, batch.node_features)
                optimizer.zero_grad()
                labels = batch.labels["paper"].long()
                assert labels.device == logits.device
                cross_entropy(logits, labels).backward()
                optimizer.step()
                found |= {f"{epoch}/{step}/seeds": batch.seed_nodes["paper"].cpu().numpy(),
                          f"{epoch}/{step}/logits": logits.detach().cpu().numpy()}
            net.eval()
            with torch.no_grad():
                rows = [(b.seed_nodes["paper"], net(b.blocks, b.node_features)) for b in valid]
            found |= {f"{epoch}/valid": torch.cat([x for x, _ in rows]).cpu().numpy(),
                      f"{epoch}/predicted": torch.cat([x for _, x in rows]).cpu().numpy()}
        found["sources"] = np.array([int(batch.input_nodes[t].numel())
                                     for t in ("author", "field", "paper")])
        found |= {name: p.detach().cpu().numpy() for name, p in plain.named_parameters()}
        np.savez(out / f"{os.environ.get('RANK', 'one')}.npz", **found)


def main() -> None:
    directory, out, replicas, *more = sys.argv[1:]
    torch.set_num_threads(1)
    fanout, workers, device = [*more, *("-1", "0", "cpu")[len(more):]]
    Script(directory, int(replicas), int(fanout), int(workers), device).run(Path(out))


if __name__ == "__main__":
    main()
