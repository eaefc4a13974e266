"""Ids as bytes: nothing is lost of any int64 in any order, and sorted ids take few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dgl_heta.comm.packed_ids import pack, unpack

LEAST, MOST = -2**63, 2**63 - 1
int64 = st.integers(LEAST, MOST)
numbers = st.one_of(int64, st.integers(-3, 3), st.integers(0, 1000), st.sampled_from([LEAST, MOST]))
pieces = st.lists(st.lists(numbers, max_size=40), max_size=5)


def packed(ids: list[int] | np.ndarray) -> int:
    """Bytes that ids take, after it was checked that they come back."""
    data, sizes = pack(np.asarray(ids, np.int64), [len(ids)])
    back, counts = unpack(data, sizes)
    np.testing.assert_array_equal(back, np.asarray(ids, np.int64))
    assert counts == [len(ids)]
    assert sizes == [len(data)]
    return len(data)


@given(pieces)
@example([[]])
@example([[], [LEAST, MOST, LEAST], [], [MOST, LEAST, MOST, 0, -1], [7, 7, 7, 7]])
def test_pieces_come_back_as_they_were(given: list[list[int]]) -> None:
    for order in (list, sorted):
        ids = [order(piece) for piece in given]
        every = np.asarray([i for piece in ids for i in piece], np.int64)
        data, sizes = pack(every, list(map(len, ids)))
        assert data.dtype == np.uint8
        assert sum(sizes) == len(data)
        assert [size == 0 for size in sizes] == [not piece for piece in ids]
        back, counts = unpack(data, sizes)
        assert back.dtype == np.int64
        np.testing.assert_array_equal(back, every)
        assert counts == list(map(len, ids))


@given(st.lists(st.lists(st.tuples(numbers, numbers, numbers), max_size=20), max_size=4))
def test_columns_come_back_side_by_side(given: list[list[tuple[int, int, int]]]) -> None:
    every = np.asarray([key for piece in given for key in piece], np.int64).reshape(-1, 3)
    data, sizes = pack(every, list(map(len, given)))
    back, counts = unpack(data, sizes, (3,))
    np.testing.assert_array_equal(back, every)
    assert back.shape == every.shape
    assert counts == list(map(len, given))


def test_pieces_can_be_read_apart() -> None:
    """A piece says nothing of the one before it, which another worker gets."""
    data, sizes = pack(np.asarray([5, 6, 1, 2], np.int64), [2, 2])
    back, _ = unpack(data[sizes[0]:], sizes[1:])
    np.testing.assert_array_equal(back, [1, 2])


def test_sorted_ids_take_a_byte_where_gaps_are_small_and_runs_take_nearly_nothing() -> None:
    generator = np.random.default_rng(3)
    gaps = generator.integers(1, 128, 5000)
    assert packed(np.cumsum(gaps)) == 5000 + 3  # the head has the number of ids and two bits
    assert packed(generator.permutation(np.cumsum(gaps))) < 3.1 * 5000
    assert packed(np.cumsum(gaps + 1000)) == 2 * 5000 + 3
    assert packed(np.arange(10**6, 2 * 10**6)) < 16
    assert packed(np.full(5000, MOST)) < 20
    assert packed(np.repeat([1, 2, 3], 4000)) < 20
    assert packed([MOST]) == 10
    assert packed([LEAST]) == 11


@pytest.mark.parametrize("size", [0, 1])
def test_the_fewest_ids(size: int) -> None:
    assert packed(list(range(size))) == 2 * size
