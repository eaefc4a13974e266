"""RAF with the kernel `merged`: what workers compute is what one process computes.

By its operators, as elsewhere than on CPU, where it is `fused`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dgl_heta.store import write_store
from tests.support.exactness import LIMIT, cases, differences, job, run
from tests.support.graphs import academic, with_tasks

OPERATORS: dict[str, Any] = {"guests": True, "train.kernel": "merged", "plugins.merged": {"few": 0}}


@pytest.mark.parametrize("model", [
    "rgcn", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("hgt", "rgat", "han"))])
def test_every_case_of_raf_is_exact(tmp_path: Path, model: str) -> None:
    """On two workers with `merged` against one process with the reference kernel."""
    write_store(with_tasks(academic()), tmp_path / "store")
    names = [name for name, changes in cases().items()
             if changes.get("model.name", "rgcn") == model and name != "torch kernel"]
    for parts in ("one", "two"):
        (tmp_path / parts).mkdir()
    reference: dict[str, Any] = {"train.kernel": "torch"}
    alone = run(job(tmp_path / "store", tmp_path / "one", 1, names, **reference), tmp_path / "one")
    both = run({**job(tmp_path / "store", tmp_path / "two", 2, names, **OPERATORS),
                "operators": True}, tmp_path / "two")
    for name, workers in both.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A store, and what one process with the reference kernel computes on it."""
    path = tmp_path_factory.mktemp("alone")
    write_store(with_tasks(academic()), path / "store")
    settings: dict[str, Any] = {"train.kernel": "torch"}
    return path / "store", run(job(path / "store", path, 1, EVERY_PLAN, **settings), path)


EVERY_PLAN = ["sum-self_loop", "max-bases", "sampled", "rgat-self_loop", "hgt-self_loop", "han"]


@pytest.mark.parametrize(("parts", "options"), [
    pytest.param(4, {}, marks=pytest.mark.thorough), (3, {"shared": True}), (3, {"cut": "hubs"}),
    (4, {"train.trainers": 2})],
    ids=["four", "shares", "hubs", "trainers"])
def test_every_kind_of_plan_is_exact(reference: tuple[Path, Any], tmp_path: Path, parts: int,
                                     options: dict[str, Any]) -> None:
    store, alone = reference
    both = run({**job(store, tmp_path, parts, EVERY_PLAN, **{**OPERATORS, **options}),
                "operators": True}, tmp_path)
    assert set(both) == set(EVERY_PLAN)
    for name, workers in both.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)
