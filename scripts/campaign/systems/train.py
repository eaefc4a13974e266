"""A short DistDGL script for campaigns: R-GCN with learnable rows. It knows nothing of dgl-heta."""

from __future__ import annotations

import argparse
import os

os.environ["DGLBACKEND"] = "pytorch"

import dgl
import dgl.distributed
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16


class Model(nn.Module):
    """Two layers of GraphConv per relation."""

    def __init__(self, g, classes):
        super().__init__()
        self.widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes
                       if "feat" in g.nodes[t].data}
        self.inputs = nn.ModuleDict({t: nn.Linear(w, WIDTH) for t, w in self.widths.items()})
        self.layers = nn.ModuleList(
            dglnn.HeteroGraphConv({r: dglnn.GraphConv(WIDTH, WIDTH, norm="right")
                                   for r in g.etypes})
            for _ in range(2))
        self.out = nn.Linear(WIDTH, classes)

    def forward(self, blocks, rows, target):
        states = {t: self.inputs[t](x) if t in self.inputs else x for t, x in rows.items()}
        for layer, block in zip(self.layers, blocks):
            states = {t: F.relu(x) for t, x in layer(block, states).items()}
        return self.out(states[target])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph-name", required=True)
    parser.add_argument("--ip-config", required=True)
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--target", default="paper")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    dgl.seed(0)
    dgl.distributed.initialize(args.ip_config)
    torch.distributed.init_process_group("gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    labels = g.nodes[args.target].data["label"][torch.arange(g.num_nodes(args.target))].long()
    seeds = dgl.distributed.node_split(g.nodes[args.target].data["train_mask"],
                                       g.get_partition_book(), ntype=args.target)
    tables = {t: dgl.distributed.DistEmbedding(
        g.num_nodes(t), WIDTH, f"rows-{t}", None, g.get_node_partition_policy(t))
        for t in g.ntypes if "feat" not in g.nodes[t].data}
    model = nn.parallel.DistributedDataParallel(Model(g, int(labels.max()) + 1))
    dense = torch.optim.Adam(model.parameters(), lr=0.01)
    sparse = dgl.distributed.optim.SparseAdam(list(tables.values()), lr=0.01)
    loader = dgl.dataloading.DistNodeDataLoader(
        g, {args.target: seeds[:args.steps * 32]}, dgl.dataloading.NeighborSampler([5, 5]),
        batch_size=32, shuffle=True)
    for epoch in range(args.epochs):
        for ids, found, blocks in loader:
            rows = {t: tables[t](n) if t in tables else g.nodes[t].data["feat"][n]
                    for t, n in ids.items() if len(n)}
            loss = F.cross_entropy(model(blocks, rows, args.target), labels[found[args.target]])
            dense.zero_grad()
            sparse.zero_grad()
            loss.backward()
            dense.step()
            sparse.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
