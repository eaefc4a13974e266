"""`train.exchange_dtype = "bfloat16"`: half the bytes, nearly the same numbers, equal workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.settings import load_settings
from dgl_heta.store import write_store
from tests.support.exactness import run
from tests.support.graphs import academic, with_tasks
from tests.support.waiting import PATIENCE

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "rows": {"model": {"name": "rgcn"}},
    "replica": {"model": {"name": "rgcn"}, "train": {"learnable": "replica"}},
    "max": {"model": {"name": "rgcn", "reduce": "max"}},
    "delegate": {"model": {"name": "rgcn", "reduce": "mean"}, "partition": {"shared": "delegate"}},
    "delegated attention": {"model": {"name": "hgt", "heads": 2},
                            "partition": {"shared": "delegate"}},
}
Results = dict[str, list[dict[str, np.ndarray]]]


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.thorough), 3])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the workers computed in each case, with both types of numbers sent."""
    out = tmp_path_factory.mktemp("bfloat16")
    write_store(with_tasks(academic(papers=150)), out / "store")
    cases = {}
    for name, case in CASES.items():
        for sent in ("same", "bfloat16"):
            cases[f"{name} {sent}"] = {
                **case, "model": {"hidden": 16, **case["model"]},
                "train": {"batch_size": 24, "fanouts": [3, 3], "threads": 1,
                          "exchange_dtype": sent, **case.get("train", {})},
                "run": {"timeout_s": PATIENCE, "prove": "1"}}
    return run({"store": str(out / "store"), "out": str(out), "parts": request.param,
                "cases": cases}, out, "proving_worker")


def sent(workers: list[dict[str, np.ndarray]], cause: str) -> int:
    return sum(int(worker.get(f"1/sent/{cause}", 0)) for worker in workers)


@pytest.mark.parametrize("name", CASES)
def test_half_the_bytes_give_nearly_the_same_training(results: Results, name: str) -> None:
    whole, rounded = results[f"{name} same"], results[f"{name} bfloat16"]
    for worker in rounded:
        assert "error" not in worker
        assert worker["steps"] == 1, "the first step is proved, on copies that are not rounded"
    # Ids, counts of rows and places of maxima (int32, one for each number) are sent as they are.
    most = 0.7 if name == "max" else 0.6
    assert 0.45 < sent(rounded, "partials") / sent(whole, "partials") < most
    if name == "rows":
        assert 0.5 < sent(rounded, "learnable") / sent(whole, "learnable") < 0.75
    for cause in ("gradients", "sampling"):
        assert sent(rounded, cause) == sent(whole, cause)
    for epoch in (1, 2):
        got, want = (sum(worker[f"{epoch}/statistics"].sum(0) for worker in workers)
                     for workers in (rounded, whole))
        assert (got != want).any()
        np.testing.assert_allclose(got[0], want[0], rtol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_dense_parameters_stay_bit_equal_on_all_workers(results: Results, name: str) -> None:
    first, *others = results[f"{name} bfloat16"]
    parameters = {key for key in first if key.startswith("parameter/")}
    assert parameters
    for other in others:
        for key in parameters & set(other):
            np.testing.assert_array_equal(first[key], other[key], key)


def test_double_precision_is_not_rounded() -> None:
    base = {"train": {"dtype": "float64", "exchange_dtype": "bfloat16"}}
    with pytest.raises(InputError, match="train.exchange_dtype = bfloat16 would round"):
        load_settings(base=base, environ={}).check()
