"""The kernel `merged` and the pipeline on GPUs that are pretended."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dgl_heta.planning import gpu as planned
from tests.support.plugins import ROOT
from tests.support.pretended_worker import Results, asked, trained
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("pretended")

AHEAD = {"train.batches": "pipeline"}
CASES: dict[str, dict[str, Any]] = {
    **{f"merged, {model}": {"model.name": model, "train.kernel": "merged",
                            "plugins.merged": {"few": 0}} for model in ("rgcn", "rgat", "hgt")},
    "merged, relation by relation": {"model.name": "han", "train.kernel": "merged",
                                     "plugins.merged": {"few": 0}},
    "merged, maxima": {"model.aggregate": "max", "train.kernel": "merged",
                       "plugins.merged": {"few": 0}},
    "merged, type by type": {"train.kernel": "merged", "model.dropout": 0.5, "model.reduce": "mean",
                             "model.layer_norm": True},
    "merged, no seed": {"train.kernel": "merged", "train.global_batch_size": 35},  # of 36
    "ahead": AHEAD,
    "ahead, merged": {**AHEAD, "model.name": "rgat", "train.kernel": "merged"},
    "ahead, cached": {**AHEAD, "cache.policy": "clock", "cache.gate": False,
                      "cache.capacity_mb": 0.002, "cache.epochs": 1},
    "fused": {"train.kernel": "fused"},
    "sampled there": {"train.batches": "gpu", "model.name": "rgat",
                      "train.eval_fanouts": [-1, 2]},
}
TWO = ("fused", "merged, rgcn", "merged, rgat", "merged, hgt", "merged, type by type",
       "merged, no seed", "ahead, cached", "sampled there")
"""With two workers."""
COUNTED = {"merged, rgcn": (102, 1), "merged, rgat": (172, 1), "merged, hgt": (400, 1),
           "merged, type by type": (177, 1), "merged, maxima": (261, 1)}
"""Kernels and waits of the host in a step of one worker, as measured with torch 2.2."""


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return trained(tmp_path_factory.mktemp("pretended"), {
        1: asked(request, CASES, 1), 2: asked(request, {name: CASES[name] for name in TWO}, 2)},
        guests=True)


@pytest.mark.parametrize(("parts", "name"), [
    *((1, name) for name in CASES), *((2, name) for name in TWO)])
def test_it_trains_and_predicts_as_on_the_cpu(results: Results, parts: int, name: str) -> None:
    for want, got in zip(results["cpu", parts], results["cuda", parts]):
        assert got[name]["device"].startswith("cuda")
        assert not got[name]["problems"]
        for key in ("losses", "predicted"):
            assert got[name][key] == pytest.approx(want[name][key], rel=1e-9, abs=1e-9, nan_ok=True)
        assert got[name]["told"] == want[name]["told"]


def test_batches_are_made_ahead_on_a_gpu_unless_a_source_is_named(results: Results) -> None:
    for parts in (1, 2):
        assert {of["merged, rgat"]["source"] for of in results["cuda", parts]} == {"pipeline"}
        assert {of["merged, rgat"]["source"] for of in results["cpu", parts]} == {"auto"}


def test_on_a_gpu_relations_are_merged_unless_a_kernel_is_named(results: Results) -> None:
    for parts in (1, 2):
        for device, name, kernel in (("cuda", "ahead, cached", "merged"),
                                     ("cuda", "fused", "fused"), ("cpu", "ahead, cached", "fused")):
            assert {of[name]["kernel"] for of in results[device, parts]} == {kernel}


@pytest.mark.parametrize("name", COUNTED)
def test_a_step_launches_and_waits_no_more_than_this(results: Results, name: str) -> None:
    found = results["cuda", 1][0][name]["counts"]
    kernels, syncs = COUNTED[name]
    assert found["kernels"] <= 1.05 * kernels, found["of kernels"]
    assert found["syncs"] <= syncs, found["of syncs"]


@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None,
                    reason="PyTorch Geometric, whose layers are counted, is not installed")
def test_of_64_relations_no_more_kernels_than_a_fifth_above_pygs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tests.support.pretended.layer_counts", "--graphs",
                    "synthetic-freebase:scale=0.01", "--models", "rgcn", "rgat", "--kernels",
                    "merged", "--json", str(tmp_path / "counts")],
                   cwd=ROOT, check=True, timeout=PATIENCE)
    for found in json.loads((tmp_path / "counts").read_text()):
        kernels, waits = found["merged"]["inner"]
        assert not found["merged"]["problems"]
        assert kernels <= 1.2 * found["pyg"][0], found
        assert waits <= 3


@pytest.mark.parametrize("model", planned.COUNTED["merged"])
def test_plans_forecast_these_kernels(model: str) -> None:
    """`dgl-heta plan --cluster` counts with lines through several graphs."""
    assert planned.COUNTED["merged"][model][0] == pytest.approx(
        COUNTED[f"merged, {model}"][0], rel=0.1)
