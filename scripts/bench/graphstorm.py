"""GraphStorm's node classification on emulated hosts: METIS parts against meta-partitioning.

GraphStorm's command (gsgnn_np.py) runs unmodified in all cases: RGCN (or RGAT, HGT), two layers,
fanout 20,25, batch 1024, hidden 64, 2 bases, self-loop, learnable embeddings for the node types
without features, an evaluation after each epoch. Hosts are emulated (`dgl-heta launch --hosts`)
with one core each.

Runs of a seed follow each other, and ratios are of the runs of a seed. Seconds are of training in
an epoch, as GraphStorm's first trainer says them after its barrier: the fastest epoch of a run,
because other work on the machine makes epochs several times slower. Bytes are what all hosts sent
per epoch on their links, evaluation included: the difference of a longer run and a run of one epoch
(of the first seed), so start-up is left out; in brackets the whole run.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from common import (
    CLI,
    SYSTEMS_DIR,
    finish,
    last_object,
    machine,
    markdown,
    parser,
    progress,
    work_dir,
)

CASES: dict[str, tuple[str, list[str]]] = {  # parts, settings
    "metis": ("metis", []),
    "meta, replica": ("meta", ["--set", "train.learnable=replica"]),
    "meta, exact": ("meta", ["--set", "train.learnable=exact"]),
    "meta, exact, rows move": ("rows", ["--set", "train.learnable=exact"]),
}
GRAPH, TARGET = "mag", "paper"


def gsf(encoder: str, classes: int, epochs: int) -> dict[str, Any]:
    """GraphStorm's file of settings; JSON is YAML."""
    return {"version": 1.0, "gsf": {
        "basic": {"model_encoder_type": encoder, "backend": "gloo"},
        "gnn": {"num_layers": 2, "hidden_size": 64, "fanout": "20,25", "eval_fanout": "20,25",
                "node_feat_name": [f"{TARGET}:feat"]},
        "hyperparam": {"dropout": 0.5, "lr": 0.01, "num_epochs": epochs, "batch_size": 1024,
                       "eval_batch_size": 1024, "wd_l2norm": 0, "no_validation": False},
        "rgcn": {"num_bases": 2, "use_self_loop": True, "sparse_optimizer_lr": 0.01},
        **({} if encoder == "rgcn" else {encoder: {"num_heads": 4}}),
        "node_classification": {
            "target_ntype": TARGET, "label_field": "labels", "num_classes": classes,
            "task_type": "node_classification", "eval_metric": ["accuracy"]}}}


def run(command: list[str], timeout: float) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with status {done.returncode}:\n"
                 + "\n".join(done.stdout.splitlines()[-40:]))
    return done.stdout


def parts(args: argparse.Namespace, directory: Path, kind: str) -> tuple[Path, int]:
    """Partition by a user's script; the part_config, and the number of classes."""
    method = "metis" if kind == "metis" else "meta"
    script = [str(SYSTEMS_DIR / "distdgl/parts.py"), "--name", GRAPH, "--dataset",
              f"synthetic-mag:scale={args.scale:g}", "--classes", str(args.classes),
              "--num_parts", str(args.hosts), "--part_method", method, "--output", str(directory)]
    shared = "rows" if kind == "rows" else "auto"
    ours = [*CLI, "run", "--set", f"partition.shared={shared}", "--set",
            f"model.name={args.encoder}", *script]
    text = run([sys.executable, *script] if kind == "metis" else ours, args.timeout)
    said = last_object(text)
    assert said is not None, text
    return directory / f"{GRAPH}.json", int(said["classes"])


