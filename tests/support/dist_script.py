"""A DistDGL script of the tests: it runs cases and writes what every trainer computed.

It knows nothing of dgl-heta, but for the bytes that this has counted where it runs. The tests
import its models for the reference.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import dgl.function as fn
import numpy as np
import torch
import torch.distributed as dist
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

HIDDEN, STEPS = 6, 2
AGGREGATES = ("sum", "mean", "max", "min", "stack", "callable")


def counted() -> dict[str, int]:
    """Bytes that this trainer has sent so far, by cause, as dgl-heta counts them."""
    session = getattr(sys.modules.get("dgl_heta.distdgl.session"), "current", lambda: None)()
    return {} if session is None else dict(session.traffic.bytes)


@dataclass(frozen=True)
class Case:
    """A model and how it is fed.

    Attributes
    ----------
    conv : what runs per relation, see :func:`convolution`; "rgcn", "multi" and "udf" are layers
        of their own, "own merge" and "own ops" merge relations without HeteroGraphConv.
    aggregate : how relations are merged.
    out : width of the output.
    sparse : whether embeddings have sparse gradients.
    absent : whether types without a node in the batch are left out.
    """

    conv: str
    aggregate: str = "sum"
    out: int = 4
    sparse: bool = False
    layers: int = 2
    absent: bool = False


def cases() -> dict[str, Case]:
    """Every case that compares outputs and gradients."""
    found = {f"{conv}-{aggregate}": Case(conv, aggregate)
             for conv in ("graph", "sage", "gat") for aggregate in AGGREGATES}
    found |= {f"multi-{cross}": Case("multi", cross) for cross in ("sum", "max", "stack")}
    found |= {"pool": Case("pool"), "norm none": Case("none", "mean"), "udf": Case("udf", "mean"),
              "wide": Case("wide", out=16), "rgcn": Case("rgcn", out=16),
              "own merge": Case("own merge"), "own ops": Case("own ops"),
              "sparse table": Case("sage", sparse=True), "one layer": Case("gat", layers=1)}
    return found


def delegated_cases() -> dict[str, Case]:
    """Those for a partition of three hops in which one trainer aggregates for others: inner layers
    of every kind of convolution, batches in which types have no node, and fewer layers than hops.
    """
    convs = ("graph", "sage", "gat", "multi")
    found = {f"deep {conv}": Case(conv, layers=3) for conv in convs}
    return found | {
        "deep mean": Case("none", "mean", layers=3), "deep stack": Case("sage", "stack", layers=3),
        "deep max": Case("graph", "max", layers=3), "deep min": Case("gat", "min", layers=3),
        "deep multi max": Case("multi", "max", layers=3),
        "deep udf": Case("udf", "mean", layers=3),
        "few max": Case("sage", "max", layers=3, absent=True),
        "few sage": Case("sage", layers=3, absent=True),
        "few graph": Case("graph", layers=3, absent=True), "shallow": Case("sage")}


@dataclass(frozen=True)
class Facts:
    """What a model must know of the graph."""

    counts: dict[str, int]
    widths: dict[str, int]
    etypes: list[tuple[str, str, str]]

    @classmethod
    def of(cls, g: Any) -> Facts:
        widths = {t: g.nodes[t].data["feat"].shape[1] for t in g.ntypes
                  if "feat" in g.nodes[t].data}
        return cls({t: g.num_nodes(t) for t in g.ntypes}, widths, list(g.canonical_etypes))


def in_order(outputs: list[Tensor], dsttype: str) -> Tensor:
    """An aggregation that the order of the relations matters to."""
    merged = outputs[0]
    for output in outputs[1:]:
        merged = torch.tanh(merged) + output
    return merged


def convolution(kind: str, size: int, out: int) -> nn.Module:
    if kind == "graph":
        return GraphConv(size, out, norm="right")
    if kind == "none":
        return GraphConv(size, out, norm="none", activation=torch.tanh)
    if kind == "wide":  # no bias: what dgl-heta may exchange before the weights
        return GraphConv(size, out, norm="right", bias=False)
    if kind == "sage":
        return SAGEConv(size, out, "mean")
    if kind == "pool":
        return SAGEConv(size, out, "pool")
    if kind == "gat":
        return GATConv((size, size), out // 2, 2)
    raise ValueError(kind)


class Rgcn(nn.Module):
    """Weights from bases, given to every call, and a self-loop."""

    def __init__(self, facts: Facts, size: int, out: int) -> None:
        super().__init__()
        self.names = [etype for _, etype, _ in facts.etypes]
        self.conv = HeteroGraphConv({n: GraphConv(size, out, norm="right", weight=False,
                                                  bias=False) for n in self.names})
        self.bases = nn.Parameter(torch.randn(2, size, out) / 3)
        self.shares = nn.Parameter(torch.randn(len(self.names), 2))
        self.loop = nn.Linear(size, out)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = torch.einsum("rb,bio->rio", self.shares, self.bases)
        found = self.conv(block, states, mod_kwargs={
            name: {"weight": weights[i]} for i, name in enumerate(self.names)})
        return {t: x + self.loop(states[t][:block.num_dst_nodes(t)]) for t, x in found.items()}


class Multi(nn.Module):
    """A layer by multi_update_all, with built-in functions or with the script's own."""

    def __init__(self, facts: Facts, size: int, out: int, cross: str, own: bool) -> None:
        super().__init__()
        self.cross, self.own = cross, own
        self.weights = nn.ModuleDict({e: nn.Linear(size, out) for _, e, _ in facts.etypes})
        self.state = nn.Linear(size, out)

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        with block.local_scope():
            functions = {}
            for t in block.dsttypes:
                if t in states:
                    block.dstnodes[t].data["state"] = self.state(
                        states[t][:block.num_dst_nodes(t)])
            for src, etype, dst in block.canonical_etypes:
                if src not in states or dst not in states:
                    continue
                block.srcnodes[src].data[etype] = self.weights[etype](states[src])
                functions[src, etype, dst] = self.functions(etype)
            block.multi_update_all(functions, self.cross)
            return {t: block.dstnodes[t].data["out"] for t in block.dsttypes
                    if "out" in block.dstnodes[t].data}

    def functions(self, etype: str) -> tuple[Any, Any]:
        if not self.own:
            return fn.u_add_v(etype, "state", "m"), fn.mean("m", "out")
        return (lambda edges: {"m": edges.src[etype] * edges.dst["state"]},
                lambda nodes: {"out": nodes.mailbox["m"].tanh().sum(1)})


