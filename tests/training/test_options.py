"""How people train: optimizers and schedules by name, clipping, class weights, early stopping."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from dgl_heta.errors import InputError
from dgl_heta.report.epoch_records import EpochRecord
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training import loop, optimizers
from dgl_heta.training.tasks import make_task
from tests.support.copies import copies, within
from tests.support.graphs import academic, with_tasks
from tests.support.threads import ThreadComm, together
from tests.support.training_worker import same_models, trained
from tests.support.waiting import PATIENCE

METRICS = ["f1_macro", "recall_weighted", "auroc", "top2_accuracy", "mcc", "balanced_accuracy"]
LINKS: dict[str, Any] = {
    "task": {"relation": "writes", "reverse": "rev-writes", "eval_negatives": 7}}
CASES: dict[str, dict[str, Any]] = {
    "clipped sgd": {"optimizer": "SGD", "lr": 0.1, "optimizer_options": {"momentum": 0.9},
                    "clip_grad_norm": 0.2, "schedule": "StepLR",
                    "schedule_options": {"step_size": 1, "gamma": 0.5}},
    "weighted": {"optimizer": "AdamW", "class_weights": "balanced", "metrics": METRICS,
                 "monitor": "average_precision",
                 "schedule": "ReduceLROnPlateau",
                 "schedule_options": {"patience": 0, "threshold": 10.0}},  # one plateau
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "store"
    write_store(with_tasks(academic()), path)
    return path


def base(**train: Any) -> dict[str, dict[str, Any]]:
    return {"model": {"hidden": 8}, "run": {"timeout_s": PATIENCE}, "train": {
        "global_batch_size": 12, "fanouts": [-1, -1], "dtype": "float64", "threads": 1,
        "epochs": 3, **train}}


def settings(**train: Any) -> Settings:
    return load_settings(base={"train": train}, environ={})


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "epoch"]


@pytest.fixture(scope="module")
def runs(store: Path) -> Path:
    """The directory of the runs of one worker, of two and of three."""
    cases = {name: base(**train) for name, train in CASES.items()}
    cases["links"] = {**base(epochs=1, metrics=["mrr", "hits@3", "mean_rank"]), **LINKS}
    for name, case in cases.items():
        trained(store, store.with_name(f"{name}-1"), 1, case)
    for parts in (2, 3):
        job = store.with_name(f"job-{parts}")
        job.write_text(json.dumps({
            "store": str(store), "out": str(store.parent), "parts": parts,
            "meeting": str(store.with_name(f"meeting-{parts}")),
            "cases": cases}))
        status, text = copies("tests.support.training_worker").run(job, within(PATIENCE))
        assert status == 0, text
    return store.parent


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_workers_trains_the_same_model(runs: Path, name: str) -> None:
    for parts in (2, 3):
        np.testing.assert_allclose(losses(runs / f"{name}-{parts}"), losses(runs / f"{name}-1"),
                                   rtol=1e-9)
        same_models(runs / f"{name}-1", runs / f"{name}-{parts}")


@pytest.mark.parametrize("name", CASES)
def test_each_option_has_an_effect(store: Path, runs: Path, tmp_path: Path, name: str) -> None:
    for option in {"clip_grad_norm", "class_weights", "schedule"} & set(CASES[name]):
        others = {key: value for key, value in CASES[name].items()
                  if not key.startswith(option)}
        trained(store, tmp_path / option, 1, base(**others))
        assert abs(losses(tmp_path / option)[-1] - losses(runs / f"{name}-1")[-1]) > 1e-6, option


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_goes_on_ends_as_one_without_a_break(
        store: Path, runs: Path, tmp_path: Path, name: str) -> None:
    trained(store, tmp_path / "run", 1, base(**CASES[name], epochs=2))
    trained(store, tmp_path / "run", 1, base(**CASES[name]), resume=True)
    assert losses(tmp_path / "run") == losses(runs / f"{name}-1")
    ours, whole = (load_file(place / "model.safetensors")
                   for place in (tmp_path / "run", runs / f"{name}-1"))
    for key, tensor in whole.items():
        assert torch.equal(ours[key], tensor), key


def test_training_stops_when_it_gets_no_better(store: Path, tmp_path: Path) -> None:
    worse = {"optimizer": "SGD", "lr": 1e-12, "sparse_lr": 1e-12, "epochs": 9}  # always the same
    summary = trained(store, tmp_path / "run", 1, base(**worse, early_stopping=2))
    assert (summary["best_epoch"], summary["epochs"], summary["stopped_early"]) == (1, 3, True)
    kept = {folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"epoch-00001", "epoch-00003"}
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    again = trained(store, tmp_path / "run", 1, base(**worse, early_stopping=2), resume=True)
    assert (again["best_epoch"], again["epochs"], again["stopped_early"]) == (1, 3, True)
    further = trained(store, tmp_path / "copy", 1, base(**worse, early_stopping=4), resume=True)
    assert (further["best_epoch"], further["epochs"]) == (1, 5)


def test_weights_of_classes_are_those_of_torch(store: Path) -> None:
    labels = torch.from_numpy(np.array(Store(store).array("paper", "label"), np.int64))
    for wish in ("balanced", None):
        classes = int(labels.max()) + 1
        given = wish or [float(c) for c in range(classes)]
        task = make_task(Store(store), settings(class_weights=given))
        train = np.flatnonzero(Store(store).array("paper", "train_mask"))
        counts = torch.bincount(labels[train], minlength=classes)
        weights = (len(train) / (classes * counts) if wish else torch.arange(classes)).double()
        step = task.steps("train", 1, 20)[0]
        parts = []
        for worker in range(2):
            ids = task.seeds(step, worker, 2)["paper"]
            torch.manual_seed(worker)
            outputs = torch.randn(len(ids), classes, dtype=torch.float64)
            parts.append((*task.loss({"paper": outputs}, step, worker, 2), outputs, labels[ids]))
        outputs, wants = (torch.cat([part[place] for part in parts]) for place in (2, 3))
        want = float(F.cross_entropy(outputs, wants, weights))
        assert float(sum(part[0] for part in parts)) / 2 == pytest.approx(want)
        accuracy, mean = task.score(sum(part[1] for part in parts))
        assert mean == pytest.approx(want)
        assert accuracy == pytest.approx(float((outputs.argmax(1) == wants).double().mean()))


def usable() -> list[str]:
    return sorted(set(optimizers._classes(torch.optim, torch.optim.Optimizer))
                  - set(optimizers._REFUSED))


def test_a_rate_falls_where_scores_fall_and_not_where_they_rise() -> None:
    train = load_settings(base={"train": {
        "schedule": "ReduceLROnPlateau", "schedule_options": {"patience": 0, "factor": 0.5}}}).train
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = optimizers.Schedule(optimizer, train), []
    for score in (0.1, 0.2, 0.3, 0.2, 0.4):
        schedule.step(score)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_rate_follows_an_error_as_torch_itself_does() -> None:
    """Also where a threshold is a part of the best one: its sign counts."""
    options: dict[str, Any] = {"patience": 0, "factor": 0.5, "threshold": 0.01}
    given = settings(monitor="mae", schedule=optimizers.PLATEAU, schedule_options=options)
    ours, torchs = (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2))
    schedule = optimizers.Schedule(ours, given.train)
    wanted = torch.optim.lr_scheduler.ReduceLROnPlateau(torchs, "min", **options)
    rates = []
    for error in (5.0, 4.0, 3.0, 3.0, 3.01, 2.0, 1.0):
        schedule.step(error)
        wanted.step(error)
        rates.append([one.param_groups[0]["lr"] for one in (ours, torchs)])
    assert rates == [[rate, rate] for rate in (1.0, 1.0, 1.0, 0.5, 0.25, 0.25, 0.25)]


@pytest.mark.parametrize(("monitor", "values"), [(None, (0.3, 0.2, None, 0.1)),
                                                 ("mae", (0.1, 0.2, None, 0.3))])
def test_a_schedule_goes_on_by_the_scores_of_worker_0_where_others_have_no_log(
        monitor: str | None, values: tuple[float | None, ...]) -> None:
    """Machines may have run directories of their own; the log is on that of worker 0."""
    given = settings(monitor=monitor, schedule=optimizers.PLATEAU,
                     schedule_options={"patience": 0, "factor": 0.5})
    history = [EpochRecord(n, 1.0, 0.5, value, {}, {}, 1.0,
                           metrics=None if value is None else {"mae": value})
               for n, value in enumerate(values, 1)]

    def work(comm: ThreadComm) -> float:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        engine: Any = SimpleNamespace(
            world=comm, schedule=optimizers.Schedule(optimizer, given.train))
        loop._schedule_again(engine, given, [] if comm.rank else history, 4)
        return optimizer.param_groups[0]["lr"]

    assert together(2, work) == [0.25, 0.25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_optimizer_of_torch_goes_on_from_what_a_checkpoint_keeps(
        tmp_path: Path, dtype: torch.dtype) -> None:
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"} <= set(usable())

    def steps(table: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        for number in range(2):
            table.grad = torch.linspace(-1.0, 2.0, 6, dtype=dtype).view(3, 2) + number
            optimizer.step()

    for name in usable():
        train = settings(optimizer=name).train
        table = nn.Parameter(torch.ones(3, 2, dtype=dtype))
        optimizer = optimizers.make_optimizer([table], train)
        steps(table, optimizer)
        copy = nn.Parameter(table.detach().clone())
        other = optimizers.make_optimizer([copy], train)
        save_file(optimizers.state_tensors(optimizer), tmp_path / name)
        optimizers.load_state(other, load_file(tmp_path / name))
        for one, its in ((table, optimizer), (copy, other)):
            steps(one, its)
        assert not torch.equal(table, torch.ones(3, 2, dtype=dtype)), name
        assert torch.equal(table, copy), name


@pytest.mark.parametrize(("name", "more"), [
    ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_parameters_updated_together_are_as_one_by_one_to_the_last_bit(
        name: str, more: dict[str, Any]) -> None:
    assert name in optimizers.TOGETHER
    found = []
    for options in (more, {**more, "foreach": False}):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(5, width)) for width in (1, 3, 8)]
        optimizer = optimizers.make_optimizer(
            params, settings(optimizer=name, optimizer_options=options, weight_decay=0.1).train)
        assert optimizer.defaults["foreach"] == ("foreach" not in options)
        for step in range(4):
            for number, param in enumerate(params):
                param.grad = torch.randn(param.shape) if (step, number) != (2, 1) else None
            optimizer.step()
        found.append([param.detach() for param in params])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(("train", "message"), [
    ({"optimizer": "LBFGS"}, "LBFGS cannot be used: it computes the loss several times"),
    ({"optimizer": "SparseAdam"}, "train.sparse_lr"),
    ({"optimizer": "adamw"}, "did you mean 'AdamW'"),
    ({"optimizer": "Optimizer"}, "unknown train.optimizer 'Optimizer'"),
    ({"optimizer": "lr_scheduler.StepLR"}, "unknown train.optimizer"),
    ({"optimizer_options": {"lr": 1.0}}, "set train.lr"),
    ({"optimizer_options": {"momentum": 0.9}}, "Adam has no option 'momentum'"),
    ({"optimizer_options": {"betas": [2.0, 0.9]}}, "torch refuses its options"),
    ({"optimizer": "Rprop", "weight_decay": 0.1}, "has no weight decay"),
    ({"schedule": "LambdaLR"}, "LambdaLR cannot be used: it needs a function"),
    ({"schedule": "ReduceLROnPlateau", "schedule_options": {"mode": "min"}},
     "mode = min, but of the score larger is better; leave mode out"),
    ({"schedule": "StepLr"}, "did you mean 'StepLR'"),
    ({"schedule": "StepLR"}, "step_size"),
    ({"schedule": "OneCycleLR", "schedule_options": {"max_lr": 0.1, "total_steps": 3}},
     "OneCycleLR: Tried to step"),
    ({"schedule_options": {"gamma": 0.1}}, "which is not set"),
])
def test_what_cannot_be_used_is_refused_by_name(train: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimizers.check(settings(**train).train)


def test_weights_that_fit_nothing_are_refused(store: Path) -> None:
    for train, task, message in (
        ({"class_weights": [1.0]}, {}, r"has 1 numbers, but array 'label'.* has \d+ classes"),
        ({"class_weights": "balanced"}, {"kind": "regression", "label": "citations"},
         "this task is 'regression'"),
    ):
        with pytest.raises(InputError, match=message):
            make_task(Store(store), load_settings(base={"train": train, "task": task}, environ={}))
    with pytest.raises(InputError, match=r"train\.class_weights.*0 or more"):
        settings(class_weights=[-1.0, 1.0])


@pytest.mark.parametrize("name", ["weighted", "links"])
def test_any_number_of_workers_has_the_same_metrics(runs: Path, name: str) -> None:
    one, *others = (json.loads((runs / f"{name}-{parts}" / "summary.json").read_text())
                    for parts in (1, 2, 3))
    for split in ("val", "test"):
        assert set(one["metrics"][split]) == set(one["settings"]["train"]["metrics"]) | (
            {"average_precision"} if name == "weighted" else set())
        for other in others:
            assert other["metrics"][split] == pytest.approx(one["metrics"][split], rel=1e-9)
            assert other["best_epoch"] == one["best_epoch"]
            assert other.get("classes") == one.get("classes")
    if name == "weighted":
        paper = one["classes"]["types"]["paper"]
        assert one["classes"]["split"] == "test"
        matrix = np.array(paper["matrix"])
        assert matrix.trace() / matrix.sum() == pytest.approx(one["test_acc"])
    if name == "links":
        assert "classes" not in one
        assert one["metrics"]["test"]["mrr"] == pytest.approx(one["test_acc"])
        assert one["metrics"]["test"]["hits@3"] < 1 < one["metrics"]["test"]["mean_rank"]
