"""Memory of a worker against the number of partitions (docs/measurements/memory.md).

    python scripts/bench/memory.py synthetic-freebase:scale=0.02 --parts 1 2 4

For plans with and without replication: what the plan predicts, and what the largest worker has
of its own (learnable features, buffers) during two epochs of training; mapped files, which the
page cache may drop, do not count. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import CLI, markdown, run_child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--set", action="append", default=[], help="more settings")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "graph" / "store"
        run_child([*CLI, "partition", args.graph, "--out", str(store.parent), "--json"], "writing")
        for replication in ("full", "none"):
            for parts in args.parts:
                plan = run_child([*CLI, "plan", str(store), "--parts", str(parts),
                                  "--replication", replication, "--json"], "planning").result
                predicted = max(p["topology_bytes"] + p["feature_bytes"] + p["learnable_bytes"]
                                for p in plan["prediction"]["partitions"]) / 1e6
                own, seconds = measure(store, parts, replication, args.set, directory)
                rows.append([replication, str(parts), f"{predicted:,.0f}", f"{own:,.0f}",
                             f"{seconds:.2f}"])
    print(markdown(["replication", "partitions", "predicted MB", "MB of a worker's own",
                    "s/epoch"], rows))


def measure(store: Path, parts: int, replication: str, sets: list[str],
            directory: str) -> tuple[float, float]:
    """`(anonymous MB of the largest worker, seconds per epoch)`."""
    run_dir = f"{directory}/{replication}-{parts}"
    settings = [f"partition.parts={parts}", f"partition.replication={replication}",
                "train.epochs=2", f"train.batch_size={1024 // parts}", "train.threads=1", *sets]
    command = [*CLI, "train", str(store), "--run-dir", run_dir, "--json",
               *(part for text in settings for part in ("--set", text))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most = 0.0
    while process.poll() is None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command_line = file.read_bytes()
                if run_dir.encode() in command_line and b"launch.worker" in command_line:
                    status = (file.parent / "status").read_text()
                    own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
                    most = max(most, int(own.split()[1]) / 1e3)
            except (OSError, StopIteration):
                continue  # it has ended
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    if process.returncode:
        sys.exit(process.returncode)
    assert process.stdout is not None
    result = json.loads(process.stdout.read().splitlines()[-1])
    return most, result["epoch_seconds"]


if __name__ == "__main__":
    main()
