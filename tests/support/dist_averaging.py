"""A DistDGL script of the tests: trainers with unequal numbers of batches, two epochs.

It knows nothing of dgl-heta. Plain DistributedDataParallel would wait for ever in it.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import numpy as np
import torch
from dgl.dataloading import DistNodeDataLoader, NeighborSampler
from dgl.nn.pytorch import HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH, CLASSES, EPOCHS = 4, 4, 2
MINE = (25, 7)  # nodes of each trainer


class Net(nn.Module):
    def __init__(self, widths: dict[str, int], etypes: list[str]) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({t: nn.Linear(w, WIDTH) for t, w in widths.items()})
        self.layers = nn.ModuleList(
            HeteroGraphConv({e: SAGEConv(WIDTH, out, "mean") for e in etypes})
            for out in (WIDTH, CLASSES))

    def forward(self, blocks: list, features: dict[str, Tensor]) -> Tensor:
        states = {t: self.linear[t](x) for t, x in features.items()}
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return states["paper"]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes if "feat" in g.nodes[t].data}

    def features(ids: dict[str, Tensor]) -> dict[str, Tensor]:
        return {t: g.nodes[t].data["feat"][ids[t]].float() if t in widths
                else torch.ones(len(ids[t]), WIDTH) for t in g.ntypes}

    net = nn.parallel.DistributedDataParallel(
        Net({t: widths.get(t, WIDTH) for t in g.ntypes}, [e for _, e, _ in g.canonical_etypes]))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    book, sampler = g.get_partition_book(), NeighborSampler([3, 3])
    mine = dgl.distributed.node_split(g.nodes["paper"].data["train_mask"], book, ntype="paper",
                                      force_even=True)[:MINE[rank]]
    train = DistNodeDataLoader(g, {"paper": mine}, sampler, batch_size=5, shuffle=True)
    test = DistNodeDataLoader(g, {"paper": mine[:4]}, sampler, batch_size=4)
    steps, parameters = [], []
    for _ in range(EPOCHS):
        net.train()
        count = 0
        with net.join():
            for ids, seeds, blocks in train:
                labels = g.nodes["paper"].data["labels"][seeds["paper"]].long()
                loss = cross_entropy(net(blocks, features(ids)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                count += 1
        net.eval()
        with torch.no_grad():
            for ids, _, blocks in test:
                net(blocks, features(ids))
        steps.append(count)
        parameters.append(np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]))
    np.savez(Path(options.out) / f"script-{rank}.npz", steps=steps, parameters=parameters)
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
