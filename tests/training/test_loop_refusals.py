"""What a training loop of one's own may not do, and how its loaders go through their seeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.errors import HetaError, InputError
from dgl_heta.training.distributed import DistributedModel
from dgl_heta.training.loader import Loader
from tests.support.own_loops import SETTINGS, run, scores, write_partitions


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_partitions(tmp_path_factory.mktemp("parts"))


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