class OwnMerge(nn.Module):
    """Runs a relation at a time and adds the results up, without HeteroGraphConv."""

    def __init__(self, facts: Facts, size: int, out: int, by_ops: bool) -> None:
        super().__init__()
        self.by_ops = by_ops
        self.convs = nn.ModuleDict({e: convolution("sage", size, out)
                                    for _, e, _ in facts.etypes})

    def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for src, etype, dst in block.canonical_etypes:
            relation, source = block[src, etype, dst], states[src]
            if self.by_ops:
                out = self.convs[etype].fc_neigh(dgl.ops.copy_u_sum(relation, source))
            else:
                pair = (source, states[dst][:block.num_dst_nodes(dst)])
                out = self.convs[etype](relation, pair)
            found[dst] = found[dst] + out if dst in found else out
        return found


class Net(nn.Module):
    """Features or embeddings per node type, then layers over blocks."""

    def __init__(self, facts: Facts, case: Case, learnable: bool = True) -> None:
        super().__init__()
        self.case = case
        self.linear = nn.ModuleDict({t: nn.Linear(w, HIDDEN) for t, w in facts.widths.items()})
        self.tables = nn.ModuleDict({
            t: nn.Embedding(n, HIDDEN, sparse=case.sparse) for t, n in facts.counts.items()
            if learnable and t not in facts.widths})
        sizes = [HIDDEN] * case.layers + [case.out]
        self.layers = nn.ModuleList(self.layer(facts, a, b)
                                    for a, b in itertools.pairwise(sizes))
        self.before_last: Callable[[], None] | None = None

    def layer(self, facts: Facts, size: int, out: int) -> nn.Module:
        case = self.case
        if case.conv == "rgcn":
            return Rgcn(facts, size, out)
        if case.conv in ("multi", "udf"):
            return Multi(facts, size, out, case.aggregate, case.conv == "udf")
        if case.conv in ("own merge", "own ops"):
            return OwnMerge(facts, size, out, case.conv == "own ops")
        aggregate = in_order if case.aggregate == "callable" else case.aggregate
        return HeteroGraphConv({e: convolution(case.conv, size, out) for _, e, _ in facts.etypes},
                               aggregate)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = {t: self.linear[t](x) if t in self.linear else x for t, x in features.items()}
        for t, table in self.tables.items():
            states[t] = table(ids[t])
        if self.case.absent:
            states = {t: x for t, x in states.items() if len(x)}
        for number, (layer, block) in enumerate(zip(self.layers, blocks)):
            if self.before_last is not None and number + 1 == len(self.layers):
                self.before_last()
            states = layer(block, states)
            if self.case.aggregate == "stack":  # what depends on the order of the relations
                states = {t: torch.einsum("nr...,r->n...", x,
                                          torch.arange(1., x.shape[1] + 1) / 3)
                          for t, x in states.items()}
            states = {t: x.flatten(1) for t, x in states.items()}
            if number + 1 < len(self.layers):
                states = {t: torch.tanh(x) for t, x in states.items()}
        return states["paper"]


