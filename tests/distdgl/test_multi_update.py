"""multi_update_all under RAF is plain DGL's, in fp64, or refused by name on all trainers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distdgl.programs.multi_update import FUNCTIONS
from tests.support.programs import EXCHANGE_S, SHAPES, dealt, differences, run

HERE = "tests.distdgl.programs.multi_update"
EXACT = [*(f"{HERE}:{way} {json.dumps(name)}" for way in ("kind", "few") for name in FUNCTIONS),
         f"{HERE}:widths", f"{HERE}:every_field_is_set"]
REFUSED = {
    "other relations, mean": "different relations, which plain sums alone can do",
    "without its holder": "whose machine has its edges; give all trainers the same relations",
    "other fields": "different functions for",
    "other reducers": "different cross reducers",
    "other orders": "different orders, which a callable cross reducer may depend on",
    "no data": "there is no data 'nowhere' on the nodes or edges that its functions read",
    "one fails": "failed: ValueError: of the script's own",
    "two shapes": "a cross reducer needs one shape",
}


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_results_and_gradients_are_those_of_plain_dgl(machines: int, trainers: int,
                                                      tmp_path: Path) -> None:
    programs = dealt(EXACT, machines, trainers)
    assert differences(programs, machines, trainers, tmp_path) == {}


@pytest.mark.parametrize(("machines", "trainers"), [
    pytest.param(3, 1, marks=pytest.mark.thorough), (2, 2)])
def test_what_trainers_do_differently_is_one_error_on_all(machines: int, trainers: int,
                                                          tmp_path: Path) -> None:
    programs = {name: f"{HERE}:wrong {json.dumps(name)}" for name in REFUSED}
    found = run([*programs.values()], machines, trainers, tmp_path, raf=True)
    for name, text in REFUSED.items():
        errors = [str(f.error) for f in found[programs[name]]]
        assert all(text in error for error in errors), errors
        assert max(f.seconds for f in found[programs[name]]) < EXCHANGE_S


def test_without_the_repairs_results_would_be_wrong(tmp_path: Path) -> None:
    programs = [f"{HERE}:kind {json.dumps('two fields')}",
                *(f"{HERE}:few {json.dumps(name)}" for name in ("own, mean", "max of max"))]
    found = differences(programs, 2, 1, tmp_path, sabotage=["s1", "s8"])
    assert found.keys() == {*programs}
