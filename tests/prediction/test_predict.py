"""`dgl-heta predict`: what it writes is what the trained model computes with all neighbours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.cli import main
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.models.link_model import without_decoder
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from dgl_heta.training.trained_model import load_model
from tests.support import warm
from tests.support.graphs import academic, with_tasks
from tests.support.signing import edit_text
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("warm_workers")

SETTINGS = ["model.hidden=8", "model.heads=2", "train.fanouts=3,3", "train.batch_size=32",
            "train.threads=1", "train.epochs=1", "train.dtype=float64"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(with_tasks(academic()), path)
    return path


def trained(store: Path, run_dir: Path, *more: str) -> Path:
    """A copy of a run with such settings."""
    return shutil.copytree(_trained(store, more), run_dir)


def test_a_run_that_did_not_end_is_not_predicted_with(store: Path, tmp_path: Path) -> None:
    """Going on with a run removes its summary at once, and model.json only at its end."""
    run = trained(store, tmp_path / "run")
    (run / "summary.json").unlink()
    with pytest.raises(InputError, match=f"{run} did not end; .*--resume --run-dir {run}"):
        PredictionJob(run, tmp_path / "p.npy").run(Plugins(guests=False))


@cache
def _trained(store: Path, more: tuple[str, ...]) -> Path:
    run_dir = store.with_name("-".join(["run", *more]))
    sets = [part for text in (*SETTINGS, *more) for part in ("--set", text)]
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "train", str(store), "--run-dir",
                           str(run_dir), "--json", *sets], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return run_dir


def predict(run_dir: Path, out: Path, report: Callable[[dict[str, Any]], None] = lambda event: None,
            **wishes: object) -> np.ndarray:
    PredictionJob(run_dir, out, **wishes).run(Plugins(), report)  # type: ignore[arg-type]
    return np.load(out)


def directly(store: Path, run_dir: Path, ntype: str) -> tuple[np.ndarray, np.ndarray]:
    """`(last hidden states, outputs)` by the model in this process, all neighbours in one batch."""
    graph, plain = Store(store), load_model(run_dir)
    model = without_decoder(plain.model)
    plan = make_plan(graph.schema, ntype, 2, 1)
    seeds = np.arange(graph.schema.node_counts[ntype])
    batch = NeighborSampler(graph, SamplingScope.of(plan, 0), [-1, -1]).sample({ntype: seeds})
    states = {}
    for t, ids in batch.input_nodes.items():
        if graph.has_array(t, "feat"):
            rows = torch.from_numpy(np.asarray(graph.array(t, "feat")[ids], np.float64))
        else:
            rows = plain.features[f"of {t}"].weight.detach()[torch.from_numpy(ids)]
        states[t] = model.inputs(t, rows)
    model.eval()
    with torch.no_grad():
        for layer, block in zip(model.layers, batch.blocks):
            states = layer(block, states)
        hidden = states[ntype]
        name = f"of {ntype}"
        outputs = model.heads[name](hidden) if name in model.heads else hidden
    return hidden.numpy(), outputs.numpy()


@pytest.mark.parametrize("model", [
    "rgcn", pytest.param("hgt", marks=pytest.mark.releases),
    pytest.param("han", marks=pytest.mark.thorough)])
def test_all_workers_together_compute_what_the_model_does(
        store: Path, tmp_path: Path, model: str) -> None:
    run_dir = trained(store, tmp_path / "run", f"model.name={model}", "model.reduce=mean")
    hidden, outputs = directly(store, run_dir, "paper")
    got = predict(run_dir, tmp_path / "scores.npy", what="scores", parts=3, chunk=17)
    np.testing.assert_allclose(got, outputs, rtol=1e-9, atol=1e-12)
    if model == "rgcn":
        classes = predict(run_dir, tmp_path / "classes.npy", parts=1)
        np.testing.assert_array_equal(classes, outputs.argmax(1))
        assert classes.dtype == np.int64
        got = predict(run_dir, tmp_path / "embeddings.npy", what="embeddings", parts=2, chunk=9)
        np.testing.assert_allclose(got, hidden, rtol=1e-9, atol=1e-12)
    hidden, _ = directly(store, run_dir, "author")
    said: list[dict[str, Any]] = []
    got = predict(run_dir, tmp_path / "authors.npy", said.append, ntype="author",
                  what="embeddings", parts=2)
    assert [event["text"] for event in said if event["event"] == "note"] == [
        "the model was trained for paper: what its last layer has for 'author' alone is as it was "
        "drawn at the start"]
    np.testing.assert_allclose(got, hidden, rtol=1e-9, atol=1e-12)
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


def test_no_file_of_a_run_says_which_code_to_import(
        store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = trained(store, tmp_path / "run", "model.name=hgt")
    (tmp_path / "canary.py").write_text("open('sang', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    for name in ("job.json", "model.json"):
        text = (run_dir / name).read_text()
        edit_text(run_dir / name, '"hgt"', '"canary:x"')
        with pytest.raises(InputError, match="--model"):
            predict(run_dir, tmp_path / "a.npy")
        (run_dir / name).write_text(text)
    assert not (tmp_path / "sang").exists()
    assert len(predict(run_dir, tmp_path / "a.npy")) == 60


@pytest.mark.parametrize(("relation", "decoder"), [
    ("writes", "dot"), ("writes,topic", "distmult"),
    pytest.param("writes", "distmult", marks=pytest.mark.thorough)])
def test_link_predictors_give_embeddings_only(
        store: Path, tmp_path: Path, relation: str, decoder: str) -> None:
    """Those of the ends of links are what the score multiplies."""
    run_dir = trained(store, tmp_path / "run", f"task.relation={relation}",
                      "task.reverse=rev-writes", f"task.decoder={decoder}")
    for ntype in ("paper", "author", "field"):
        _, outputs = directly(store, run_dir, ntype)
        got = predict(run_dir, tmp_path / f"{ntype}.npy", ntype=ntype, what="embeddings")
        np.testing.assert_allclose(got, outputs, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="ask for --what embeddings"):
        predict(run_dir, tmp_path / "x.npy")


def test_parquet_has_a_row_per_node(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    run_dir = trained(store, tmp_path / "run")
    scores = predict(run_dir, tmp_path / "scores.npy", what="scores")
    PredictionJob(run_dir, tmp_path / "scores.parquet", what="scores").run(Plugins())
    table = parquet.read_table(tmp_path / "scores.parquet")
    assert table.column("node").to_pylist() == list(range(60))
    np.testing.assert_array_equal(np.asarray(table.column("scores").to_pylist()), scores)


def test_what_cannot_be_predicted_is_said(
        store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = trained(store, tmp_path / "run")
    (tmp_path / "there.npy").touch()
    for wishes, message in (
        ([str(tmp_path), "--out", "a.npy"], "is not the directory of a run"),
        ([str(run_dir), "--out", "a.txt"], "must end in .npy, .csv or .parquet"),
        ([str(run_dir), "--out", str(tmp_path / "there.npy")], "exists; choose another file"),
        ([str(run_dir), "--out", "a.npy", "--type", "papr"], "did you mean 'paper'"),
        ([str(run_dir), "--out", "a.npy", "--type", "author"], "predicts nothing of 'author'"),
        ([str(run_dir), "--out", "a.npy", "--what", "colours"], "must be one of"),
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dgl-heta", "predict", *wishes])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert message in " ".join(capfd.readouterr().err.split())
    other = with_tasks(academic())
    other.node_arrays["paper"]["feat"] = other.node_arrays["paper"]["feat"] + 1  # as many, others
    write_store(other, tmp_path.parent / "other")
    with pytest.raises(InputError, match="was trained on another graph than the one in"):
        predict(run_dir, tmp_path / "a.npy", store=str(tmp_path.parent / "other"))
    assert json.loads((run_dir / "summary.json").read_text())["metric"] == "accuracy"
    assert sorted(os.listdir(tmp_path)) == ["run", "there.npy"]
