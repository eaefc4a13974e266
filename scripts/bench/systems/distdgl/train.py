"""A DistDGL training script: R-GCN, R-GAT or HGT on any heterogeneous graph with a target type.

It knows nothing of dgl-heta. It runs with plain DistDGL on parts that DGL made, and under
`dgl-heta launch` with meta-partitioning and RAF on parts that dgl-heta made. Every epoch it prints
a line of JSON per trainer: seconds by stage, bytes by cause (sent.py), loss, accuracy.

Static features are projected to the hidden width; types without features have a DistEmbedding. A
layer merges one module per relation by HeteroGraphConv; logits are a linear layer of the last.
With `--cases` several models are trained after one another.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Iterator
from typing import Any

os.environ["DGLBACKEND"] = "pytorch"

import dgl
import dgl.distributed
import dgl.function as fn
import dgl.nn as dglnn
import sent
import torch
import torch.nn.functional as F
from dgl.nn.functional import edge_softmax
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

FEATURE, LABEL = "feat", "labels"


class Inputs(nn.Module):
    """Hidden states of input nodes: projected features, or rows of a DistEmbedding."""

    def __init__(self, g: Any, hidden: int, name: str = "") -> None:
        super().__init__()
        self.g = g
        self.project = nn.ModuleDict()
        self.tables: dict[str, Any] = {}
        for ntype in g.ntypes:
            if FEATURE in g.nodes[ntype].data:
                self.project[ntype] = nn.Linear(g.nodes[ntype].data[FEATURE].shape[1], hidden)
            else:
                policy = g.get_node_partition_policy(ntype)
                self.tables[ntype] = dgl.distributed.DistEmbedding(
                    g.num_nodes(ntype), hidden, f"{ntype}_emb{name}", _initial, policy)

    def fetch(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of features and embeddings."""
        return {t: self.tables[t](nodes) if t in self.tables
                else self.g.nodes[t].data[FEATURE][nodes].float()
                for t, nodes in ids.items() if len(nodes)}

    def forward(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {t: self.project[t](x) if t in self.project else x for t, x in rows.items()}


def _initial(shape: Any, dtype: Any) -> Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(-0.1, 0.1)


class Convolution(nn.Module):
    """R-GCN and R-GAT: one module per relation, their sum, the node's own state."""

    def __init__(self, make: Any, g: Any, hidden: int) -> None:
        super().__init__()
        self.conv = dglnn.HeteroGraphConv({e: make() for e in g.etypes}, aggregate="sum")
        self.own = nn.Linear(hidden, hidden)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        merged = self.conv(block, states)
        return {t: F.relu(x.flatten(1) + self.own(states[t][:len(x)])) for t, x in merged.items()}


class Attention(nn.Module):
    """HGT over one relation, from keys and values of the source and queries.

    The relation's matrices are applied at the destination, of which there are fewer: to the query
    instead of the keys, and to the sum of values instead of the values.
    """

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.shape = (-1, heads, width)
        self.key = nn.Parameter(torch.empty(heads, width, width))
        self.value = nn.Parameter(torch.empty(heads, width, width))
        self.prior = nn.Parameter(torch.ones(heads))
        nn.init.xavier_uniform_(self.key)
        nn.init.xavier_uniform_(self.value)

    def scores(self, graph: Any, source: tuple[Tensor, Tensor], query: Tensor) -> None:
        """Put values on sources ("v") and a score for each head on edges ("s")."""
        key, value = source
        graph.srcdata["k"], graph.srcdata["v"] = key.view(self.shape), value.view(self.shape)
        query = query.view(self.shape) * self.prior[:, None] / self.shape[2] ** 0.5
        graph.dstdata["q"] = torch.einsum("nhe,hde->nhd", query, self.key)
        graph.apply_edges(fn.u_dot_v("k", "q", "s"))

    def forward(self, graph: Any, rows: tuple[tuple[Tensor, Tensor], Tensor]) -> Tensor:
        with graph.local_scope():
            self.scores(graph, *rows)
            graph.edata["a"] = edge_softmax(graph, graph.edata["s"])
            graph.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "out"))
            return torch.einsum("nhd,hde->nhe", graph.dstdata["out"], self.value).flatten(1)


