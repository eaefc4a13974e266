"""A DistDGL script of the tests: GraphSAGE for some epochs, and what each of them sent.

It is plain DistDGL and knows nothing of dgl-heta. It writes OUT/RANK.npz: seeds, steps of each
epoch, the parameters after each epoch and when the process ends, bytes that came from and went to
other machines by cause and epoch, the nodes whose features were read, and all edges of the seeds'
blocks without a fanout.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import numpy as np
import torch
from dgl.dataloading import DistNodeDataLoader, MultiLayerFullNeighborSampler, NeighborSampler
from dgl.nn.pytorch import SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

COUNTER = Path(__file__).parents[3] / "scripts/bench/systems/distdgl/sent.py"


class Sage(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(width, 8, "mean"), SAGEConv(8, classes, "mean")])
        self.norm = nn.BatchNorm1d(8)

    def forward(self, blocks: list, states: Tensor) -> Tensor:
        states = torch.relu(self.norm(self.layers[0](blocks[0], states)))
        return self.layers[1](blocks[1], states)


def counter() -> Any:
    spec = importlib.util.spec_from_file_location("sent", COUNTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.watch()
    return module.counted


def flat(module: nn.Module) -> np.ndarray:
    states = [p.detach().double().reshape(-1) for p in [*module.parameters(), *module.buffers()]]
    return torch.cat(states).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--embedding", action="store_true", help="a DistEmbedding beside features")
    parser.add_argument("--destroy", action="store_true", help="destroy the process group")
    parser.add_argument("--fewer", action="store_true", help="trainer 0 leaves most seeds out")
    parser.add_argument("--fail", type=int, default=-1, help="the rank that ends in epoch 2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = {}
    nets: list[nn.Module] = []

    def save() -> None:
        if nets:  # none on servers
            np.savez(Path(options.out) / f"{rank}.npz", **kept, last=flat(nets[0]))

    atexit.register(save)  # runs after all that is registered later
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    sent = counter()
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    book, data = g.get_partition_book(), g.ndata
    seeds = dgl.distributed.node_split(data["train_mask"], book, force_even=True)
    if options.fewer and rank == 0:
        seeds = seeds[:len(seeds) // 4]
    torch.manual_seed(7)
    width = data["features"].shape[1] + 2 * options.embedding
    net = nn.parallel.DistributedDataParallel(Sage(width, 4).double())
    nets.append(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    if options.embedding:
        table = dgl.distributed.DistEmbedding(g.num_nodes(), 2, "emb")
        sparse = dgl.distributed.optim.SparseAdam([table], 0.02)
    torch.manual_seed(rank)
    dgl.seed(rank)
    loader = DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), batch_size=options.batch_size,
                                shuffle=True)
    read, steps, parameters, losses, causes = [], [], [], [], []
    for epoch in range(options.epochs):
        before, count = dict(sent), 0
        with net.join():
            for ids, chosen, blocks in loader:
                if rank == options.fail and epoch == 1:
                    raise ValueError("this trainer fails")
                rows = data["features"][ids].double()
                if options.embedding:
                    rows = torch.cat([rows, table(ids).double()], 1)
                    sparse.zero_grad()
                logits = net(blocks, rows)
                loss = cross_entropy(logits, data["labels"][chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if options.embedding:
                    sparse.step()
                read.append(ids.numpy())
                losses.append(loss.item())
                count += 1
        steps.append(count)
        causes.append([sent[c] - before.get(c, 0) for c in ("features", "sampling",
                                                             "other requests")])
        parameters.append(flat(net))
    everything = DistNodeDataLoader(g, seeds, MultiLayerFullNeighborSampler(2),
                                    batch_size=max(len(seeds), 1))
    with torch.no_grad():
        edges = [block.edata[dgl.EID].numpy() for _, _, blocks in everything for block in blocks]
    kept |= {"outer": edges[0], "inner": edges[1], "table": (
        table.weight[torch.arange(g.num_nodes())].numpy() if options.embedding else 0),
             "seeds": seeds.numpy(), "steps": steps, "parameters": parameters, "losses": losses,
             "sent": causes, "read": np.unique(np.concatenate(read)),
             "own": book.partid2nids(book.partid).numpy()}
    if options.destroy:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
