"""Numbers that are NaN or infinite: in features, in parameters, in predictions. None is silent."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta import load_model
from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.proof.difference import Levels, relative
from dgl_heta.report.started import FILE, resuming
from dgl_heta.store import Store, write_store
from dgl_heta.system.checksums import write_signed
from dgl_heta.training.loop import _check_parameters
from tests.support import warm
from tests.support.signing import edit_array
from tests.support.waiting import PATIENCE

LIKES, LIKED = Relation("user", "likes", "item"), Relation("item", "liked", "user")
ITEMS = 40
NODES = np.array([31, 35])  # for validation, with features that are not finite


def graph() -> GraphSource:
    """Items that are no neighbours of each other."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, 200), rng.integers(0, ITEMS, 200)
    number = np.arange(ITEMS)
    return GraphSource(
        "shop", {"user": 9, "item": ITEMS},
        {LIKES: EdgeArrays(user, item), LIKED: EdgeArrays(item, user)},
        {"item": {"feat": rng.standard_normal((ITEMS, 3)).astype(np.float32), "label": number % 3,
                  "train_mask": number < 20, "val_mask": number >= 30}},
        Task("item", 3), {"classes": ["a", "b", "c"]})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "store"
    write_store(graph(), path)

    def spoil(feat: np.ndarray) -> None:
        feat[NODES[0], 1], feat[NODES[1]] = np.nan, np.inf

    edit_array(path, Store(path).manifest.arrays["item"]["feat"].file, spoil)
    return path


def heta(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([warm.python(), "-m", "dgl_heta", *words], capture_output=True,
                          text=True, timeout=PATIENCE)


def train(place: Path, run_dir: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    return heta("train", str(place), "--parts", "1", "--run-dir", str(run_dir), *(
        word for text in ("model.layers=1", "model.hidden=4", "train.fanouts=-1",
                          "train.threads=1", *settings) for word in ("--set", text)))


@pytest.mark.usefixtures("warm_workers")
def test_features_and_predictions_that_are_not_finite_are_said(store: Path, tmp_path: Path) -> None:
    done = train(store, tmp_path / "run", "train.epochs=1")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "feat.npy have 4 numbers that single precision has no finite value for" in said
    assert "first in row 31" in said
    assert "epoch 1: 2 outputs of validation nodes are NaN or infinite" in said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["val_acc"] is None
    assert "NaN" not in (tmp_path / "run/metrics.jsonl").read_text()
    done = heta("predict", str(tmp_path / "run"), "--out", str(tmp_path / "classes.npy"))
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "error: 2 of 40 rows of " in said
    assert "classes.npy are places, from 0, in the list of their names" in said
    found = np.load(tmp_path / "classes.npy")
    assert np.flatnonzero(found < 0).tolist() == NODES.tolist()
    assert found.max() < 3
    for name in ("out.csv", "out.parquet"):
        result = PredictionJob(tmp_path / "run", tmp_path / name).run(Plugins())
        assert (result["not_finite"], result["rows"]) == (2, ITEMS)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [int(node) for node, name, _ in rows if not name] == NODES.tolist()
    assert [name for _, name, _ in rows if name] == ["abc"[c] for c in found if c >= 0]


@pytest.mark.usefixtures("warm_workers")
def test_a_run_that_diverges_says_which_epoch_is_good_and_how_it_is_used(tmp_path: Path) -> None:
    """After the first epoch the rate is 1e37, which the loss of the second does not show yet."""
    write_store(graph(), tmp_path / "my store")
    done = train(tmp_path / "my store", tmp_path / "run", "train.epochs=9",
                 "train.schedule=MultiStepLR",
                 "train.schedule_options={milestones=[1], gamma=1e39}")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "epoch 2: 10 outputs of validation nodes are NaN or infinite" in said
    assert "the loss of epoch 3 is nan: training diverged; lower train.lr" in said
    assert f"model of epoch 1, the best that was saved ({tmp_path}/run/checkpoints/epoch" in said
    before = heta("predict", str(tmp_path / "run"), "--out", str(tmp_path / "out.npy"))
    assert before.returncode == 2
    assert "has no model (model.json): it did not come to its end. The model of epoch 1" in (
        " ".join(before.stderr.split()))
    with pytest.raises(InputError, match="is made ready for `dgl-heta predict` by: dgl-heta train"):
        load_model(tmp_path / "run")
    command = shlex.split(said.partition("`dgl-heta predict` by: ")[2])
    assert command[0] == "dgl-heta"
    done = heta(*command[1:])
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["best_epoch"] == 1
    PredictionJob(tmp_path / "run", tmp_path / "out.npy").run(Plugins())
    assert np.load(tmp_path / "out.npy").min() >= 0


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    engine: Any = SimpleNamespace(model=model, world=Comm(Traffic()))
    _check_parameters(engine, tmp_path, 1)
    with torch.no_grad():
        model.bias[1] = torch.inf
    with pytest.raises(InputError, match="parameters are NaN or infinite after epoch 2: training "
                                         r"diverged.*No epoch of this run was saved"):
        _check_parameters(engine, tmp_path, 2)


@pytest.mark.parametrize(("command", "want"), [
    ("dgl-heta train a/b --set train.epochs=7 --run-dir x --resume",
     "dgl-heta train a/b --set train.epochs=7 --run-dir {run} --resume --set train.epochs=3"),
    ("dgl-heta train a --run-dir=x --seeds 5 --json",
     "dgl-heta train a --json --run-dir {run} --resume --set train.epochs=3 --set train.seed=4"),
    ("train.py --run-dir x", "the same call or command, going on in {run} with train.epochs=3"),
    ("dgl-heta train … (900 characters) … x",
     "the same call or command, going on in {run} with train.epochs=3"),
    (None, "the same call or command, going on in {run} with train.epochs=3"),
])
def test_the_command_that_goes_on_is_the_one_that_began(
        tmp_path: Path, command: str | None, want: str) -> None:
    run = tmp_path / "seed-4"
    run.mkdir()
    if command is not None:
        write_signed(run / FILE, {"starts": [{"command": command}]})
    assert resuming(run, 3) == want.format(run=run)


def test_rows_that_are_nan_both_ways_do_not_differ() -> None:
    rows = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    levels = Levels([{"item": np.arange(2)}], [{"item": np.arange(2)}], {})
    trace = [("layer", {("item",): rows})]
    assert relative(rows, rows) == 0
    assert levels.hidden_difference(trace, trace, 1e-7) is None
    other = [("layer", {("item",): rows.nan_to_num(5.0)})]
    assert levels.hidden_difference(other, trace, 1e-7) is not None
