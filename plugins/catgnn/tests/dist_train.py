"""A DistDGL script of the tests: GraphSAGE with plain DGL, and whose neighbours a trainer samples.

It knows nothing of dgl-heta. It writes OUT/RANK.npz: the ids of the seeds, how many of their edges
DGL sampled in each layer, and the losses.
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
from dgl.dataloading import DistNodeDataLoader, MultiLayerFullNeighborSampler
from dgl.nn.pytorch import SAGEConv
from torch import nn
from torch.nn.functional import cross_entropy


class Sage(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(width, 8, "mean"), SAGEConv(8, classes, "mean")])

    def forward(self, blocks: list, states: torch.Tensor) -> torch.Tensor:
        return self.layers[1](blocks[1], torch.relu(self.layers[0](blocks[0], states)))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    seeds = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book(),
                                       force_even=False)
    everything = g.sample_neighbors(seeds, -1).edges()
    net = nn.parallel.DistributedDataParallel(Sage(g.ndata["features"].shape[1], 4))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    loader = DistNodeDataLoader(g, seeds, MultiLayerFullNeighborSampler(2), batch_size=len(seeds))
    losses = []
    for _ in range(12):
        for ids, chosen, blocks in loader:
            loss = cross_entropy(net(blocks, g.ndata["features"][ids]), g.ndata["labels"][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    np.savez(Path(options.out) / f"{rank}.npz", seeds=seeds.numpy(), losses=losses,
             edges=torch.stack(everything).numpy())
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
