"""Partition a synthetic ogbn-mag from files on disk: dgl-heta against DGL's METIS.

The graph (at scale 1: 1.9 M nodes, 42 M edges, 128 features on papers) is written as edge
files once. Everything else runs in processes of its own, one after the other, dgl-heta before
and after METIS. All of them find the files in the page cache.

  files → store + plan  `dgl-heta partition FILES`: interpreter start, reading, checking,
                        checksums, writing store and plan. Its second time leaves the start of
                        the interpreter and the imports out.
  second plan           over the same store: the call alone (opening the store, planning,
                        writing), and the whole process of `dgl-heta partition STORE`.
  opening               for training, per worker, after the imports: open_partition, mapping
                        every array of the partition's types and relations, and a
                        NeighborSampler; the slowest partition counts. Loading compiled code,
                        which the first sample needs, and `run.verify`, which `dgl-heta train`
                        does once per run, are rows of their own.
  partition_graph       DGL's call alone, on a graph in memory, as in DGL's ogbn-mag example:
                        1 hop of halo, balanced by train_mask. Writing the parts is in it,
                        reading the graph is not; that is a row of its own.

Peak memory is VmHWM, read by the process at its end, mapped files included; for
partition_graph that of the call (the counter is reset before), which includes the graph.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from common import (
    CLI,
    Child,
    Column,
    finish,
    machine,
    parser,
    progress,
    run_child,
    table,
    timed,
    work_dir,
)

COLUMNS = (Column("seconds", "seconds", digits=3), Column("peak GB", "peak", 1e-3),
           Column("anonymous GB", "anon", 1e-3), Column("disk GB", "disk", 1e-9),
           Column("METIS time ÷ this", "faster", digits=1), Column("peak ÷ METIS", "least"))


def own_process(name: str, what: str, **options: Any) -> Child:
    """Run a function of partition_child.py in a process of its own."""
    script = Path(__file__).with_name("partition_child.py")
    return run_child([sys.executable, str(script), name, json.dumps(options)], what)


def size(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def measure(args: argparse.Namespace, temp: Path) -> dict[str, Any]:
    """Run everything; raw figures by name, lists in the order of the runs."""
    from dgl_heta.graph.datasets.synthetic import write_files
    from dgl_heta.graph.readers import open_source

    files, out = args.files or temp / "files", temp / "out"
    written = 0.0
    if not files.exists():
        progress(f"writing synthetic ogbn-mag at scale {args.scale:g} to {files} …")
        written, _ = timed(lambda: write_files("mag", args.scale, 0, files))
    schema = open_source(str(files)).schema()
    runs: dict[str, list[Any]] = {name: [] for name in (
        "whole", "command", "peak_mb", "anon_mb", "bytes", "plan", "plan_process", "plan_mb",
        "plan_bytes", "open", "open_mb", "first_sample", "sample", "verify", *args.methods)}

    def partition(graph: Path, to: Path, parts: int, what: str) -> Child:
        return run_child([*CLI, "partition", str(graph), "--target", "paper", "--parts",
                          str(parts), "--out", str(to), "--json"], f"dgl-heta: {what}")

    def ours() -> None:
        child = partition(files, out, args.parts, "files → store + plan")
        for name, value in (("whole", child.seconds), ("command", child.result["seconds"]),
                            ("peak_mb", child.peak_mb), ("anon_mb", child.anon_mb),
                            ("bytes", size(out))):
            runs[name].append(value)
        child = partition(out / "store", temp / "second", args.parts + 1,
                          "second plan, whole process")
        runs["plan_process"].append(child.seconds)
        runs["plan_mb"].append(child.peak_mb)
        runs["plan_bytes"].append(size(temp / "second"))
        runs["plan"] += own_process("plan", "dgl-heta: second plan, call", store=str(
            out / "store"), out=str(temp / "plans"), parts=args.parts + 1).result["seconds"]
        child = own_process("open", "dgl-heta: opening", directory=str(out))
        runs["open"] += child.result["seconds"]
        runs["open_mb"].append(child.peak_mb)
        runs["first_sample"].append(child.result["first_sample_seconds"])
        runs["sample"].append(child.result["sample_seconds"])
        runs["verify"].append(child.result["verify_seconds"])
        for path in (out, temp / "second", temp / "plans"):
            shutil.rmtree(path)

    slots = args.repeats + 1  # before the first, between, after the last run of DGL
    for slot in range(slots):
        for _ in range(args.ours * (slot + 1) // slots - args.ours * slot // slots):
            ours()
        if slot == args.repeats:
            break
        for method in args.methods:
            child = own_process("dgl", f"DGL: {method}", files=str(files), out=str(out),
                                method=method, parts=args.parts)
            runs[method].append({**child.result, "process_seconds": child.seconds,
                                 "anon_mb": child.anon_mb, "bytes": size(out)})
            shutil.rmtree(out)
    return {"runs": runs, "files_bytes": size(files), "files_seconds": written,
            "nodes": sum(schema.node_counts.values()), "edges": sum(schema.edge_counts.values())}


def report(args: argparse.Namespace, data: dict[str, Any]) -> list[str]:
    """The table; adds the verdicts to `data`."""
    runs = data["runs"]
    metis = {key: [run[key] for run in runs["metis"]] for key in runs["metis"][0]}

    def row(what: str, includes: str, seconds: list[float], peak: list[float] | None = None,
            anon: list[float] | None = None, disk: list[int] | None = None,
            compare: bool = False) -> dict[str, Any]:
        found = {"what": what, "includes": includes, "seconds": seconds, "peak": peak, "anon": anon,
                 "disk": disk and disk[-1]}
        if compare:
            found["faster"] = statistics.median(metis["call_seconds"]) / statistics.median(seconds)
            found["least"] = max(peak) / min(metis["peak_rss_mb"]) if peak else None
        return found

    rows = [
        row("dgl-heta: files → store + plan", "whole process", runs["whole"], runs["peak_mb"],
            runs["anon_mb"], runs["bytes"], True),
        row("the same", "without interpreter start and imports", runs["command"], compare=True),
        row("dgl-heta: second plan", "the call", runs["plan"]),
        row("the same", "whole process", runs["plan_process"], runs["plan_mb"],
            disk=runs["plan_bytes"]),
        row("dgl-heta: opening", "store, plan, mapping, sampler", runs["open"], runs["open_mb"]),
        row("first sample after it", "1,024 seeds; loads compiled code", runs["first_sample"]),
        row("any later sample", "1,024 seeds", runs["sample"]),
        row("checksums of the store", "`run.verify`, once per run", runs["verify"])]
    for method in args.methods:
        one = {key: [run[key] for run in runs[method]] for key in runs[method][0]}
        rows += [
            row(f"DGL: {method}", "`partition_graph` alone, graph in memory",
                one["call_seconds"], one["peak_rss_mb"], one["anon_mb"], one["bytes"], True),
            row("reading for it", "files → DGLGraph", one["load_seconds"], one["load_peak_mb"]),
            row("both", "whole process", one["process_seconds"])]
    faster = [m / o for m in metis["call_seconds"] for o in runs["whole"]]
    data["verdicts"] = {
        "times_faster_than_metis": statistics.median(faster), "times_faster_worst": min(faster),
        "memory_of_metis": max(runs["peak_mb"]) / min(metis["peak_rss_mb"]),
        "second_plan_s": statistics.median(runs["plan"]),
        "open_s": statistics.median(runs["open"])}
    head = (f"{data['nodes']:,} nodes, {data['edges']:,} edges, {data['files_bytes'] / 1e9:.2f} GB "
            f"of files, {args.parts} parts. Median (least–largest).")
    return [head, table(rows, ("includes", "what"), COLUMNS)]


def main() -> None:
    options = parser(__doc__, "scripts/bench/partition.py --json partition.json")
    options.add_argument("--scale", type=float, help="of ogbn-mag (default: 1, quick: 0.005)")
    options.add_argument("--parts", type=int, default=2, help="parts; the second plan has one more")
    options.add_argument("--repeats", type=int, default=1, help="runs of DGL (default: 1)")
    options.add_argument("--ours", type=int, help="runs of dgl-heta (default: 3, quick: 2)")
    options.add_argument("--random", action="store_true", help="also DGL's random partitioning")
    options.add_argument("--files", type=Path, metavar="DIR",
                         help="edge files of synthetic mag: used if there, else written and kept")
    args = options.parse_args()
    args.scale = args.scale or (0.005 if args.quick else 1.0)
    args.ours = args.ours or (2 if args.quick else 3)
    if args.repeats < 1 or args.ours < 1 or args.parts < 1:
        options.error("--repeats, --ours and --parts are 1 or more")
    args.methods = ["metis", "random"] if args.random else ["metis"]
    before = machine()
    with work_dir(args) as temp:
        data = measure(args, temp)
    tables = report(args, data)
    finish(args, f"Partitioning synthetic ogbn-mag, scale {args.scale:g}", tables, data, before)


if __name__ == "__main__":
    main()
