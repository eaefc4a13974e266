"""The proof inside `dgl-heta train`: right models pass and train as without it, wrong ones end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dgl_heta.proof.proving import SEEDS
from dgl_heta.store import write_store
from tests.support.exactness import run
from tests.support.graphs import academic, seed_rows, with_tasks, with_times
from tests.support.waiting import PATIENCE

OWN = "tests.support.proving_worker:"
RIGHT: dict[str, dict[str, Any]] = {
    "rgcn": {"model": {"name": "rgcn", "reduce": "mean", "dropout": 0.5}},
    "hgt, single precision": {"model": {"name": "hgt", "heads": 2, "dropout": 0.5},
                              "train": {"dtype": "float32", "fanouts": [2, 3]}},
    "an own layer": {"model": {"name": OWN + "Mean"}},
    "delegated": {"model": {"name": "rgcn", "reduce": "mean"},
                  "partition": {"shared": "delegate"}},
    "delegated attention": {"model": {"name": "hgt", "heads": 2},
                            "partition": {"shared": "delegate"}},
    "links": {"model": {"name": "rgcn"}, "task": {"relation": "writes", "reverse": "rev-writes",
                                                  "negatives": 2}},
    "links, sums": {"model": {"name": OWN + "Sum"}, "task": {
        "relation": "writes", "reverse": "rev-writes", "negatives": 2}},
}
AT = {"val_time": "1970-01-01T00:01:10", "test_time": "1970-01-01T00:01:25"}
TIMED: dict[str, dict[str, Any]] = {
    "times": {"model": {"name": "rgcn", "reduce": "mean"}},
    "times, table": {"model": {"name": "rgat", "heads": 2}, "task": {**AT, "table": "seeds.csv"},
                     "train": {"fanouts": [3, 3], "latest": True}},
    "times, links": {"model": {"name": "rgcn"},
                     "task": {"relation": "writes", "negatives": 2, **AT}},
    "delegated, times": {"model": {"name": "hgt", "heads": 2}, "partition": {"shared": "delegate"}},
}
WRONG = {"over relations": "OverRelations", "across rows": "AcrossRows"}
NEVER = {"without seed states": {"model": {"name": "rgcn", "self_loop": False},
                                 "train": {"seed_states": False}}}


def settings(case: dict[str, dict[str, Any]], prove: str) -> dict[str, dict[str, Any]]:
    return {**case,
            "model": {"hidden": 6, **case["model"]},
            "train": {"batch_size": SEEDS + 8, "fanouts": [3, 3], "dtype": "float64",
                      "threads": 1, **case.get("train", {})},
            "run": {"timeout_s": PATIENCE, "prove": prove}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, np.ndarray]]]:
    """What two workers computed in each case."""
    out = tmp_path_factory.mktemp("proof")
    write_store(with_tasks(academic(papers=150)), out / "store")
    timed = with_times(with_tasks(academic(papers=150)))
    write_store(timed, out / "timed")
    (out / "seeds.csv").write_text("id,time,label\n" + "".join(
        f"{node},{time},{label}\n" for node, time, label in seed_rows(timed)))
    for case in TIMED.values():
        case["store"] = str(out / "timed")
        if "table" in case.get("task", {}):
            case["task"]["table"] = str(out / "seeds.csv")
    cases = {f"{name} {prove}": settings(case, prove)
             for name, case in (RIGHT | TIMED).items() for prove in ("off", "auto")}
    cases |= {name: settings({"model": {"name": OWN + layer}}, "auto")
              for name, layer in WRONG.items()}
    cases["across rows, times"] = settings({"store": str(out / "timed"), "model": {
        "name": OWN + WRONG["across rows"]}}, "auto")
    cases |= {name: settings(case, "auto") for name, case in NEVER.items()}
    return run({"store": str(out / "store"), "out": str(out), "parts": 2, "cases": cases}, out,
               "proving_worker")


@pytest.mark.parametrize("name", RIGHT | TIMED)
def test_a_right_model_is_proved_and_trains_bit_for_bit_as_without_proof(
        results: dict[str, list[dict[str, np.ndarray]]], name: str) -> None:
    for without, proved in zip(results[f"{name} off"], results[f"{name} auto"]):
        assert not proved["not proved"]
        assert "error" not in proved, str(proved["error"])
        assert (proved["steps"] >= 2, without["steps"]) == (True, 0)
        assert proved["1/proof sent"] > 0 == without["1/proof sent"]
        same = [key for key in without if key != "steps" and not key.endswith("proof sent")]
        assert any(key.startswith("parameter/") for key in same)
        assert set(without) == set(proved)
        for key in same:
            np.testing.assert_array_equal(without[key], proved[key], key)
    if name.startswith("delegated"):  # besides counts of rows, 128 bytes, ids of some are sent
        assert sum(proved["1/sent/sampling"] for proved in results[f"{name} auto"]) > 128


@pytest.mark.parametrize(("name", "place"), [("over relations", "layers.0.cross"),
                                         ("across rows", "layers.0"),
                                         ("across rows, times", "layers.0")])
def test_a_layer_that_depends_on_the_worker_ends_the_run_on_all_workers(
        results: dict[str, list[dict[str, np.ndarray]]], name: str, place: str) -> None:
    texts = {str(worker.get("error")) for worker in results[name]}
    assert len(texts) == 1
    text = texts.pop()
    for part in ("output['paper'] differs by", f"module '{place}'", "docs/switching.md#the-proof"):
        assert part in text
    assert all(worker["steps"] == 0 for worker in results[name])


@pytest.mark.parametrize(("name", "why"), [("without seed states", "seed_states")])
def test_what_is_not_proved_says_so(
        results: dict[str, list[dict[str, np.ndarray]]], name: str, why: str) -> None:
    for worker in results[name]:
        assert why in str(worker["not proved"])
        assert worker["steps"] == 0
        assert "error" not in worker
