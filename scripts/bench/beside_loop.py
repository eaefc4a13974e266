"""The same training in a loop of dgl-heta, of plain DGL, of plain PyG, or of dgl_heta_pyg.

`beside.py` starts it on one process, for an epoch at each line of its input; `compare.py` on
emulated hosts, for `--epochs`. An epoch prints a line of JSON: seconds, processor seconds and
seconds of each step, losses, memory. Layers are the same function in all: a mean per relation
(rgcn) or an attention of several heads (rgat), their sum, the row itself; or HGT's attention, whose
softmax is over all in-edges, in DGL (as in its example) over those of each relation. Features are
projected, other types have a learnable row per node. With `--write` it writes a graph for the plain
systems instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if os.environ.get("DGL_ROLE") == "server":  # no system here has any; the launcher misses it early
    while not Path("/dev/shm/ended").exists():  # of this host alone
        time.sleep(0.2)
    sys.exit(0)
sys.path.append(str(Path(__file__).parent / "systems" / "distdgl"))

import torch
import torch.nn.functional as F
from common import memory_mb
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Batches = Iterator[tuple[Any, Tensor]]  # of each what the model takes, and the labels
Loss = Callable[[Any, Tensor], Tensor]


class System:
    """A model with its optimizers, and its batches of a split."""

    model: Any
    optimizers: list[Any]

    def batches(self, split: str) -> Batches:
        raise NotImplementedError

    def outputs(self, given: Any) -> Tensor:
        """Logits of the seeds."""
        out: Tensor = self.model(given)
        return out

    def rows(self, args: argparse.Namespace, graph: dict[str, Any]) -> nn.ModuleDict:
        """Learnable rows of the node types without features, as torch has them."""
        bound = (3.0 / args.hidden) ** 0.5  # as dgl_heta.features.learnable draws them
        tables = nn.ModuleDict({t: nn.Embedding(n, args.hidden, sparse=True)
                                for t, n in graph["num_nodes"].items() if t not in graph["x"]})
        for table in tables.values():
            nn.init.uniform_(table.weight, -bound, bound)
        return tables

    def optimize(self, args: argparse.Namespace, tables: nn.ModuleDict) -> None:
        sparse = {id(p) for p in tables.parameters()}
        dense = [p for p in self.model.parameters() if id(p) not in sparse]
        self.optimizers = [torch.optim.Adam(dense, lr=args.lr)]
        if sparse:
            self.optimizers.append(torch.optim.SparseAdam(list(tables.parameters()), lr=args.lr))


class Heta(System):
    """dgl_heta's own loop (docs/own-loop.md)."""

    def __init__(self, args: argparse.Namespace) -> None:
        import dgl_heta

        part = dgl_heta.open_partition(args.data, settings(args))
        layer = {"rgcn": dgl_heta.RGCNLayer, "rgat": dgl_heta.RGATLayer,
                 "hgt": dgl_heta.HGTLayer}[args.model]
        self.model = dgl_heta.distribute(dgl_heta.HGNN(part.spec(), layer), part)
        self.loaders = {split: part.loader(chosen(part, split, args), args.fanouts,
                                           args.batch_size, split == "train", args.seed)
                        for split in ("train", "test")}
        (self.target,) = part.targets
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=args.lr),
                           part.row_optimizer(args.lr)]

    def batches(self, split: str) -> Batches:
        return ((batch, batch.labels[self.target]) for batch in self.loaders[split])

    def outputs(self, given: Any) -> Tensor:
        return self.model(given)[self.target]


class HetaPyG(System):
    """A PyG model in dgl_heta_pyg (docs/pyg.md)."""

    def __init__(self, args: argparse.Namespace) -> None:
        import dgl_heta_pyg
        from pyg_models import Net

        data = dgl_heta_pyg.open_partition(args.data, settings(args))
        part, (self.target,) = data.part, data.part.targets
        widths = {t: data[t].num_features for t in part.spec().static}
        self.model = dgl_heta_pyg.distribute(Net(
            args.model, data.metadata(), widths, args.hidden, args.heads, len(args.fanouts),
            part.spec().num_classes[self.target], self.target), data)
        self.loaders = {split: dgl_heta_pyg.NeighborLoader(
            data, args.fanouts[::-1], (self.target, chosen(part, split, args)), args.batch_size,
            split == "train", seed=args.seed) for split in ("train", "test")}
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=args.lr),
                           part.row_optimizer(args.lr)]

    def batches(self, split: str) -> Batches:
        return ((batch, batch[self.target].y) for batch in self.loaders[split])

    def outputs(self, given: Any) -> Tensor:
        out = self.model(given.x_dict, given.edge_index_dict, given.num_sampled_nodes_dict,
                         given.num_sampled_edges_dict)
        return out[:given[self.target].batch_size]


