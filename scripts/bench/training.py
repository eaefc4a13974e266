"""Epoch time by stage, bytes sent and peak memory: wrapper `raf` against `ddp`.

Both train the same R-GCN on a synthetic ogbn-mag with the same batch per worker. `raf`
follows the plan: a worker has its partition's relations and exchanges partial aggregations.
`ddp` is plain data parallelism: every worker has the whole graph, and only gradients and
learnable features move. The workers share this machine, so its network is not part of the
times: look at the bytes.

Runs alternate within a repeat, and ratios are of the two runs of a repeat. An epoch's time
leaves out the first epoch (which compiles), evaluation and checkpoints. With one worker the
two wrappers do the same, so their ratio there shows the noise. Seconds by stage are
worker 0's; `waiting` is part of the stages that communicate. Bytes are payloads sent by all
workers per epoch, as the collectives' algorithms send them. Peak memory is VmHWM of a worker,
mapped files included, evaluation included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from common import CLI, finish, machine, markdown, parser, run_child, spread, work_dir

STAGES = ("sample", "fetch", "forward", "backward", "update", "waiting")


def train(args: argparse.Namespace, store: Path, run_dir: Path, parts: int, wrapper: str,
          repeat: int) -> dict[str, Any]:
    """One run of `dgl-heta train`: means over its epochs, the first left out."""
    settings = {
        "train.wrapper": wrapper, "train.learnable": args.learnable, "train.seed": args.seed,
        "train.epochs": args.epochs, "train.eval_every": args.epochs,
        "train.batch_size": args.batch, "train.fanouts": args.fanouts,
        "model.hidden": args.hidden, "train.threads": args.threads, "run.verify": "false",
    }
    command = [*CLI, "train", str(store), "--model", args.model, "--parts", str(parts),
               "--run-dir", str(run_dir), "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    child = run_child(command, f"repeat {repeat + 1}/{args.repeats}: {wrapper}, {parts} workers",
                      args.timeout)
    lines = [json.loads(line) for line in
             (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    shutil.rmtree(run_dir)
    steady, summary = epochs[1:], child.result
    rss = [worker["peak_rss_mb"] for worker in summary["workers"]]

    def mean(section: str) -> dict[str, float]:
        return {key: statistics.mean(e[section][key] for e in steady) for key in steady[0][section]}

    return {"repeat": repeat, "parts": parts, "wrapper": wrapper, "seconds": mean("seconds"),
            "epoch_seconds": [e["seconds"]["total"] for e in epochs],
            "bytes": mean("bytes_sent"), "peak_rss_mb": rss, "test_acc": summary["test_acc"],
            "loss": epochs[-1]["loss"], "process_seconds": child.seconds}


def measure(args: argparse.Namespace, temp: Path) -> list[dict[str, Any]]:
    """All runs; the wrappers take turns to go first."""
    run_child([*CLI, "partition", f"synthetic-mag:scale={args.scale:g}", "--out",
               str(temp / "graph"), "--parts", "1", "--json"], "writing the store")
    runs = []
    for repeat in range(args.repeats):
        for parts in args.parts:
            order = args.wrappers if repeat % 2 == 0 else args.wrappers[::-1]
            for wrapper in order:
                runs.append(train(args, temp / "graph" / "store", temp / "run", parts, wrapper,
                                  repeat))
    return runs


def summarize(args: argparse.Namespace, runs: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """Tables by workers and wrapper, and ratios of the pairs."""
    rows, pairs, ratios = [], [], []
    for parts in args.parts:
        groups = {w: [r for r in runs if (r["parts"], r["wrapper"]) == (parts, w)]
                  for w in args.wrappers}
        for wrapper, group in groups.items():
            sent = [statistics.median(r["bytes"][key] for r in group) / 1e6
                    for key in ("total", "partials", "gradients", "learnable")]
            rows.append([
                str(parts), wrapper, spread([r["seconds"]["total"] for r in group]),
                *(f"{statistics.median(r['seconds'][s] for r in group):.2f}" for s in STAGES),
                *(f"{value:.2f}" for value in sent),
                f"{max(max(r['peak_rss_mb']) for r in group) / 1e3:.2f}",
                f"{max(sum(r['peak_rss_mb']) for r in group) / 1e3:.2f}",
                spread([r["test_acc"] for r in group], 3)])
        base = args.wrappers[-1]
        for wrapper in args.wrappers[:-1]:
            both = list(zip(groups[wrapper], groups[base]))
            ratio = {
                "parts": parts, "wrapper": wrapper, "over": base,
                "seconds": [a["seconds"]["total"] / b["seconds"]["total"] for a, b in both],
                "bytes": [a["bytes"]["total"] / b["bytes"]["total"] for a, b in both
                          if b["bytes"]["total"]],
                "peak": [max(a["peak_rss_mb"]) / max(b["peak_rss_mb"]) for a, b in both]}
            ratios.append(ratio)
            pairs.append([str(parts), f"{wrapper} ÷ {base}", *(
                spread(ratio[key]) if ratio[key] else "-" for key in ("seconds", "bytes", "peak"))])
    tables = [markdown(["workers", "wrapper", "s/epoch", *STAGES, "MB sent/epoch", "partials",
                        "gradients", "learnable", "largest worker GB", "all workers GB",
                        "test accuracy"], rows)]
    if pairs:
        tables.append(markdown(["workers", "pair", "seconds", "bytes", "memory of a worker"],
                               pairs))
    return tables, ratios


def main() -> None:
    options = parser(__doc__, "scripts/bench/training.py --parts 1 2 4 --json training.json")
    options.add_argument("--scale", type=float, help="of ogbn-mag (default: 0.05, quick: 0.005)")
    options.add_argument("--parts", type=int, nargs="+", default=[1, 2], metavar="P",
                         help="numbers of workers (default: 1 2)")
    options.add_argument("--wrappers", nargs="+", default=["raf", "ddp"], metavar="NAME",
                         help="ratios are over the last one (default: raf ddp)")
    options.add_argument("--repeats", type=int, help="default: 3, quick: 1")
    options.add_argument("--epochs", type=int, help="per run, 2 or more (default: 4, quick: 2)")
    options.add_argument("--batch", type=int, default=1024, help="per worker (default: 1024)")
    options.add_argument("--fanouts", help="per layer (default: 25,20, quick: 5,5)")
    options.add_argument("--hidden", type=int, default=64, help="hidden width (default: 64)")
    options.add_argument("--model", default="rgcn", help="default: rgcn")
    options.add_argument("--learnable", choices=["exact", "replica"], default="exact",
                         help="train.learnable (default: exact)")
    options.add_argument("--seed", type=int, default=0, help="train.seed (default: 0)")
    options.add_argument("--threads", type=int, default=0,
                         help="CPU threads per worker (default: 0, the cores shared evenly)")
    options.add_argument("--timeout", type=float, default=3600, help="seconds per run")
    args = options.parse_args()
    defaults: dict[str, tuple[Any, Any]] = {"scale": (0.05, 0.005), "repeats": (3, 1),
                                            "epochs": (4, 2), "fanouts": ("25,20", "5,5")}
    for name, (full, quick) in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    args.fanouts = f"[{args.fanouts.strip('[]')}]"
    if args.epochs < 2 or args.repeats < 1:
        options.error("--epochs is 2 or more (the first is not counted), --repeats 1 or more")
    before = machine()
    with work_dir(args) as temp:
        runs = measure(args, temp)
    tables, ratios = summarize(args, runs)
    head = (f"{args.model}, {args.epochs} epochs, batch {args.batch} per worker, fanouts "
            f"{args.fanouts}, hidden {args.hidden}, learnable features {args.learnable}, "
            f"{args.repeats} repeats. Median (least–largest); memory: the largest.")
    finish(args, f"Training on synthetic ogbn-mag, scale {args.scale:g}", [head, *tables],
           {"ratios": ratios, "runs": runs}, before)


if __name__ == "__main__":
    main()
