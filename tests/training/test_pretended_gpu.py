"""`train.device = "cuda"` on GPUs that are pretended: the same numbers as on the CPU, and nothing
that a GPU refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pretended_worker import Results, trained

pytestmark = pytest.mark.needs("pretended")

LINKS = {"task.relation": "writes", "task.reverse": "rev-writes", "task.negatives": 2}
CACHED = {"cache.gate": False, "cache.capacity_mb": 0.002, "cache.epochs": 1}
BOTH: dict[str, dict[str, Any]] = {
    "rgcn": {"model.bases": 2, "train.clip_grad_norm": 1.0},
    "rgat": {"model.name": "rgat"},
    "hgt": {"model.name": "hgt", "model.layer_norm": True},
    "han": {"model.name": "han"},
    "maxima": {"model.aggregate": "max", "model.reduce": "max"},
    "links": LINKS,
    "labels": {"task.kind": "multilabel", "task.label": "keywords", "train.metrics": ["f1_macro"]},
    "autocast": {"model.name": "rgat", "train.dtype": "float32", "train.autocast": "bfloat16"},
    "cache miss_penalty": {**CACHED, "cache.policy": "miss_penalty"},
    "cache clock": {**CACHED, "cache.policy": "clock"},
}
ONE: dict[str, dict[str, Any]] = {
    "minima, operators of torch": {"model.aggregate": "min", "train.kernel": "torch"},
    **{f"cache {policy}": {**CACHED, "cache.policy": policy}
       for policy in ("density", "hotness", "degree", "fifo")},
}
TWO: dict[str, dict[str, Any]] = {
    "sent in bfloat16": {"train.dtype": "float32", "train.exchange_dtype": "bfloat16"},
    "replicas": {"train.learnable": "replica"},
    "trainers": {"train.trainers": 2},
    "each its own": {"train.wrapper": "ddp"},
    "nothing replicated": {"partition.replication": "none"},
    "delegated": {"partition.shared": "delegate", "model.name": "hgt"},
}
LESS = ("autocast", "sent in bfloat16")  # names of cases in less than double precision begin so
CASES = [(1, name) for name in (*BOTH, *ONE)] + [(2, name) for name in (*BOTH, *TWO)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return trained(tmp_path_factory.mktemp("pretended"), {1: {**BOTH, **ONE}, 2: {**BOTH, **TWO}},
                   again=["rgcn", "links", "cache clock"])


@pytest.mark.parametrize(("parts", "name"), CASES)
def test_it_trains_goes_on_and_predicts_as_on_the_cpu(results: Results, parts: int, name: str
                                                      ) -> None:
    tolerance = 0.03 if name.startswith(LESS) else 1e-9
    for rank, (want, got) in enumerate(zip(results["cpu", parts], results["cuda", parts])):
        assert got[name]["device"] == f"cuda:{rank}"
        assert not got[name]["problems"]
        for key in ("losses", "predicted"):
            assert got[name][key] == pytest.approx(want[name][key], rel=tolerance, abs=tolerance)
        assert got[name]["proved"] == want[name]["proved"]
        assert got[name]["told"] == want[name]["told"]