class PyG(System):
    """Plain PyG: NeighborLoader, by its compiled sampler."""

    def __init__(self, args: argparse.Namespace) -> None:
        from pyg_models import Net
        from torch_geometric.data import HeteroData
        from torch_geometric.loader import NeighborLoader

        graph = torch.load(args.data / "graph.pt")
        self.target, data = graph["target"], HeteroData()
        for ntype, count in graph["num_nodes"].items():
            data[ntype].num_nodes = count
            if ntype in graph["x"]:
                data[ntype].x = graph["x"][ntype]
        data[self.target].y = graph["y"]
        for relation, edges in graph["edges"].items():
            data[relation].edge_index = edges
        widths = {t: x.shape[1] for t, x in graph["x"].items()}
        self.tables = self.rows(args, graph)
        self.net = Net(args.model, data.metadata(), widths, args.hidden, args.heads,
                       len(args.fanouts), graph["classes"], self.target)
        self.model = _WithRows(self.net, self.tables)
        self.optimize(args, self.tables)
        if WORLD > 1:
            torch.distributed.init_process_group("gloo")
            self.model = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.loaders = {split: NeighborLoader(
            data, args.fanouts[::-1], batch_size=args.batch_size, shuffle=split == "train",
            input_nodes=(self.target, of_split(graph, split, args)[RANK::WORLD]))
            for split in ("train", "test")}

    def batches(self, split: str) -> Batches:
        for batch in self.loaders[split]:
            yield batch, batch[self.target].y[:batch[self.target].batch_size]


class _WithRows(nn.Module):
    """A model on batches whose types without features have learnable rows."""

    def __init__(self, net: nn.Module, tables: nn.ModuleDict) -> None:
        super().__init__()
        self.net, self.tables = net, tables

    def forward(self, batch: Any) -> Tensor:
        x = {t: self.tables[t](batch[t].n_id) if t in self.tables else batch[t].x
             for t in batch.node_types}
        out: Tensor = self.net(x, batch.edge_index_dict, batch.num_sampled_nodes_dict,
                               batch.num_sampled_edges_dict)
        return out[:batch[self.net.target].batch_size]


class DGL(System):
    """Plain DGL: DataLoader, NeighborSampler, HeteroGraphConv (systems/distdgl/train.py)."""

    def __init__(self, args: argparse.Namespace) -> None:
        import dgl
        import train as script

        graph = torch.load(args.data / "graph.pt")
        self.target, self.labels, dgl_graph = graph["target"], graph["y"], dgl.heterograph(
            {r: tuple(edges) for r, edges in graph["edges"].items()}, graph["num_nodes"])
        dgl.seed(args.seed)
        self.x, self.tables = graph["x"], self.rows(args, graph)
        self.project = nn.ModuleDict({t: nn.Linear(x.shape[1], args.hidden)
                                      for t, x in self.x.items()})
        self.layers = nn.ModuleList(script.make_layer(args, dgl_graph) for _ in args.fanouts)
        self.head = nn.Linear(args.hidden, graph["classes"])
        self.model = nn.ModuleList([self.project, self.layers, self.head, self.tables])
        self.optimize(args, self.tables)
        self.loaders = {split: dgl.dataloading.DataLoader(
            dgl_graph, {self.target: of_split(graph, split, args)},
            dgl.dataloading.NeighborSampler(args.fanouts), batch_size=args.batch_size,
            shuffle=split == "train") for split in ("train", "test")}

    def batches(self, split: str) -> Batches:
        for ids, seeds, blocks in self.loaders[split]:
            yield (ids, blocks), self.labels[seeds[self.target]]

    def outputs(self, given: Any) -> Tensor:
        ids, blocks = given
        states = {t: self.project[t](self.x[t][nodes]) if t in self.x else self.tables[t](nodes)
                  for t, nodes in ids.items()}
        for layer, block in zip(self.layers, blocks):
            states = layer(block, states)
        out: Tensor = self.head(states[self.target])
        return out


SYSTEMS = {"heta": Heta, "dgl": DGL, "pyg": PyG, "heta-pyg": HetaPyG}


def settings(args: argparse.Namespace) -> list[str]:
    """Those of a partition; a proof of an epoch's steps would count in epochs of few steps."""
    return [f"model.hidden={args.hidden}", f"model.heads={args.heads}", f"train.seed={args.seed}",
            f"train.threads={args.threads}", "run.prove=off", "train.device=cpu"]