class Largest(nn.Module):
    """The largest score of a destination's in-edges by one relation, by head."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, graph: Any, rows: Any) -> Tensor:
        with graph.local_scope():
            self.attention.scores(graph, *rows)
            graph.update_all(fn.copy_e("s", "m"), fn.max("m", "top"))
            return graph.dstdata["top"]


class Weighted(Largest):
    """Sums of values, and of the weights that they have, of one relation's in-edges."""

    def forward(self, graph: Any, rows: Any) -> Tensor:
        source, (query, top) = rows
        with graph.local_scope():
            self.attention.scores(graph, source, query)
            graph.dstdata["top"] = top
            graph.apply_edges(fn.e_sub_v("s", "top", "d"))
            graph.edata["a"] = graph.edata["d"].exp()
            graph.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "out"))
            graph.update_all(fn.copy_e("a", "m"), fn.sum("m", "sum"))
            out = torch.einsum("nhd,hde->nhe", graph.dstdata["out"], self.attention.value)
            return torch.cat([out, graph.dstdata["sum"]], 2)


class Joint(nn.Module):
    """Attention whose softmax is over the edges of all relations (Hu et al. 2020, §3.1)."""

    def __init__(self, g: Any, heads: int, width: int) -> None:
        super().__init__()
        each = {e: Attention(heads, width) for e in g.etypes}
        self.top = dglnn.HeteroGraphConv({e: Largest(a) for e, a in each.items()}, aggregate="max")
        self.sums = dglnn.HeteroGraphConv({e: Weighted(a) for e, a in each.items()},
                                          aggregate="sum")

    def forward(self, block: Any, rows: tuple[dict[str, Any], dict[str, Tensor]]
                ) -> dict[str, Tensor]:
        source, query = rows
        with torch.no_grad():  # what is subtracted from all scores has no gradient
            top = self.top(block, rows)
        sums = self.sums(block, (source, {t: (query[t], x) for t, x in top.items()}))
        return {t: (x[..., :-1] / x[..., -1:].clamp_min(1e-30)).flatten(1)
                for t, x in sums.items()}


