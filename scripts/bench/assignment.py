"""Memory and speed of SPRING's assignment against the number of edges (plugins/catgnn).

    python scripts/bench/assignment.py --nodes 4000000 --edges 10 50 200

Edges (in millions) are made up, mostly near in id, in a `.npy` file of 32-bit ids; each number of
edges is a process of its own. Reading, both passes and all that follows them count.
Bytes are what the peak of resident memory rises by, chunks included; seconds are the processor's.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import markdown, run_child
from dgl_heta_catgnn import EdgeStream, Spring

from dgl_heta.system.memory import peak_rss_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--edges", type=float, nargs="+", default=[10, 50, 200])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.child, args.nodes, args.parts)
        return
    rows = []
    for millions in args.edges:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "edges.npy"
            write(file, args.nodes, round(millions * 1e6))
            result = run_child([sys.executable, __file__, "--child", str(file), "--nodes",
                                str(args.nodes), "--parts", str(args.parts)], "assigning").result
        rows.append([f"{millions:g} M", f"{result['bytes'] / args.nodes:.1f}",
                     f"{result['seconds']:.1f}", f"{millions / result['seconds']:.1f} M",
                     f"{result['clusters']:,}", f"{result['balance']:.3f}"])
    print(markdown(["edges", "bytes per node", "seconds", "edges/s", "clusters", "balance"], rows))


def write(file: Path, nodes: int, edges: int) -> None:
    """Edges in a file, a block at a time."""
    array = np.lib.format.open_memmap(file, "w+", np.int32, (2, edges))
    for block, start in enumerate(range(0, edges, 2**20)):
        rng, count = np.random.default_rng(block), min(2**20, edges - start)
        src = (rng.random(count) ** 2 * nodes).astype(np.int64)
        near = (rng.random(count) ** 3 * nodes * 0.02).astype(np.int64) + 1
        array[0, start:start + count], array[1, start:start + count] = src, (src + near) % nodes
    array.flush()


def measure(file: Path, nodes: int, parts: int) -> None:
    few = EdgeStream.of_chunks([(np.array([0, 1, 2]), np.array([1, 2, 0]))], 3)
    Spring().assign(few, 2)  # compiled, and loaded
    stream = EdgeStream.open(file, num_nodes=nodes)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, started = peak_rss_mb(), time.process_time()
    made = Spring().assign(stream, parts)
    print(json.dumps({"seconds": time.process_time() - started,
                      "bytes": (peak_rss_mb() - before) * 1e6,
                      "clusters": int(made.figures["clusters"]),
                      "balance": float(made.owned().max() * parts / nodes)}))


if __name__ == "__main__":
    main()
