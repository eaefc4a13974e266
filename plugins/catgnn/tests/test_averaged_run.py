"""`train.wrapper = "model_average"` in `dgl-heta train`: the saved model is an average."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dgl_heta_catgnn import Communities
from safetensors.torch import load_file


def test_a_run_stops_early_where_models_are_averaged_alone(heta_here, tmp_path):
    """Not before a second average could be the best one; nor where it goes on."""
    for epochs, more in ((4, ()), (6, ("--resume",))):
        done = heta_here("train", "communities:nodes=600", "--parts", 2, "--run-dir", "run", *more,
                         *(word for setting in (
                             f"train.epochs={epochs}", "train.early_stopping=1", "train.lr=0.003",
                             "train.wrapper=model_average", "plugins.model_average.sync_every=3")
                           for word in ("--set", setting)))
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / "run/summary.json").read_text("utf-8"))
        assert (summary["epochs"], summary["stopped_early"]) == (epochs, False)


def test_the_model_is_an_average_and_resumed_runs_end_alike(heta_here, tmp_path):
    """The first epochs validate best, but lie between averages; of two epochs none has one."""
    def run(*words):
        done = heta_here(*words)
        assert done.returncode == 0, done.stderr

    def words(name, epochs, *more, parts=2):
        return ("train", "communities:nodes=600", "--parts", parts, "--set",
                f"train.epochs={epochs}", "--set", "train.wrapper=model_average", "--set",
                "plugins.model_average.sync_every=3", "--set", "train.lr=0.2", "--set",
                "train.eval_fanouts=[-1,-1]", "--run-dir", name, "--json", *more)

    def train(name, epochs, *more):
        run(*words(name, epochs, *more))
        return json.loads((tmp_path / name / "summary.json").read_text("utf-8"))

    arrays = Communities().load(nodes=600).node_arrays["node"]

    def check(name, summary):
        run("predict", name, "--out", f"{name}-{summary['epochs']}.npy")
        classes = np.load(tmp_path / f"{name}-{summary['epochs']}.npy").reshape(-1)
        for split in ("val", "test"):
            mask = np.asarray(arrays[f"{split}_mask"], bool)
            mean = (classes == arrays["label"])[mask].mean()
            assert summary[f"{split}_acc"] == pytest.approx(mean, abs=1e-6)

    whole, part = train("whole", 5), train("resumed", 2)
    assert whole["best_epoch"] in (3, 5)
    assert part["best_epoch"] == 2
    check("whole", whole)
    check("resumed", part)
    others = heta_here(*words("resumed", 5, "--resume", parts=3))
    assert others.returncode == 2
    assert "train.wrapper = model_average, whose workers differ" in others.stderr
    again = train("resumed", 5, "--resume")
    assert [again[key] for key in ("best_epoch", "test_acc")] == [
        whole[key] for key in ("best_epoch", "test_acc")]
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")]
    for name, value in models[0].items():
        np.testing.assert_array_equal(models[1][name], value)
