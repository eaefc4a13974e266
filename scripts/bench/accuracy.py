"""Accuracy of R-GCN, on the Debian graph or another: RAF on several workers against one worker.

The global batch is the same at any number of workers (train.batch_size = global / workers),
and so are the edges that are sampled. What differs is dropout, which every worker draws for
itself, the order in which sums are rounded, and with train.learnable=replica the learnable
features of types that several workers use. So without dropout, `exact` differs from one
worker by rounding only, and the comparison says more with dropout.

"Within one sd" means: the mean over the seeds is at most one standard deviation (n - 1) of
one worker's accuracies away from one worker's mean. With equal
distributions and 3 seeds that fails by chance in about one of four comparisons: look at the
differences per seed too, and use more seeds.

`bfloat16` is `exact` with what workers exchange rounded (`train.exchange_dtype`), `autocast` with
products of matrices in bfloat16 (`train.autocast`). Without dropout the difference from one worker
is the rounding's.

One worker has all learnable features to itself: it is run once for both modes. Accuracy is
on the test nodes, at the epoch with the best validation accuracy.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path
from typing import Any

from common import CLI, finish, machine, markdown, parser, run_child, spread, work_dir


def train(args: argparse.Namespace, store: Path, run_dir: Path, workers: int, mode: str,
          dropout: float, seed: int) -> dict[str, Any]:
    """One run of `dgl-heta train`; what the tables need of its summary."""
    settings = {
        "train.learnable": "replica" if mode == "replica" else "exact",
        "model.dropout": dropout, "train.seed": seed,
        "train.epochs": args.epochs, "train.batch_size": args.batch // workers,
        "train.fanouts": args.fanouts, "model.hidden": args.hidden, "train.lr": args.lr,
        "train.sparse_lr": args.sparse_lr, "train.threads": args.threads,
    }
    if mode == "bfloat16":
        settings["train.exchange_dtype"] = mode
    if mode == "autocast":
        settings["train.autocast"] = "bfloat16"
    command = [*CLI, "train", str(store), "--model", "rgcn", "--parts", str(workers),
               "--run-dir", str(run_dir), "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    child = run_child(command, f"{workers} workers, {mode}, dropout {dropout:g}, seed {seed}",
                      args.timeout)
    shutil.rmtree(run_dir)
    summary = child.result
    keep = ("test_acc", "val_acc", "test_loss", "best_epoch", "epoch_seconds",
            "bytes_sent_per_epoch", "peak_rss_mb")
    return {"workers": workers, "mode": mode, "dropout": dropout, "seed": seed,
            "process_seconds": child.seconds, **{k: summary[k] for k in keep}}


def measure(args: argparse.Namespace, temp: Path) -> list[dict[str, Any]]:
    """All runs; workers and modes alternate inside a seed."""
    run_child([*CLI, "partition", args.dataset, "--out", str(temp / "graph"), "--parts", "1",
               "--json"], "writing the store")
    runs = []
    for seed in range(args.seeds):
        for dropout in args.dropout:
            for workers in sorted({1, *args.workers}):
                for mode in args.modes if workers > 1 else ["exact"]:
                    runs.append(train(args, temp / "graph" / "store", temp / "run", workers,
                                      mode, dropout, seed))
    return runs


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every dropout, mode and number of workers: accuracies and distance from one worker."""
    groups: dict[tuple[float, int, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["dropout"], run["workers"], run["mode"]), []).append(run)
    comparisons = []
    for (dropout, workers, mode), group in sorted(groups.items()):
        accuracies = [run["test_acc"] for run in group]
        one = [run["test_acc"] for run in groups[dropout, 1, "exact"]]
        sd = statistics.stdev(one) if len(one) > 1 else float("nan")
        apart = statistics.mean(accuracies) - statistics.mean(one)
        comparisons.append({
            "dropout": dropout, "workers": workers, "mode": mode if workers > 1 else "",
            "test_acc": accuracies, "mean": statistics.mean(accuracies),
            "sd": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "difference": apart, "per_seed": [a - b for a, b in zip(accuracies, one)],
            "sd_of_one_worker": sd if len(one) > 1 else None,
            "within_one_sd": bool(abs(apart) <= sd) if len(one) > 1 else None,
            "epoch_seconds": [run["epoch_seconds"] for run in group],
        })
    return comparisons


