"""A training loop of one's own computes what `dgl-heta train` does, on any number of workers."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.models import HGNN, RGCNLayer
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import deal_whole, make_plan, plan_without_replication
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.distributed import DistributedModel
from tests.support.graphs import academic
from tests.support.own_loops import SETTINGS, scores, write_partitions

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
cached = {} if part.caches is None else part.caches.counted()
assert any(of["hits"] for of in cached.values()) == ("cache.policy=hotness" in given["settings"])
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_partitions(tmp_path_factory.mktemp("parts"))


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
    ("1", 1, []), *(pytest.param(str(n), n, [], marks=pytest.mark.thorough) for n in (2, 3)),
    ("cut", 2, ["train.batches=pipeline"]),  # threads of two loaders, whose workers agree
    ("2", 2, ["cache.policy=hotness", "cache.capacity_mb=0.01", "cache.gate=false"]),
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


LINKS = """
import json, os, sys
import torch
import torch.nn.functional as F
import dgl_heta
from dgl_heta.models import HGNN, RGATLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
torch.manual_seed(part.rank)
model = dgl_heta.distribute(HGNN(part.spec(), RGATLayer).double(), part)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
rows = part.row_optimizer(lr=0.01)
train, val = (part.loader(split, [3, 3], batch_size=96 // part.world.size)
              for split in ("train", "val"))


def scores(batch):
    out, every = model(batch), []
    for links in batch.links:
        left, others = out[links.src][links.sources], out[links.dst]
        right = (left * others[links.destinations]).sum(1)
        wrong = (left.unsqueeze(1) * others[links.negatives]).sum(2)
        same = links.negatives == links.destinations.unsqueeze(1)
        ranks = 1 + (wrong > right.unsqueeze(1)).sum(1) + (
            (wrong == right.unsqueeze(1)) & ~same).sum(1)
        every.append((F.softplus(-right) + F.softplus(wrong).mean(1), ranks))
    return map(torch.cat, zip(*every))


for epoch in range(given["epochs"]):
    total, found = torch.zeros(2, 2, dtype=torch.float64)
    for batch in train:
        losses = next(scores(batch))
        loss = batch.mean(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.step()
        total += torch.tensor([losses.detach().sum(), len(losses)])
    model.eval()
    for batch in val:
        with torch.no_grad():
            _, ranks = scores(batch)
        found += torch.tensor([(1 / ranks.double()).sum(), len(ranks)])
    model.train()
    total, found = part.world.all_reduce(total), part.world.all_reduce(found)
    if part.rank == 0:
        print(json.dumps([(total[0] / total[1]).item(), (found[0] / found[1]).item()]))
"""


@pytest.mark.parametrize("relations", [pytest.param("writes", marks=pytest.mark.thorough),
                                       '["cites", "writes"]'])
def test_links_in_a_loop_of_ones_own_are_those_of_the_command(parts: Path, relations: str) -> None:
    settings, part = [f"task.relation={relations}"], parts / "two"
    dgl_heta.train(part, parts / relations, model="rgat", settings=[
        *SETTINGS, *settings, "train.fanouts=3,3", "train.batch_size=96", "train.epochs=2",
        "train.lr=0.01", "train.sparse_lr=0.01", "model.dropout=0", "train.weight_decay=0"])
    lines = map(json.loads, (parts / relations / "metrics.jsonl").read_text().splitlines())
    wanted = [[line["loss"], line["val_acc"]] for line in lines if line["event"] == "epoch"]
    for name, workers in (("two", 1), ("two-2", 2)):
        got = scores(LINKS, parts / name, workers, *settings, "model.dropout=0", epochs=2)
        assert got == [pytest.approx(of, abs=1e-10) for of in wanted]


def test_a_node_that_is_a_seed_and_a_neighbour_on_a_path_is_stepped_once(tmp_path: Path) -> None:
    """Along metapaths it has two rows, whose gradients are summed; nothing goes layer by layer."""
    source = academic(papers=60)
    del source.node_arrays["paper"]["feat"]
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    paths = parse_metapaths([["rev-writes", "writes"]], store.schema)
    write_partition(store, make_plan(store.schema, ["paper"], 2, 1, paths), tmp_path / "part")
    part = dgl_heta.open_partition(tmp_path / "part", SETTINGS)
    model = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)
    optimizer = part.row_optimizer(lr=0.05)
    batch = next(iter(part.loader("train", [5, 5], batch_size=20)))
    ids, table = batch.input_nodes["paper"], part.learnable.local["paper"]
    assert len(np.unique(ids)) < len(ids)
    before = table.value.clone()
    got = model(batch)["paper"].square().sum()
    leaf = torch.nn.Parameter(before)
    reference = torch.optim.SparseAdam([leaf], lr=0.05)
    got.backward()
    leaf.grad = torch.sparse_coo_tensor(
        torch.from_numpy(ids)[None], part.learnable._leaves["paper"].grad, before.shape).coalesce()
    reference.step()
    optimizer.step()
    torch.testing.assert_close(table.value, leaf.detach())
    with pytest.raises(InputError, match="an HGNN with one target, without metapaths"):
        dgl_heta.predict_all(model, tmp_path / "rows.npy")


def test_layer_by_layer_is_refused_without_replication(parts: Path, tmp_path: Path) -> None:
    """No partition has a sub-metatree there: every relation into the target was left out."""
    store = Store(parts / "store")
    plan = plan_without_replication(store.schema, ["paper"], 2, 1, deal_whole, "test")
    write_partition(store, plan, tmp_path / "part")
    part = dgl_heta.open_partition(tmp_path / "part", SETTINGS)
    model = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)
    with pytest.raises(InputError, match="on a partition with full replication.* fanouts of -1"):
        dgl_heta.predict_all(model, tmp_path / "rows.npy")
    assert not (tmp_path / "rows.npy").exists()


ACCUMULATED = """
import json, os, sys
import numpy as np
import torch
import dgl_heta
from dgl_heta.models import HGNN, RGCNLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
torch.manual_seed(0)
model = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)
torch.manual_seed(0)
batches = list(part.loader("train", [3, 3], batch_size=24 // part.world.size))[:2]
head = model.module.heads[dgl_heta.slot("paper")]

def apart():
    model.zero_grad()
    ids = torch.from_numpy(batches[0].seeds["paper"]).double()
    batches[0].mean(head(ids[:, None].expand(-1, 8)).sum(1)).backward()
    return head.weight.grad.norm()

alone = [apart()]  # a pass that comes to parameters alone, before the first forward pass
sums, rows = [], part.row_optimizer(lr=1e-300)
for accumulate in (False, True):
    sums.append({})
    for batch in batches:
        model.zero_grad()
        for one in batches if accumulate else [batch]:
            one.mean(model(one)["paper"].logsumexp(1)).backward()
            rows.step()
        if accumulate:
            sums[-1] = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
        else:
            for k, p in model.named_parameters():
                if p.grad is not None:
                    sums[-1][k] = sums[-1].get(k, 0) + p.grad
assert sums[0].keys() == sums[1].keys() and len(sums[0]) > 10
assert all((sums[0][k] - sums[1][k]).abs().max() < 1e-12 for k in sums[0])
os.write(1, b'"equal"\\n')  # at once, as workers share the pipe

# Of a loss that parameters are part of without the outputs, and of a module that is called apart.
model.zero_grad()
out = model(batches[0])["paper"]
penalty = sum(p.pow(2).sum() for p in model.parameters())
(batches[0].mean(out.logsumexp(1)) + 0.1 * penalty + batches[0].mean(head(out[:, :1].expand(
    -1, 8)).sum(1))).backward()
rows.step()
norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
norms = torch.stack([*norms, *alone, apart()])  # and after another backward pass
others = part.world.all_gather_json(norms.tolist(), "control")
assert others[0] == others[-1]
if part.rank == 0:
    os.write(1, f"{json.dumps(others[0])}\\n".encode())

# What optimizers are set to goes on with a checkpoint, also on another number of workers.
optimizer, schedule = torch.optim.Adam(model.parameters(), lr=0.125), part.row_optimizer(0.25)
model.save(given["save"] + "-run", optimizer, 1)
optimizer.param_groups[0]["lr"], schedule.lr = 1, 1
assert model.resume(given["save"] + "-run", optimizer) == 1
assert (optimizer.param_groups[0]["lr"], schedule.lr) == (0.125, 0.25)

# After a backward pass that failed a loop goes on from a checkpoint.
failing = head.weight.register_hook(lambda grad: 1 / 0)
try:
    batches[0].mean(model(batches[0])["paper"].logsumexp(1)).backward()
except ZeroDivisionError:
    failing.remove()
assert model.resume(given["save"] + "-run", optimizer) == 1
batches[0].mean(model(batches[0])["paper"].logsumexp(1)).backward()
rows.step()

class Normed(HGNN):
    def __init__(self):
        super().__init__(part.spec(), RGCNLayer)
        self.norm = torch.nn.BatchNorm1d(8)

try:
    dgl_heta.distribute(Normed().double(), part)
    assert part.world.size == 1
except dgl_heta.InputError as error:
    assert part.world.size == 2 and "'norm' is BatchNorm1d" in str(error)

model.module.layers[0].eval()
rows = dgl_heta.predict_all(model, given["save"], chunk=50)
assert [layer.training for layer in model.module.layers] == [False, True]
with torch.no_grad():
    for batch in part.loader(np.arange(120), [-1, -1], batch_size=50):
        there = torch.from_numpy(rows[batch.seeds["paper"]])
        assert (model(batch)["paper"] - there).abs().max() < 1e-12
os.write(1, f"{json.dumps(rows.shape)}\\n".encode())
"""


def test_what_else_a_loop_does_is_the_same_on_two_workers(parts: Path, tmp_path: Path) -> None:
    """Gradients of several passes add up, those of parameters apart from the outputs are whole;
    checkpoints have learning rates; layer by layer is as by batches."""
    norms = []
    for workers in (1, 2):
        got = scores(ACCUMULATED, parts / str(workers), workers, save=tmp_path / f"{workers}.npy")
        assert got.count("equal") == got.count([120, 4]) == workers
        norms += [line for line in got if line not in ("equal", [120, 4])]
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


def test_a_module_that_is_distributed_again_is_averaged_once() -> None:
    """Another average would be the same numbers, at the price of another message."""
    world: Any = SimpleNamespace(size=2, broadcast=lambda values, cause: values)
    part: Any = SimpleNamespace(settings=load_settings(environ={}), device="cpu", world=world,
                                group=world, plan=SimpleNamespace(groups=[[0], [1]]))
    averages: list[int] = []
    module = torch.nn.Linear(2, 2)
    for number in range(2):
        wrapped = SimpleNamespace(after_backward=partial(averages.append, number))
        wrapper: Any = SimpleNamespace(wrap=lambda merged, context, wrapped=wrapped: wrapped)
        DistributedModel(module, part, wrapper, merged=module)
        module(torch.ones(1, 2)).sum().backward()
    assert averages == [0, 1]
    gone = ref(module)
    del module
    gc.collect()
    assert gone() is None


PREDICTED = """
import json, os, sys
import torch
import dgl_heta
from dgl_heta.models import HGNN, RGATLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
torch.manual_seed(0)
model = dgl_heta.distribute(HGNN(part.spec(), RGATLayer).double(), part)
dgl_heta.predict_all(model, given["save"], chunk=50)
"""


@pytest.mark.parametrize(("name", "workers", "settings"), [
    ("shared", 2, []), ("8", 8, []), ("2", 4, ["train.trainers=2"])])
def test_predictions_are_the_same_where_several_workers_have_a_sub_metatree(
        parts: Path, tmp_path: Path, name: str, workers: int, settings: list[str]) -> None:
    """Where each has a share of the seeds, in groups of partitions, and of several trainers."""
    rows = {}
    for part, count, own in (("1", 1, []), (name, workers, settings)):
        assert scores(PREDICTED, parts / part, count, *own, save=tmp_path / f"{part}.npy") == []
        rows[part] = np.load(tmp_path / f"{part}.npy")
    assert np.abs(rows["1"] - rows[name]).max() < 1e-12 * np.abs(rows["1"]).max() + 1e-13
