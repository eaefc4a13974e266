"""`train.batches = pipeline` in `dgl-heta train`: the same numbers, bit for bit, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl_heta_hifuse
import pytest
import torch
from safetensors.torch import load_file

from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training import caches as caching
from dgl_heta.training.engine import Engine
from dgl_heta.training.fetching import Fetching
from dgl_heta.training.setup import build_engine
from tests.support.graphs import academic
from tests.support.plugins import distribution, heta
from tests.support.waiting import PROMPT

SOURCES = ("on-demand", "pipeline")
BASE = ["model.hidden=8", "train.fanouts=3,3", "train.batch_size=8", "train.threads=1",
        "train.epochs=2", "train.device=cpu", "train.dtype=float64"]
Computed = list[Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Papers and fields with static features, authors and institutions without."""
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=160), path)
    return path


@pytest.fixture
def plugins() -> Plugins:
    """The plugins of this process, the one of the tree among them."""
    registry = Plugins()
    if not registry.manager.is_registered(dgl_heta_hifuse):
        registry._register(dgl_heta_hifuse, "dgl-heta-hifuse:tree", "dgl-heta-hifuse", "0.1.0")
    return registry


@pytest.fixture
def heta_here(tmp_path: Path, hifuse_path: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of dgl-heta in `tmp_path`, whose modules it finds."""
    return lambda *words: heta(*words, path=tmp_path,
                               PYTHONPATH=os.pathsep.join([str(tmp_path), hifuse_path]))


def engine_of(store: Path, plugins: Plugins, scratch: Path, source: str, *more: str) -> Engine:
    opened = Store(store)
    settings = load_settings(None, [*BASE, f"train.batches={source}", *more], {})
    chosen = plugins.configured(settings)
    targets = ["author", "paper"] if settings.task.kind == "link" else ["paper"]
    engine = build_engine(opened, make_plan(opened.schema, targets, 2, 1), settings, chosen,
                          scratch)
    caching.attach(engine, scratch / "profiles")
    return engine


def computed(engine: Engine) -> Computed:
    """Two epochs, each evaluated: scores, what caches counted, and all that training changes."""
    values: Computed = []
    for epoch in range(2):
        engine.start_epoch(epoch)
        values += [step.tolist()
                   for step in engine.train(engine.steps("train", epoch), epoch << 20)]
        values += [engine.evaluate("val"), engine.evaluate("test")]
        values.append(engine.part.caches.counted() if engine.part.caches else None)
    return [*values, *(p.tolist() for p in engine.model.parameters()),
            *(rows.tolist() for _, rows in engine.learnable.shards().values())]


def both(store: Path, plugins: Plugins, tmp_path: Path, *more: str) -> list[Computed]:
    return [computed(engine_of(store, plugins, tmp_path, source, *more)) for source in SOURCES]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four, of which training uses one: three batches are sampled side by side."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("options", [
    ("train.sampling_threads=3",), ("plugins.pipeline.depth=7",), ("train.eval_fanouts=-1,-1",),
    ("model.name=sehgnn",), ("task.kind=link", "task.relation=author writes paper",
     "task.reverse=paper rev-writes author", "task.eval_negatives=5", "train.batch_size=64")],
    ids=["depth 2, on threads", "depth 7", "evaluation of its own", "averages", "links"])
def test_one_worker_computes_the_same(store: Path, plugins: Plugins, tmp_path: Path,
                                      options: tuple[str, ...]) -> None:
    asked, ahead = both(store, plugins, tmp_path, *options)
    assert ahead == asked
    assert not {t.name for t in threading.enumerate()} & {"dgl-heta sample", "dgl-heta fetch"}


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(("policy", "tables"), [
    ("hotness", "disk"), ("fifo", "memory"), ("clock", "memory")])
def test_caches_count_and_replace_the_same(store: Path, plugins: Plugins, tmp_path: Path,
                                           policy: str, tables: str) -> None:
    asked, ahead = both(store, plugins, tmp_path, f"cache.policy={policy}",
                        f"cache.tables={tables}", "cache.capacity_mb=0.003", "cache.gate=false")
    counted = next(part for part in asked if isinstance(part, dict))
    for ntype in ("paper", "author"):  # a static type, a learnable one
        assert 0 < counted[ntype]["hits"] < counted[ntype]["reads"]
    assert ahead == asked


def test_rows_that_a_step_changes_are_read_after_it(store: Path, plugins: Plugins, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """On this graph rows that were read ahead would be stale, and would show."""
    asked, ahead = both(store, plugins, tmp_path)
    assert ahead == asked
    engine, fetch = engine_of(store, plugins, tmp_path, "pipeline"), Fetching.fetch

    def too_early(self: Fetching, batch: MiniBatch) -> MiniBatch:
        batch = fetch(self, batch)
        assert batch.rows is not None
        for ntype, table in engine.learnable.local.items():
            batch.rows[ntype] = table.read(batch.input_nodes[ntype], engine.device).clone()
        return batch

    read = engine.learnable.read
    late: dict[str, Any] = {}

    def stale(nodes: Any, device: Any, train: bool = True) -> dict[str, torch.Tensor]:
        leaves = read(nodes, device, train)
        with torch.no_grad():
            for ntype, leaf in leaves.items():
                leaf.copy_(late[ntype])
        return leaves

    def rows(self: Fetching, batch: MiniBatch) -> dict[str, torch.Tensor]:
        late.update(batch.rows or {})
        return batch.rows or {}

    monkeypatch.setattr(Fetching, "fetch", too_early)
    monkeypatch.setattr(Fetching, "rows", rows)
    monkeypatch.setattr(engine.learnable, "read", stale)
    assert computed(engine) != asked


def test_an_error_while_sampling_ends_training_with_its_message(
        store: Path, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(store, plugins, tmp_path, "pipeline")
    sample, steps = engine.loading.sampled, engine.steps("train")

    def fails(sampler: Any, step: Any, number: int) -> MiniBatch:
        if number == 4:
            raise OSError("the disk is gone")
        return sample(sampler, step, number)

    monkeypatch.setattr(engine.loading, "sampled", fails)
    training = engine.train(steps, 0)
    assert len([next(training) for _ in range(4)]) == 4
    with pytest.raises(OSError, match="the disk is gone"):
        next(training)
    assert not {t.name for t in threading.enumerate()} & {"dgl-heta sample", "dgl-heta fetch"}


def words(*settings: str) -> list[str]:
    return [word for setting in (*BASE, *settings) for word in ("--set", setting)]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "epoch"]


@pytest.mark.parametrize("options", [
    pytest.param(options, id=name, marks=[] if name == "exact" else pytest.mark.thorough)
    for name, options in {
        "exact": ("train.learnable=exact",), "replica": ("train.learnable=replica",),
        "replication none": ("partition.replication=none", "plugins.pipeline.depth=4"),
        "fifo": ("cache.policy=fifo", "cache.capacity_mb=0.003", "cache.gate=false")}.items()])
def test_two_workers_compute_the_same(store: Path, heta_here, tmp_path: Path,
                                      options: tuple[str, ...]) -> None:
    """Also where workers agree on what they sample while they train, and evaluate between."""
    runs = []
    for source in SOURCES:
        used = [o for o in options if source == "pipeline" or not o.startswith("plugins")]
        done = heta_here("train", store, "--run-dir", tmp_path / source, "--parts", 2,
                         *words(f"train.batches={source}", *used))
        assert done.returncode == 0, done.stderr
        runs.append((metrics(tmp_path / source),
                     load_file(tmp_path / source / "model.safetensors")))
    (asked, kept), (ahead, weights) = runs
    same = ("loss", "train_acc", "val_acc", "bytes_sent", "cache")
    assert [[e.get(key) for key in same] for e in ahead] == [
        [e.get(key) for key in same] for e in asked]
    assert {name: rows.tolist() for name, rows in weights.items()} == {
        name: rows.tolist() for name, rows in kept.items()}


def test_a_run_says_what_of_its_batches_was_hidden(store: Path, heta_here, tmp_path: Path) -> None:
    done = heta_here("train", store, "--run-dir", tmp_path / "run",
                     *words("train.batches=pipeline"))
    assert done.returncode == 0, done.stderr
    for epoch in metrics(tmp_path / "run"):
        assert {*epoch["ahead"]} == {"sample", "fetch"}
        for stage, seconds in epoch["ahead"].items():
            assert seconds["worked"] > 0
            assert 0 <= seconds["waited"] <= epoch["seconds"]["total"]
            assert epoch["seconds"][stage] >= seconds["waited"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["ahead"]["sample"] == metrics(tmp_path / "run")[1]["ahead"]["sample"]
    assert "made ahead of time" in done.stdout
    assert "hidden" in done.stdout
    assert "training waited" in (tmp_path / "run/report.html").read_text()


def test_an_error_while_sampling_on_one_worker_ends_all_at_once(
        store: Path, heta_here, tmp_path: Path) -> None:
    """With messages of sampling under way, which the others wait for on their threads."""
    distribution(tmp_path, "failing", """
        from dgl_heta import hookimpl

        @hookimpl
        def dgl_heta_run_started(rank):
            from dgl_heta.sampling.sampler import NeighborSampler

            sample = NeighborSampler.sample

            def fails(self, seeds, shares=None, step=0, without=None):
                if rank == 1 and step == (1 << 20) + 3:
                    raise OSError("the disk of worker 1 is gone")
                return sample(self, seeds, shares, step, without)

            NeighborSampler.sample = fails
    """)
    begin = time.monotonic()
    done = heta_here("train", store, "--run-dir", tmp_path / "run", "--parts", 2,
                     *words("train.batches=pipeline", "partition.replication=none"))
    assert done.returncode != 0
    assert "the disk of worker 1 is gone" in done.stderr
    assert time.monotonic() - begin < PROMPT
