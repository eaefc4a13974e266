"""SeHGNN and NARS in runs: refusals, mixed precision, the proof that is left out, prediction."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import check
from tests.support import warm
from tests.support.exactness import run
from tests.support.graphs import academic, with_tasks
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("warm_workers")

Results = dict[str, list[dict[str, np.ndarray]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(with_tasks(academic()), path)
    return path


@pytest.mark.parametrize(("replication", "wishes", "message"), [
    ("none", ["model.name=sehgnn"], "use partition.replication = full"),
    ("full", ["model.name=sehgnn", "task.relation=cites", "task.reverse=rev-cites"],
     "cannot leave out those that link prediction"),
    ("full", ["model.name=sehgnn", "task.relation=cites", "task.reverse=rev-cites",
              "task.decoder=distmult"], "cannot leave out those that link prediction"),
    ("full", ["model.name=nars"], "field 3, paper 7"),
    ("metapaths", ["model.name=nars"], "leave partition.metapaths out, or use model sehgnn")])
def test_what_does_not_fit_is_refused_before_workers_start(
        store: Path, replication: str, wishes: list[str], message: str) -> None:
    opened = Store(store)
    paths = [opened.schema.relations[:1]] if replication == "metapaths" else None
    plan = make_plan(opened.schema, "paper", 2, 2, paths) if replication != "none" else Meta().plan(
        opened.schema, PartitionRequest(2, ("paper",), 2, replication="none"))
    with pytest.raises(InputError, match=message):
        check(opened, plan, load_settings(overrides=wishes, environ={}), Plugins())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """Results of one worker and of two, in mixed precision and not."""
    out = tmp_path_factory.mktemp("autocast")
    write_store(with_tasks(academic(papers=150)), out / "store")
    by_workers = {}
    for parts in (1, 2):
        cases: dict[str, Any] = {how: {
            "model": {"hidden": 16, "name": "sehgnn", "heads": 2},
            "train": {"global_batch_size": 48, "fanouts": [3, 3], "threads": 1, "autocast": how},
            "run": {"timeout_s": PATIENCE, "prove": "1"}} for how in ("off", "bfloat16")}
        (out / f"{parts}").mkdir()
        by_workers[parts] = run({"store": str(out / "store"), "out": str(out / f"{parts}"),
                            "parts": parts, "cases": cases, "guests": True}, out / f"{parts}",
                           "proving_worker")
    return by_workers


def losses(workers: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The mean loss of each step, of all workers together."""
    summed = np.concatenate([sum(worker[f"{epoch}/statistics"] for worker in workers)
                             for epoch in (1, 2)])
    return np.asarray(summed[:, 0] / summed[:, 1])


def test_no_step_is_proved_which_is_said(results: dict[int, Results]) -> None:
    for worker in (*results[2]["off"], *results[2]["bfloat16"]):
        assert "inputs that were computed before" in str(worker["not proved"])
        assert worker["steps"] == 0
        assert "error" not in worker


def test_mixed_precision_trains_nearly_the_same(results: dict[int, Results]) -> None:
    whole, mixed = losses(results[2]["off"]), losses(results[2]["bfloat16"])
    assert (whole != mixed).any()
    np.testing.assert_allclose(mixed, whole, rtol=0.03)
    np.testing.assert_allclose(mixed, losses(results[1]["bfloat16"]), rtol=0.03)
    first, second = results[2]["bfloat16"]
    keys = [key for key in first if key.startswith("parameter/")]
    assert keys
    for key in keys:
        assert first[key].dtype == np.float32
        np.testing.assert_array_equal(first[key], second[key])


def predict(run_dir: Path, out: Path, **wishes: object) -> np.ndarray:
    PredictionJob(run_dir, out, **wishes).run(Plugins())  # type: ignore[arg-type]
    return np.load(out)


def test_models_without_layers_predict_batch_by_batch(store: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = ["model.hidden=8", "model.heads=2", "train.fanouts=3,3", "train.batch_size=32",
                "train.threads=1", "train.epochs=1", "train.dtype=float64", "model.name=sehgnn",
                "task.targets=paper,author"]
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "train", str(store), "--run-dir", str(run_dir),
         "--json", *(part for text in settings for part in ("--set", text))],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    many = predict(run_dir, tmp_path / "a.npy", what="scores", chunk=13)
    once = predict(run_dir, tmp_path / "b.npy", what="scores")
    np.testing.assert_allclose(many, once, rtol=1e-9, atol=1e-12)
    assert many.shape == (60, 4)
    assert predict(run_dir, tmp_path / "c.npy", ntype="author").shape == (40,)
    with pytest.raises(InputError, match="model of layers"):
        predict(run_dir, tmp_path / "d.npy", what="embeddings")
