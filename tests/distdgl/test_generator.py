"""Programs that nobody wrote are exact under RAF, refused by name, or caught by the proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drawn.description import from_json, to_json
from tests.support.drawn.shrinking import simpler
from tests.support.drawn.strategies import draw, singles
from tests.support.drawn.text import text_of
from tests.support.generator import judge, proof, rounding_grows, survey, table
from tests.support.programs import Found

DRAWS = [(2, 1, 8), (3, 1, 6), (2, 2, 3)]
"""Machines, trainers per machine, and programs: 17 in all. More by the command line."""


@pytest.mark.parametrize(("machines", "trainers", "count"), DRAWS)
def test_no_drawn_program_is_silently_wrong(machines: int, trainers: int, count: int,
                                            tmp_path: Path) -> None:
    programs = [singles()[1], *draw(count, 10 * machines + trainers)]
    verdicts = survey(programs, machines, trainers, tmp_path, proof(True))
    failures = [f"{verdict.name}: {verdict.why[:500]}\n{text_of(program)}"
                for program, verdict in zip(programs, verdicts) if verdict.failed]
    assert not failures, "\n\n".join(failures)
    print(table(programs, verdicts))
    assert verdicts[0].name == "exact"


def test_draws_are_the_same_again() -> None:
    programs = draw(10, 3)
    assert programs == draw(10, 3)
    assert len({str(p) for p in programs}) == 10


def test_simpler_programs_end() -> None:
    """Always the first that is simpler: at the end none is, and each can be printed."""
    for program in [*draw(5, 4), *singles()[::20]]:
        for _ in range(300):
            assert text_of(program)
            assert from_json(to_json(program)) == program
            others = simpler(program)
            if not others:
                break
            assert program not in others
            program = others[0]
        else:
            pytest.fail(f"there is always a simpler one: {program}")


def test_verdicts() -> None:
    import numpy as np

    one, other = ({"out": np.array([[x, 2.0]])} for x in (1.0, 1.001))
    plain = [Found(one, None), Found(one, None)]

    def verdict(*ours: Found) -> str:
        return judge(plain, ours).name

    assert verdict(*plain) == "exact"
    assert verdict(plain[0], Found(other, None)) == "silent"
    assert verdict(plain[0], Found({}, None)) == "silent"
    refusal = Found({}, "InputError: norm='both'", 1.0)
    assert verdict(refusal, refusal) == "refused"
    assert verdict(refusal, Found({}, "PeerLostError: lost another worker", 1.0)) == (
        "refused by some")
    assert verdict(refusal, plain[0]) == "refused by some"
    assert verdict(Found({}, "KeyError: 'x'"), refusal) == "crash"
    assert verdict(*[Found({}, "PeerLostError: lost another worker")] * 2) == "crash"
    assert judge(plain, None).name == "crash"
    assert judge([Found({}, "KeyError: 'x'"), plain[1]], plain).name == "no case"
    assert judge([Found({"out": np.array([np.nan])}, None)] * 2, plain).name == "no case"


def test_rounding_that_grows_by_plain_dgl_too_is_no_failure() -> None:
    """As far as it does: what differs much more than a nudged run does is one."""
    import numpy as np

    plain, near, far = (Found({"out": np.array([1.0, 2.0 + x])}, None) for x in (0, 1e-7, 1e-3))
    assert rounding_grows([plain], [near], [near])
    assert not rounding_grows([plain], [near], [far])
    assert not rounding_grows([plain], [plain], [near])
    assert not rounding_grows([plain], [near], [Found({}, None)])
