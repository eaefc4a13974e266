"""A training loop of one's own computes what `dgl-heta train` does, on any number of workers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.errors import HetaError, InputError
from dgl_heta.models import HGNN, RGCNLayer
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.planning.sharing import make_shared_plan
from dgl_heta.store import Store, write_store
from dgl_heta.training.distributed import DistributedModel
from dgl_heta.training.loader import Loader
from tests.support import warm
from tests.support.cuts import deal_pieces
from tests.support.graphs import academic
from tests.support.plugins import ROOT

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
cached = {} if part.caches is None else part.caches.counted()
assert any(of["hits"] for of in cached.values()) == ("cache.policy=hotness" in given["settings"])
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions of one graph, `1` to `3` of full replication, `cut`, of none, and `two`,
    for two targets."""
    place = tmp_path_factory.mktemp("parts")
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


@pytest.mark.parametrize(("settings", "asked", "said"), [
    (["task.relation=writes"], lambda part: part.loader("trian", [3, 3]), "no split of links"),
    (["task.relation=writes"], lambda part: part.loader("train", [3, 3], seed=5), "leave seed out"),
    (["task.relation=writes"], lambda part: part.loader("train", [3]), "1 fanout for a partition"),
    (["task.relation=writes"], lambda part: next(iter(part.loader("val", [3, 3]))).mean(
        torch.zeros(3)), "3 losses for .* own links"),
    ([], lambda part: next(iter(part.loader({"paper": [1, 2]}, [3, 3]))).links,
     "no links are predicted; name a relation"),
])
def test_what_links_cannot_be_is_refused(parts: Path, settings: list[str], asked: Any, said: str
                                         ) -> None:
    with pytest.raises(InputError, match=said):
        asked(dgl_heta.open_partition(parts / "two", [*SETTINGS, *settings]))


def test_links_of_any_split_can_be_shuffled(parts: Path) -> None:
    part = dgl_heta.open_partition(parts / "two", [*SETTINGS, "task.relation=writes"])
    orders = []
    for wish in (True, False, None):
        loader = part.loader("val", [3, 3], batch_size=16, shuffle=wish)
        orders += [np.concatenate([batch.step.positions for batch in loader]) for _ in range(2)]
    first, second, *others = orders
    assert sorted(first) == sorted(second) == others[0].tolist()
    assert first.tolist() != second.tolist() != others[0].tolist()
    assert all(order.tolist() == others[0].tolist() for order in others)


def test_a_pass_ends_where_another_one_over_its_loader_begins() -> None:
    """They would take each other's messages, where workers exchange while they sample ahead."""
    loader: Any = SimpleNamespace(
        _batches=SimpleNamespace(of_steps=lambda *given: (n for n in range(3))), _sampler=None,
        _one_at_a_time=True, _running=None)
    first = Loader._pass(loader, [], 0, 1)
    assert next(first) == 0
    assert [*Loader._pass(loader, [], 0, 2)] == [0, 1, 2]
    with pytest.raises(HetaError, match="a pass over a loader ended where another one over it"):
        next(first)
    done = Loader._pass(loader, [], 0, 3)
    assert [*done] == [0, 1, 2]
    Loader._pass(loader, [], 0, 4)
    assert [*done] == []


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


def test_a_last_step_with_fewer_seeds_can_be_left_out(parts: Path) -> None:
    part = dgl_heta.open_partition(parts / "1", SETTINGS)
    seeds = torch.arange(11)
    every, most = (part.loader(seeds, [3, 3], batch_size=4, drop_last=drop)
                   for drop in (False, True))
    assert [len(batch.seeds["paper"]) for batch in every] == [4, 4, 3]
    assert [len(batch.seeds["paper"]) for batch in most] == [4, 4]
    assert len(most) == 2


def test_parameters_that_come_after_distribute_are_refused() -> None:
    """Their gradients would not be averaged, and their first values are each worker's own."""
    module = torch.nn.Linear(2, 2)
    model: Any = SimpleNamespace(
        part=SimpleNamespace(world=SimpleNamespace(size=2)), module=module, _before=None,
        _of_all=[*module.parameters()])
    assert DistributedModel.begin(model)
    module.head = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(InputError, match=r"after it was distributed: head\.weight; change the mod"):
        DistributedModel.begin(model)


def test_links_of_types_that_are_no_targets_are_refused(parts: Path) -> None:
    with pytest.raises(InputError, match="made for target paper, but the task is about author, p"):
        dgl_heta.open_partition(parts / "1", [*SETTINGS, "task.relation=writes"])