def few(ids: Any, split: str, args: argparse.Namespace) -> Any:
    """At most so many ids as `--steps` batches of all workers take, the same for all systems."""
    most = args.steps * args.batch_size * WORLD
    if not most or split != "train" or len(ids) <= most:
        return ids
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))[:most].numpy()]


def chosen(part: Any, split: str, args: argparse.Namespace) -> Any:
    return few(part.split(part.targets[0], split), split, args)


def of_split(graph: dict[str, Any], split: str, args: argparse.Namespace) -> Tensor:
    return few(torch.nonzero(graph[f"{split}_mask"]).flatten(), split, args)


def epoch(system: System) -> dict[str, Any]:
    """Train on all batches; seconds by stage."""
    seconds = dict.fromkeys(("sample", "features", "forward", "backward", "update"), 0.0)
    losses: list[float] = []
    steps: list[float] = []
    system.model.train()
    cpu, begin = time.process_time(), time.perf_counter()
    last = begin

    def stage(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[name] += now - last
        last = now

    for given, labels in system.batches("train"):
        started = last
        stage("sample")
        loss = F.cross_entropy(system.outputs(given), labels)
        stage("forward")
        for optimizer in system.optimizers:
            getattr(optimizer, "zero_grad", lambda: None)()
        loss.backward()
        stage("backward")
        for optimizer in system.optimizers:
            optimizer.step()
        losses.append(loss.item())
        stage("update")
        steps.append(last - started)
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu,
            "stages": seconds, "steps": steps, "loss": losses}


def evaluate(system: System) -> list[int]:
    """How many of the test nodes are right, and how many there are."""
    system.model.eval()
    right = seen = 0
    with torch.no_grad():
        for given, labels in system.batches("test"):
            right += int((system.outputs(given).argmax(1) == labels).sum())
            seen += len(labels)
    return [right, seen]


def write(dataset: str, out: Path) -> None:
    """Write a graph as tensors."""
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.partition.graph_input import open_input

    source = open_input(dataset, Plugins()).source
    if source is None or source.task is None:
        raise SystemExit(f"{dataset} is no data set with a task")
    target, arrays = source.task.target, source.node_arrays
    edges = {tuple(r): torch.stack([torch.cat([torch.as_tensor(c) for c in ends])
                                    for ends in zip(*of.chunks(1 << 22))]).long()
             for r, of in source.edges.items()}
    own = {k: torch.as_tensor(a) for k, a in arrays[target].items()}
    out.mkdir(parents=True, exist_ok=True)
    torch.save({"num_nodes": dict(source.node_counts), "edges": edges, "target": target,
                "x": {t: torch.as_tensor(of["feat"]) for t, of in arrays.items() if "feat" in of},
                "y": own["label"].long(), "classes": source.task.num_classes,
                **{f"{s}_mask": own[f"{s}_mask"].bool() for s in ("train", "test")}},
               out / "graph.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("data", type=Path, help="a partition; of plain systems, what --write wrote")
    parser.add_argument("--write", metavar="NAME", help="a data set to write")
    parser.add_argument("--model", choices=["rgcn", "rgat", "hgt"], default="rgcn")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--fanouts", default="25,20", help="input layer first")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=0, help="per epoch; 0: all training nodes")
    parser.add_argument("--epochs", type=int, default=0, help="0: one for each line of input")
    parser.add_argument("--threads", type=int, default=0, help="0: as each system has it")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--evaluate", action="store_true", help="on test nodes after every epoch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.write:
        return write(args.write, args.data)
    args.fanouts = [int(f) for f in args.fanouts.split(",")]
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    system = SYSTEMS[args.system](args)
    for number, _ in enumerate(range(args.epochs) if args.epochs else sys.stdin):
        sent = _link()
        record = epoch(system)
        if args.evaluate:
            record["test"] = evaluate(system)
        record.update(epoch=number, rank=RANK, link=_link() - sent, causes={},
                      memory={"own": memory_mb()["VmHWM"] * 1e6, "shared": 0})
        print(json.dumps(record), flush=True)
    if WORLD > 1:
        Path("/dev/shm/ended").touch()
    os._exit(0)  # gloo's threads may abort what ends by itself


def _link() -> int:
    """Bytes that this host has sent, when all workers are here."""
    import sent

    if WORLD > 1:
        torch.distributed.barrier()
    return sent.link()


if __name__ == "__main__":
    main()
