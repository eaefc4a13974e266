"""Runs on a graph with times: nothing later than a seed reaches it, and what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from dgl_heta.training.trained_model import load_model
from tests.support.graphs import academic, later_changed, seed_rows, with_times
from tests.support.own_loops import scores
from tests.support.runs import assert_same_training
from tests.training.test_own_loop import LOOP

pytestmark = pytest.mark.usefixtures("warm_workers")

SETTINGS = ["model.hidden=8", "train.fanouts=3,3", "train.batch_size=12", "train.threads=1",
            "train.epochs=2", "train.dtype=float64", "model.dropout=0",
            "task.val_time=1970-01-01T00:01:05"]
VAL, LAST = 65, 80
"""Seconds from which on seeds are for validation, and the two graphs differ; all are before."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores that are alike up to the last seed, partitions, and a table of seeds."""
    path = tmp_path_factory.mktemp("timed")
    source = with_times(academic())
    write_store(source, path / "store")
    write_store(later_changed(source, LAST), path / "other")
    for name in ("store", "other"):
        store = Store(path / name)
        write_partition(store, make_plan(store.schema, ["paper"], 2, 2), path / f"{name}-2")
    rows = seed_rows(source)
    train = [row for row in rows if row[1] < VAL][:48]  # steps of one size
    assert len(train) == 48
    lines = [f"{node},{time},{label}" for node, time, label in (
        *train, *(row for row in rows if VAL <= row[1] < LAST))]
    (path / "seeds.csv").write_text("\n".join(["id,time,label", *lines]))
    return path


def told(place: Path, *more: str) -> list[str]:
    return [*SETTINGS, f"task.table={place / 'seeds.csv'}", *more]


def predicted(run_dir: Path, out: Path, time: str | None, **wishes: Any) -> np.ndarray:
    PredictionJob(run_dir, out, time=time, **wishes).run(Plugins())
    return np.load(out)


def test_a_run_and_its_predictions_are_the_same_whatever_comes_later(
        place: Path, tmp_path: Path) -> None:
    """With caches of rows and tables on disk; predictions are those of the model, all neighbours
    that are there taken in one batch."""
    found = []
    for name in ("store", "other"):
        dgl_heta.train(place / f"{name}-2", tmp_path / name, settings=told(
            place, "cache.policy=hotness", "cache.tables=disk", "cache.gate=false"))
        found.append(predicted(tmp_path / name, tmp_path / f"{name}.npy", "1970-01-01T00:01:19Z",
                               what="scores", chunk=17))
    assert_same_training(tmp_path / "store", tmp_path / "other")
    np.testing.assert_array_equal(*found)
    store, plain = Store(place / "store"), load_model(tmp_path / "store")
    there = np.flatnonzero(store.row_times("paper") <= LAST - 1)
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0), [-1, -1])
    batch = sampler.sample({"paper": np.stack([there, np.full(len(there), LAST - 1)], 1)})
    states = {}
    for ntype, ids in batch.input_nodes.items():
        rows = (torch.from_numpy(np.asarray(store.array(ntype, "feat")[ids], np.float64))
                if store.has_array(ntype, "feat") else
                plain.features[f"of {ntype}"].weight.detach()[torch.from_numpy(ids)])
        states[ntype] = plain.model.inputs(ntype, rows)  # of one time, so a row is of a node
    plain.model.eval()
    with torch.no_grad():
        for layer, block in zip(plain.model.layers, batch.blocks):
            states = layer(block, states)
        want = plain.model.heads["of paper"](states["paper"]).numpy()
    np.testing.assert_allclose(found[0][there], want, rtol=1e-9, atol=1e-12)
    later = np.setdiff1d(np.arange(60), there)
    assert len(later)
    assert np.isnan(found[0][later]).all()
    classes = predicted(tmp_path / "store", tmp_path / "classes.npy", "1970-01-01T00:01:19")
    np.testing.assert_array_equal(classes[there], want.argmax(1))
    assert (classes[later] == -1).all()


def test_predictions_batch_by_batch_are_of_a_time_too(place: Path, tmp_path: Path) -> None:
    """Models along metapaths; whatever comes later changes no bit of them."""
    paths = [["rev-writes", "writes"], ["cites"], ["topic", "rev-topic"]]
    (tmp_path / "paths.json").write_text(json.dumps(paths))
    found = []
    for name in ("store", "other"):
        dgl_heta.train(place / name, tmp_path / name, parts=1, model="han", settings=told(
            place, "train.epochs=1", f"partition.metapaths={tmp_path / 'paths.json'}"))
        found.append(predicted(tmp_path / name, tmp_path / f"{name}.npy", "1970-01-01T00:01:19",
                               what="scores"))
    np.testing.assert_array_equal(*found)
    with pytest.raises(InputError, match="has times; say at which to predict, such as --time"):
        predicted(tmp_path / "store", tmp_path / "none.npy", None)
    with pytest.raises(InputError, match="1969-12-31T00:00:00Z, is before all data, which beg"):
        predicted(tmp_path / "store", tmp_path / "none.npy", "1969-12-31")
    assert not (tmp_path / "none.npy").exists()


