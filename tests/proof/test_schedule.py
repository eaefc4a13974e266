"""At which steps a run is proved."""

from __future__ import annotations

import pytest

from dgl_heta.errors import InputError
from dgl_heta.proof.schedule import Schedule
from dgl_heta.settings import load_settings


def due(text: str, epochs: int = 3, steps: int = 10, seed: int = 5) -> list[set[int]]:
    schedule = Schedule.parse(text)
    return [{s for s in range(steps) if schedule.due(seed, e, s, steps)} for e in range(epochs)]


def test_auto_is_the_first_step_the_last_one_and_a_random_one_per_epoch() -> None:
    first, *rest = due("auto", epochs=40)
    assert {0, 9} <= first
    assert len(first) <= 3
    assert {len(steps) for steps in rest} == {1}
    assert len(set.union(*rest)) == 10
    assert due("auto", seed=6, epochs=40)[1:] != rest


def test_numbers_and_nothing() -> None:
    assert due("off") == [set(), set(), set()]
    assert due("0") == due("off")
    assert due("12") == [set(range(10)), {0, 1}, set()]
    assert due("every 4") == [{0, 4, 8}, {2, 6}, {0, 4, 8}]
    assert due("auto", steps=1, epochs=2) == [{0}, {0}]


@pytest.mark.parametrize("text", ["never", "every", "every 0", "-1", "true", "1.5"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"run\.prove.*every N"):
        load_settings(overrides=[f"run.prove={text}"])
    with pytest.raises(ValueError, match="every N"):
        Schedule.parse(text)


@pytest.mark.parametrize("text", ["auto", "off", "3", "every 10"])
def test_known_texts(text: str) -> None:
    assert load_settings(overrides=[f"run.prove={text}"]).run.prove == text
