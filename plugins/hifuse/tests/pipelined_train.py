"""A DistDGL script of the tests: it trains, leaves an epoch early, evaluates, and goes on.

It is plain DistDGL and knows nothing of dgl-heta. It writes OUT/RANK.npz: what it computed, the
threads that it saw while it trained and at the end, and from which threads DGL's RPC was used.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import numpy as np
import torch
from dgl.dataloading import DistNodeDataLoader, NeighborSampler
from dgl.distributed import rpc
from dgl.nn.pytorch import HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH = 5


class Net(nn.Module):
    def __init__(self, g: Any, widths: dict[str, int]) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict({t: nn.Linear(width, 8) for t, width in widths.items()})
        self.layers = nn.ModuleList([
            HeteroGraphConv({e: SAGEConv(8, out, "mean") for e in g.etypes}) for out in (8, 4)])

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> Tensor:
        states = {t: torch.relu(self.inputs[t](x)) for t, x in rows.items()}
        states = {t: torch.relu(x) for t, x in self.layers[0](blocks[0], states).items()}
        return self.layers[1](blocks[1], states)["paper"]


def watched_rpc() -> set[str]:
    """Names of threads that send requests to servers."""
    threads: set[str] = set()

    def watched(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread().name)
            return original(*args, **kwargs)
        return call

    for name in ("send_request", "send_request_to_machine", "remote_call", "recv_response"):
        setattr(rpc, name, watched(getattr(rpc, name)))
    return threads


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--fail", action="store_true", help="sampling fails on trainer 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    rank, rpc_threads = torch.distributed.get_rank(), watched_rpc()
    g = dgl.distributed.DistGraph("academic", part_config=options.part_config)
    book, data = g.get_partition_book(), g.nodes["paper"].data
    train, val = (dgl.distributed.node_split(data[mask], book, ntype="paper", force_even=True)
                  for mask in ("train_mask", "val_mask"))
    static = {t: g.nodes[t].data["feat"] for t in g.ntypes if "feat" in g.nodes[t].data}
    torch.manual_seed(7)
    tables = {t: dgl.distributed.DistEmbedding(
        g.num_nodes(t), WIDTH, t, part_policy=g.get_node_partition_policy(t))
        for t in g.ntypes if t not in static}
    if rank == 0:
        for table in tables.values():
            rows = torch.sin(torch.arange(len(table.weight) * WIDTH).float()).view(-1, WIDTH)
            table.weight[torch.arange(len(table.weight))] = rows
    g.barrier()
    net: nn.Module = nn.parallel.DistributedDataParallel(Net(
        g, {t: static[t].shape[1] if t in static else WIDTH for t in g.ntypes}))
    dense = torch.optim.Adam(net.parameters(), 0.02)
    sparse = dgl.distributed.optim.SparseAdam([*tables.values()], 0.02)
    torch.manual_seed(rank)

    def loader(nodes: Tensor, shuffle: bool = True) -> Any:
        return DistNodeDataLoader(g, {"paper": nodes}, NeighborSampler([3, 4]), batch_size=6,
                                  shuffle=shuffle, num_workers=options.num_workers)

    def losses(batch: Any) -> Tensor:
        ids, seeds, blocks = batch
        rows = {t: feats[ids[t]].float() for t, feats in static.items()}
        rows |= {t: table(ids[t]) for t, table in tables.items()}
        return cross_entropy(net(blocks, rows), data["labels"][seeds["paper"]].long())

    def step(loss: Tensor) -> float:
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        return loss.item()

    if options.fail and rank == 1:
        from dgl_heta.sampling.sampler import NeighborSampler as Sampler

        sample, calls = Sampler.sample, iter(range(1000))

        def fails(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == 4:
                raise OSError("the disk of trainer 1 is gone")
            return sample(*args, **kwargs)

        Sampler.sample = fails  # type: ignore[method-assign]
    training, values = loader(train), []
    seen: set[str] = set()
    for epoch in range(2):
        for number, batch in enumerate(training):
            values.append(step(losses(batch)))
            seen |= {thread.name for thread in threading.enumerate()}
            if epoch == 0 and number == 2:
                break  # the loader is used again, after another
        with torch.no_grad():
            values += [losses(batch).item() for batch in loader(val, shuffle=False)]
    for first, second in zip(loader(train), loader(train)):  # drawn side by side
        values.append(step(losses(first) + losses(second)))
    for _ in loader(train):
        break  # and nobody ends this one
    del training
    left = {thread.name for thread in threading.enumerate()}
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    g.barrier()
    np.savez(Path(options.out) / f"{rank}.npz", losses=values, parameters=flat.numpy(),
             seen=sorted(seen), left=sorted(left), rpc=sorted(rpc_threads),
             **{t: table.weight[torch.arange(g.num_nodes(t))].numpy()
                for t, table in tables.items()})
    g.barrier()


if __name__ == "__main__":
    main()
