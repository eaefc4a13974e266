"""How many seeds each trainer has in each step: all of them, once, and some in every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.distdgl.loading.step_plan import step_sizes
from dgl_heta.errors import InputError


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 20))
def test_every_seed_is_in_one_step_and_every_step_has_seeds_of_all(
        counts: list[int], batch_size: int) -> None:
    steps = -(-max(counts) // batch_size)
    if min(counts) < steps:
        with pytest.raises(InputError, match="every trainer needs a seed in each step"):
            step_sizes(counts, batch_size, drop_last=False)
        return
    sizes = step_sizes(counts, batch_size, drop_last=False)
    assert [sum(each) for each in sizes] == counts
    assert all(len(each) == steps and 1 <= min(each) <= max(each) <= batch_size for each in sizes)


def test_trainers_with_fewer_seeds_have_fewer_at_the_end() -> None:
    assert step_sizes([25, 22], 10, drop_last=False) == [[10, 10, 5], [10, 10, 2]]
    assert step_sizes([25, 3], 10, drop_last=False) == [[10, 10, 5], [1, 1, 1]]
    assert step_sizes([25, 22], 10, drop_last=True) == [[10, 10], [10, 10]]
    assert step_sizes([25, 9], 10, drop_last=True) == [[], []]
