"""Partition a synthetic ogbn-mag from files on disk: dgl-heta against DGL's METIS.

The graph (at scale 1: 1.9 M nodes, 42 M edges, 128 features on papers) is written as edge files
once. All else runs in processes of its own, one after the other, dgl-heta before and after METIS.
All of them find the files in the page cache.

  files → store + plan  `dgl-heta partition FILES`: interpreter start, reading, checking,
                        checksums, writing store and plan. Its second time leaves the start of
                        the interpreter and the imports out.
  second plan           over the same store: opening it, planning, writing.
  opening               for training, per worker, after the imports: open_partition, mapping
                        every array of the partition's types and relations, and a
                        NeighborSampler; the slowest partition counts. Loading compiled code,
                        which the first sample needs, and `run.verify`, which `dgl-heta train`
                        does once per run, are rows of their own.
  partition_graph       DGL's call alone, on a graph in memory, as in DGL's ogbn-mag example:
                        1 hop of halo, balanced by train_mask. Writing the parts is in it,
                        reading the graph is not; that is a row of its own.

Peak memory is VmHWM, read by the process at its end, mapped files included; for partition_graph
that of the call (the counter is reset before), which includes the graph. `--child ids OPTIONS`
makes a table of edges between text ids, or reads it. Other methods and shapes: paper.py heta-table3
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import (
    CLI,
    Child,
    Column,
    finish,
    machine,
    memory_mb,
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
REPEATS = 5


def dgl_partition(files: str, out: str, parts: int) -> dict[str, Any]:
    """Load the edge files into a DGLGraph and partition it with METIS."""
    import dgl
    import dgl.distributed
    import numpy as np
    import torch

    root = Path(files)
    meta = json.loads((root / "metadata.json").read_text(encoding="utf-8"))

    def load() -> Any:
        edges = {(e["src"], e["etype"], e["dst"]): tuple(
            torch.from_numpy(end).to(torch.int64) for end in np.load(root / e["files"][0]))
            for e in meta["edges"]}
        graph = dgl.heterograph(edges, {t: n["count"] for t, n in meta["nodes"].items()})
        for ntype, node in meta["nodes"].items():
            for name, file in node.get("arrays", {}).items():
                graph.nodes[ntype].data[name] = torch.from_numpy(np.load(root / file))
        return graph

    seconds, graph = timed(load)
    found = {"load": seconds, "load_peak": memory_mb()["VmHWM"]}
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    target = meta["task"]["target"]
    call, _ = timed(lambda: dgl.distributed.partition_graph(
        graph, meta["name"], parts, out, num_hops=1, part_method="metis",
        balance_ntypes={target: graph.nodes[target].data["train_mask"]}))
    return {**found, "call": call, "peak_rss_mb": memory_mb()["VmHWM"]}


def open_for_training(directory: str, plans: str) -> dict[str, Any]:
    """Open a partition for training on each of its workers, and make another plan of its store."""
    import numpy as np

    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.partition.request import PartitionRequest
    from dgl_heta.sampling.sampler import NeighborSampler
    from dgl_heta.sampling.sampling_scope import SamplingScope
    from dgl_heta.store import Store

    def ready(part: int) -> tuple[NeighborSampler, list[Any]]:
        store, plan = open_partition(Path(directory))
        partition = plan.partitions[part]
        mapped: list[Any] = [store.array(t, name) for t in partition.node_types
                             for name in store.manifest.arrays[t]]
        mapped += [store.relation(r) for r in partition.relations]
        return NeighborSampler(store, SamplingScope.of(alone, part), (25, 20)), mapped

    store, plan = open_partition(Path(directory))
    alone = plan.without_owners()  # a sample of one worker asks no other for rows
    opened = [max(timed(lambda p=part: ready(p))[0] for part in range(plan.num_parts))
              for _ in range(REPEATS)]
    peak, (target,), (sampler, _) = memory_mb()["VmHWM"], plan.targets, ready(0)
    train = np.flatnonzero(store.array(target, "train_mask"))[:1024]
    first, *later = (timed(lambda: sampler.sample({target: train}))[0] for _ in range(REPEATS))
    backend, wish = plugins().get("partition backend", "meta"), PartitionRequest(
        plan.num_parts + 1, (target,), 2)
    return {"open": opened, "first_sample": first, "sample": statistics.median(later),
            "verify": timed(store.verify)[0], "peak_rss_mb": peak, "plan": [
                timed(lambda i=i: backend.partition(Store(store.directory), wish,
                                                    Path(plans) / str(i)))[0]
                for i in range(REPEATS)]}


def read_ids(directory: str, edges: int, nodes: int, ending: str) -> dict[str, Any]:
    """Make a table of edges between text ids, where there is none yet, or read it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from dgl_heta.graph.readers import read_edge_files

    place, rng = Path(directory), np.random.default_rng(0)
    if not place.exists():
        place.mkdir(parents=True)
        schema = pa.schema([("src", pa.string()), ("dst", pa.string())])
        writer = pa.csv.CSVWriter if ending == "csv" else pa.parquet.ParquetWriter
        with writer(str(place / f"e.{ending}"), schema) as file:
            for low in range(0, edges, 1 << 20):
                ends = rng.integers(0, nodes // 2, (2, min(1 << 20, edges - low))) * 2654435761
                file.write_table(pa.table([
                    pa.array(np.char.add(prefix, np.char.mod("%010d", end % 2**32)))
                    for prefix, end in zip(("https://ex.org/u/", "item-"), ends)], schema))
        (place / "metadata.json").write_text(json.dumps({
            "name": "ids", "nodes": {"user": {}, "item": {}}, "edges": [
                {"src": "user", "etype": "likes", "dst": "item", "files": [f"e.{ending}"]}]}))
        return {"made": str(place)}
    before = memory_mb()["VmHWM"]
    seconds, source = timed(lambda: read_edge_files(place))
    return {"seconds": seconds, "nodes": source.node_counts,
            "grown_mb": memory_mb()["VmHWM"] - before}


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "dgl": dgl_partition, "open": open_for_training, "ids": read_ids}


