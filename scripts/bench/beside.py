"""An epoch of training in one process beside plain DGL and plain PyG, sampling included.

    python scripts/bench/beside.py --graphs git:path=REPOSITORY --batch 256 --epochs 20

Systems, each in a process of its own (beside_loop.py has their loops and what is the same):

  heta      dgl_heta's own loop
  dgl       DataLoader, NeighborSampler, HeteroGraphConv
  pyg       NeighborLoader with pyg-lib or torch-sparse, which must be there; HeteroConv, HGTConv
  heta-pyg  the same PyG model in dgl_heta_pyg

They train an epoch in turns, every second time in the opposite order; the first epoch of each does
not count. Graph, seeds, batch size, fanouts, widths, learning rates and the optimizers (Adam,
SparseAdam) are the same, the draws are each system's own. `threads` 0 is what a system takes by
itself. Processor seconds say what an epoch costs where other programs take cores, too; with each
epoch stands how many cores these kept busy, its own three waiting systems included. With
`--evaluate` accuracies are on all test nodes, sampled, after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from common import (
    CLI,
    Column,
    elsewhere,
    finish,
    machine,
    parser,
    progress,
    run_child,
    table,
    work_dir,
)

LOOP = [sys.executable, str(Path(__file__).with_name("beside_loop.py"))]
SYSTEMS = {"heta": True, "dgl": False, "pyg": False, "heta-pyg": True}  # whether on a partition
KEYS = ("graph", "model", "threads", "system")
COLUMNS = (Column("s of the processor", "cpu", digits=3), Column("this ÷ heta", "ratio"),
           Column("s", "seconds", digits=3), Column("waited for batches, %", "sampled", digits=0),
           Column("peak MB", "peak", digits=0), Column("cores busy elsewhere", "others"))


def turns(args: argparse.Namespace, of: dict[str, Any], seed: int, paths: dict[bool, Path]
          ) -> list[dict[str, Any]]:
    """Train all systems in turns; a row for each epoch that counts."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "DGL_HETA_"))}
    if of["threads"]:
        environment["OMP_NUM_THREADS"] = str(of["threads"])
    rows: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    with ExitStack() as started:
        running = {system: started.enter_context(subprocess.Popen(
            [*LOOP, system, str(paths[SYSTEMS[system]]), "--model", of["model"], "--seed",
             str(seed), "--hidden", str(args.hidden), "--batch-size", str(args.batch), "--fanouts",
             args.fanouts, "--steps", str(args.steps), "--threads", str(of["threads"]),
             *(["--evaluate"] if args.evaluate else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "DGLBACKEND": "pytorch"})) for system in args.systems}
        for number in range(args.epochs):
            cpu: dict[str, float] = {}
            for system in args.systems[::-1 if number % 2 else 1]:
                others = elsewhere()
                record = last[system] = an_epoch(running[system], system)
                cpu[system], seconds = record["cpu"], record["seconds"]
                if number:
                    rows.append({**of, "system": system, "seed": seed, "cpu": cpu[system],
                                 "seconds": seconds, "loss": record["loss"],
                                 "others": max(others()["all"] - cpu[system] / seconds, 0.0),
                                 "sampled": 100 * record["stages"]["sample"] / seconds,
                                 "peak": record["memory"]["own"] / 1e6})
            if number and "heta" in cpu:
                for row in rows[-len(cpu):]:
                    row["ratio"] = row["cpu"] / cpu["heta"]
        for process in running.values():
            process.stdin.close()  # type: ignore[union-attr]
    for system, record in last.items():
        if "test" in record:
            rows.append({**of, "system": system, "seed": seed,
                         "test": 100 * record["test"][0] / record["test"][1]})
    return rows


def an_epoch(process: subprocess.Popen[str], system: str) -> dict[str, Any]:
    """Let a system train an epoch; its record."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        sys.exit(f"error: {system} ended with status {process.wait()}")
    record: dict[str, Any] = json.loads(line)
    return record


def main() -> None:
    options = parser(__doc__, "scripts/bench/beside.py --graphs git:path=. --json beside.json")
    options.add_argument("--graphs", nargs="+", default=["git:path=.", "synthetic-mag:scale=0.05"])
    options.add_argument("--models", nargs="+", default=["rgcn", "rgat", "hgt"])
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    options.add_argument("--threads", nargs="+", type=int, default=[1, 0], metavar="N")
    options.add_argument("--epochs", type=int, default=6, help="the first one is not counted")
    options.add_argument("--steps", type=int, default=0, help="per epoch; 0: all training nodes")
    options.add_argument("--seeds", type=int, default=1, help="runs of each")
    options.add_argument("--batch", type=int, default=1024)
    options.add_argument("--fanouts", default="25,20", help="input layer first")
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--evaluate", action="store_true", help="accuracy after the last epoch")
    args = options.parse_args()
    if args.quick:
        args.epochs, args.steps, args.threads = 2, 2, args.threads[:1]
    before, rows = machine(), []
    with work_dir(args) as temp:
        for number, graph in enumerate(args.graphs):
            paths = {ours: temp / f"{number}-{ours}" for ours in (True, False)}
            run_child([*CLI, "partition", graph, "--parts", "1", "--hops",
                       str(len(args.fanouts.split(","))), "--out", str(paths[True]), "--json"],
                      f"partitioning {graph}")
            run_child([*LOOP, "pyg", str(paths[False]), "--write", graph], f"writing {graph}",
                      json_wanted=False)
            for threads, model, seed in product(args.threads, args.models, range(args.seeds)):
                of = {"graph": graph.split("/")[-1], "model": model, "threads": threads}
                rows += turns(args, of, seed, paths)
                progress(table(rows, KEYS, COLUMNS))
    timed, tested = ([row for row in rows if key in row] for key in ("cpu", "test"))
    finish(args, f"An epoch, batch {args.batch}, fanouts {args.fanouts}, {args.hidden} wide",
           [table(timed, KEYS, COLUMNS), *([table(tested, KEYS, [
               Column("test accuracy, %", "test")])] if tested else [])], {"rows": rows}, before)


if __name__ == "__main__":
    main()
