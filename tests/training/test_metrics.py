"""Metrics by name: what scikit-learn computes, what is followed, which names are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as known

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import InputError
from dgl_heta.settings import TaskSettings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.metrics import KINDS, ClassTally, LabelTally, RankTally, ValueTally
from dgl_heta.training.optimizers import Schedule
from dgl_heta.training.per_class import class_names, per_class
from dgl_heta.training.tasks import make_task
from tests.support.graphs import academic, with_tasks
from tests.support.training_worker import trained
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metrics") / "store"
    write_store(with_tasks(academic()), path)
    return path


def in_batches(tally: Any, outputs: np.ndarray, wants: np.ndarray) -> Any:
    for rows in np.array_split(np.arange(len(outputs)), 5):
        tally.add(torch.from_numpy(outputs[rows]), wants[rows])
    tally.gather(Comm(Traffic()))
    return tally


def averages(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    found = {}
    for how in ("macro", "micro", "weighted"):
        for what, of in (("f1", known.f1_score), ("precision", known.precision_score),
                         ("recall", known.recall_score)):
            found[f"{what}_{how}"] = float(of(true, predicted, average=how, zero_division=0))
    return found


@pytest.mark.parametrize("classes", [2, 6])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    outputs = rng.integers(-3, 4, (300, classes)) / 4 + rng.random((300, 1))  # with many ties
    true = rng.choice(min(classes, 5), 300)  # the last of six is never right
    scores = torch.from_numpy(outputs).softmax(1).numpy()
    predicted = torch.from_numpy(outputs).argmax(1).numpy()
    each = [1] if classes == 2 else range(5)
    want = {**averages(true, predicted), "accuracy": known.accuracy_score(true, predicted),
            "mcc": known.matthews_corrcoef(true, predicted),
            "auroc": np.mean([known.roc_auc_score(true == c, scores[:, c]) for c in each]),
            "average_precision": np.mean([known.average_precision_score(true == c, scores[:, c])
                                          for c in each]),
            "balanced_accuracy": np.mean([(predicted == c)[true == c].mean()
                                          for c in range(min(classes, 5))])}
    tally = in_batches(ClassTally(classes, [*want, "top1_accuracy"]), outputs, true)
    assert {name: tally.value(name) for name in want} == pytest.approx(want)
    assert set(want) == set(KINDS["classification"]) - {"topK_accuracy"}
    assert tally.value("top1_accuracy") == pytest.approx(want["accuracy"], abs=0.03)  # ties
    sharp = rng.standard_normal((300, classes))
    best = min(3, classes - 1)
    tally = in_batches(ClassTally(classes, [f"top{best}_accuracy"]), sharp, true)
    assert tally.value(f"top{best}_accuracy") == pytest.approx(
        (np.argsort(-sharp, 1)[:, :best] == true[:, None]).any(1).mean())


def test_metrics_of_labels_and_numbers_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    outputs, true = rng.integers(-3, 4, (200, 4)) / 2, rng.integers(0, 2, (200, 4))
    true[:, 3] = 0  # nobody has it
    want = {**averages(true, outputs > 0), "exact_match": (true == (outputs > 0)).all(1).mean(),
            "auroc": known.roc_auc_score(true[:, :3], outputs[:, :3]),
            "average_precision": known.average_precision_score(true[:, :3], outputs[:, :3])}
    tally = in_batches(LabelTally(4, want), outputs, true)
    assert {name: tally.value(name) for name in KINDS["multilabel"]} == pytest.approx(want)
    outputs, numbers = rng.standard_normal((200, 4)), rng.standard_normal((200, 4))
    numbers[:, 2:] = 0.5, 3  # one value alone, which is missed; and one that is met
    outputs[:, 3] = 3
    squares = known.mean_squared_error(numbers, outputs)
    want = {"mae": known.mean_absolute_error(numbers, outputs), "mse": squares,
            "rmse": squares ** 0.5, "r2": known.r2_score(numbers, outputs)}
    tally = in_batches(ValueTally(4), outputs, numbers)
    assert {name: tally.value(name) for name in KINDS["regression"]} == pytest.approx(want)


def test_labels_that_are_not_known_count_in_no_metric() -> None:
    """Of each label the metrics of the nodes that have one."""
    rng = np.random.default_rng(1)
    outputs, true = rng.integers(-3, 4, (200, 3)) / 2, rng.integers(0, 2, (200, 3)).astype(float)
    there = rng.random(true.shape) < 0.6
    true[~there] = np.nan
    columns = [(true[rows, c], outputs[rows, c]) for c, rows in enumerate(there.T)]
    flat = known.f1_score(true[there], outputs[there] > 0)
    want = {"f1_micro": flat, "f1_macro": np.mean([known.f1_score(t, o > 0) for t, o in columns]),
            "auroc": np.mean([known.roc_auc_score(t, o) for t, o in columns]),
            "average_precision": np.mean([known.average_precision_score(t, o)
                                          for t, o in columns]),
            "exact_match": np.mean([(t[k] == (o[k] > 0)).all()
                                    for t, o, k in zip(true, outputs, there)])}
    tally = in_batches(LabelTally(3, want), outputs, true)
    assert {name: tally.value(name) for name in want} == pytest.approx(want)
    want = {"mse": np.mean([known.mean_squared_error(t, o) for t, o in columns]),
            "mae": np.mean([known.mean_absolute_error(t, o) for t, o in columns]),
            "r2": np.mean([known.r2_score(t, o) for t, o in columns])}
    tally = in_batches(ValueTally(4), np.c_[outputs, outputs[:, 0]],
                       np.c_[true, np.full(len(true), np.nan)])  # nobody has the last
    assert {name: tally.value(name) for name in want} == pytest.approx(want)


def test_metrics_of_ranks() -> None:
    tally = RankTally(9, ["one", "two"])
    for ranks, places in (([1, 4, 10], [0, 1, 0]), ([2, 1], [1, 1])):
        tally.add(np.array(ranks), np.array(places))
    tally.gather(Comm(Traffic()))
    assert tally.value("mrr") == pytest.approx((1 + 1 / 4 + 1 / 10 + 1 / 2 + 1) / 5)
    assert (tally.value("mean_rank"), tally.value("hits@1"), tally.value("hits@4")) == (
        3.6, 0.4, 0.8)
    assert {name: (each.count, each.value("mean_rank")) for name, each in tally.of_each().items()
            } == {"one": (2, 5.5), "two": (3, pytest.approx(7 / 3))}


def test_what_is_not_defined_is_no_number() -> None:
    tally = in_batches(ClassTally(3, ["auroc"]), np.zeros((4, 3)), np.ones(4, np.int64))
    assert np.isnan(tally.value("auroc"))  # all of one class
    empty = ClassTally(3, ["auroc"])
    empty.gather(Comm(Traffic()))
    assert np.isnan(empty.value("f1_macro"))


@pytest.mark.parametrize(("train", "task", "message"), [
    ({"metrics": ["f1_marco"]}, {}, "unknown metric 'f1_marco'.*f1_macro.*did you mean 'f1_macro'"),
    ({"monitor": "rmse"}, {}, "'rmse' is for task.kind = 'regression', and this task is "
                              "'classification'; its metrics: accuracy"),
    ({"metrics": ["top4_accuracy"]}, {}, "is 1 whatever.*there are 4 classes"),
    ({"metrics": ["hits@51"]}, {"relation": "writes", "reverse": "rev-writes"},
     "among 50 negatives; set task.eval_negatives to 51 or more"),
])
def test_names_that_fit_nothing_are_refused(
        store: Path, train: dict[str, Any], task: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_task(Store(store), load_settings(base={"train": train, "task": task}, environ={}))


def test_an_error_that_is_followed_is_best_where_it_is_smallest(
        store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a schedule by plateaus is given the error itself."""
    given, step = [], Schedule.step
    monkeypatch.setattr(Schedule, "step", lambda self, value: (given.append(value),
                                                               step(self, value)))
    base: dict[str, Any] = {
        "model": {"hidden": 8}, "run": {"timeout_s": PATIENCE},
        "task": {"kind": "regression", "label": "citations"},
        "train": {"batch_size": 12, "fanouts": [2, 2], "threads": 1, "epochs": 5, "lr": 0.3,
                  "monitor": "mae", "metrics": "rmse", "schedule": "ReduceLROnPlateau"}}
    summary = trained(store, tmp_path / "run", 1, base)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    errors = [line["metrics"]["mae"] for line in lines if line["event"] == "epoch"]
    assert len(set(errors)) == 5
    assert given[-5:] == pytest.approx(errors)  # after those of check()
    assert summary["best_epoch"] == 1 + int(np.argmin(errors))
    assert summary["metrics"]["val"]["mae"] == pytest.approx(min(errors))
    assert set(summary["metrics"]["test"]) == {"rmse", "mae"}