def train(args: argparse.Namespace, case: str, config: Path, classes: int, epochs: int, seed: int,
          work: Path) -> dict[str, Any]:
    """One run: seconds of each epoch, bytes on the links, accuracies."""
    settings, out = work / "gsf.yaml", work / "out.json"
    settings.write_text(json.dumps(gsf(args.encoder, classes, epochs)), encoding="utf-8")
    text = run([*CLI, "launch", "--hosts", str(args.hosts), "--rate", args.rate, "--cores", "1",
                "--part-config", str(config), "--json-file", str(out), *CASES[case][1], "--",
                sys.executable, str(SYSTEMS_DIR / "distdgl/seeded.py"), str(seed),
                str(args.graphstorm), "--cf", str(settings), "--part-config", "{part_config}",
                "--ip-config", "{ip_config}", "--logging-level", "info"], args.timeout)
    summary = json.loads(out.read_text(encoding="utf-8"))
    return {"case": case, "epochs": epochs,
            "seconds": [float(x) for x in re.findall(r"Epoch \d+ take ([0-9.]+) seconds", text)],
            "bytes": sum(host["bytes_sent"] for host in summary["hosts"]),
            "test_acc": [float(x) for x in re.findall(r"\| Test accuracy: ([0-9.]+)", text)]}


def main() -> None:
    options = parser(__doc__, "scripts/bench/graphstorm.py")
    options.add_argument("--encoder", choices=("rgcn", "rgat", "hgt"), default="rgcn")
    options.add_argument("--scale", type=float, default=0.05)
    options.add_argument("--classes", type=int, default=0, help="fold the labels into so many")
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--seeds", type=int, default=3, help="how many runs of each case")
    options.add_argument("--timeout", type=float, default=900.0)
    args = options.parse_args()
    if args.quick:
        args.scale, args.epochs, args.seeds = 0.005, 2, 1
    try:
        installed = distribution("graphstorm")
    except PackageNotFoundError:
        sys.exit("error: GraphStorm is not installed; docs/graphstorm.md says how to")
    args.graphstorm = installed.locate_file("graphstorm/run/gsgnn_np/gsgnn_np.py")
    runs: list[dict[str, Any]] = []
    before = machine()
    with work_dir(args) as work:
        made = {kind: parts(args, work / kind, kind) for kind in ("metis", "meta", "rows")}
        for seed in range(args.seeds):
            for case in CASES:
                config, classes = made[CASES[case][0]]
                for epochs in (args.epochs, 1) if seed == 0 else (args.epochs,):
                    one = train(args, case, config, classes, epochs, seed, work)
                    progress(f"seed {seed + 1}/{args.seeds}, {case}, {epochs} epochs: "
                             f"{one['seconds']} s, {one['bytes'] / 1e6:.1f} MB")
                    runs.append({**one, "seed": seed})
    finish(args, f"GraphStorm, {args.encoder}, on {args.hosts} hosts at {args.rate}, "
                 f"ogbn-mag × {args.scale:g}", [table(args, runs)], {"runs": runs}, before)


def table(args: argparse.Namespace, runs: list[dict[str, Any]]) -> str:
    rows = []
    figures: dict[str, list[tuple[float, float, float, float]]] = {case: [] for case in CASES}
    for case, group in figures.items():
        short = next(r for r in runs if (r["case"], r["epochs"]) == (case, 1))
        for seed in range(args.seeds):
            long = next(r for r in runs if (r["case"], r["seed"]) == (case, seed))
            group.append((min(long["seconds"]), (long["bytes"] - short["bytes"])
                          / (args.epochs - 1), long["bytes"], long["test_acc"][-1]))
    for case, group in figures.items():
        ratios = [base[0] / this[0] for base, this in zip(figures["metis"], group)]
        less = [1 - this[1] / base[1] for base, this in zip(figures["metis"], group)]
        median = [statistics.median(column) for column in zip(*group)]
        rows.append([case, f"{median[0]:.2f}", f"{statistics.median(ratios):.2f} "
                     f"({min(ratios):.2f}–{max(ratios):.2f})",
                     f"{median[1] / 1e6:.1f} ({median[2] / 1e6:.0f})",
                     f"{100 * statistics.median(less):.1f} %", f"{median[3]:.3f} "
                     f"({min(f[3] for f in group):.3f}–{max(f[3] for f in group):.3f})"])
    return markdown(["partition, learnable features", "s/epoch", "METIS ÷ this",
                     "MB/epoch (whole run)", "fewer bytes", "test accuracy"], rows)


if __name__ == "__main__":
    main()