def learnable_case(name: str) -> Case:
    """The model of a case with embeddings in the key-value store."""
    return Case("sage", layers=3 if "deep" in name else 2)


def make_net(name: str, facts: Facts, case: Case, learnable: bool = True) -> Net:
    """A model with the initial values of the case of that name."""
    torch.manual_seed(zlib.crc32(name.encode()))
    return Net(facts, case, learnable)


def gradients(net: nn.Module) -> dict[str, np.ndarray]:
    return {f"grad/{name}": (p.grad.to_dense() if p.grad.is_sparse else p.grad).cpu().numpy().copy()
            for name, p in net.named_parameters() if p.grad is not None}


def first_rows(count: int) -> np.ndarray:
    """Initial values of a learnable feature."""
    return np.sin(np.arange(count * HIDDEN, dtype=np.float32)).reshape(count, HIDDEN)


class Trainer:
    """One trainer: its graph, its nodes and what it has found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out = Path(options.out)
        dgl.distributed.initialize(options.ip_config)
        self.rank, self.world = 0, 1
        if os.environ.get("DGL_DIST_MODE") == "distributed":
            dist.init_process_group("gloo")
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.rank % torch.cuda.device_count())
        self.g = dgl.distributed.DistGraph("academic", part_config=options.part_config)
        self.facts = Facts.of(self.g)
        self.train = self.split("train_mask")

    def split(self, mask: str) -> Tensor:
        return dgl.distributed.node_split(self.g.nodes["paper"].data[mask],
                                          self.g.get_partition_book(), ntype="paper")

    def save(self, name: str, found: dict[str, Any]) -> None:
        np.savez(self.out / f"{name}-{self.rank}.npz", **found)

    def loader(self, layers: int, batch_size: int, nids: Tensor | None = None,
               **options: Any) -> Any:
        sampler = dgl.dataloading.MultiLayerNeighborSampler([-1] * layers)
        return dgl.dataloading.DistNodeDataLoader(
            self.g, {"paper": self.train if nids is None else nids}, sampler,
            batch_size=batch_size, **options)

    def features(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        return {t: self.g.nodes[t].data["feat"][ids[t]].float().to(self.device)
                for t in self.facts.widths}

    def labels(self, seeds: Tensor) -> Tensor:
        return self.g.nodes["paper"].data["labels"][seeds].long().to(self.device)

    def parallel(self, net: nn.Module) -> nn.Module:
        net = net.to(self.device)
        chosen = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(net, chosen) if self.world > 1 else net

    def steps(self, net: nn.Module, loader: Any, found: dict[str, Any], count: int = STEPS
              ) -> Iterator[int]:
        """Forward and backward passes, recorded in `found`."""
        for step, (ids, seeds, blocks) in enumerate(loader):
            if step == count:
                break
            own = seeds["paper"]
            assert torch.equal(blocks[-1].dstnodes["paper"].data[dgl.NID], own)
            assert torch.equal(blocks[0].srcnodes["paper"].data[dgl.NID], ids["paper"])
            logits = net([block.to(self.device) for block in blocks],
                         {t: i.to(self.device) for t, i in ids.items()}, self.features(ids))
            loss = cross_entropy(logits, self.labels(own))
            net.zero_grad()
            loss.backward()
            found |= {f"{step}/own": own.numpy(), f"{step}/logits": logits.detach().cpu().numpy()}
            plain = getattr(net, "module", net)
            found |= {f"{step}/{name}": grad for name, grad in gradients(plain).items()}
            found |= {f"{step}/ids/{t}": i.numpy() for t, i in ids.items()}
            yield step

    def compare(self, name: str, case: Case) -> None:
        """Outputs and gradients of two steps."""
        found: dict[str, Any] = {}
        net = self.parallel(make_net(name, self.facts, case))
        size = 1 if case.absent else 40
        for _ in self.steps(net, self.loader(case.layers, size, shuffle=True), found):
            pass
        self.save(name, found)

    def learnable(self, name: str) -> None:
        """Five steps in which embeddings in the key-value store are trained."""
        g = self.g
        found: dict[str, Any] = {}
        case = learnable_case(name)
        net = self.parallel(make_net(name, self.facts, case, learnable=False))
        dense = torch.optim.SGD(net.parameters(), 0.1)
        tables = {}
        for t, count in self.facts.counts.items():
            if t not in self.facts.widths:
                tables[t] = dgl.distributed.DistEmbedding(
                    count, HIDDEN, f"{name}-{t}", part_policy=g.get_node_partition_policy(t))
        if self.rank == 0:
            for table in tables.values():
                table.weight[torch.arange(len(table.weight))] = torch.from_numpy(
                    first_rows(len(table.weight)))
        g.barrier()
        kind = getattr(dgl.distributed.optim, name.partition(" ")[0])
        optimizer = kind(list(tables.values()), lr=0.05)
        loader = (self.by_hand(name, case.layers, 12) if "by hand" in name else
                  self.loader(case.layers, 12))
        batches = repeated(loader, 5)
        if name.endswith("ahead"):  # the next batch is drawn before rows are read for this one
            drawn = [*repeated(loader, 6)]
            batches = iter(drawn[:5])
        for step, (ids, seeds, blocks) in enumerate(batches):
            if name.endswith("ahead"):
                ids = {t: i[:] if step % 2 else blocks[0].srcnodes[t].data[dgl.NID]
                       for t, i in ids.items()}
            states = self.features(ids) | {t: table(ids[t], self.device)
                                           for t, table in tables.items()}
            logits = net([block.to(self.device) for block in blocks], ids, states)
            loss = cross_entropy(logits, self.labels(seeds["paper"]))
            if "negatives" in name:
                loss = loss + sum(apart([table(i) for i in drawn_pairs(
                    self.rank, step, self.facts.counts[t])]) for t, table in tables.items())
            dense.zero_grad()
            optimizer.zero_grad()
            loss.backward()
            dense.step()
            optimizer.step()
            found |= {f"{step}/own": seeds["paper"].numpy(),
                      f"{step}/logits": logits.detach().cpu().numpy()}
        found |= {f"sent/{cause}": size for cause, size in counted().items()}
        g.barrier()
        if self.rank == 0:
            found |= {f"rows/{t}": table.weight[torch.arange(len(table.weight))].numpy()
                      for t, table in tables.items()}
        g.barrier()
        self.save(name, found)

    def by_hand(self, name: str, layers: int, batch_size: int) -> Any:
        """What guide 7.2 of DGL teaches: a sampler of the script's own."""
        def collate(seeds: Any) -> Any:
            ids = own = {"paper": torch.as_tensor(seeds)}
            blocks: list[Any] = []
            for _ in range(layers):
                frontier = dgl.distributed.sample_neighbors(self.g, ids, -1)
                blocks.insert(0, dgl.to_block(frontier, ids))
                ids = {t: blocks[0].srcnodes[t].data[dgl.NID] for t in blocks[0].srctypes}
            return ids, own, blocks
        if name.endswith("class"):
            return dgl.dataloading.DistNodeDataLoader(
                self.g, {"paper": self.train}, Sampler(collate), batch_size=batch_size)
        return dgl.distributed.DistDataLoader(self.train.numpy(), batch_size, collate_fn=collate)

    def uneven(self, name: str, **options: Any) -> None:
        """Trainers with unequal numbers of nodes, two epochs; sizes and seeds."""
        mine, found = self.train[:25 - self.rank], {"mine": self.train[:25 - self.rank].numpy()}
        loader = self.loader(2, 12, mine, **options)
        net = self.parallel(make_net(name, self.facts, Case("sage")))
        for epoch in range(2):
            steps: dict[str, Any] = {}
            for _ in self.steps(net, loader, steps, 100):
                pass
            found |= {f"{epoch}/{key}": value for key, value in steps.items()}
        self.save(name, found)

    def evaluate(self, name: str) -> None:
        """Inference without gradients; rank 0 reads all results from a DistTensor."""
        net = self.parallel(make_net(name, self.facts, Case("gat", "mean")))
        nodes = torch.cat([self.split("val_mask"), self.split("test_mask")])
        results = dgl.distributed.DistTensor(
            (self.facts.counts["paper"], 4), torch.float32, "results",
            part_policy=self.g.get_node_partition_policy("paper"))
        net.eval()
        with torch.no_grad():
            for ids, seeds, blocks in self.loader(2, 7, nodes):
                results[seeds["paper"]] = net(blocks, ids, self.features(ids))
        # DGL's barrier waits for server 0 alone, and writes to the others do not wait for an
        # answer. A read of the rows does, and comes after the writes on each connection.
        results[nodes]
        self.g.barrier()
        if self.rank == 0:
            found = results[torch.arange(len(results))]
            self.save(name, {"results": found.numpy()})
        self.g.barrier()

    def killed(self, name: str) -> None:
        """One trainer is killed between two layers."""
        net = make_net(name, self.facts, Case("sage"))
        if self.rank == self.world - 1:
            net.before_last = self.die
        for _ in self.steps(self.parallel(net), self.loader(2, 20), {}):
            pass

    def die(self) -> None:
        (self.out / "killed at").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    def run(self, name: str) -> None:
        if case := (cases() | delegated_cases()).get(name):
            self.compare(name, case)
        elif name.startswith("Sparse"):
            self.learnable(name)
        elif name == "uneven":
            self.uneven(name, shuffle=True)
        elif name == "drop last":
            self.uneven(name, drop_last=True)
        else:
            {"evaluate": self.evaluate, "killed": self.killed}[name](name)


class Sampler:
    """A class of samplers that is not derived from DGL's."""

    prob = None  # DGL 2.4's loaders read it of every sampler

    def __init__(self, sample: Callable[[Tensor], Any]) -> None:
        self.sample = sample

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        return self.sample(seed_nodes["paper"])


def drawn_pairs(rank: int, step: int, count: int) -> list[Tensor]:
    """Pairs of nodes that a trainer draws by itself, some of them several times."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    first, second = torch.randint(0, count, (2, 20 + rank), generator=generator)
    second[:4] = second[0]
    return [first, second]


def apart(rows: Sequence[Tensor]) -> Tensor:
    """A loss of pairs of rows."""
    return torch.sigmoid((rows[0] * rows[1]).sum(1)).mean()


def repeated(loader: Any, count: int) -> Iterator[Any]:
    """`count` batches, epoch after epoch."""
    while True:
        for batch in loader:
            yield batch
            count -= 1
            if not count:
                return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip-config", default="")
    parser.add_argument("--part-config", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(options)
    for name in options.cases.split(","):
        trainer.run(name)


if __name__ == "__main__":
    main()
