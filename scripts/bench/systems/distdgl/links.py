"""A DistDGL script for link prediction: R-GCN, dot products, uniform negatives.

It knows nothing of dgl-heta. It runs with plain DistDGL on parts that DGL made, and under
`dgl-heta launch` with meta-partitioning and RAF on parts that dgl-heta made for both ends of the
relation. Every epoch it prints a line of JSON per trainer: seconds by stage, bytes by cause
(sent.py), losses.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import dgl
import dgl.distributed
import dgl.nn as dglnn
import sent
import torch
import torch.nn.functional as F
from dgl.dataloading import negative_sampler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train import Convolution, Inputs


class Encoder(nn.Module):
    """States of a batch's nodes."""

    def __init__(self, g: Any, hidden: int, layers: int) -> None:
        super().__init__()
        self.inputs = Inputs(g, hidden)
        self.layers = nn.ModuleList(Convolution(lambda: dglnn.GraphConv(
            hidden, hidden, norm="right", bias=False, allow_zero_in_degree=True), g, hidden)
            for _ in range(layers))

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        states = self.inputs(rows)
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return states


def scores(graph: Any, states: dict[str, Tensor], etype: tuple[str, str, str]) -> Tensor:
    """Of a graph's edges."""
    left, right = graph.edges(etype=etype)
    return (states[etype[0]][left] * states[etype[2]][right]).sum(1)


def edges(g: Any, args: argparse.Namespace) -> Tensor:
    """This trainer's edges, so many as its steps take."""
    count = g.num_edges(args.relation)
    wanted = args.steps * args.batch_size * torch.distributed.get_world_size()
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:wanted]
    mask = torch.zeros(count, dtype=torch.bool)
    mask[chosen] = True
    return dgl.distributed.edge_split(mask, g.get_partition_book(), etype=args.relation)


def epoch(args: argparse.Namespace, loader: Any, model: Any, dense: Any, sparse: Any
          ) -> dict[str, Any]:
    """One pass; seconds by stage and the losses."""
    seconds = dict.fromkeys(("sample", "features", "forward", "backward", "update"), 0.0)
    losses = []
    last = begin = time.perf_counter()

    def stage(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[name] += now - last
        last = now

    for ids, known, other, blocks in loader:
        stage("sample")
        rows = model.module.inputs.fetch(ids)
        stage("features")
        states = model(blocks, rows)
        right, wrong = (scores(graph, states, args.relation) for graph in (known, other))
        loss = F.softplus(-right).mean() + F.softplus(wrong).mean()
        stage("forward")
        dense.zero_grad()
        if sparse is not None:
            sparse.zero_grad()
        loss.backward()
        stage("backward")
        dense.step()
        if sparse is not None:
            sparse.step()
        stage("update")
        losses.append(loss.item())
    return {"seconds": time.perf_counter() - begin, "stages": seconds, "loss": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph-name", required=True)
    parser.add_argument("--ip-config", required=True)
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--relation", required=True, help="src:etype:dst")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanouts", default="25,20")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    args.relation = tuple(args.relation.split(":"))
    fanouts = [int(f) for f in args.fanouts.split(",")]
    torch.manual_seed(0)
    dgl.seed(0)
    dgl.distributed.initialize(args.ip_config)
    torch.distributed.init_process_group(backend="gloo")
    sent.watch()
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    loader = dgl.dataloading.DistEdgeDataLoader(
        g, {args.relation: edges(g, args)}, dgl.dataloading.MultiLayerNeighborSampler(fanouts),
        negative_sampler=negative_sampler.Uniform(args.negatives), batch_size=args.batch_size,
        shuffle=True, drop_last=False)
    model = Encoder(g, args.hidden, len(fanouts))
    tables = list(model.inputs.tables.values())
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    dense = torch.optim.Adam(model.parameters(), lr=0.01)
    sparse = dgl.distributed.optim.SparseAdam(tables, lr=0.01) if tables else None
    for number in range(args.epochs):
        g.barrier()
        causes, on_link = sent.by_cause(), sent.link()
        record = epoch(args, loader, parallel, dense, sparse)
        g.barrier()
        record.update(epoch=number, rank=g.rank(), link=sent.link() - on_link,
                      causes=sent.by_cause() - causes)
        print(json.dumps(record), flush=True)
    g.barrier()


if __name__ == "__main__":
    main()
