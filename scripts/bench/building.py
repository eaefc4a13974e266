"""Write a partition from edge files that are larger than memory, by one worker and by several.

    python scripts/bench/building.py --edges 100 --workers 1 2 4 --json building.json

A million edges for each `--edges`, nine tenths of them in one relation, with 32-bit ids in pairs of
.npy files of 2^24 edges, a tenth as many nodes as edges, in-degrees by a power law, no features.
`torchrun -m dgl_heta partition` runs with each number of workers in turn, `--repeats` times;
the store of each run must have the checksums of the first.

Peak memory is VmHWM of the worker that has most, the interpreter with its imports in it, which the
first row shows. Disk is what lies beside the edge files at most, looked at twice a second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from common import Column, finish, machine, parser, progress, run_child, table, work_dir

FILE = 1 << 24
COLUMNS = (Column("seconds", "seconds", digits=1),
           Column("peak MB of a worker", "peak_mb", digits=0),
           Column("disk GB at most", "disk", 1e-9))


def write_files(edges: int, files: Path) -> None:
    """Two relations as edge files with a metadata.json."""
    files.mkdir()
    rng = np.random.default_rng(0)
    counts = {"paper": edges // 20, "author": edges // 20}
    for etype, src, number in (("cites", "paper", edges * 9 // 10), ("writes", "author",
                                                                    edges - edges * 9 // 10)):
        for part, start in enumerate(range(0, number, FILE)):
            size = min(FILE, number - start)
            for end, ids in (("src", rng.random(size, np.float32) * counts[src]),
                             ("dst", rng.random(size, np.float32) ** 3 * counts["paper"])):
                np.save(files / f"{etype}-{part}-{end}.npy",
                        np.minimum(ids.astype(np.int32), counts["paper"] - 1))
    (files / "metadata.json").write_text(json.dumps({
        "name": "large", "nodes": {ntype: {"count": count} for ntype, count in counts.items()},
        "edges": [{"src": src, "etype": etype, "dst": "paper", "files": [
            {"src_file": f"{file.name[:-7]}src.npy", "dst_file": file.name}
            for file in sorted(files.glob(f"{etype}-*-dst.npy"),
                               key=lambda file: int(file.name.split("-")[1]))]}
            for etype, src in (("cites", "paper"), ("writes", "author"))]}))


def size(directory: Path) -> int:
    """Bytes on the disk below a directory, whatever comes and goes meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def build(files: Path, out: Path, workers: int) -> dict[str, Any]:
    """One partition: seconds, memory, disk, checksums."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            most[0] = max(most[0], size(out.parent))

    watch = threading.Thread(target=look)
    out.parent.mkdir()
    watch.start()
    command = [sys.executable, "-m"] + ["torch.distributed.run", "--standalone", "--nproc-per-node",
                                        str(workers), "-m"] * (workers > 1)
    try:
        child = run_child([*command, "dgl_heta", "partition", str(files), "--out", str(out),
                           "--target", "paper", "--parts", "2", "--json"], f"{workers} workers")
    finally:
        over.set()
        watch.join()
    manifest = json.loads((out / "store" / "manifest.json").read_text())
    sums = [relation[name]["sha256"] for relation in manifest["relations"]
            for name in ("indptr", "indices")]
    result = {"workers": workers, "seconds": child.result["seconds"], "process": child.seconds,
              "peak_mb": child.peak_mb, "disk": most[0], "bytes": child.result["bytes"],
              "sums": sums}
    shutil.rmtree(out.parent)
    return result


def main() -> None:
    options = parser(__doc__, "scripts/bench/building.py --edges 100 --workers 1 2 4")
    options.add_argument("--edges", type=int, default=100, metavar="MILLIONS")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--repeats", type=int, default=3)
    args = options.parse_args()
    if args.quick:
        args.edges, args.repeats, args.workers = 2, 1, [1, 2]
    before = machine()
    with work_dir(args) as temp:
        progress(f"writing {args.edges} million edges …")
        write_files(args.edges * 10**6, temp / "files")
        idle = run_child([sys.executable, "-c", "import json, dgl_heta.cli.partition, "
                          "dgl_heta.store, dgl_heta.partition.backends.meta; from "
                          "dgl_heta.system.memory import peak_rss_mb; "
                          "print(json.dumps({'peak_rss_mb': peak_rss_mb()}))"], "imports alone")
        runs = [build(temp / "files", temp / "run" / "out", workers)
                for _ in range(args.repeats) for workers in args.workers]
        given = size(temp / "files")
    if any(run["sums"] != runs[0]["sums"] for run in runs):
        sys.exit("error: the stores differ")
    finish(args, f"Building: {args.edges} million edges", [
        f"Edge files {given / 1e9:.2f} GB, the store {runs[0]['bytes'] / 1e9:.2f} GB; imports "
        f"alone take {idle.peak_mb:.0f} MB.", table(runs, ("workers",), COLUMNS)],
        {"runs": runs}, before)


if __name__ == "__main__":
    main()
