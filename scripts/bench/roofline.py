"""Forward and backward of a step beside the least that they need, and beside plain DGL.

    .venv/bin/python scripts/bench/roofline.py --graphs git:path=REPOSITORY synthetic-mag:scale=0.1

One thread, processor time, medians; DGL as in `merged.py`, in turns with ours on the same batches.
The least is, at the rates that this machine shows just before,

- products: of each relation's source rows or of its destination rows, whichever are fewer (with
  attention also of its edges), of states with the weights of self-loops, queries and outputs, and
  of features; once forward and twice backward (features: once);
- bytes: each edge reads a row, and adds a row to a gradient, which is read and written (with
  attention it reads the row again); states and their gradients are written once and read once.

Scores, the softmax, dense parameters, the loss and Python are not in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from common import finish, machine, markdown, parser, progress, work_dir
from merged import measure

from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.graph_input import open_input
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.store import Store, write_store

ITEM, PEAK = 4, 2048


def rates(rows: int, width: int) -> tuple[float, float]:
    """Operations of products and bytes of gathered rows in a millisecond."""
    square, ids = torch.randn(PEAK, PEAK), np.random.default_rng(0).integers(rows, size=4 * rows)
    table = np.ones((rows, width), np.float32)
    taken: list[list[float]] = [[], []]
    for turn in range(6):
        for place, call in enumerate((lambda: square @ square, lambda: gather_rows(table, ids))):
            started = time.process_time()
            call()
            taken[place] += [1e3 * (time.process_time() - started)] if turn else []
    per_product, per_row = map(statistics.median, taken)
    return 2 * PEAK**3 / per_product, 2 * ids.size * width * ITEM / per_row


def products(block: Block, model: str) -> int:
    """Rows that a layer multiplies by a square matrix, forward."""
    own = sum(block.wanted(t) for t in block.num_dst) * (2 if model == "hgt" else 1)
    of_type: dict[str, int] = {}
    for edges in block.edges:
        filled = int((edges.indptr.diff() > 0).sum())
        least = filled if model == "hgt" else min(filled, block.num_src[edges.relation.src])
        of_type[edges.relation.src] = of_type.get(edges.relation.src, 0) + least
    if model != "hgt":
        return own + sum(of_type.values())
    return own + 2 * sum(min(n, block.num_src[t]) for t, n in of_type.items())  # keys and values


def least(batch: MiniBatch, widths: dict[str, int], model: str, width: int) -> tuple[float, float]:
    """Operations and bytes of forward and backward."""
    rows = sum(products(block, model) for block in batch.blocks)
    features = sum(len(batch.input_nodes[t]) * n for t, n in widths.items())
    edges = sum(len(e.indices) for block in batch.blocks for e in block.edges)
    states = sum(sum(block.num_src.values()) + sum(block.num_dst.values())
                 for block in batch.blocks)
    return (3 * 2 * rows * width**2 + 2 * 2 * features * width,
            (edges * (3 if model == "rgcn" else 4) + 4 * states) * width * ITEM)


def row(name: str, model: str, store: Store, args: argparse.Namespace) -> list[str]:
    """Rows of the table: one for each graph and model."""
    seen: list[Any] = []
    found = measure(store, model, args, seen)
    widths = {t: store.width(t, "feat") for t in store.schema.node_types
              if store.has_array(t, "feat")}
    operations, moved = least(seen[0], widths, model, args.hidden)
    per_product, per_byte = rates(max(map(len, seen[0].input_nodes.values())), args.hidden)
    parts, ours = (operations / per_product, moved / per_byte), found["inner"]["fused"]
    plain = found["dgl"]
    return [name, model, *(f"{ms:.1f}" for ms in parts), f"{sum(parts):.1f}", f"{ours:.1f}",
            f"{ours / sum(parts):.2f}", "–" if plain is None else f"{plain:.1f}",
            "–" if plain is None else f"{plain / ours:.2f}"]


def main() -> None:
    options = parser(__doc__, "scripts/bench/roofline.py --graphs git:path=.")
    options.add_argument("--graphs", nargs="+", default=["git:path=.", "synthetic-mag:scale=0.1"])
    options.add_argument("--models", nargs="+", default=["rgcn", "rgat", "hgt"])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--batch", type=int, default=1024)
    args = options.parse_args()
    args.kernels, args.rounds = ["fused"], 2 if args.quick else args.rounds
    before, rows = machine(), []
    torch.set_num_threads(1)
    with work_dir(args) as path:
        for number, name in enumerate(args.graphs):
            source = open_input(name, Plugins()).source
            assert source is not None
            write_store(source, path / str(number))
            for model in args.models:
                rows.append(row(name, model, Store(path / str(number)), args))
                progress(" | ".join(rows[-1]))
    finish(args, "Forward and backward of a step, ms", [markdown(
        ["graph", "model", "products", "bytes", "floor", "ours", "÷ floor", "DGL", "DGL ÷ ours"],
        rows)], {"rows": rows}, before)


if __name__ == "__main__":
    main()