WRONG = """
import json, os, sys
import numpy as np
import torch
import dgl_heta
from dgl_heta.errors import HetaError
from dgl_heta.models import HGNN, RGCNLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
model = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)


def message(call):
    try:
        call()
    except HetaError as error:
        return str(error)
    return "no error"


def loader(seeds="train", fanouts=(3, 3), **more):
    return lambda: part.loader(seeds, fanouts, **more)


def without(step):
    def loop():
        rows = part.row_optimizer()
        rows.step()
        first, second, *_ = part.loader("train", [3, 3], batch_size=30)
        model(first)["paper"].sum().backward()
        if step != "rows":
            rows.step()
        model(second)
    return loop


def early():
    (out,) = model(next(iter(part.loader("train", [3, 3], batch_size=30)))).values()
    part.row_optimizer().step()
    out.sum().backward()


def both():
    first, second, *_ = part.loader("train", [3, 3], batch_size=30)
    (model(first)["paper"].sum() + model(second)["paper"].sum()).backward()


def several():
    two = dgl_heta.open_partition(given["part"] + "/../two", given["settings"])
    (batch,) = two.loader({"paper": np.arange(9), "author": torch.arange(5)}, [3, 3])
    batch.mean(torch.zeros(5), "author")
    batch.mean(torch.zeros(9))


def apart():
    other = dgl_heta.open_partition(given["part"], given["settings"])
    model(next(iter(other.loader("val", [3, 3]))))


def both_models():
    part.row_optimizer().step()
    batch = next(iter(part.loader("train", [3, 3], batch_size=30)))
    sum(dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)(batch)["paper"].sum()
        for _ in range(2)).backward()


def others():
    for lr in (0.5, 0.25):
        made = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)
        made.save(given["save"], torch.optim.SGD(made.parameters(), lr), 1)


batch = next(iter(part.loader("train", [3, 3], batch_size=30)))
print(json.dumps({
    "hops": message(loader(fanouts=[3])), "fanout": message(loader(fanouts=[3, 0])),
    "size": message(loader(batch_size=0)), "split": message(loader("training")),
    "range": message(loader([1, 500])), "negative": message(loader([-1])),
    "twice": message(loader([1, 1])), "real": message(loader([1.5])),
    "author": message(loader({"author": [1]})), "epoch": message(
        lambda: part.loader("train", [3, 3]).set_epoch(-1)),
    "early": message(early), "mean": message(lambda: batch.mean(torch.zeros(()))),
    "save": message(lambda: model.save(given["part"], None, 0)),
    "rows": message(without("rows")), "none": message(without("nothing")), "both": message(both),
    "losses": message(lambda: batch.mean(torch.zeros(3))),
    "type": message(lambda: batch.mean(torch.zeros(30), "author")),
    "batch": message(lambda: model(batch.mini_batch())),
    "data": message(lambda: dgl_heta.open_partition({"paper": 1})),
    "several": message(several), "apart": message(apart), "both_models": message(both_models),
    "others": message(others),
    "store": message(lambda: dgl_heta.open_partition(given["part"] + "/../store")),
    "partition": message(lambda: dgl_heta.distribute(model.module, given["part"])),
    "lr": message(lambda: part.row_optimizer(lr=0)),
    "dtype": message(lambda: dgl_heta.distribute(HGNN(part.spec(), RGCNLayer), part)),
}))
"""
SAID = {
    "hops": "1 fanout for a partition of 2 hops; give one for each layer",
    "fanout": "each must be a number of edges, or -1 for all",
    "size": "batch_size is 0; it must be a whole number, 1 at least",
    "split": "'training' is no split; splits are test, train, val",
    "range": "seeds of 'paper' are from 1 to 500, but its nodes are 0 to 119",
    "negative": "seeds of 'paper' are from -1 to -1",
    "twice": "a seed of 'paper' is given twice",
    "real": "seeds of 'paper' are float64[1]; give their ids, whole numbers",
    "author": "made for target paper, not for 'author'; partition the graph with --target author",
    "epoch": "epoch is -1",
    "rows": "call step() of part.row_optimizer() after each backward pass",
    "early": "the row optimizer's step() came before the backward pass",
    "mean": "1 losses for 30 own seeds of 'paper'; give one for each (reduction='none')",
    "save": "epoch is 0; give how many epochs have ended, from 1",
    "none": "no error",
    "both": "a backward pass through another batch than the last one",
    "several": "a batch has seeds of author, paper; say of which the losses are",
    "apart": "the batch is of another partition than the model",
    "both_models": "a backward pass through another batch than the last one",
    "others": "holds checkpoints of another model; go on from them by model.resume",
    "losses": "3 losses for 30 own seeds of 'paper'; give one for each (reduction='none')",
    "type": "a batch has seeds of paper; say of which the losses are",
    "batch": "takes a batch of part.loader(…), not MiniBatch",
    "data": "a partition is a directory, not dict",
    "store": "is no partition; make one: dgl-heta partition GRAPH --out",
    "partition": "a partition is needed, not str; open one by dgl_heta.open_partition",
    "lr": "lr is 0; it must be more than 0",
    "dtype": "parameters are torch.float32, and rows are read as torch.float64 (train.dtype); give "
             "distribute model.double()",
}


