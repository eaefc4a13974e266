"""Programs on emulated hosts: METIS by plain DistDGL against meta-partitioning and RAF.

    python scripts/bench/distdgl.py --script entity_classify_dist.py
    python scripts/bench/distdgl.py --graphstorm rgcn

A script is one that takes the arguments of DGL's entity_classify_dist.py (v2.1.0,
examples/pytorch/rgcn/experimental) and prints what it prints; it is not part of dgl-heta. Of
GraphStorm it is the command for node classification (gsgnn_np.py), with an evaluation after each
epoch. Both run unedited in all cases: two layers, fanout 25,20 (GraphStorm: 20,25), batch 1024,
hidden 64, 2 bases, self-loop, learnable embeddings for node types without features. Hosts are
emulated (`dgl-heta launch --hosts`) with one core each.

Each repeat has a seed of its own. Runs alternate within a repeat, and ratios are of the runs of a
repeat. Seconds are of training in an epoch, the slower trainer's (GraphStorm's: after its barrier):
the fastest epoch of a run, because other work on the machine makes epochs several times slower.
Bytes are what all hosts sent per epoch on their links, evaluation included: the difference of a
longer run and a run of one epoch (in the first repeat), so start-up is left out; beside them those
of the whole run, start-up included.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from common import (
    CLI,
    SYSTEMS_DIR,
    Column,
    finish,
    last_object,
    machine,
    output_of,
    parser,
    progress,
    table,
    work_dir,
)

CASES: dict[str, tuple[str, list[str]]] = {  # parts, settings
    "metis": ("metis", []),
    "meta, replica": ("meta", ["--set", "train.learnable=replica"]),
    "meta, exact": ("meta", ["--set", "train.learnable=exact"]),
    "meta, exact, rows move": ("rows", ["--set", "train.learnable=exact"]),
}
COLUMNS = (Column("s/epoch", "seconds"), Column("METIS ÷ this", "faster"),
           Column("MB/epoch", "bytes", 1e-6, 1), Column("MB of the whole run", "whole", 1e-6, 0),
           Column("fewer bytes, %", "fewer", 100, 1), Column("test accuracy", "test_acc", digits=3))
SCRIPT = ["--graph-name", "mag", "-d", "mag", "--ip-config", "{ip_config}", "--conf-path",
          "{part_config}", "--n-hidden", "64", "--n-bases", "2", "--batch-size", "1024",
          "--fanout", "25,20", "--use-self-loop", "--sparse-embedding", "--dgl-sparse",
          "--log-every", "1000"]


def gsf(encoder: str, classes: int, epochs: int) -> dict[str, Any]:
    """GraphStorm's file of settings; JSON is YAML."""
    return {"version": 1.0, "gsf": {
        "basic": {"model_encoder_type": encoder, "backend": "gloo"},
        "gnn": {"num_layers": 2, "hidden_size": 64, "fanout": "20,25", "eval_fanout": "20,25",
                "node_feat_name": ["paper:feat"]},
        "hyperparam": {"dropout": 0.5, "lr": 0.01, "num_epochs": epochs, "batch_size": 1024,
                       "eval_batch_size": 1024, "wd_l2norm": 0, "no_validation": False},
        "rgcn": {"num_bases": 2, "use_self_loop": True, "sparse_optimizer_lr": 0.01},
        **({} if encoder == "rgcn" else {encoder: {"num_heads": 4}}),
        "node_classification": {
            "target_ntype": "paper", "label_field": "labels", "num_classes": classes,
            "task_type": "node_classification", "eval_metric": ["accuracy"]}}}


def parts(args: argparse.Namespace, directory: Path, kind: str) -> tuple[Path, int]:
    """Partition by a user's script; the part_config, and the number of classes."""
    script = [str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
              f"synthetic-mag:scale={args.scale:g}", "--classes", str(args.classes), "--num_parts",
              str(args.hosts), "--part_method", "metis" if kind == "metis" else "meta",
              "--output", str(directory)]
    sets = [f"partition.shared={'rows' if kind == 'rows' else 'auto'}",
            f"model.name={args.graphstorm or 'rgcn'}"]
    text = output_of([sys.executable, *script] if kind == "metis" else
                     [*CLI, "run", *(x for one in sets for x in ("--set", one)), *script],
                     args.timeout)
    return directory / "mag.json", int((last_object(text) or {})["classes"])


