"""Accuracy of training with model averaging on parts, plugins/catgnn: five tables.

    python scripts/bench/averaging.py --json averaging.json

- `models`: five models on p parts of SPRING against one process (CATGNN, Fig. 7).
- `hops`: GraphSAGE on parts with torn neighbour lists (0), whole ones, and k hops of them, judged
  on the parts and on the whole graph (Figs. 2, 12).
- `sync`: epochs between two averages, over seeds, against one process's mean and standard
  deviation (Fig. 11).
- `curves`: test accuracy by epoch, beside gradients that are averaged at each step (Fig. 9), and
  the bytes that a worker sends in an epoch with p workers; accuracies are of the last epoch.
- `memory`: what training takes of memory, estimated for `--parts auto` and measured.

Parts are trained in turn in one process: the result does not depend on the number of workers. One
process is one part that is the whole graph. "DDP" is what DistDGL's training computes, in this
process: p workers, each with a p-th of the training nodes, sample from the whole graph; gradients
are averaged at each step; all take as many steps as the longest, the others with empty batches at
last. Servers and networks are left out. Test accuracy is that of the epoch with the best
validation accuracy, of the averaged model on the whole graph, if nothing else is said.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Column, finish, machine, memory_mb, opened, parser, progress, table, work_dir
from dgl_heta_catgnn import EdgeStream
from dgl_heta_catgnn.memory import footprint, row_bytes
from dgl_heta_catgnn.training.batches import loss_of
from dgl_heta_catgnn.training.evaluation import evaluate
from dgl_heta_catgnn.training.job import TrainSettings
from dgl_heta_catgnn.training.local import TEST, TRAIN, load_part
from dgl_heta_catgnn.training.models import MODELS, build
from dgl_heta_catgnn.training.parts import TrainingParts, prepare
from dgl_heta_catgnn.training.turns import Turns
from dgl_heta_catgnn.training.worker import choices_of, train

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.request import make_request

BY = ("graph", "model", "way", "hops", "sync_every", "parts")
COLUMNS = (Column("replication factor", "factor"), Column("test accuracy", "test_acc", digits=4),
           Column("from one process", "difference", digits=4),
           Column("judged on the whole graph", "whole", digits=4),
           Column("judged on the parts", "own", digits=4),
           Column("bytes an epoch", "sent", digits=0),
           Column("estimated MB", "estimated", 1e-6, 1), Column("measured MB", "measured", 1e-6, 1),
           Column("measured ÷ estimated", "ratio"))
TABLES = ("models", "hops", "sync", "curves", "memory")


class Bench:
    """Parts of graphs, made once each, and trainings on them."""

    def __init__(self, args: argparse.Namespace, temp: Path) -> None:
        self.args, self.temp = args, temp
        self._parts: dict[tuple[str, int, int], TrainingParts] = {}
        self._graphs: dict[str, Any] = {}
        self.factors: dict[tuple[str, int, int], float] = {}
        self.runs: list[dict[str, Any]] = []

    def parts(self, graph: str, parts: int, hops: int = 1) -> TrainingParts:
        key = graph, parts, hops
        if key not in self._parts:
            if graph not in self._graphs:
                self._graphs[graph] = opened(graph)
            source, out = self._graphs[graph], self.temp / f"{len(self._parts)}"
            backend = plugins().get("partition backend", "spring")
            made = backend.partition(source, make_request(
                backend, source.schema(), parts, script={"num_hops": hops}), out / "parts")
            (out / "training").mkdir()
            self._parts[key] = prepare(made.part_config, out / "training")
            self.factors[key] = made.statistics["replication_factor"]
        return self._parts[key]

    def job(self, model: str, seed: int = 0, **given: Any) -> dict[str, Any]:
        settings = TrainSettings(hidden=self.args.hidden, lr=self.args.lr, eval_every=5,
                                 fanouts=[10, 10], batch_size=self.args.batch)
        return {"settings": settings.model_dump(), "model": model, "batches": None, "seed": seed,
                "epochs": self.args.epochs, "sync_every": 1, "full_batch": True, "whole": True,
                "full": True, "keep": True, **given}

    def train(self, table: str, graph: str, parts: int, model: str, **given: Any
              ) -> dict[str, Any]:
        progress(f"{graph}, {parts} parts, {model} {given or ''}")
        made, started = self.parts(graph, parts), time.perf_counter()
        found = train(made, self.job(model, **given), Comm(Traffic()), lambda event: None)
        run = {"table": table, "graph": graph, "parts": parts, "model": model, **given, **found,
               "factor": self.factors[graph, parts, 1], "seconds": time.perf_counter() - started}
        self.runs.append(run)
        return run

    def last(self, graph: str, parts: int, hops: int) -> None:
        """Test accuracy of GraphSAGE after the last epoch: on the whole graph, on the parts."""
        progress(f"{graph}, {parts} parts, {hops} hops")
        made = self.parts(graph, parts, max(hops, 1))
        turns = Turns(made, choices_of(made, self.job("sage", full=hops > 0)), Comm(Traffic()))
        for _ in turns.rounds():
            pass
        whole, own = (evaluate(made, turns.averaged(), turns.world, full=hops > 0,
                               whole=on_all)["test"] for on_all in (True, False))
        self.runs.append({"table": "hops", "graph": graph, "parts": parts, "hops": hops,
                          "whole": whole, "own": own,
                          "factor": self.factors.get((graph, parts, hops))})


def alone(parts: TrainingParts) -> float:
    """Test accuracy of a linear layer on a node's own features."""
    feat, label, split = (torch.from_numpy(parts.array(name).copy())
                          for name in ("feat", "label", "split"))
    train, test = (split & TRAIN) != 0, (split & TEST) != 0
    torch.manual_seed(0)
    net = torch.nn.Linear(feat.shape[1], parts.classes)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(feat[train]), label[train]).backward()
        optimizer.step()
    return float((net(feat[test]).argmax(1) == label[test]).double().mean())