def test_single_classes_and_their_confusions_are_recorded(store: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    outputs, true = rng.standard_normal((400, 5)), rng.integers(0, 4, 400)
    tally = in_batches(ClassTally(5), outputs, true)
    found = per_class({"paper": tally, "author": ClassTally(2)}, {"paper": list("abcde")})
    assert list(found) == ["paper"]
    paper, predicted = found["paper"], outputs.argmax(1)
    assert paper["matrix"] == known.confusion_matrix(true, predicted, labels=range(5)).tolist()
    want = known.precision_recall_fscore_support(true, predicted, labels=range(5),
                                                 zero_division=0)
    for place, key in enumerate(("precision", "recall", "f1", "support")):
        assert [each[key] for each in paper["classes"]] == pytest.approx(list(want[place]))
    worst = paper["confusions"][0]
    matrix = np.array(paper["matrix"]) * (1 - np.eye(5, dtype=int))
    assert worst["count"] == matrix.max() == matrix[worst["true"], worst["predicted"]]
    assert worst["names"] == ["abcde"[worst["true"]], "abcde"[worst["predicted"]]]
    assert len(paper["confusions"]) == np.count_nonzero(matrix)


def test_what_is_recorded_of_many_classes_is_bounded() -> None:
    rng = np.random.default_rng(2)
    true = np.concatenate([np.arange(3000), rng.integers(0, 900, 4000)])
    outputs = np.zeros((7000, 3000), np.float32)
    outputs[np.arange(7000), rng.integers(0, 3000, 7000)] = 1
    found = per_class({"paper": in_batches(ClassTally(3000), outputs, true)}, {})["paper"]
    assert "matrix" not in found
    assert (found["number"], len(found["classes"]), len(found["confusions"])) == (3000, 1000, 20)
    assert {each["class"] for each in found["classes"]} > set(range(800))


def test_names_of_classes_are_those_of_the_store(tmp_path: Path) -> None:
    source = academic()
    source.info["classes"] = ["one", "two", "three", "four"]
    write_store(source, tmp_path / "store")
    made = Store(tmp_path / "store")
    own = TaskSettings(label="label", kind="classification")
    assert class_names(made, "paper", own) == source.info["classes"]
    assert class_names(made, "paper", TaskSettings(label="other", kind="classification")) == []
    assert class_names(made, "author", own) == []
    # The labels of a table are others, whatever their column is called.
    table = TaskSettings(label="label", kind="classification", table="churn.parquet")
    assert class_names(made, "paper", table) == []
