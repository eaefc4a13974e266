"""What a process keeps between `enable` and `disable`."""

from __future__ import annotations

import pytest

pytest.importorskip("dgl")

import dgl_heta
from dgl_heta.distdgl.state import State
from dgl_heta.distdgl.watchdog import Watchdog
from dgl_heta.errors import InputError
from dgl_heta.system import patching


def test_everything_is_forgotten_even_if_something_cannot_be_closed() -> None:
    class Failing:
        def close(self) -> None:
            raise RuntimeError("closed badly")

    state = State()
    failing = state.of(Failing)
    with pytest.raises(RuntimeError, match="closed badly"):
        state.close()
    assert state.of(Failing) is not failing
    assert state.session is None


def test_no_number_of_the_watchdog_comes_twice_in_a_process() -> None:
    """A process group's store never forgets a key, and may outlive `disable` and `enable`."""
    first = [next(Watchdog()._skips), next(Watchdog()._meetings)]
    second = [next(Watchdog()._skips), next(Watchdog()._meetings)]
    assert [b > a for a, b in zip(first, second)] == [True, True]


def test_nothing_is_left_behind_where_a_name_to_patch_is_missing(
        monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from dgl_heta.distdgl import activate

    def missing(_: object) -> None:
        raise InputError("a name is not there")

    monkeypatch.setattr(activate, "apply", missing)
    before = list(sys.meta_path)
    with pytest.raises(InputError, match="a name is not there"):
        dgl_heta.enable()
    assert sys.meta_path == before
    assert not patching.applied()
