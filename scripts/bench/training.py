"""`dgl-heta train` on one worker and on several: seconds by stage, bytes, memory, accuracy.

    python scripts/bench/training.py --graphs debian --ways exact ddp --workers 2
    python scripts/bench/training.py --ways exact replica --workers 1 2 4 --set model.dropout=0.3

Ways to train:

  exact         the default: training equals that of one worker.
  replica       a copy of the learnable features for each partition that uses them.
  unreplicated  each relation on one partition only (`partition.replication=none`).
  ddp           data parallelism: every worker has the whole graph.
  bfloat16      as exact, what workers exchange rounded (`train.exchange_dtype`).
  autocast      as exact, products of matrices in bfloat16 (`train.autocast`).

The batch over all workers is the same at any number of them, and so are the edges that are sampled.
What differs is dropout, which every worker draws for itself, the order in which sums are rounded,
and the mode. Runs of a seed follow each other, in every second seed in the opposite order. One
worker is run once for all ways but ddp.

Seconds are of an epoch, worker 0's, the first epoch, evaluation and checkpoints left out; `waiting`
is part of the stages that communicate. The workers share this machine, so its network is no part of
the times: look at the bytes, payloads that all workers send in an epoch, as the collectives'
algorithms send them. Memory is of the largest worker: its peak, mapped files included, and what
belongs to no file; with `--predict` also what `dgl-heta plan` says of the partition that holds
most. Accuracy is on the test nodes, at the epoch with the best validation accuracy. "Within one sd"
means: the mean over the seeds is at most one standard deviation (n - 1) of one worker's away from
one worker's mean. With equal distributions and 3 seeds that fails by chance in one of four.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from common import (
    CLI,
    Column,
    elsewhere,
    finish,
    grouped,
    machine,
    markdown,
    parser,
    run_child,
    table,
    work_dir,
)

WAYS = {"exact": [], "replica": ["train.learnable=replica"], "ddp": ["train.wrapper=ddp"],
        "unreplicated": ["partition.replication=none"],
        "bfloat16": ["train.exchange_dtype=bfloat16"], "autocast": ["train.autocast=bfloat16"]}
OF_MODELS = {"rgat": ["model.layer_norm=true"], "hgt": ["model.layer_norm=true"],
             "han": ["model.layer_norm=true"], "sehgnn": ["model.layers=1"]}
PRECOMPUTED = ("sehgnn", "nars")  # their averages are of all neighbours
STAGES = ("sample", "fetch", "forward", "backward", "update", "waiting")
KEYS = ("graph", "model", "workers", "way")
COLUMNS = (Column("s/epoch", "seconds/total"), *(Column(s, f"seconds/{s}") for s in STAGES),
           Column("MB sent", "bytes/total", 1e-6), *(Column(c, f"bytes/{c}", 1e-6) for c in (
               "partials", "features", "learnable", "sampling", "gradients")),
           Column("peak MB", "peak_mb", digits=0), Column("own MB", "own_mb", digits=0),
           Column("predicted MB", "predicted_mb", digits=0),
           Column("cores busy elsewhere", "others/all"))


def train(args: argparse.Namespace, store: Path, run_dir: Path, key: tuple[str, str, int, str],
          seed: int) -> dict[str, Any]:
    """One run: means over its epochs, the first left out, and its curve."""
    graph, model, workers, way = key
    sets = [f"train.seed={seed}", f"train.epochs={args.epochs}", f"train.fanouts={args.fanouts}",
            f"train.batch_size={args.batch // workers}", "run.verify=false",
            f"model.hidden={args.hidden}", *OF_MODELS.get(model, []), *WAYS[way], *args.set]
    if model in PRECOMPUTED:
        sets = [text for text in sets if not text.startswith("train.fanouts")]
    others = elsewhere()
    child = run_child([*CLI, "train", str(store), "--model", model, "--parts", str(workers),
                       "--run-dir", str(run_dir), "--json",
                       *(part for text in sets for part in ("--set", text))],
                      f"{graph}, {model}, {workers} workers, {way}, seed {seed}", args.timeout)
    lines = [json.loads(line) for line in
             (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    shutil.rmtree(run_dir)
    epochs, summary = [line for line in lines if line["event"] == "epoch"], child.result
    steady = epochs[1:] or epochs

    def mean(section: str) -> dict[str, float]:
        return {k: statistics.mean(e[section].get(k, 0.0) for e in steady)
                for k in steady[0][section]}

    curve, trained = [], 0.0
    for epoch in epochs:
        trained += epoch["seconds"]["total"]
        if "val_acc" in epoch:
            curve.append([trained, epoch["val_acc"], epoch.get("test_acc")])
    return {**dict(zip(KEYS, key)), "seed": seed, "seconds": mean("seconds"),
            "bytes": mean("bytes_sent"), "test_acc": summary["test_acc"],
            "peak_mb": max(worker["peak_rss_mb"] for worker in summary["workers"]),
            "own_mb": child.anon_mb, "curve": curve, "process_seconds": child.seconds,
            "others": others()}


def measure(args: argparse.Namespace, temp: Path) -> list[dict[str, Any]]:
    """All runs, with predicted MB if wanted."""
    runs: list[dict[str, Any]] = []
    for graph in args.graphs:
        store = temp / "graph" / "store"
        run_child([*CLI, "partition", graph, "--out", str(store.parent), "--parts", "1", "--json",
                   *(["--feature-dtype", args.feature_dtype] if args.feature_dtype else [])],
                  f"writing {graph}")
        cases = [(graph, model, workers, way) for model, workers, way in product(
            args.models, args.workers, args.ways)
            if workers > 1 or way in ("ddp", args.ways[0])]
        for seed in range(args.seeds):
            for case in cases[::-1 if seed % 2 else 1]:
                runs.append(train(args, store, temp / "run", case, seed))
        for workers, way in product(args.workers, args.ways) if args.predict else ():
            plan = run_child([
                *CLI, "plan", str(store), "--parts", str(workers), "--replication",
                "none" if way == "unreplicated" else "full", "--json"], "planning").result
            most = max(sum(p[f"{kind}_bytes"] for kind in ("topology", "feature", "learnable"))
                       for p in plan["prediction"]["partitions"])
            for run in runs:
                if (run["graph"], run["workers"], run["way"]) == (graph, workers, way):
                    run["predicted_mb"] = most / 1e6
        shutil.rmtree(store.parent)
    return runs


def learned(runs: list[dict[str, Any]]) -> str:
    """Accuracies beside those of one worker; the difference for each seed goes into its run."""
    alone = {(run["graph"], run["model"], run["seed"]): run["test_acc"] for run in runs
             if run["workers"] == 1 and run["way"] != "ddp"}
    for run in runs:
        one = alone.get((run["graph"], run["model"], run["seed"]))
        run["difference"] = None if one is None else run["test_acc"] - one
    cells = []
    columns = Column("a", "test_acc"), Column("d", "difference")
    for key, of in grouped(runs, KEYS, columns).items():
        one = [a for (graph, model, _), a in alone.items() if (graph, model) == key[:2]]
        far = statistics.mean(of["d"]) if of["d"] else 0.0
        sd, of_one = (statistics.stdev(x) if len(x) > 1 else math.nan for x in (of["a"], one))
        cells.append([*key, ", ".join(f"{a:.4f}" for a in of["a"]),
                      f"{statistics.mean(of['a']):.4f} ± {sd:.4f}", f"{far:+.4f}",
                      f"{max(map(abs, of['d']), default=0.0):.4f}",
                      "yes" if abs(far) <= of_one else "no"])
    return markdown([*KEYS, "test accuracy per seed", "mean ± sd", "difference of means",
                     "largest per seed", "within one sd"], cells)


def main() -> None:
    options = parser(__doc__, "scripts/bench/training.py --workers 1 2 --json training.json")
    options.add_argument("--graphs", nargs="+", default=["debian"], metavar="NAME",
                         help="as `dgl-heta partition` takes them (default: debian)")
    options.add_argument("--models", nargs="+", default=["rgcn"], metavar="NAME")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="P")
    options.add_argument("--ways", nargs="+", choices=list(WAYS), default=["exact"])
    options.add_argument("--seeds", type=int, help="runs of each (default: 3, quick: 1)")
    options.add_argument("--epochs", type=int, help="per run (default: 8, quick: 2)")
    options.add_argument("--batch", type=int, help="over all workers (default: 1024, quick: 4096)")
    options.add_argument("--fanouts", help="per layer (default: 25,20, quick: 4,4)")
    options.add_argument("--hidden", type=int, help="hidden width (default: 64, quick: 16)")
    options.add_argument("--feature-dtype", help="float16 or int8, as `partition` takes it")
    options.add_argument("--predict", action="store_true", help="also memory as planned")
    options.add_argument("--set", action="append", default=[], help="any other setting")
    options.add_argument("--timeout", type=float, default=3600, help="seconds per run")
    args = options.parse_args()
    for name, (full, quick) in {"seeds": (3, 1), "epochs": (8, 2), "batch": (1024, 4096),
                                "fanouts": ("25,20", "4,4"), "hidden": (64, 16)}.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    args.fanouts = f"[{args.fanouts.strip('[]')}]"
    before = machine()
    with work_dir(args) as temp:
        runs = measure(args, temp)
    head = (f"{args.epochs} epochs, global batch {args.batch}, fanouts {args.fanouts}, hidden "
            f"{args.hidden}, {args.seeds} seeds {' '.join(args.set)}. Median (least–largest); "
            "memory of the largest worker.")
    tables = [head, table(runs, KEYS, COLUMNS), learned(runs)]
    finish(args, f"Training on {', '.join(args.graphs)}", tables, {"runs": runs}, before)


if __name__ == "__main__":
    main()
