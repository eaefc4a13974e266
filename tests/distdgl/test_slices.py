"""Convolutions on slices of blocks compute what plain DGL does, in fp64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import SHAPES, differences, run

HERE = "tests.distdgl.programs.slices"
MODELS = [f"{HERE}:transformer", f"{HERE}:copied", f"{HERE}:relations"]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_convolutions_on_slices_are_those_of_plain_dgl(machines: int, trainers: int,
                                                       tmp_path: Path) -> None:
    place = SHAPES.index((machines, trainers))
    programs = [f"{HERE}:convolutions {first}" for first in (place, place + 3)]
    assert differences([*programs, MODELS[place]], machines, trainers, tmp_path) == {}


def test_where_one_trainer_aggregates_for_others(tmp_path: Path) -> None:
    programs = [f"{HERE}:convolutions 6", f"{HERE}:copied"]
    assert differences(programs, 3, 1, tmp_path, settings=["partition.shared=delegate"]) == {}


def test_functions_are_applied_to_extremes_as_by_plain_dgl(tmp_path: Path) -> None:
    """In rows without in-edges they see infinity, and 0 where a batch has no edge."""
    assert differences([f"{HERE}:applied"], 2, 1, tmp_path, rare=True) == {}


DIFFERENT = {"order": "trainers call slices of blocks differently: update_all by",
             "left out": "trainers call slices of blocks differently: update_all by",
             "data": "of other functions, or data of other names, shapes or dtypes, on trainer 1",
             "degrees": "out_degrees on a block of a meta-partitioned graph"}


def test_calls_that_differ_between_trainers_are_named_on_all(tmp_path: Path) -> None:
    programs = {way: f'{HERE}:differently "{way}"' for way in DIFFERENT}
    found = run([*programs.values()], 2, 1, tmp_path, raf=True)
    for way, text in DIFFERENT.items():
        assert [f.error for f in found[programs[way]] if text not in str(f.error)] == []
