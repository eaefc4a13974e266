"""Guests of training: model averaging with unequal steps, merged kernels, batches ahead of time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.nn import FusedKernel, use_kernel
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import build_engine
from tests.support.graphs import academic
from tests.support.guests import GUESTS, check_averages
from tests.support.plugins import distribution, heta

BASE = ["--set", "model.hidden=8", "--set", "train.fanouts=3,3", "--set", "train.batch_size=8",
        "--set", "train.threads=1", "--set", "train.epochs=2", "--set", "train.device=cpu"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=120), path)
    return path


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "epoch"]


def train(store: Path, path: Path, name: str, *more: str) -> Path:
    """A run of two workers with the guests that are in `path`; returns its directory."""
    done = heta("train", store, "--run-dir", path / name, *BASE, *more, path=path,
                USED=str(path))
    assert done.returncode == 0, done.stderr
    return path / name


def test_models_are_averaged_over_workers_with_unequal_numbers_of_steps(
        store: Path, tmp_path: Path) -> None:
    distribution(tmp_path, "averaging", (GUESTS / "averaging.py").read_text())
    run = train(store, tmp_path, "run", "--set", "train.wrapper=averaging", "--set",
                "train.learnable=replica")
    did = check_averages(tmp_path, 2)
    mask = Store(store).array("paper", "train_mask")
    owned = [int(each["1/owned"]) for each in did]
    assert owned == [int(mask.sum()) // 8, int(mask.sum()) - int(mask.sum()) // 8]
    assert [int(each["steps"]) for each in did] == [2 * -(-n // 8) for n in owned]
    assert np.isfinite(losses(run)).tolist() == [True, True]


def test_workers_that_step_apart_must_not_need_each_other(
        store: Path, tmp_path: Path) -> None:
    distribution(tmp_path, "averaging", (GUESTS / "averaging.py").read_text())
    done = heta("train", store, "--run-dir", tmp_path / "run", *BASE, "--set",
                "train.wrapper=averaging", path=tmp_path, USED=str(tmp_path))
    assert done.returncode == 2
    assert ("all train the features of 'author' together; set train.learnable = replica"
            in done.stderr)


@pytest.mark.parametrize(("model", "operators"), [
    ("rgcn", {"reduce"}), ("rgat", {"edge_softmax", "u_mul_e_sum"}),
    ("hgt", {"u_dot_v", "u_mul_e_sum"})])
def test_one_call_of_a_guests_kernel_serves_all_relations_of_a_layer(
        store: Path, tmp_path: Path, install, monkeypatch, model: str, operators: set[str]) -> None:
    install("merged", (GUESTS / "merged.py").read_text())
    monkeypatch.setenv("USED", str(tmp_path))
    opened, results = Store(store), []
    for kernel in ("torch", "together"):
        settings = load_settings(None, [
            f"model.name={model}", f"train.kernel={kernel}", "model.hidden=8", "model.heads=2",
            "train.fanouts=3,3", "train.batch_size=16", "train.threads=1", "train.device=cpu",
            "train.dtype=float64"], {})
        try:
            engine = build_engine(opened, make_plan(opened.schema, ["paper"], 2, 1), settings,
                                  Plugins())
            engine.start_epoch(1)
            steps = engine.steps("train", 1)[:2]
            totals = list(engine.train(steps, 0))
        finally:
            use_kernel(FusedKernel())
        results.append([*totals, *engine.model.parameters(),
                        *(rows for _, rows in engine.learnable.shards().values())])
    assert torch.equal(results[1][0], results[0][0])  # later ones: gradients in another order
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    calls = [line.split() for line in (tmp_path / "0.txt").read_text().splitlines()]
    assert {name for name, _ in calls} == operators
    if model != "hgt":  # which takes the weighted sums of a node type at once
        relations = [len(block.edges) for block in engine.sample(steps[0], 0).blocks]
        assert relations[0] > relations[1] > 1
        # All that multiply by weights at the same place are in one call: before or after the sums.
        served = [int(n) for _, n in calls]
        assert sum(served) == len(steps) * sum(relations) * len(operators)
        assert len(served) <= 2 * len(steps) * len(relations) * len(operators)


@pytest.mark.parametrize(("replication", "shared"), [
    ("full", "delegate"), *(pytest.param(*case, marks=pytest.mark.thorough) for case in [
        ("full", "rows"), ("none", "rows")])])
def test_batches_sampled_ahead_of_time_on_threads_are_the_same(
        store: Path, tmp_path: Path, replication: str, shared: str) -> None:
    """Also where workers agree on what they sample, while they train."""
    distribution(tmp_path, "prefetching", (GUESTS / "prefetching.py").read_text())
    options = ["--set", f"partition.replication={replication}", "--set",
               f"partition.shared={shared}"]
    agree = replication == "none" or shared == "delegate"
    asked = train(store, tmp_path, "asked", *options)
    ahead = train(store, tmp_path, "ahead", *options, "--set", "train.batches=prefetching", "--set",
                  "plugins.prefetching.ahead=3")
    assert losses(ahead) == losses(asked)
    for rank in range(2):
        lines = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert len(lines) >= 4  # two epochs, each validated
        assert {line.split()[1:][0] for line in lines} == {str(agree)}
        assert {line.split()[2] for line in lines} == {"prefetching"}


def test_a_source_that_gives_too_few_batches_is_named(store: Path, tmp_path: Path, install) -> None:
    install("stingy", """
        from dgl_heta import hookimpl
        from dgl_heta.hooks.batch_protocol import BatchSource

        class Stingy(BatchSource):
            name = "stingy"

            def batches(self, steps, sample, in_order):
                yield sample(0)

        @hookimpl
        def dgl_heta_batch_sources():
            return [Stingy()]
    """)
    opened = Store(store)
    settings = load_settings(None, ["train.batches=stingy", "train.batch_size=8",
                                    "train.threads=1", "train.device=cpu"], {})
    engine = build_engine(opened, make_plan(opened.schema, ["paper"], 2, 1), settings, Plugins())
    with pytest.raises(Exception, match="batch source 'stingy' gave fewer batches"):
        list(engine.train(engine.steps("train", 1), 0))


@pytest.mark.parametrize("answer", ["nodes + 1000", "nodes[[0, 0]]", "nodes * 0.5"])
def test_a_wrapper_that_owns_what_is_not_there_is_named(store: Path, install, answer: str) -> None:
    install("greedy", f"""
        from dgl_heta import hookimpl
        from dgl_heta.hooks.protocols import ModuleWrapper, WrappedModule

        class Greedy(ModuleWrapper):
            name = "greedy"
            uneven_steps = True

            def wrap(self, module, context):
                return WrappedModule(module)

            def owned(self, nodes, worker, workers):
                return {answer}

        @hookimpl
        def dgl_heta_module_wrappers():
            return [Greedy()]
    """)
    opened = Store(store)
    settings = load_settings(None, ["train.wrapper=greedy", "train.threads=1",
                                    "train.device=cpu"], {})
    engine = build_engine(opened, make_plan(opened.schema, ["paper"], 2, 1), settings, Plugins())
    with pytest.raises(InputError, match="module wrapper 'greedy' says that worker 0 owns other"):
        engine.steps("train", 1)


def test_an_unknown_source_is_an_error(store: Path) -> None:
    opened = Store(store)
    settings = load_settings(None, ["train.batches=nope"], {})
    with pytest.raises(InputError, match="unknown batch source 'nope'; known are: auto, on-demand"):
        build_engine(opened, make_plan(opened.schema, ["paper"], 2, 1), settings, Plugins(False))
