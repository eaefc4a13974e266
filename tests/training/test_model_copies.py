"""Copies of a distributed model, and gradients that autograd gives past it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic

pytestmark = pytest.mark.slow
LOOP = """
import copy, json, os, sys
import torch
import torch.nn.functional as F
import dgl_heta
from dgl_heta.models import RGCNLayer

part = dgl_heta.open_partition(sys.argv[1], ["model.hidden=8", "train.threads=1"])
model = dgl_heta.distribute(dgl_heta.HGNN(part.spec(), RGCNLayer), part)
loader, rows = part.loader("train", [3, 3], batch_size=6, shuffle=False), part.row_optimizer(
    lr=1e-30)  # rows stay as they are

def loss_of(one):
    batch = next(iter(loader))
    return batch.mean(F.cross_entropy(one(batch)["paper"], batch.labels["paper"],
                                      reduction="none"))

def gradients(one):
    one.zero_grad()
    loss_of(one).backward()
    rows.step()
    return [p.grad for p in one.parameters() if p.grad is not None]

said = {}
before = gradients(model)
try:
    torch.autograd.grad(loss_of(model), model.parameters(), allow_unused=True)
except dgl_heta.HetaError as error:
    said["grad"] = str(error)
said["kept"] = all(map(torch.equal, before, [p.grad for p in model.parameters()
                                             if p.grad is not None]))
twin = copy.deepcopy(model)
average = torch.optim.swa_utils.AveragedModel(model)
average.update_parameters(model)
said["copied"] = [len(before), max((a - b).abs().max().item() for one in (twin, average.module)
                                   for a, b in zip(before, gradients(one)))]
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
said["apart"] = all(p.any() for p in (*twin.parameters(), *average.parameters()) if p.dim() > 1)
if part.rank == 0:
    print(json.dumps(said), flush=True)
os._exit(0)
"""


def test_copies_train_and_gradients_of_one_worker_are_refused(tmp_path: Path) -> None:
    write_store(academic(papers=120), tmp_path / "store")
    store = Store(tmp_path / "store")
    write_partition(store, make_plan(store.schema, ["paper"], 2, 2), tmp_path / "part")
    (tmp_path / "loop.py").write_text(LOOP)
    done = subprocess.run(
        [warm.python("torch"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         "2", str(tmp_path / "loop.py"), str(tmp_path / "part")],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not done.returncode, done.stderr[:6000]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["grad"].startswith("torch.autograd.grad returns gradients of one worker")
    assert said["kept"]
    number, difference = said["copied"]
    assert number > 10
    assert difference == 0
    assert said["apart"]
