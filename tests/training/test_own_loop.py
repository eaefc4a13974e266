"""A training loop of one's own computes what `dgl-heta train` does, on any number of workers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dgl_heta
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.cuts import deal_pieces
from tests.support.graphs import academic

SETTINGS = ["model.hidden=8", "train.dtype=float64", "train.threads=1"]
LOOP = """
import json, os, sys
import torch
import torch.nn.functional as F
import dgl_heta
from dgl_heta.models import HGNN, RGATLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
torch.manual_seed(part.rank)  # all have the parameters of worker 0
model = dgl_heta.distribute(HGNN(part.spec(), RGATLayer).double(), part)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
rows = part.row_optimizer(lr=0.01)
train = part.loader("train", [3, 3], batch_size=12 // part.world.size)
val = part.loader("val", [3, 3], batch_size=12 // part.world.size)
done = model.resume(given["save"], optimizer) if given["save"] else 0
for epoch in range(done + 1, given["epochs"] + 1):
    train.set_epoch(epoch)
    total, right = torch.zeros(1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    validating = iter(val)
    for index, batch in enumerate(train):
        out = model(batch)["paper"]
        loss = batch.mean(F.cross_entropy(out, batch.labels["paper"], reduction="none"))
        optimizer.zero_grad()
        if index == 1:  # another loader in the middle of a step, and of its own epoch
            with torch.no_grad():
                model(next(validating))
        loss.backward()
        optimizer.step()
        rows.step()
        total += loss.detach()
    validating.close()
    model.eval()
    for batch in val:
        with torch.no_grad():
            out, labels = model(batch)["paper"], batch.labels["paper"]
        right += torch.tensor([(out.argmax(1) == labels).sum(), len(labels)])
    model.train()
    if given["save"]:
        model.save(given["save"], optimizer, epoch)
    total, right = part.world.all_reduce(total), part.world.all_reduce(right)
    if part.rank == 0:
        print(json.dumps([total.item() / part.world.size / len(train),
                          (right[0] / right[1]).item()]))
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions of one graph, `1` to `3` of full replication, and `cut`, of none."""
    place = tmp_path_factory.mktemp("parts")
    write_store(academic(papers=120), place / "store")
    store = Store(place / "store")
    for count in (1, 2, 3):
        write_partition(store, make_plan(store.schema, ["paper"], 2, count), place / str(count))
    cut = plan_without_replication(store.schema, ["paper"], 2, 2, deal_pieces(True), "test")
    write_partition(store, cut, place / "cut")
    return place


def run(program: str, part: Path, workers: int, *settings: str, save: Path | None = None,
        epochs: int = 3) -> subprocess.CompletedProcess[str]:
    file = part.parent / f"loop-{os.getpid()}.py"
    file.write_text(program)
    given = {"part": str(part), "settings": [*SETTINGS, *settings], "epochs": epochs,
             "save": None if save is None else str(save)}
    return subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(workers), str(file), json.dumps(given)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"})


def scores(program: str, part: Path, workers: int, *settings: str, **more: Any) -> list[Any]:
    done = run(program, part, workers, *settings, **more)
    assert not done.returncode, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def expected(parts: Path) -> list[Any]:
    """Loss and score of each epoch, by `dgl-heta train` on one worker."""
    run_dir = parts / "run"
    dgl_heta.train(parts / "1", run_dir, model="rgat", settings=[
        *SETTINGS, "train.fanouts=3,3", "train.batch_size=12", "train.epochs=3", "train.lr=0.01",
        "train.sparse_lr=0.01", "model.dropout=0", "train.weight_decay=0"])
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [pytest.approx([line["loss"], line["val_acc"]], abs=1e-10) for line in lines
            if line["event"] == "epoch"]


@pytest.mark.parametrize(("name", "workers", "settings"), [
    ("1", 1, []), ("2", 2, []), ("3", 3, []),
    ("cut", 2, ["train.batches=pipeline"]),  # threads of two loaders, whose workers agree
])
def test_a_loop_of_ones_own_computes_what_the_command_does(
        parts: Path, expected: list[Any], name: str, workers: int, settings: list[str]) -> None:
    got = scores(LOOP, parts / name, workers, "model.dropout=0", *settings)
    assert got == expected


def test_another_number_of_workers_goes_on_from_a_checkpoint(
        parts: Path, expected: list[Any], tmp_path: Path) -> None:
    first = scores(LOOP, parts / "2", 2, "model.dropout=0", save=tmp_path / "run", epochs=2)
    then = scores(LOOP, parts / "3", 3, "model.dropout=0", save=tmp_path / "run")
    assert len(then) == 1
    assert [*first, *then] == expected
