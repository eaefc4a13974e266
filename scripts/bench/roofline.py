"""A step of one process: its forward and backward beside the least that they need.

    .venv/bin/python scripts/bench/roofline.py --graphs git:path=REPOSITORY synthetic-mag:scale=0.1

One thread, processor time, medians. A step reads, updates, and runs forward and backward (f + b);
it does not sample. The least is, at the rates that this machine shows just before,

- products: of each relation's source rows or of its destination rows, whichever are fewer (with
  attention also of its edges), of states with the weights of self-loops, queries and outputs, and
  of features; once forward and twice backward (features: once);
- bytes: each edge reads a row, and adds a row to a gradient, which is read and written (with
  attention it reads the row again); states and their gradients are written once and read once.

Scores, the softmax, dense parameters, the loss and Python are not in it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from common import finish, machine, markdown, opened, parser, progress, work_dir

from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import build_engine

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


def measure(store: Store, model: str, args: argparse.Namespace) -> tuple[float, float, MiniBatch]:
    """Milliseconds of processor time of a step and of f + b, and a batch."""
    task = store.manifest.task
    assert task is not None
    plan = make_plan(store.schema, [task.target], 2, 1)
    engine: Any = build_engine(store, plan, load_settings(None, [
        f"model.name={model}", f"train.kernel={args.kernel}", "train.threads=1",
        "train.device=cpu", "run.prove=off", f"train.batch_size={args.batch}",
        f"model.hidden={args.hidden}"], {}), Plugins())
    engine.start_epoch(1)
    steps = engine.steps("train", 1)
    steps = [step for step in steps if step.size == args.batch] or steps
    times: list[tuple[float, float]] = []
    timed = engine.timed
    for turn in range(args.rounds + 2):
        batch = engine.sample(steps[turn % len(steps)], turn)
        inner: list[float] = []
        engine.timed = functools.partial(stage, timed, inner)
        started = time.process_time()
        engine.train_step(batch)
        times.append((time.process_time() - started, sum(inner)))
        assert len(inner) == 3, "the model's forward pass, the loss, and the backward pass"
    step, both = (1e3 * statistics.median(of) for of in zip(*times[2:]))
    return step, both, engine.sample(steps[0], 0)


@contextmanager
def stage(timed: Any, inner: list[float], name: str) -> Iterator[None]:
    """A stage of a step; processor seconds of forward and backward are added up."""
    with timed(name):
        started = time.process_time()
        yield
        if name in ("forward", "backward"):
            inner.append(time.process_time() - started)


def row(name: str, model: str, store: Store, args: argparse.Namespace) -> list[str]:
    """The row of a graph and model."""
    step, inner, batch = measure(store, model, args)
    widths = {t: store.width(t, "feat") for t in store.schema.node_types
              if store.has_array(t, "feat")}
    operations, moved = least(batch, widths, model, args.hidden)
    per_product, per_byte = rates(max(map(len, batch.input_nodes.values())), args.hidden)
    parts = operations / per_product, moved / per_byte
    return [name, model, *(f"{ms:.1f}" for ms in (*parts, sum(parts), inner)),
            f"{inner / sum(parts):.2f}", f"{step:.1f}"]


def main() -> None:
    options = parser(__doc__, "scripts/bench/roofline.py --graphs git:path=.")
    options.add_argument("--graphs", nargs="+", default=["git:path=.", "synthetic-mag:scale=0.1"])
    options.add_argument("--models", nargs="+", default=["rgcn", "rgat", "hgt"])
    options.add_argument("--kernel", default="fused")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--batch", type=int, default=1024)
    args = options.parse_args()
    args.rounds = 2 if args.quick else args.rounds
    before, rows = machine(), []
    torch.set_num_threads(1)
    with work_dir(args) as path:
        for number, name in enumerate(args.graphs):
            write_store(opened(name), path / str(number))
            for model in args.models:
                rows.append(row(name, model, Store(path / str(number)), args))
                progress(" | ".join(rows[-1]))
    header = ["graph", "model", "products", "bytes", "floor", "f + b", "÷ floor", "step"]
    finish(args, "Milliseconds of a step", [markdown(header, rows)], {"rows": rows}, before)


if __name__ == "__main__":
    main()
