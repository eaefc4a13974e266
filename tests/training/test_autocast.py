"""`train.autocast = "bfloat16"`: nearly the same numbers, on any number of workers, proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.nn import kernel_in_use
from dgl_heta.nn.precision import mixed_precision
from dgl_heta.settings import load_settings
from dgl_heta.store import write_store
from tests.support.exactness import run
from tests.support.graphs import academic, with_tasks
from tests.support.waiting import PATIENCE

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "rgcn": {"model": {"name": "rgcn"}},
    "rgcn, torch kernel": {"model": {"name": "rgcn", "bases": 2}, "train": {"kernel": "torch"}},
    "max": {"model": {"name": "rgcn", "reduce": "max", "aggregate": "max"}},
    "rgat": {"model": {"name": "rgat", "heads": 2}},
    "hgt": {"model": {"name": "hgt", "heads": 2}},
    "hgt, delegated": {"model": {"name": "hgt", "heads": 2}, "partition": {"shared": "delegate"}},
    "han": {"model": {"name": "han", "heads": 2}},
    "own": {"model": {"name": "tests.support.proving_worker:Mean"}},
    "links": {"model": {"name": "rgcn"}, "task": {
        "relation": "writes", "reverse": "rev-writes", "decoder": "distmult"}},
}
Results = dict[int, dict[str, list[dict[str, np.ndarray]]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What one worker and two computed in each case, in mixed precision and not."""
    out = tmp_path_factory.mktemp("autocast")
    write_store(with_tasks(academic(papers=150)), out / "store")
    found = {}
    for parts in (1, 2):
        cases = {f"{name} {how}": {
            **case, "model": {"hidden": 16, **case["model"]},
            "train": {"global_batch_size": 48, "fanouts": [3, 3], "threads": 1, "autocast": how,
                      **case.get("train", {})},
            "run": {"timeout_s": PATIENCE, "prove": "1"}}
            for name, case in CASES.items() for how in ("off", "bfloat16")
            if parts == 2 or case.get("partition") is None}
        (out / f"{parts}").mkdir()
        found[parts] = run({"store": str(out / "store"), "out": str(out / f"{parts}"),
                            "parts": parts, "cases": cases}, out / f"{parts}", "proving_worker")
    return found


def losses(workers: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The mean loss of each step, of all workers together."""
    for worker in workers:
        assert "error" not in worker, worker["error"]
    summed = np.concatenate([sum(worker[f"{epoch}/statistics"] for worker in workers)
                             for epoch in (1, 2)])
    return np.asarray(summed[:, 0] / summed[:, 1])


@pytest.mark.parametrize("name", CASES)
def test_mixed_precision_trains_nearly_the_same(results: Results, name: str) -> None:
    whole, mixed = losses(results[2][f"{name} off"]), losses(results[2][f"{name} bfloat16"])
    assert (whole != mixed).any()
    np.testing.assert_allclose(mixed, whole, rtol=0.03)
    for worker in results[2][f"{name} bfloat16"]:
        assert worker["steps"] == 1, "the first step is proved, on copies in fp64"


@pytest.mark.parametrize("name", [name for name in CASES if "delegated" not in name])
def test_any_number_of_workers_trains_nearly_the_same(results: Results, name: str) -> None:
    one, two = (losses(results[parts][f"{name} bfloat16"]) for parts in (1, 2))
    np.testing.assert_allclose(two, one, rtol=0.03)


@pytest.mark.parametrize("name", CASES)
def test_parameters_stay_equal_and_in_single_precision(results: Results, name: str) -> None:
    first, second = results[2][f"{name} bfloat16"]
    keys = [key for key in first if key.startswith("parameter/")]
    assert keys
    for key in keys:
        assert first[key].dtype == np.float32
        np.testing.assert_array_equal(first[key], second[key])


def test_kernels_are_given_single_precision() -> None:
    rows, weights = torch.ones(3, 2), torch.ones(2, 2)
    with mixed_precision(torch.device("cpu")):
        (product,) = kernel_in_use().matmul([rows], [weights])
        assert product.dtype == torch.bfloat16  # an operator of PyTorch
        (gathered,) = kernel_in_use().gather([product], [slice(0, 2)])
        assert gathered.dtype == torch.float32
    with mixed_precision(torch.device("cpu"), on=False):
        assert kernel_in_use().matmul([rows], [weights])[0].dtype == torch.float32


def test_exact_numbers_are_not_rounded() -> None:
    with pytest.raises(InputError, match=r"which train\.autocast = bfloat16 would round"):
        load_settings(base={"train": {"dtype": "float64", "autocast": "bfloat16"}}, environ={})
