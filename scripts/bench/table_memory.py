"""Memory of what reads a trained model, and of what goes on from a checkpoint, beside the table.

    python scripts/bench/table_memory.py --rows 8000000

Papers, and many more authors with a learnable row each. A run of one worker, whose model and whose
checkpoint hold the table, is read by `load_model`, by predictions layer by layer and by batches,
and by two workers that go on from it. Of the largest process: its peak memory, and of that what
belongs to no file; files that are mapped count in the first alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from common import CLI, finish, machine, markdown, parser, run_child, work_dir

HERE = str(Path(__file__).parent)
WIDTH = 64
PATHS = [[["author", "writes", "paper"]], [["paper", "has", "author"],
                                           ["author", "writes", "paper"]]]
LOAD = """
import json, sys
import torch
sys.path.append(sys.argv[1])
from common import memory_mb
import dgl_heta

model = dgl_heta.load_model(sys.argv[2])
(table,) = model.features.values()
table(torch.randint(table.num_embeddings, (10_000,)))
print(json.dumps({"peak_rss_mb": memory_mb()["VmHWM"]}))
"""


def main() -> None:
    options = parser(__doc__, "scripts/bench/table_memory.py --rows 8000000")
    options.add_argument("--rows", type=int, default=8_000_000)
    args = options.parse_args()
    rows = 100_000 if args.quick else args.rows
    before = machine()
    with work_dir(args) as directory:
        store, paths = directory / "store", directory / "paths.json"
        write(store, rows)
        paths.write_text(json.dumps(PATHS))
        runs = {name: directory / name for name in ("layers", "batches")}
        settings = [f"model.hidden={WIDTH}", "train.epochs=1", "train.fanouts=5,5",
                    "cache.tables=disk", "run.prove=off", "train.global_batch_size=1024"]
        for name, run in runs.items():
            more = [f"partition.metapaths={paths}"] * (name == "batches")
            run_child(train(store, run, 1, *settings, *more), f"training by {name}")
        found = {"load_model": run_child([sys.executable, "-c", LOAD, HERE, str(runs["layers"])],
                                         "load_model")}
        measured = [["`load_model`, 10,000 rows read", found["load_model"].peak_mb,
                     found["load_model"].anon_mb]]
        for name, run in runs.items():
            measured.append([f"`predict` by {name}", *watched([
                *CLI, "predict", str(run), "--out", str(directory / f"{name}.npy"), "--json"])])
        measured.append(["two workers that go on", *watched([*train(
            store, runs["layers"], 2, *settings, "train.epochs=2"), "--resume"])])
    table = 4 * WIDTH * rows / 1e6
    finish(args, f"Memory beside a table of {table:,.0f} MB", [markdown(
        ["what", "peak MB", "of no file, MB"],
        [[what, f"{peak:,.0f}", f"{own:,.0f}"] for what, peak, own in measured])],
        {"table_mb": table, "measured": measured}, before)


def train(store: Path, run: Path, parts: int, *settings: str) -> list[str]:
    return [*CLI, "train", str(store), "--run-dir", str(run), "--json",
            *(w for text in (*settings, f"partition.parts={parts}") for w in ("--set", text))]


def watched(command: list[str]) -> tuple[float, float]:
    """Peak memory of the largest process of a command, and what of it is no file's."""
    made = run_child(command, f"{command[3]} of {Path(command[4]).name}", json_wanted=False)
    return made.tree_mb, made.anon_mb


def write(path: Path, authors: int, papers: int = 20_000, edges: int = 200_000) -> None:
    from dgl_heta.graph.schema import Relation
    from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
    from dgl_heta.store import write_store

    draw = np.random.default_rng(0)
    writes = draw.integers(0, authors, edges), draw.integers(0, papers, edges)
    part = draw.random(papers)
    cites = EdgeArrays(draw.integers(0, papers, edges), draw.integers(0, papers, edges))
    write_store(GraphSource(
        "table", {"author": authors, "paper": papers},
        {Relation("author", "writes", "paper"): EdgeArrays(*writes),
         Relation("paper", "has", "author"): EdgeArrays(*writes[::-1]),
         Relation("paper", "cites", "paper"): cites},
        {"paper": {"feat": draw.standard_normal((papers, 16), np.float32),
                   "label": draw.integers(0, 4, papers), "train_mask": part < 0.6,
                   "val_mask": part > 0.8, "test_mask": part > 0.9}}, Task("paper", 4), {}), path)


if __name__ == "__main__":
    main()
