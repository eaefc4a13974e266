"""A DistDGL script on emulated hosts: METIS by plain DistDGL against meta-partitioning and RAF.

The script is one that takes the arguments of DGL's entity_classify_dist.py (v2.1.0,
examples/pytorch/rgcn/experimental) and prints what it prints; it is not part of dgl-heta. It
runs unedited in all cases: fanout 25,20, batch 1024, hidden 64, 2 bases, self-loop, DGL's sparse
embeddings. Hosts are emulated (`dgl-heta launch --hosts`) with one core each.

Each repeat has a seed of its own. Runs alternate within a repeat, and ratios are of the runs of
a repeat. Seconds are of training in an epoch, the slower trainer's: the fastest epoch of a run,
because other work on the machine makes epochs several times slower. Bytes are what all hosts sent
per epoch on their links, evaluation included: the difference of a longer run and a run of one
epoch (in the first repeat), so start-up is left out; in brackets the whole run, start-up included.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import CLI, SYSTEMS_DIR, finish, machine, markdown, parser, progress, work_dir

CASES: dict[str, list[str]] = {
    "metis": [],
    "meta, replica": ["--set", "train.learnable=replica"],
    "meta, exact": ["--set", "train.learnable=exact"],
}
SCRIPT = ["--graph-name", "mag", "-d", "mag", "--ip-config", "{ip_config}", "--conf-path",
          "{part_config}", "--n-hidden", "64", "--n-bases", "2", "--batch-size", "1024",
          "--fanout", "25,20", "--use-self-loop", "--sparse-embedding", "--dgl-sparse",
          "--log-every", "1000"]


def parts(args: argparse.Namespace, directory: Path, method: str) -> Path:
    """Partition by the user's script; returns the part_config."""
    script = [str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
              f"synthetic-mag:scale={args.scale:g}", "--classes", str(args.classes),
              "--num_parts", str(args.hosts), "--part_method", method, "--output", str(directory)]
    run([*CLI, "run", *script] if method == "meta" else [sys.executable, *script],
        args.timeout)
    return directory / "mag.json"


def run(command: list[str], timeout: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with status {done.returncode}:\n"
                 + "\n".join((done.stdout + done.stderr).splitlines()[-40:]))
    return done.stdout + done.stderr


def train(args: argparse.Namespace, case: str, config: Path, epochs: int, seed: int, out: Path
          ) -> dict[str, Any]:
    """One run: seconds of each epoch, bytes on the links, accuracies."""
    text = run([*CLI, "launch", "--hosts", str(args.hosts), "--rate", args.rate, "--cores", "1",
                "--part-config", str(config), "--json-file", str(out), *CASES[case], "--",
                sys.executable, str(SYSTEMS_DIR / "distdgl/seeded.py"), str(seed),
                str(args.script), *SCRIPT, "--n-epochs", str(epochs)],
               args.timeout)
    seconds: dict[int, list[float]] = {}
    for rank, value in re.findall(r"\[(\d+)\]Epoch Time\(s\): ([0-9.]+)", text):
        seconds.setdefault(int(rank), []).append(float(value))
    summary = json.loads(out.read_text(encoding="utf-8"))
    return {"case": case, "epochs": epochs,
            "seconds": [max(step) for step in zip(*seconds.values())],
            "bytes": sum(host["bytes_sent"] for host in summary["hosts"]),
            "test_acc": [float(x) for x in re.findall(r"Test Acc ([0-9.]+)", text)]}


def main() -> None:
    options = parser(__doc__, "scripts/bench/distdgl.py --script entity_classify_dist.py")
    options.add_argument("--script", type=Path, required=True, help="the training script")
    options.add_argument("--scale", type=float, default=0.05)
    options.add_argument("--classes", type=int, default=0, help="fold the labels into so many")
    options.add_argument("--hosts", type=int, default=2)
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--timeout", type=float, default=900.0)
    args = options.parse_args()
    if args.quick:
        args.scale, args.epochs, args.repeats = 0.005, 2, 1
    if not args.script.is_file():
        sys.exit(f"error: there is no script {args.script}")
    args.script = args.script.resolve()
    runs: list[dict[str, Any]] = []
    before = machine()
    with work_dir(args) as work:
        configs = {method: parts(args, work / method, method) for method in ("metis", "meta")}
        for repeat in range(args.repeats):
            for case in CASES:
                config = configs["meta" if case.startswith("meta") else "metis"]
                for epochs in (args.epochs, 1) if repeat == 0 else (args.epochs,):
                    run_of_case = train(args, case, config, epochs, repeat, work / "out.json")
                    progress(f"repeat {repeat + 1}/{args.repeats}, {case}, {epochs} epochs: "
                             f"{run_of_case['seconds']} s, {run_of_case['bytes'] / 1e6:.1f} MB")
                    runs.append({**run_of_case, "repeat": repeat})
    title = f"A DistDGL script on {args.hosts} hosts at {args.rate}, ogbn-mag × {args.scale:g}"
    finish(args, title,
           [table(args, runs)], {"runs": runs}, before)


def table(args: argparse.Namespace, runs: list[dict[str, Any]]) -> str:
    rows = []
    figures: dict[str, list[tuple[float, float, float, float]]] = {}
    for case in CASES:
        figures[case] = []
        for repeat in range(args.repeats):
            long = next(r for r in runs if (r["case"], r["repeat"]) == (case, repeat))
            short = next(r for r in runs if (r["case"], r["epochs"]) == (case, 1))
            figures[case].append((
                min(long["seconds"]),
                (long["bytes"] - short["bytes"]) / (args.epochs - 1), long["bytes"],
                long["test_acc"][-1]))
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
