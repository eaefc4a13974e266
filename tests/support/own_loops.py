"""Training loops of a test's own, on workers that torchrun starts, on partitions of one graph."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.sharing import make_shared_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.cuts import deal_pieces
from tests.support.graphs import academic
from tests.support.plugins import ROOT

SETTINGS = ["model.hidden=8", "train.dtype=float64", "train.threads=1"]


def write_partitions(place: Path) -> Path:
    """Partitions of one graph, `1` to `3` of full replication, `cut`, of none, and `two`,
    for two targets."""
    write_store(academic(papers=120), place / "store")
    store = Store(place / "store")
    for count in (1, 2, 3, 8):
        write_partition(store, make_plan(store.schema, ["paper"], 2, count), place / str(count))
    # One partition has a share of a sub-metatree and the whole of another.
    shares = make_shared_plan(store.schema, ["paper"], 2, 2, None, lambda plan, part: sum(
        (9 if root == plan.sub_metatrees[0].root else 1) * share.width / share.count
        for root, share in plan.roots(part.index).items()), "shared")
    assert [len(p.sub_metatrees) for p in shares.partitions] != [1, 1]
    write_partition(store, shares, place / "shared")
    cut = plan_without_replication(store.schema, ["paper"], 2, 2, deal_pieces(True), "test")
    write_partition(store, cut, place / "cut")
    for count, name in ((1, "two"), (2, "two-2")):
        write_partition(store, make_plan(store.schema, ["paper", "author"], 2, count), place / name)
    return place


def run(program: str, part: Path, workers: int, *settings: str, save: Path | None = None,
        epochs: int = 3) -> subprocess.CompletedProcess[str]:
    file = part.parent / f"loop-{os.getpid()}.py"
    file.write_text(f"{program}\nsys.stdout.flush()\nos._exit(0)  # as docs/own-loop.md says\n")
    given = {"part": str(part), "settings": [*SETTINGS, *settings], "epochs": epochs,
             "save": None if save is None else str(save)}
    return subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(workers), str(file), json.dumps(given)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")])})


def scores(program: str, part: Path, workers: int, *settings: str, **more: Any) -> list[Any]:
    done = run(program, part, workers, *settings, **more)
    assert not done.returncode, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
