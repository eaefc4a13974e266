"""GraphStorm's layers compute over machines what plain DGL does, in fp64."""

from __future__ import annotations

from pathlib import Path

import pytest

SHAPES = [pytest.param(3, 1, marks=pytest.mark.thorough), (2, 2)]
"""Machines and trainers per machine."""
HERE = "plugins.graphstorm.tests.layers"
PROGRAMS = [f'{HERE}:layers "{which}"' for which in ("rgcn", "rgcn few bases", "rgat", "hgt")]
PROGRAMS += [f'{HERE}:edge_features "{how}"' for how in ("concat", "mul")]


@pytest.mark.needs("graphstorm")
@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_graphstorms_layers_compute_what_plain_dgl_does(machines: int, trainers: int,
                                                        tmp_path: Path) -> None:
    from tests.support.programs import differences

    assert differences(PROGRAMS, machines, trainers, tmp_path) == {}
