"""Programs of users' kinds compute under RAF what plain DGL does, in fp64."""

from __future__ import annotations

import pytest

from tests.support.programs import SHAPES, differences

HERE = "tests.distdgl.programs"
USUAL = [f"{HERE}.usual:graph_conv"]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_usual_programs(machines: int, trainers: int, tmp_path) -> None:
    assert differences(USUAL, machines, trainers, tmp_path) == {}
