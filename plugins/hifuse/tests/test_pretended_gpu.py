"""The kernel `merged` and the pipeline on GPUs that are pretended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pretended_worker import Results, trained

pytestmark = pytest.mark.needs("pretended")

AHEAD = {"train.batches": "pipeline"}
CASES: dict[str, dict[str, Any]] = {
    **{f"merged, {model}": {"model.name": model, "train.kernel": "merged",
                            "plugins.merged": {"few": 0}} for model in ("rgcn", "rgat", "hgt")},
    "ahead": AHEAD,
    "ahead, cached": {**AHEAD, "cache.policy": "clock", "cache.gate": False,
                      "cache.capacity_mb": 0.002, "cache.epochs": 1},
}
TWO = ("merged, rgat", "ahead, cached")  # with two workers
COUNTED = {"merged, rgcn": (210, 1), "merged, rgat": (466, 1), "merged, hgt": (917, 1)}
"""Kernels and waits of the host in a step of one worker, as measured with torch 2.2."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return trained(tmp_path_factory.mktemp("pretended"),
                   {1: CASES, 2: {name: CASES[name] for name in TWO}}, guests=True)


@pytest.mark.parametrize(("parts", "name"), [
    *((1, name) for name in CASES), *((2, name) for name in TWO)])
def test_it_trains_and_predicts_as_on_the_cpu(results: Results, parts: int, name: str) -> None:
    for want, got in zip(results["cpu", parts], results["cuda", parts]):
        assert got[name]["device"].startswith("cuda")
        assert not got[name]["problems"]
        for key in ("losses", "predicted"):
            assert got[name][key] == pytest.approx(want[name][key], rel=1e-9, abs=1e-9)
        assert got[name]["told"] == want[name]["told"]


@pytest.mark.parametrize("name", COUNTED)
def test_a_step_launches_and_waits_no_more_than_this(results: Results, name: str) -> None:
    found = results["cuda", 1][0][name]["counts"]
    kernels, syncs = COUNTED[name]
    assert found["kernels"] <= 1.05 * kernels, found["of kernels"]
    assert found["syncs"] <= syncs, found["of syncs"]