def models(bench: Bench) -> str:
    for graph, model, p in product(bench.args.graphs, bench.args.models, (1, *bench.args.parts)):
        bench.train("models", graph, p, model)
    return (f"Full-batch, {bench.args.epochs} epochs, one seed; 1 part is one process. A linear "
            "layer on a node's own features: " + "; ".join(
                f"{graph}: {alone(bench.parts(graph, 1)):.4f}" for graph in bench.args.graphs))


def hops(bench: Bench) -> str:
    p = bench.args.parts[len(bench.args.parts) // 2]
    for graph in bench.args.graphs:
        bench.last(graph, 1, 1)
        for k in (0, 1, 2, 3):
            bench.last(graph, p, k)
    return ("GraphSAGE with two layers, full-batch, one seed, after the last epoch; 0 hops: torn "
            "neighbour lists.")


def sync(bench: Bench) -> str:
    args = bench.args
    for graph, seed in product(args.graphs, range(args.seeds)):
        one = bench.train("sync", graph, 1, "sage", seed=seed, epochs=args.long)["test_acc"]
        for every in args.sync:
            run = bench.train("sync", graph, args.parts[0], "sage", seed=seed, sync_every=every,
                              epochs=args.long)
            run["difference"] = run["test_acc"] - one
    return f"GraphSAGE, {args.long} epochs, full-batch; 1 part is one process."


def curves(bench: Bench) -> str:
    args = bench.args
    p = args.parts[0]
    for graph, model in product(args.graphs, ("sage", "gcn", "gat")):
        found = bench.train("curves", graph, p, model, full_batch=False)
        progress(f"{graph}, {p} workers, {model}, DDP")
        ddp, steps, size = synchronous(bench, graph, p, model)
        one = 2 * size * (p - 1) / p
        averages = {m["epoch"]: m["test_acc"] for m in found["metrics"] if "test_acc" in m}
        found |= {"way": "averages", "sent": one, "epoch": averages,
                  "test_acc": found["last_test_acc"]}  # DDP's is of the last epoch, not the best
        bench.runs.append({"table": "curves", "graph": graph, "parts": p, "model": model,
                           "way": "DDP", "sent": one * steps, "test_acc": ddp[max(ddp)],
                           "epoch": ddp})
    return (f"Batches of {args.batch} training nodes, 10 and 10 neighbours. Bytes that each of {p} "
            "workers sends for parameters, averaged once an epoch: 2 (p - 1) / p of the model, as "
            "a ring does. DDP sends that at each step, and DistDGL features and edges of other "
            "parts besides.")


def synchronous(bench: Bench, graph: str, p: int, model: str
                ) -> tuple[dict[int, float], int, int]:
    """Curve, steps of an epoch and bytes of the model of training as DistDGL does it."""
    whole = bench.parts(graph, 1)
    choices = choices_of(whole, bench.job(model, full_batch=False))
    torch.manual_seed(0)
    net = build(model, choices.shape)
    optimizer = torch.optim.Adam(net.parameters(), choices.lr)
    local = load_part(whole, 0, loops=net.loops)  # type: ignore[arg-type]
    train, curve = local.train, {}
    shares = train[torch.from_numpy(np.random.default_rng(0).permutation(len(train)))].chunk(p)
    steps = max(-(-len(share) // bench.args.batch) for share in shares)
    for epoch in range(1, choices.epochs + 1):
        net.train()
        epoch_batches = [list(of_share(choices, local.graph, share, [epoch, rank]))
                         for rank, share in enumerate(shares)]
        for step in range(steps):
            optimizer.zero_grad()
            for batches in epoch_batches:
                if step < len(batches):
                    (loss_of(net, batches[step])[0] / p).backward()
            optimizer.step()
        if epoch % 5 == 0 or epoch == choices.epochs:
            curve[epoch] = evaluate(whole, net.eval(), Comm(Traffic()))["test"]
    return curve, steps, sum(q.numel() * q.element_size() for q in net.parameters())


def of_share(choices: Any, graph: Any, share: Any, seed: list[int]) -> Iterator[Any]:
    """The batches of a worker's training nodes, from the whole graph."""
    own = graph.ndata["train"].clone()
    graph.ndata["train"] = torch.zeros_like(own).index_fill_(0, share, True)
    yield from choices.batches().batches(graph, np.random.default_rng(seed))
    graph.ndata["train"] = own


def first_steps(model: str, bench: Bench, parts: TrainingParts) -> None:
    import dgl

    net = build(model, choices_of(parts, bench.job(model)).shape)
    small = dgl.node_subgraph(load_part(parts, 0, loops=True).graph, range(50))
    optimizer = torch.optim.Adam(net.parameters())
    loss_of(net, small)[0].backward()
    optimizer.step()


def memory(bench: Bench) -> str:
    """Growth of resident memory in a child's first epochs, largest part."""
    for graph in bench.args.graphs:
        parts = bench.parts(graph, bench.args.parts[0])
        largest = max(range(len(parts.parts)), key=lambda i: parts.parts[i].edges)
        backend = plugins().get("partition backend", "spring")
        source = bench._graphs[graph]
        stream = EdgeStream.of_graph(source)
        estimate = footprint(backend.assign(stream, len(parts.parts)), stream, row_bytes(source),
                             1, backend.settings.training, 2**18).bytes[largest]
        for model in MODELS:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                first_steps(model, bench, parts)  # what is loaded at first use
                before = memory_mb()["VmRSS"]
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                choices = choices_of(parts, bench.job(model))
                net = build(model, choices.shape)
                local = load_part(parts, largest, loops=net.loops)  # type: ignore[arg-type]
                optimizer = torch.optim.Adam(net.parameters())
                for _ in range(2):
                    loss_of(net, local.graph)[0].backward()
                    optimizer.step()
                os.write(write, f"{memory_mb()['VmHWM'] - before:.1f}".encode())
                os._exit(0)
            os.waitpid(child, 0)
            measured = float(os.read(read, 100)) * 1e6
            bench.runs.append({"table": "memory", "graph": graph, "parts": bench.args.parts[0],
                               "model": model, "estimated": estimate, "measured": measured,
                               "ratio": measured / estimate})
    return (f"The largest part, full-batch, hidden width {bench.args.hidden}: growth of a "
            "process's resident memory.")


def main() -> None:
    options = parser(__doc__, "scripts/bench/averaging.py --json averaging.json")
    options.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options.add_argument("--graphs", nargs="+", help="default: communities")
    options.add_argument("--parts", nargs="+", type=int, default=[4, 8, 16])
    options.add_argument("--sync", nargs="+", type=int, default=[1, 5, 20, 50])
    options.add_argument("--epochs", type=int, help="default: 30")
    options.add_argument("--long", type=int, help="epochs of `sync` (default: 60)")
    options.add_argument("--seeds", type=int, help="of `sync` (default: 5)")
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS),
                         help="of `models`")
    options.add_argument("--hidden", type=int, default=32)
    options.add_argument("--batch", type=int, default=256, help="training nodes of a mini-batch")
    options.add_argument("--lr", type=float, default=0.05)
    args = options.parse_args()
    defaults: dict[str, tuple[Any, Any]] = {
        "graphs": (["communities:nodes=4000"], ["communities:nodes=1000"]),
        "epochs": (30, 6), "long": (60, 10), "seeds": (5, 2)}
    for name, (full, quick) in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    torch.set_num_threads(1)
    before = machine()
    with work_dir(args) as temp:
        bench = Bench(args, temp)
        said = {name: globals()[name](bench) for name in args.tables}
    tables = [f"### {name}\n\n" + table([r for r in bench.runs if r["table"] == name], BY, COLUMNS)
              + f"\n\n{text}" for name, text in said.items()]
    finish(args, "Model averaging on parts", tables, {"rows": bench.runs}, before)


if __name__ == "__main__":
    main()