def test_what_is_wrong_in_a_loop_is_said_in_a_line(parts: Path, tmp_path: Path) -> None:
    (said,) = scores(WRONG, parts / "1", 1, save=tmp_path / "run")
    wrong = {name: said[name] for name, text in SAID.items()
             if text not in said[name] or "\n" in said[name]}
    assert not wrong
    assert said.keys() == SAID.keys()


DIFFERENT = """
import json, os, sys
import dgl_heta

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
part.loader("train", [3, 3 + part.rank], batch_size=4)
"""


def test_workers_whose_loaders_differ_all_say_so(parts: Path) -> None:
    done = run(DIFFERENT, parts / "2", 2)
    text = ("worker 1 made a loader with fanouts = [3, 4], worker 0 with [3, 3]; all workers must "
            "make it alike")
    assert done.returncode
    assert done.stderr.count(text) == 2, done.stderr[-3000:]  # tracebacks mix letters


def test_one_process_cannot_open_a_partition_of_two(parts: Path) -> None:
    with pytest.raises(InputError, match="1 workers were started for 2 partitions"):
        dgl_heta.open_partition(parts / "2", SETTINGS)


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
head = model.module.heads[dgl_heta.slot("paper")]
penalty = sum(p.pow(2).sum() for p in model.parameters())
(batches[0].mean(out.logsumexp(1)) + 0.1 * penalty + batches[0].mean(head(out[:, :1].expand(
    -1, 8)).sum(1))).backward()
rows.step()
norms = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
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


PROVED = """
import json, logging, os, sys
import torch
import dgl_heta
from dgl_heta.errors import HetaError
from dgl_heta.models import HGNN, RGATLayer
from tests.support.proving_worker import AcrossRows

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
found, said = [], []
logging.getLogger("dgl_heta").addFilter(lambda record: said.append(record.getMessage()) or True)

class Counting(RGATLayer):
    def __init__(self, spec):
        super().__init__(spec)
        self.register_buffer("seen", torch.zeros(1))

    def aggregate(self, edges):
        self.seen += 1 + part.rank
        return super().aggregate(edges)

for layer, scale in ((RGATLayer, 1), (AcrossRows, 1), (RGATLayer, float("nan")), (Counting, 1)):
    model = HGNN(part.spec(), layer).double()
    model.register_buffer("coarse", torch.tensor(1.0, dtype=torch.bfloat16))  # NumPy has none
    for parameter in model.parameters():
        parameter.data *= scale
    model = dgl_heta.distribute(model, part)
    rows, state = part.row_optimizer(), torch.get_rng_state()
    try:
        for batch in part.loader("train", [3, 3], batch_size=12, shuffle=False):
            model(batch)["paper"].sum().backward()
            rows.step()
        found.append(None if model.proof is None else [model.proof.proved, model.proof.told])
    except HetaError as error:
        found.append(str(error))
if part.rank == 0:
    print(json.dumps([*found, [text for text in said if "buffers" in text]]))
"""


def test_steps_of_a_loop_are_proved(parts: Path) -> None:
    """A model that mixes rows computes something else on two workers, and a loop says so; so it
    does of buffers of which each worker has its own."""
    (alone,) = scores(PROVED, parts / "1", 1)
    assert alone == [None, None, None, None, []]
    ((proved, told), wrong, (none, why), _, (buffers,)), = scores(PROVED, parts / "2", 2)
    assert "other values in the module's buffers: layers.0.seen, layers.1.seen; each" in buffers
    assert proved >= 2
    assert told is None
    assert none == 0
    assert "NaN" in why
    assert "HGNN does not compute with RAF what it computes the plain way" in wrong
    (off,) = scores(PROVED, parts / "2", 2, "run.prove=off")
    assert off[:4] == [[0, None]] * 4