def program(args: argparse.Namespace, classes: int, epochs: int, work: Path) -> list[str]:
    """The words of the training command."""
    if not args.graphstorm:
        return [str(args.script), *SCRIPT, "--n-epochs", str(epochs)]
    settings = work / "gsf.yaml"
    settings.write_text(json.dumps(gsf(args.graphstorm, classes, epochs)), encoding="utf-8")
    return [str(args.installed), "--cf", str(settings), "--part-config", "{part_config}",
            "--ip-config", "{ip_config}", "--logging-level", "info"]


def train(args: argparse.Namespace, case: str, made: tuple[Path, int], epochs: int, seed: int,
          work: Path) -> dict[str, Any]:
    """One run: seconds of each epoch, bytes on the links, accuracy."""
    config, classes = made
    text = output_of([
        *CLI, "launch", "--hosts", str(args.hosts), "--rate", args.rate, "--cores", "1",
        "--part-config", str(config), "--json-file", str(work / "out.json"), *CASES[case][1], "--",
        sys.executable, str(SYSTEMS_DIR / "distdgl/seeded.py"), str(seed),
        *program(args, classes, epochs, work)], args.timeout)
    if args.graphstorm:
        seconds = [float(x) for x in re.findall(r"Epoch \d+ take ([0-9.]+) seconds", text)]
    else:
        by_rank: dict[str, list[float]] = {}
        for rank, value in re.findall(r"\[(\d+)\]Epoch Time\(s\): ([0-9.]+)", text):
            by_rank.setdefault(rank, []).append(float(value))
        seconds = [max(each) for each in zip(*by_rank.values())]
    summary = json.loads((work / "out.json").read_text(encoding="utf-8"))
    accuracy = re.findall(r"\| Test accuracy: ([0-9.]+)" if args.graphstorm else
                          r"Test Acc ([0-9.]+)", text)
    return {"case": case, "epochs": epochs, "repeat": seed, "seconds": min(seconds),
            "whole": sum(host["bytes_sent"] for host in summary["hosts"]),
            "test_acc": float(accuracy[-1])}


def compared(runs: list[dict[str, Any]], epochs: int) -> list[dict[str, Any]]:
    """The longer runs, with bytes of an epoch and ratios to METIS."""
    once = {run["case"]: run for run in runs if run["epochs"] == 1}
    rows = [{**run, "bytes": (run["whole"] - once[run["case"]]["whole"]) / (epochs - 1)}
            for run in runs if run["epochs"] > 1]
    metis = {row["repeat"]: row for row in rows if row["case"] == "metis"}
    return [{**row, "faster": metis[row["repeat"]]["seconds"] / row["seconds"],
             "fewer": 1 - row["bytes"] / metis[row["repeat"]]["bytes"]} for row in rows]


def main() -> None:
    options = parser(__doc__, "scripts/bench/distdgl.py --script entity_classify_dist.py")
    options.add_argument("--script", type=Path, help="the training script")
    options.add_argument("--graphstorm", choices=("rgcn", "rgat", "hgt"), help="its encoder")
    options.add_argument("--scale", type=float, default=0.05)
    options.add_argument("--classes", type=int, default=0, help="fold the labels into so many")
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--epochs", type=int, default=4, help="2 or more")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--timeout", type=float, default=900.0)
    args = options.parse_args()
    if args.quick:
        args.scale, args.epochs, args.repeats = 0.005, 2, 1
    if args.graphstorm:
        try:
            args.installed = distribution("graphstorm").locate_file(
                "graphstorm/run/gsgnn_np/gsgnn_np.py")
        except PackageNotFoundError:
            sys.exit("error: GraphStorm is not installed; docs/graphstorm.md says how to")
    elif args.script is None or not args.script.is_file():
        sys.exit(f"error: there is no script {args.script}; give --script or --graphstorm")
    args.script = args.script and args.script.resolve()
    runs: list[dict[str, Any]] = []
    before = machine()
    with work_dir(args) as work:
        made = {kind: parts(args, work / kind, kind) for kind in ("metis", "meta", "rows")}
        for repeat in range(args.repeats):
            for case, (kind, _) in CASES.items():
                for epochs in (args.epochs, 1) if repeat == 0 else (args.epochs,):
                    runs.append(train(args, case, made[kind], epochs, repeat, work))
                    progress(f"{runs[-1]}")
    what = f"GraphStorm, {args.graphstorm}," if args.graphstorm else "A DistDGL script"
    rows = compared(runs, args.epochs)
    finish(args, f"{what} on {args.hosts} hosts at {args.rate}, ogbn-mag × {args.scale:g}",
           [table(rows, ("case",), COLUMNS)], {"rows": rows, "runs": runs}, before)


if __name__ == "__main__":
    main()
