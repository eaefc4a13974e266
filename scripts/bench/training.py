"""`dgl-heta train` on one worker and on several: seconds by stage, bytes, memory, accuracy.

    python scripts/bench/training.py --graphs synthetic-mag:scale=0.25 --ways exact ddp \\
        --workers 2 --epochs 2 --seeds 2 --set train.threads=1
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
import shutil
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from common import CLI, elsewhere, finish, machine, markdown, parser, run_child, spread, work_dir

WAYS = {"exact": [], "replica": ["train.learnable=replica"], "ddp": ["train.wrapper=ddp"],
        "unreplicated": ["partition.replication=none"],
        "bfloat16": ["train.exchange_dtype=bfloat16"], "autocast": ["train.autocast=bfloat16"]}
OF_MODELS = {"rgat": ["model.layer_norm=true"], "hgt": ["model.layer_norm=true"],
             "han": ["model.layer_norm=true"], "sehgnn": ["model.layers=1"]}
PRECOMPUTED = ("sehgnn", "nars")  # their averages are of all neighbours
STAGES = ("sample", "fetch", "forward", "backward", "update", "waiting")
KEYS = ("graph", "model", "workers", "way")


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


def measure(args: argparse.Namespace, temp: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """All runs, and predicted MB by graph, workers and way."""
    runs, predicted = [], {}
    for graph in args.graphs:
        store = temp / "graph" / "store"
        run_child([*CLI, "partition", graph, "--out", str(store.parent), "--parts", "1", "--json"],
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
            predicted[f"{graph} {workers} {way}"] = max(
                sum(p[f"{kind}_bytes"] for kind in ("topology", "feature", "learnable"))
                for p in plan["prediction"]["partitions"]) / 1e6
        shutil.rmtree(store.parent)
    return runs, predicted


def summary(runs: list[dict[str, Any]], predicted: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each graph, model, number of workers and way: a value for each seed."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[k] for k in KEYS), []).append(run)
    rows = []
    for key, group in groups.items():
        one = next((g for k, g in groups.items() if k[:3] == (*key[:2], 1) and k[3] != "ddp"), [])
        accuracy, alone = ([r["test_acc"] for r in g] for g in (group, one))
        far = statistics.mean(accuracy) - statistics.mean(alone) if alone else None
        rows.append({
            **dict(zip(KEYS, key)), "seconds": [r["seconds"]["total"] for r in group],
            "stages": {s: statistics.median(r["seconds"].get(s, 0.0) for r in group)
                       for s in STAGES},
            "bytes": [r["bytes"]["total"] for r in group],
            "causes": {c: statistics.median(r["bytes"][c] for r in group)
                       for c in group[0]["bytes"] if c != "total"},
            "peak_mb": [r["peak_mb"] for r in group], "own_mb": [r["own_mb"] for r in group],
            "predicted_mb": predicted.get(" ".join(map(str, (key[0], *key[2:])))),
            "test_acc": accuracy, "difference": far,
            "per_seed": [a - b for a, b in zip(accuracy, alone)],
            "within_one_sd": abs(far) <= statistics.stdev(alone)
            if far is not None and len(alone) > 1 else None})
    return rows


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """What an epoch takes, and what it learns."""
    taken, learned = [], []
    for row in rows:
        key = [str(row[k]) for k in KEYS]
        taken.append([
            *key, spread(row["seconds"]), *(f"{row['stages'][s]:.2f}" for s in STAGES),
            spread([b / 1e6 for b in row["bytes"]]),
            ", ".join(f"{c} {b / 1e6:.1f}" for c, b in row["causes"].items() if b >= 5e4) or "-",
            f"{max(row['peak_mb']) / 1e3:.2f}", f"{max(row['own_mb']):,.0f}",
            "-" if row["predicted_mb"] is None else f"{row['predicted_mb']:,.0f}"])
        sd = statistics.stdev(row["test_acc"]) if len(row["test_acc"]) > 1 else 0.0
        many = row["difference"] is not None and row["workers"] > 1
        learned.append([
            *key, ", ".join(f"{a:.4f}" for a in row["test_acc"]),
            f"{statistics.mean(row['test_acc']):.4f} ± {sd:.4f}",
            f"{row['difference']:+.4f}" if many else "-",
            f"{max(map(abs, row['per_seed'])):.4f}" if many else "-",
            {True: "yes", False: "no", None: "-"}[row["within_one_sd"] if many else None]])
    return [markdown([*KEYS, "s/epoch", *STAGES, "MB/epoch", "of it", "peak GB", "own MB",
                      "predicted MB"], taken),
            markdown([*KEYS, "test accuracy per seed", "mean ± sd", "difference of means",
                      "largest per seed", "within one sd"], learned)]


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
        runs, predicted = measure(args, temp)
    rows = summary(runs, predicted)
    head = (f"{args.epochs} epochs, global batch {args.batch}, fanouts {args.fanouts}, hidden "
            f"{args.hidden}, {args.seeds} seeds {' '.join(args.set)}. Median (least–largest); "
            "memory: the largest.")
    finish(args, f"Training on {', '.join(args.graphs)}", [head, *tables(rows)],
           {"rows": rows, "runs": runs}, before)


if __name__ == "__main__":
    main()