def measure(args: argparse.Namespace, temp: Path) -> list[dict[str, Any]]:
    """Run everything; a row for each figure of a run."""
    from dgl_heta.graph.datasets.synthetic import write_files

    files, out = temp / "files", temp / "out"
    progress(f"writing synthetic ogbn-mag at scale {args.scale:g} to {files} …")
    write_files("mag", args.scale, 0, files)
    rows: list[dict[str, Any]] = []

    def row(what: str, includes: str, seconds: Any, **more: Any) -> None:
        rows.append({"what": what, "includes": includes, "seconds": seconds, **more})

    def child(name: str, what: str, **options: Any) -> Child:
        return run_child([sys.executable, __file__, "--child", name, json.dumps(options)], what)

    def ours() -> None:
        made = run_child([*CLI, "partition", str(files), "--target", "paper", "--parts",
                          str(args.parts), "--out", str(out), "--json"], "files → store + plan")
        row("dgl-heta: files → store + plan", "whole process", made.seconds, peak=made.peak_mb,
            anon=made.anon_mb, disk=size(out), compared=True)
        row("the same", "without interpreter start and imports", made.result["seconds"],
            compared=True)
        opened = child("open", "opening", directory=str(out), plans=str(temp / "plans"))
        of = opened.result
        row("dgl-heta: second plan", "the call", of["plan"])
        row("dgl-heta: opening", "store, plan, mapping, sampler", of["open"], peak=opened.peak_mb)
        row("first sample after it", "1,024 seeds; loads compiled code", of["first_sample"])
        row("any later sample", "1,024 seeds", of["sample"])
        row("checksums of the store", "`run.verify`, once per run", of["verify"])
        shutil.rmtree(out)
        shutil.rmtree(temp / "plans")

    ours()
    metis = child("dgl", "DGL: metis", files=str(files), out=str(out), parts=args.parts)
    of = metis.result
    row("DGL: metis", "`partition_graph` alone, graph in memory", of["call"],
        peak=metis.peak_mb, anon=metis.anon_mb, disk=size(out), compared=True)
    row("reading for it", "files → DGLGraph", of["load"], peak=of["load_peak"])
    row("both", "whole process", metis.seconds)
    shutil.rmtree(out)
    ours()
    ours()
    for one in (one for one in rows if one.pop("compared", False)):
        one["faster"] = of["call"] / one["seconds"]
        if "peak" in one:
            one["least"] = one["peak"] / metis.peak_mb
    return rows


def size(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def main() -> None:
    options = parser(__doc__, "scripts/bench/partition.py --json partition.json")
    options.add_argument("--scale", type=float, help="of ogbn-mag (default: 1, quick: 0.005)")
    options.add_argument("--parts", type=int, default=2, help="parts; the second plan has one more")
    options.add_argument("--child", nargs=2, help="NAME and OPTIONS (JSON) of one of its processes")
    args = options.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child[0]](**json.loads(args.child[1]))), flush=True)
        return
    args.scale = args.scale or (0.005 if args.quick else 1.0)
    before = machine()
    with work_dir(args) as temp:
        rows = measure(args, temp)
    finish(args, f"Partitioning synthetic ogbn-mag, scale {args.scale:g}, {args.parts} parts",
           [table(rows, ("includes", "what"), COLUMNS)], {"rows": rows}, before)


if __name__ == "__main__":
    main()
