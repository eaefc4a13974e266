"""Small batches that reach not every node type compute what plain DGL does, and are proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distdgl.programs.rare import WRONG
from tests.support.programs import SHAPES, differences, run

HERE = "tests.distdgl.programs.rare"
COUNT = 3
"""Drawn programs for each shape; `thorough` has more."""


def drawn(first: int, count: int) -> list[str]:
    return [f"{HERE}:small {number}" for number in range(first, first + count)]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_every_step_is_exact_and_proved(machines: int, trainers: int, tmp_path: Path) -> None:
    first = COUNT * SHAPES.index((machines, trainers))
    assert differences(drawn(first, COUNT), machines, trainers, tmp_path, rare=True,
                       settings=["run.prove=every 1"]) == {}


def test_every_step_without_replication_is_exact_and_proved(tmp_path: Path) -> None:
    assert differences(drawn(3 * COUNT, COUNT), 3, 1, tmp_path, rare=True, cut="permuted",
                       settings=["run.prove=every 1"]) == {}


@pytest.mark.thorough
@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_more_of_them_where_one_trainer_aggregates_for_others(machines: int, trainers: int,
                                                              tmp_path: Path) -> None:
    assert differences(drawn(100, 40), machines, trainers, tmp_path, rare=True, settings=[
        "run.prove=every 1", "partition.shared=delegate"]) == {}


def test_what_is_wrong_in_small_batches_is_named(tmp_path: Path) -> None:
    names = [f'{HERE}:wrong "{way}"' for way in WRONG]
    found = run(names, 2, 2, tmp_path, raf=True, rare=True, settings=["run.prove=every 1"])
    for name in names:
        for one in found[name]:
            assert "does not compute with RAF what it computes" in str(one.error), (name, one)
