"""A DistDGL script of the tests: weights of edges in GraphConv and in messages.

It knows nothing of dgl-heta. The tests import its model for the reference.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import dgl.function as fn
import numpy as np
import torch
import torch.distributed as dist
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SIZE = 5


class Net(nn.Module):
    """A layer of weighted convolutions, then one of weighted messages."""

    def __init__(self, g: Any) -> None:
        super().__init__()
        self.g, relations = [g], g.canonical_etypes
        self.tables = nn.ModuleDict({t: nn.Embedding(g.num_nodes(t), SIZE) for t in g.ntypes})
        self.conv = HeteroGraphConv({e: GraphConv(SIZE, SIZE, norm="right")
                                     for _, e, _ in relations}, "sum")
        self.out = nn.Linear(SIZE, 4)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor]) -> Tensor:
        states = {t: table(ids[t]) for t, table in self.tables.items()}
        first, last = blocks
        states = self.conv(first, states, mod_kwargs={
            e[1]: {"edge_weight": self.weights(first, e)} for e in first.canonical_etypes})
        into = [e for e in last.canonical_etypes if e[2] == "paper"]
        for e in into:
            last.srcnodes[e[0]].data["h"] = torch.tanh(states[e[0]])
            last.edges[e].data["w"] = self.weights(last, e).view(-1, 1)
        last.multi_update_all({e: (fn.u_mul_e("h", "w", "m"), fn.mean("m", "h"))
                               for e in into}, "sum")
        return self.out(last.dstnodes["paper"].data["h"])

    def weights(self, block: Any, etype: Any) -> Tensor:
        rows: Tensor = self.g[0].edges[etype].data["w"][block.edges[etype].data[dgl.EID]]
        return rows.double().sqrt()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip-config", default="")
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--fanout", type=int, default=-1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dgl.distributed.initialize(options.ip_config)
    rank = 0
    if os.environ.get("DGL_DIST_MODE") == "distributed":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    g = dgl.distributed.DistGraph("academic", part_config=options.part_config)
    torch.manual_seed(3)
    net: Any = Net(g)
    model = net if not dist.is_initialized() else nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train = dgl.distributed.node_split(g.nodes["paper"].data["train_mask"],
                                       g.get_partition_book(), ntype="paper")
    loader = dgl.dataloading.DistNodeDataLoader(
        g, {"paper": train}, dgl.dataloading.NeighborSampler([options.fanout] * 2), batch_size=20)
    found: dict[str, Any] = {}
    for step, (ids, seeds, blocks) in enumerate(loader):
        logits = model(blocks, ids)
        loss = cross_entropy(logits, g.nodes["paper"].data["labels"][seeds["paper"]].long())
        optimizer.zero_grad()
        loss.backward()
        if not step:
            found = {"own": seeds["paper"].numpy(), "logits": logits.detach().numpy(),
                     "gradient": net.out.weight.grad.numpy().copy()}
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for ids, _, blocks in loader:
            model(blocks, ids)
    np.savez(f"{options.out}/{rank}.npz", **found)


if __name__ == "__main__":
    main()