class Transformer(nn.Module):
    """An HGT layer: keys, values and queries per node type; the mean over relations, or `joint`."""

    def __init__(self, g: Any, hidden: int, heads: int, joint: bool = False) -> None:
        super().__init__()
        self.key = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in g.ntypes})
        self.value = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in g.ntypes})
        self.query = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in g.ntypes})
        self.out = nn.ModuleDict({t: nn.Linear(hidden, hidden) for t in g.ntypes})
        self.skip = nn.ParameterDict({t: nn.Parameter(torch.zeros(())) for t in g.ntypes})
        self.conv = Joint(g, heads, hidden // heads) if joint else dglnn.HeteroGraphConv(
            {e: Attention(heads, hidden // heads) for e in g.etypes}, aggregate="mean")

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {t: states[t][:block.num_dst_nodes(t)] for t in block.dsttypes if t in states}
        source = {t: (self.key[t](x), self.value[t](x)) for t, x in states.items()}
        query = {t: self.query[t](x) for t, x in own.items()}
        merged = self.conv(block, (source, query))
        mixed = {}
        for t, x in merged.items():
            share = torch.sigmoid(self.skip[t])
            mixed[t] = share * self.out[t](F.gelu(x)) + (1 - share) * own[t]
        return mixed


def make_layer(args: argparse.Namespace, g: Any) -> nn.Module:
    """A layer of `args.model` for the types of a graph."""
    hidden, heads = args.hidden, args.heads
    if args.model.startswith("hgt"):
        return Transformer(g, hidden, heads, args.model == "hgt-exact")
    if args.model == "rgat":
        return Convolution(lambda: dglnn.GATConv(
            hidden, hidden // heads, heads, allow_zero_in_degree=True, bias=False), g, hidden)
    return Convolution(lambda: dglnn.GraphConv(
        hidden, hidden, norm="right", bias=False, allow_zero_in_degree=True), g, hidden)


class Model(nn.Module):
    """Layers, then logits of the target's rows."""

    def __init__(self, args: argparse.Namespace, g: Any, classes: int) -> None:
        super().__init__()
        self.target = args.target
        self.inputs = Inputs(g, args.hidden, args.case)
        self.layers = nn.ModuleList(make_layer(args, g) for _ in args.fanouts)
        self.logits = nn.Linear(args.hidden, classes)

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> Tensor:
        states = self.inputs(rows)
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        return self.logits(states[self.target])


def epoch(args: argparse.Namespace, loader: Any, model: Any, labels: Tensor, dense: Any,
          sparse: Any) -> dict[str, Any]:
    """One pass; seconds by stage, of which this process computed, and the mean loss."""
    inputs = model.module.inputs
    stages = ("sample", "features", "forward", "backward", "update")
    seconds, busy = dict.fromkeys(stages, 0.0), {name: list[float]() for name in stages}
    losses: list[float] = []
    correct = seen = 0
    steps = []
    last = begin = time.perf_counter()
    worked = time.process_time()

    def stage(name: str) -> None:
        nonlocal last, worked
        now, work = time.perf_counter(), time.process_time()
        seconds[name] += now - last
        busy[name].append(work - worked)
        last, worked = now, work

    for ids, seeds, blocks in loader:
        started = last
        stage("sample")
        with torch.set_grad_enabled(dense is not None):  # else DistEmbedding waits for gradients
            rows = inputs.fetch(ids)
            stage("features")
            logits = model(blocks, rows)
        answers = labels[seeds[args.target]]
        loss = F.cross_entropy(logits, answers)
        stage("forward")
        if dense is not None:
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
        correct += int((logits.argmax(1) == answers).sum())
        seen += len(answers)
        steps.append(last - started)
    return {"seconds": time.perf_counter() - begin, "stages": seconds, "steps": steps,
            "busy": busy, "loss": losses, "correct": correct, "seen": seen}


def batches(g: Any, ids: Tensor, args: argparse.Namespace, train: bool) -> Any:
    return dgl.dataloading.DistNodeDataLoader(
        g, {args.target: ids}, dgl.dataloading.MultiLayerNeighborSampler(args.fanouts),
        batch_size=args.batch_size, shuffle=train, drop_last=False)


def split(g: Any, args: argparse.Namespace, mask: str, steps: int) -> Tensor:
    """This trainer's nodes of a mask, at most so many as `steps` batches take (0: all)."""
    ids = dgl.distributed.node_split(g.nodes[args.target].data[mask], g.get_partition_book(),
                                     ntype=args.target, force_even=True)
    if steps:
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
        ids = ids[order[:steps * args.batch_size]].sort().values
    return ids


def dense_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in model.parameters() if p.requires_grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph-name", required=True)
    parser.add_argument("--ip-config", required=True)
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--model", choices=["rgcn", "rgat", "hgt", "hgt-exact"],
                        default="rgcn")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--fanouts", default="25,20")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="steps per epoch; 0: all nodes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--evaluate", action="store_true", help="accuracies after every epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", default=[], metavar="MODEL/HIDDEN/FANOUTS/BATCH",
                        help="train each of these, in place of the model that is named")
    args = parser.parse_args()
    args.fanouts = [int(f) for f in args.fanouts.split(",")]
    torch.set_flush_denormal(True)  # a wide model that begins badly has gradients so small that
    # steps took up to four times as long, by METIS's parts and ours
    torch.manual_seed(args.seed)
    dgl.seed(args.seed)
    dgl.distributed.initialize(args.ip_config)
    torch.distributed.init_process_group(backend="gloo")
    sent.watch()
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    labels = g.nodes[args.target].data[LABEL][torch.arange(g.num_nodes(args.target))]
    for number, case in enumerate(args.cases or [""]):
        train(g, of_case(args, number, case), labels)


def of_case(args: argparse.Namespace, number: int, case: str) -> argparse.Namespace:
    """The arguments with those of a case in their place."""
    args = copy.copy(args)
    args.case = f"-{number}" if case else ""
    if case:
        args.model, hidden, fanouts, batch = case.split("/")
        args.hidden, args.batch_size = int(hidden), int(batch)
        args.fanouts = [int(f) for f in fanouts.split(",")]
    return args


def train(g: Any, args: argparse.Namespace, labels: Tensor) -> None:
    """Train a model, and print a line for each epoch."""
    loaders = {"train": batches(g, split(g, args, "train_mask", args.steps), args, True)}
    if args.evaluate:
        for name in ("val", "test"):
            loaders[name] = batches(g, split(g, args, f"{name}_mask", args.steps), args, False)
    model = Model(args, g, args.classes)
    tables = list(model.inputs.tables.values())
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    dense = torch.optim.Adam(dense_parameters(model), lr=args.lr)
    sparse = dgl.distributed.optim.SparseAdam(tables, lr=args.lr) if tables else None
    for number in range(args.epochs):
        g.barrier()
        causes, on_link, of_host = sent.by_cause(), sent.link(), sent.busy()
        model.train()
        record = epoch(args, loaders["train"], parallel, labels, dense, sparse)
        g.barrier()
        record.update(epoch=number, rank=g.rank(), link=sent.link() - on_link,
                     causes=sent.by_cause() - causes, case=args.case,
                     host_busy=sent.busy() - of_host, memory=sent.host_memory())
        for name in ("val", "test") if args.evaluate else ():
            model.eval()
            tried = epoch(args, loaders[name], parallel, labels, None, None)
            record[name] = [tried["correct"], tried["seen"]]
        print(json.dumps(record), flush=True)
    g.barrier()


if __name__ == "__main__":
    main()
