"""Training on a real GPU beside training on the CPU, in double precision: `scripts/gpu.sh`.

Each case is a run of its own, so that an error on the GPU is one case's. The cases are those of the
pretended device, whose runs show more of the order of streams; here are CUDA's own numbers, NCCL,
and memory that other kernels still use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dgl_heta.training.device import SHARED
from tests.support.pretended_worker import LOST, trained
from tests.training.test_pretended_gpu import BOTH, CACHED, LESS, ONE, TWO

pytestmark = pytest.mark.gpu

SAME_PATH = ("cache density", "cache hotness", "cache degree")  # as `cache miss_penalty`
AHEAD = {"train.batches": "pipeline"}
PLUGIN: dict[str, dict[str, Any]] = {
    **{f"merged, {model}": {"model.name": model, "train.kernel": "merged",
                            "plugins.merged": {"few": 0}} for model in ("rgcn", "rgat", "hgt")},
    **{f"fused, {model}": {"model.name": model, "train.kernel": "fused"}
       for model in ("rgcn", "rgat", "hgt")},
    "ahead": AHEAD,
    "ahead, cached": {**AHEAD, **CACHED, "cache.policy": "clock"},
}
"""Kernels and batches of plugins/hifuse."""
MANY = {**AHEAD, "cache.policy": "clock", "cache.gate": False, "cache.capacity_mb": 0.5,
        "model.hidden": 64, "train.batch_size": 256, "train.fanouts": [10, 10], "train.epochs": 3}
ALONE = {name: case for name, case in {**BOTH, **ONE, **PLUGIN}.items() if name not in SAME_PATH}
TOGETHER = {**BOTH, **TWO, "merged, rgat": PLUGIN["merged, rgat"],
            "ahead, cached": PLUGIN["ahead, cached"]}
NCCL = ("rgcn", "hgt", "links", "cache clock", "sent in bfloat16", "trainers", "nothing replicated",
        "delegated", "merged, rgat", "ahead, cached")


@pytest.mark.parametrize("name", ALONE)
def test_a_worker_computes_on_a_gpu_what_it_does_on_a_cpu(tmp_path: Path, name: str) -> None:
    """It trains, goes on from a checkpoint, proves, predicts."""
    check(tmp_path, 1, "cuda", name, ALONE[name])


@pytest.mark.parametrize("name", TOGETHER)
def test_workers_that_share_a_gpu_compute_what_they_do_on_cpus(tmp_path: Path, name: str) -> None:
    """With RAF, on one card; they exchange by gloo."""
    check(tmp_path, 2, SHARED, name, TOGETHER[name])


@pytest.mark.needs("gpus")
@pytest.mark.parametrize("name", NCCL)
def test_workers_with_a_gpu_each_compute_what_they_do_on_cpus(tmp_path: Path, name: str) -> None:
    """With RAF; they exchange by NCCL."""
    check(tmp_path, 2, "cuda", name, TOGETHER[name])


def test_copies_ahead_and_rows_that_a_cache_replaces_are_in_time(tmp_path: Path) -> None:
    """Over many steps of larger batches, where a kernel is slower than the host."""
    check(tmp_path, 1, "cuda", "many steps", MANY, papers=4000)


def check(out: Path, workers: int, device: str, name: str, case: dict[str, Any],
          papers: int = 60) -> None:
    """Compare all that a case computes on GPUs with the CPU's. Dropout is left out, as every device
    draws other numbers."""
    found = trained(out, {workers: {name: {**case, "model.dropout": 0.0}}}, guests=True,
                    devices=["cpu", device], visible=["0", "0"] if device == SHARED else (),
                    papers=papers, again=["rgcn", "links", "cache clock"])
    tolerance = 0.1 if name.startswith(LESS) else 1e-8
    for rank, (want, got) in enumerate(zip(found["cpu", workers], found[device, workers])):
        assert "error" not in want[name], want[name]["error"]
        assert "error" not in got[name], got[name]["error"]
        want, got = want[name], got[name]
        assert got["device"] == f"cuda:{rank}" if device == "cuda" else "cuda" in got["device"]
        assert len(got["losses"]) == len(want["losses"])
        if name != "random numbers":
            for key in ("losses", "predicted", "scores"):
                assert got[key] == pytest.approx(want[key], rel=tolerance, abs=tolerance)
        for key in ("proved", "told"):
            assert got[key] == want[key]
        if case.get("cache.policy", "none") != "none":
            assert got["hits"]


def test_a_run_that_goes_on_drops_out_what_one_run_does(tmp_path: Path) -> None:
    """The GPU's generator begins each epoch anew."""
    case = {"model.dropout": 0.5, "model.name": "hgt"}
    found = trained(tmp_path, {1: {"in two": case, "in one": {**case, "train.epochs": 2}}},
                    devices=["cuda"], again=["in two"])
    (worker,) = found["cuda", 1]
    assert worker["in two"]["losses"] == pytest.approx(worker["in one"]["losses"], rel=1e-8)


@pytest.mark.parametrize("device", [
    SHARED, pytest.param("cuda", marks=pytest.mark.needs("gpus"))])
def test_a_lost_worker_ends_the_others_with_an_error(tmp_path: Path, device: str) -> None:
    """And not PyTorch, which aborts the process."""
    (left,) = trained(tmp_path, {2: {LOST: {}}}, devices=[device])[device, 2]
    assert left[LOST]["status"] == 3
    assert "worker 1 lost another worker" in left[LOST]["error"]