def table(comparisons: list[dict[str, Any]]) -> str:
    verdicts = {True: "yes", False: "no", None: "one seed only"}
    rows = []
    for f in comparisons:
        many = f["workers"] > 1
        rows.append([
            f"{f['dropout']:g}", str(f["workers"]), f["mode"] or "-",
            ", ".join(f"{a:.4f}" for a in f["test_acc"]),
            f"{f['mean']:.4f}" + (f" ± {f['sd']:.4f}" if f["sd"] is not None else ""),
            f"{f['difference']:+.4f}" if many else "-",
            f"{max(map(abs, f['per_seed'])):.4f}" if many else "-",
            verdicts[f["within_one_sd"]] if many else "-", spread(f["epoch_seconds"])])
    return markdown(["dropout", "workers", "learnable", "test accuracy per seed", "mean ± sd",
                     "difference of means", "largest per seed", "within one sd", "s/epoch"], rows)


def main() -> None:
    options = parser(__doc__, "scripts/bench/accuracy.py --json accuracy.json")
    options.add_argument("--seeds", type=int, help="number of seeds (default: 3, quick: 2)")
    options.add_argument("--workers", type=int, nargs="+", metavar="P",
                         help="besides 1 (default: 2 4, quick: 2)")
    options.add_argument("--dataset", default="debian", help="as `dgl-heta partition` takes it")
    options.add_argument("--modes", nargs="+", choices=["exact", "replica", "bfloat16", "autocast"],
                         help="default: exact and replica, quick: exact")
    options.add_argument("--dropout", type=float, nargs="+", metavar="X",
                         help="one or several (default: 0 0.3, quick: 0.3)")
    options.add_argument("--epochs", type=int, help="per run (default: 8, quick: 1)")
    options.add_argument("--batch", type=int, help="global batch (default: 1024, quick: 4096)")
    options.add_argument("--fanouts", help="per layer (default: 25,20, quick: 4,4)")
    options.add_argument("--hidden", type=int, help="hidden width (default: 64, quick: 16)")
    options.add_argument("--lr", type=float, default=0.01, help="default: 0.01")
    options.add_argument("--sparse-lr", type=float, default=0.01, help="default: 0.01")
    options.add_argument("--threads", type=int, default=1,
                         help="CPU threads per worker (default: 1; accuracy does not depend on it)")
    options.add_argument("--timeout", type=float, default=3600, help="seconds per run")
    args = options.parse_args()
    defaults: dict[str, tuple[Any, Any]] = {
        "seeds": (3, 2), "workers": ([2, 4], [2]),
        "modes": (["exact", "replica"], ["exact"]), "dropout": ([0.0, 0.3], [0.3]),
        "epochs": (8, 1), "batch": (1024, 4096), "fanouts": ("25,20", "4,4"), "hidden": (64, 16)}
    for name, (full, quick) in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    args.fanouts = f"[{args.fanouts.strip('[]')}]"
    if bad := [w for w in args.workers if w < 1 or args.batch % w]:
        options.error(f"--batch {args.batch} cannot be shared evenly by {bad[0]} workers")
    before = machine()
    with work_dir(args) as temp:
        runs = measure(args, temp)
    comparisons = compare(runs)
    head = (f"R-GCN, {args.epochs} epochs, global batch {args.batch}, fanouts {args.fanouts}, "
            f"hidden {args.hidden}, seeds 0 to {args.seeds - 1}.")
    finish(args, f"Accuracy on {args.dataset}", [head, table(comparisons)],
           {"comparisons": comparisons, "runs": runs}, before)


if __name__ == "__main__":
    main()
