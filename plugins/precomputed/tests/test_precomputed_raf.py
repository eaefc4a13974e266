"""SeHGNN and NARS on P workers compute what one process computes, in fp64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.store import write_store
from tests.support.exactness import LIMIT, differences, job, run
from tests.support.graphs import academic, with_tasks

SEHGNN = {"model.name": "sehgnn", "model.heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "sehgnn": SEHGNN,
    "sehgnn, two targets": {**SEHGNN, "task.targets": ["paper", "author"]},
    "nars": {"model.name": "nars", "model.subsets": 3},
}
Results = dict[str, list[dict[str, np.ndarray]]]


def computed(store: Path, out: Path, parts: int, names: list[str], **options: Any) -> Results:
    """Return the workers' results in cases of these names."""
    out.mkdir(exist_ok=True)
    return run(job(store, out, parts, names, guests=True, others=CASES, **options), out)


def check(alone: Results, together: Results) -> None:
    for name, workers in together.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exact") / "store"
    write_store(with_tasks(academic()), path)
    return path


@pytest.fixture(scope="module")
def alone(store: Path) -> Results:
    """Results of one process."""
    return computed(store, store.with_name("alone"), 1, [*CASES][:2])


@pytest.mark.parametrize(("parts", "names", "options"), [
    (2, ["sehgnn", "sehgnn, two targets"], {}), (3, ["sehgnn"], {}), (4, ["sehgnn"], {}),
    (3, ["sehgnn"], {"shared": True})], ids=["two", "three", "four", "a shared sub-metatree"])
def test_sehgnn_computes_the_same(store: Path, alone: Results, tmp_path: Path, parts: int,
                                  names: list[str], options: dict[str, Any]) -> None:
    check(alone, computed(store, tmp_path, parts, names, **options))


@pytest.mark.parametrize(("parts", "options"), [
    (2, {}), (3, {}), (6, {}), (4, {"train.trainers": 2}), (2, {"shared": True})])
def test_nars_computes_the_same(tmp_path: Path, parts: int, options: dict[str, Any]) -> None:
    """Averages over relations that lie on several partitions are added up, also where a partition
    has one of them for a share of the seeds and another for all."""
    source = academic()
    del source.node_arrays["field"]["feat"]  # all features must be equally wide
    write_store(source, tmp_path / "store")
    alone = computed(tmp_path / "store", tmp_path / "one", 1, ["nars"])
    check(alone, computed(tmp_path / "store", tmp_path / "all", parts, ["nars"], **options))