MOMENTS = """
import json, os, sys
import numpy as np
import dgl_heta
from dgl_heta.models import HGNN, RGCNLayer

given = json.loads(sys.argv[1])
part = dgl_heta.open_partition(given["part"], given["settings"])
model = dgl_heta.distribute(HGNN(part.spec(), RGCNLayer).double(), part)
one, two = (dgl_heta.predict_all(model, f"{given['save']}-{i}.npy", time=time)
            for i, time in enumerate((75, "1970-01-01T00:01:15")))
assert np.array_equal(one, two)
for wrong in (lambda: dgl_heta.predict_all(model, given["save"], time="soon"),
              lambda: dgl_heta.predict_all(model, given["save"], time=7.5),
              lambda: dgl_heta.predict_all(model, given["save"], time=1735689600000),
              lambda: part.loader(np.array([[3, 75], [4, 1735689600000]]), [3, 3])):
    try:
        wrong()
    except dgl_heta.InputError as error:
        print(json.dumps(str(error)))
"""


def test_moments_of_a_loop_are_texts_or_seconds(place: Path, tmp_path: Path) -> None:
    write_partition(Store(place / "store"),
                    make_plan(Store(place / "store").schema, ["paper"], 2, 1), tmp_path / "part")
    settings = [text for text in told(place) if text.startswith("task.")]
    soon, part, late, seed = scores(MOMENTS, tmp_path / "part", 1, *settings,
                                    save=str(tmp_path / "rows"))
    assert soon.startswith("time is 'soon'; a time is written 2026-11-23 or")
    assert part.startswith("time is '7.5'; a time is written")
    assert late.startswith("time is at 1735689600000, which is after the year 9999; times are")
    assert seed.startswith("seed 4 of 'paper': the seed is at 1735689600000, which is after")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_loop_of_ones_own_computes_what_the_command_does(
        place: Path, tmp_path: Path, workers: int) -> None:
    part = place / "store-2"
    if workers == 1:
        store = Store(place / "store")
        part = tmp_path / "part"
        write_partition(store, make_plan(store.schema, ["paper"], 2, 1), part)
    dgl_heta.train(part, tmp_path / "run", model="rgat", settings=told(
        place, f"train.batch_size={12 // workers}", "train.lr=0.01", "train.sparse_lr=0.01"))
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    want = [pytest.approx([line["loss"], line["val_acc"]], abs=1e-10) for line in lines
            if line["event"] == "epoch"]
    settings = [text for text in told(place) if text.startswith("task.")]
    assert scores(LOOP, part, workers, "model.dropout=0", *settings, epochs=2) == want


def planted(timed: bool) -> GraphSource:
    """Users whose label a note of the day after gives away; a note of the day before tells nothing.

    Without times the notes are simply theirs.
    """
    rng = np.random.default_rng(7)
    users, day = 400, 86400
    label = rng.integers(0, 2, users)
    of = np.repeat(np.arange(users), 2)
    when = np.tile([9 * day, 11 * day], users)
    feat = rng.standard_normal((2 * users, 4)).astype(np.float32)
    feat[1::2, 0] = 4 * label - 2
    wrote, by = Relation("note", "by", "user"), Relation("user", "wrote", "note")
    part = rng.permutation(users)
    masks = {name: (part >= low) & (part < high) for name, low, high in (
        ("train_mask", 0, 200), ("val_mask", 200, 300), ("test_mask", 300, users))}
    return GraphSource(
        "planted", {"user": users, "note": 2 * users},
        {wrote: EdgeArrays(np.arange(2 * users), of), by: EdgeArrays(of, np.arange(2 * users))},
        {"user": {"label": label, "feat": np.ones((users, 1), np.float32), **masks},
         "note": {"feat": feat}}, Task("user", 2),
        times={"note": when, "user": np.full(users, 10 * day)} if timed else {})


@pytest.mark.parametrize("model", ["rgcn", pytest.param("hgt", marks=pytest.mark.thorough)])
def test_no_model_learns_what_only_the_future_shows(tmp_path: Path, model: str) -> None:
    """Without times it does, by heart."""
    found = {}
    for timed in (True, False):
        write_store(planted(timed), tmp_path / f"store-{timed}")
        result = dgl_heta.train(tmp_path / f"store-{timed}", tmp_path / f"run-{timed}", parts=1,
                                model=model, settings=[
            "model.hidden=16", "train.fanouts=-1,-1", "train.batch_size=100", "train.epochs=15",
            "train.threads=1", "train.metrics=auroc"])
        found[timed] = result.summary["metrics"]["test"]["auroc"]
    assert found[False] > 0.9
    assert abs(found[True] - 0.5) < 0.15  # 100 users: a standard deviation of 0.06
