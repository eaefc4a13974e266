"""DGL's own GraphSAGE and R-GCN scripts with models averaged, beside DDP and one process.

The scripts are those of DGL 2.1.0, unedited: examples/distributed/graphsage/node_classification.py
(--sage) and examples/pytorch/rgcn/experimental/entity_classify_dist.py (--rgcn, which needs ogb).
Neither is part of dgl-heta. GraphSAGE trains on planted communities (as many classes, power-law
degrees, noisy features), R-GCN on the shape of ogbn-mag, on emulated hosts. The plugin dgl-heta-
catgnn must be installed.

Test accuracy is over all trainers' test nodes. Bytes are what all hosts sent per epoch on their
links: the difference of the run and one of a single epoch, so start-up and the last evaluation are
left out; in brackets the whole run. R-GCN's script evaluates in every epoch. `equal` is whether all
trainers ended with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    CLI,
    SYSTEMS_DIR,
    Column,
    finish,
    machine,
    output_of,
    parser,
    progress,
    table,
    work_dir,
)

DISTDGL = SYSTEMS_DIR / "distdgl"
AVERAGED = ["--set", "train.wrapper=model_average"]
CASES: dict[str, tuple[str | None, list[str]]] = {
    "one process": (None, []),
    "DDP, METIS": ("metis", []),
    "averaged, METIS": ("metis", AVERAGED),
    "averaged, SPRING": ("spring", AVERAGED),
    "averaged every 4, SPRING": (
        "spring", [*AVERAGED, "--set", "plugins.model_average.sync_every=4"]),
}
COLUMNS = (Column("test accuracy", "accuracy", digits=3), Column("kB/epoch", "epoch", 1e-3, 1),
           Column("kB of the whole run", "whole", 1e-3, 0), Column("equal", "equal", digits=0))
SAGE = ["--graph_name", "g", "--ip_config", "{ip_config}", "--part_config", "{part_config}",
        "--num_hidden", "32", "--fan_out", "10,10", "--batch_size", "64", "--lr", "0.01",
        "--eval_every", "1000", "--log_every", "1000", "--num_epochs"]
RGCN = ["--graph-name", "g", "-d", "mag", "--ip-config", "{ip_config}", "--conf-path",
        "{part_config}", "--n-hidden", "32", "--n-bases", "2", "--sparse-embedding", "--dgl-sparse",
        "--batch-size", "64", "--fanout", "10,10", "--use-self-loop", "--log-every", "1000",
        "--n-epochs"]


def graph(kind: str, args: argparse.Namespace) -> Any:
    """The graph of a script."""
    import dgl
    import torch

    if kind == "rgcn":
        from dgl_heta.graph.datasets import load_dataset
        from dgl_heta.hooks.manager import plugins
        from dgl_heta.partition.backends.dgl_methods import to_dgl_graph

        g = to_dgl_graph(load_dataset(plugins().get("dataset", "synthetic-mag"),
                                      f"scale={args.scale:g}"))
        data = g.nodes["paper"].data
        data["labels"] = data.pop("label").long() % 8
        return g
    draw = torch.Generator().manual_seed(0)
    nodes, classes = args.nodes, 8
    group = torch.randint(0, classes, (nodes,), generator=draw)
    weight = torch.rand(nodes, generator=draw).clamp_min(1e-3) ** -0.5  # degrees: power 3
    members = [(group == c).nonzero().flatten() for c in range(classes)]
    src = torch.multinomial(weight, 6 * nodes, replacement=True, generator=draw)
    dst = torch.multinomial(weight, 6 * nodes, replacement=True, generator=draw)
    inside = torch.rand(6 * nodes, generator=draw) < 0.9
    for c, ids in enumerate(members):
        own = inside & (group[src] == c)
        dst[own] = ids[torch.multinomial(weight[ids], int(own.sum()), replacement=True,
                                         generator=draw)]
    g = dgl.add_reverse_edges(dgl.graph((src, dst), num_nodes=nodes))
    noise = torch.randn(nodes, 32, generator=draw)
    g.ndata["features"] = torch.randn(classes, 32, generator=draw)[group] + 4 * noise
    g.ndata["labels"] = group
    split = torch.rand(nodes, generator=draw)
    for name, low, high in (("train", 0, 0.3), ("val", 0.3, 0.5), ("test", 0.5, 1)):
        g.ndata[f"{name}_mask"] = (split >= low) & (split < high)
    return g


def parts(g: Any, method: str, count: int, out: Path) -> Path:
    from dgl_heta import partition_graph

    partition_graph(g, "g", count, str(out), part_method=method)
    return out / "g.json"


def run(args: argparse.Namespace, kind: str, config: Path, hosts: int, settings: list[str],
        epochs: int, seed: int, out: Path) -> dict[str, Any]:
    """One run: accuracy, bytes of all links, whether the parameters are equal."""
    out.mkdir()
    script, words = (args.sage, SAGE) if kind == "sage" else (args.rgcn, RGCN)
    command = [*CLI, "launch", "--hosts", str(hosts), "--part-config", str(config), "--json-file",
               str(out / "run.json"), "--num-omp-threads", "1", *settings, "--", sys.executable,
               str(DISTDGL / "ended.py"), str(seed), str(out), str(script.resolve()), *words,
               str(epochs)]
    text = output_of(command, args.timeout)
    accuracies = [float(x) for x in re.findall(r"Test Acc ([0-9.]+)", text)]
    if kind == "sage":  # each trainer's own, with its number of test nodes
        tests = [int(x) for x in re.findall(r"test: (\d+) \(local", text)]
        lines = re.findall(r"Part (\d+), Val Acc [0-9.]+, Test Acc ([0-9.]+)", text)
        order = [int(x) for x in re.findall(r"part (\d+), train: ", text)]
        counts = dict(zip(order, tests))
        last = {int(part): float(x) for part, x in lines}
        accuracy = sum(last[p] * counts[p] for p in last) / sum(counts[p] for p in last)
    else:
        accuracy = accuracies[-1]
    kept = [np.load(out / f"{rank}.npy") for rank in range(hosts)]
    summary = json.loads((out / "run.json").read_text(encoding="utf-8"))
    train = [int(x) for x in re.findall(r"train: (\d+) \(local", text)]
    return {"kind": kind, "epochs": epochs, "seed": seed, "accuracy": accuracy,
            "equal": all(np.array_equal(k, kept[0]) for k in kept), "train": train,
            "bytes": sum(host["bytes_sent"] for host in summary["hosts"])}


def main() -> None:
    options = parser(__doc__, "scripts/bench/model_average.py --sage node_classification.py")
    options.add_argument("--sage", type=Path, help="DGL's GraphSAGE script")
    options.add_argument("--rgcn", type=Path, help="DGL's R-GCN script")
    options.add_argument("--nodes", type=int, default=4000, help="of the graph of communities")
    options.add_argument("--scale", type=float, default=0.005, help="of ogbn-mag's shape")
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--timeout", type=float, default=900.0)
    args = options.parse_args()
    if args.quick:
        args.nodes, args.scale, args.epochs, args.repeats = 1500, 0.002, 2, 1
    kinds = [kind for kind in ("sage", "rgcn") if getattr(args, kind)]
    if not kinds:
        options.error("give --sage or --rgcn")
    runs: list[dict[str, Any]] = []
    before = machine()
    with work_dir(args) as work:
        for kind in kinds:
            g = graph(kind, args)
            made = {method: parts(g, method, args.hosts, work / kind / method)
                    for method in ("metis", "spring")}
            made["one"] = parts(g, "metis", 1, work / kind / "one")
            for repeat in range(args.repeats):
                for case, (method, settings) in CASES.items():
                    for epochs in (args.epochs, 1) if repeat == 0 else (args.epochs,):
                        one = run(args, kind, made[method or "one"], args.hosts if method else 1,
                                  settings, epochs, repeat, work / f"run-{len(runs)}")
                        progress(f"{kind}, {case}, {epochs} epochs, seed {repeat}: {one}")
                        runs.append({**one, "case": case})
    finish(args, f"DGL's scripts with averaged models, {args.hosts} hosts, {args.epochs} epochs",
           [table(rows_of(args, runs), ("kind", "nodes", "case"), COLUMNS)], {"runs": runs}, before)


def rows_of(args: argparse.Namespace, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longer runs, with bytes of an epoch."""
    short = {(run["kind"], run["case"]): run["bytes"] for run in runs if run["epochs"] == 1}
    return [{**run, "whole": run["bytes"], "epoch": (
        run["bytes"] - short[run["kind"], run["case"]]) / max(args.epochs - 1, 1),
        "equal": float(run["equal"]), "nodes": ", ".join(map(str, run["train"]))}
        for run in runs if run["epochs"] == args.epochs]


if __name__ == "__main__":
    main()
