"""Memory of a partition by plugins/catgnn, stage by stage, and of METIS on the same graph.

    python scripts/bench/writing.py --edges 10 50 --metis
    python scripts/bench/writing.py --edges 10 50 200 --nodes 4000000 --parts 8 --assign

A made-up graph of a fifth as many nodes as edges, which are mostly near in id, with 64 feature
columns in a memory map, is partitioned by SPRING and written in DistDGL's format. Each run is a
process of its own. Its memory is what belongs to no file, above what it had before: pages of mapped
files are the page cache's. "Part" is the largest part, in bytes of its files. METIS is
dgl.metis_partition_assignment of the graph in memory, loading it included; `--limit` bounds it.
With `--assign` it is the assignment alone: bytes are what the peak of resident memory rises by,
chunks included, and seconds the processor's. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown, memory_mb, progress, run_child

WIDTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, nargs="+", default=[10, 50], help="millions")
    parser.add_argument("--nodes", type=int, help="default: a fifth of the edges")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--assign", action="store_true", help="the assignment alone")
    parser.add_argument("--metis", action="store_true", help="METIS, too")
    parser.add_argument("--limit", type=float, default=10, help="GB that METIS may take")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args.directory, args.parts, args.limit)))
        return
    rows = []
    for millions in args.edges:
        with tempfile.TemporaryDirectory() as directory:
            edges = round(millions * 1e6)
            make(Path(directory), args.nodes or edges // 5, edges)
            command = [sys.executable, __file__, "--directory", directory, "--parts",
                       str(args.parts), "--limit", str(args.limit), "--child"]
            made = run_child([*command, "assign" if args.assign else "spring"],
                             f"{millions:g} M edges").result
            if args.assign:
                rows.append([f"{millions:g} M", f"{made['bytes_per_node']:.1f}",
                             f"{made['seconds']:.1f}", f"{millions / made['seconds']:.1f} M",
                             f"{made['clusters']:,}", f"{made['balance']:.3f}"])
                continue
            cells = [f"{made['stages'][stage]:,.0f}" for stage in STAGES]
            metis = "-"
            if args.metis:
                try:
                    child = run_child([*command, "metis"], "METIS")
                    metis = f"{child.anon_mb - child.result['before']:,.0f}"
                except SystemExit as error:  # mostly because it was given no more
                    progress(str(error))
                    metis = "did not end well"
        rows.append([f"{millions:g} M", *cells, f"{made['part']:,.0f}",
                     f"{made['stages']['writing part'] / made['part']:.2f}", metis])
    print(markdown(["edges", "bytes per node", "seconds", "edges/s", "clusters", "balance"], rows)
          if args.assign else markdown(["edges", *(f"{stage}, MB" for stage in STAGES), "part, MB",
                    "writing / part", "METIS, MB"], rows))


def make(directory: Path, nodes: int, edges: int) -> None:
    """Edges and features in files, a block at a time."""
    array = np.lib.format.open_memmap(directory / "edges.npy", "w+", np.int32, (2, edges))
    for block, start in enumerate(range(0, edges, 2**20)):
        rng, count = np.random.default_rng(block), min(2**20, edges - start)
        src = (rng.random(count) ** 2 * nodes).astype(np.int64)
        near = (rng.random(count) ** 3 * nodes * 0.02).astype(np.int64) + 1
        array[0, start:start + count], array[1, start:start + count] = src, (src + near) % nodes
    array.flush()
    rows = np.lib.format.open_memmap(directory / "feat.npy", "w+", np.float32, (nodes, WIDTH))
    for start in range(0, nodes, 2**16):
        rows[start:start + 2**16] = np.float32(start)
    rows.flush()


STAGES = ("assigning", "reading edges", "writing part")


def spring(directory: Path, parts: int, limit: float) -> dict[str, Any]:
    """Memory of each stage, and the size of the largest part."""
    import dgl  # noqa: F401
    import torch  # noqa: F401
    from dgl_heta_catgnn import Spring

    from dgl_heta import EdgeArrays, GraphSource, PartitionRequest, Relation, open_edges

    def source(nodes: int, edges: Any) -> GraphSource:
        return GraphSource("made", {"n": nodes}, {Relation("n", "r", "n"): edges})

    few = EdgeArrays(np.arange(9), np.arange(9)[::-1].copy())
    Spring().partition(source(9, few), PartitionRequest(2), directory / "few")  # all is compiled
    feat = np.load(directory / "feat.npy", mmap_mode="r")
    graph = source(len(feat), open_edges(directory / "edges.npy"))
    graph.node_arrays["n"] = {"feat": feat}
    peak = dict.fromkeys(STAGES, 0.0)
    before, stage, over = memory_mb()["RssAnon"], [STAGES[0]], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            now = stage[0]
            peak[now] = max(peak[now], memory_mb()["RssAnon"] - before)

    def progress(what: str, done: float) -> None:
        stage[0] = next(name for name in STAGES if what.startswith(name))

    threading.Thread(target=look, daemon=True).start()
    Spring().partition(graph, PartitionRequest(parts), directory / "out", progress=progress)
    over.set()
    part = max(sum(file.stat().st_size for file in folder.iterdir())
               for folder in (directory / "out").glob("part*"))
    return {"stages": peak, "part": part / 1e6}


def assign(directory: Path, parts: int, limit: float) -> dict[str, Any]:
    """The assignment alone: memory, seconds, clusters."""
    from dgl_heta_catgnn import EdgeStream, Spring

    from dgl_heta.system.memory import peak_rss_mb

    few = EdgeStream.of_chunks([(np.array([0, 1, 2]), np.array([1, 2, 0]))], 3)
    Spring().assign(few, 2)  # compiled, and loaded
    nodes = len(np.load(directory / "feat.npy", mmap_mode="r"))
    stream = EdgeStream.open(directory / "edges.npy", num_nodes=nodes)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, started = peak_rss_mb(), time.process_time()
    made = Spring().assign(stream, parts)
    return {"seconds": time.process_time() - started,
            "bytes_per_node": (peak_rss_mb() - before) * 1e6 / nodes,
            "clusters": int(made.figures["clusters"]),
            "balance": float(made.owned().max() * parts / nodes)}


def metis(directory: Path, parts: int, limit: float) -> dict[str, Any]:
    """Peak of memory of DGL's METIS, its graph included."""
    import dgl
    import torch

    dgl.metis_partition_assignment(dgl.rand_graph(50, 300), 2)
    before = memory_mb()["RssAnon"]
    # What may be written to memory, in all; DGL aborts where it gets no more.
    resource.setrlimit(resource.RLIMIT_DATA, (round(limit * 1e9),) * 2)
    ends = torch.from_numpy(np.load(directory / "edges.npy")).long()
    nodes = len(np.load(directory / "feat.npy", mmap_mode="r"))
    graph = dgl.to_bidirected(dgl.graph((ends[0], ends[1]), num_nodes=nodes))
    del ends
    dgl.metis_partition_assignment(graph, parts)
    return {"before": before}


CHILDREN = {"spring": spring, "assign": assign, "metis": metis}

if __name__ == "__main__":
    main()
