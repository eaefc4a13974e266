"""What counts as a difference between two runs, and the verdict on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dgl_heta.proof.comparison import TOLERANCES, Measure, Place, compare, verdict

OUTPUT = Place("output", "Net")
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
rows = hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=numbers)


def measure(got, want, **options) -> Measure:
    found = compare(OUTPUT, got, want, **{"tolerance": 1e-9, **options})
    assert found is not None
    return found


@given(rows, st.randoms(use_true_random=False))
def test_rows_are_matched_by_their_ids(values, shuffler):
    ids = np.arange(len(values)) * 3 + 1
    order = list(range(len(values)))
    shuffler.shuffle(order)
    # the other run has rows of its own, too
    other = np.concatenate([values[order], np.full((2, values.shape[1]), 7e8)])
    other_ids = np.concatenate([ids[order], [0, 2]])
    assert measure(values, other, got_ids=ids, want_ids=other_ids).largest == 0


@given(rows, st.data())
def test_a_changed_number_is_found_where_it_is(values, data):
    row = data.draw(st.integers(0, len(values) - 1))
    column = data.draw(st.integers(0, values.shape[1] - 1))
    got = values.copy()
    got[row, column] += 1 + np.abs(values).max()
    found = measure(got, values, got_ids=np.arange(len(values)), want_ids=np.arange(len(values)))
    assert found.differs
    assert found.largest >= 1
    assert found.where == f"node {row}"


@given(rows)
def test_rounding_is_no_difference(values):
    single = values.astype(np.float32)
    assert not measure(single * np.float32(1 + 1e-6), single,
                       tolerance=TOLERANCES["float32"]).differs


def test_none_is_not_zeros():
    zeros = np.zeros((2, 2))
    for got, want in ((None, zeros), (zeros, None)):
        found = measure(got, want)
        assert found.differs
        assert "None" in found.reason
        assert "zeros" in found.reason
    assert compare(OUTPUT, None, None, tolerance=1e-9) is None


def test_shapes_that_differ_are_a_difference():
    found = measure(np.zeros((3, 2)), np.zeros((3, 4)))
    assert found.differs
    assert "(3, 4)" in found.reason


def test_nan_is_a_difference_unless_both_have_it():
    nan, one = np.array([[np.nan]]), np.array([[1.0]])
    assert measure(nan, one).differs
    assert measure(one, nan).differs
    assert not measure(nan, nan).differs
    assert not measure(np.array([[np.inf]]), np.array([[np.inf]])).differs


def test_whole_numbers_must_be_equal():
    assert measure(np.array([1000001]), np.array([1000000]), tolerance=0.5).differs
    assert not measure(np.array([3]), np.array([3])).differs


def test_what_is_left_of_a_cancellation_is_compared_with_what_it_was_made_from():
    got, want = np.array([1e-12, -1e-12]), np.array([-1e-12, 1e-12])
    assert measure(got, want).differs
    assert not measure(got, want, floor=1.0).differs
    assert measure(got + 1e-3, want, floor=1.0).differs


def test_numbers_that_do_not_count_and_outliers_are_left_out():
    got, want = np.ones(1000), np.ones(1000)
    got[17] = 2
    assert measure(got, want).differs
    assert not measure(got, want, counts=np.arange(1000) != 17).differs
    assert not measure(got, want, outliers=1e-3).differs
    got[18] = 2
    assert measure(got, want, outliers=1e-3).differs


def test_no_common_row_is_no_measure():
    one = np.ones((1, 1))
    assert compare(OUTPUT, one, one, np.array([1]), np.array([2]), tolerance=1e-9) is None


def made(kind: str, name: str, largest: float, order: int, **place) -> Measure:
    return Measure(Place(kind, name, order=order, **place), largest, 1e-4, 5, where="node 3")


def test_a_verdict_names_the_result_and_the_first_place():
    found = verdict([made("layer", "Net.one", 1e-7, 0), made("layer", "Net.two", 0.3, 1,
                                                            detail="layer 2, node type 'paper'"),
                     made("output", "Net", 0.25, 2, trainer=1), made("gradient", "w", 0.9, 3)])
    assert found.status == "differs"
    assert found.message.startswith("output Net differs by 2.5e-01 of its largest value (trainer "
                                    "1, node 3); the first difference")
    assert "result of Net.two, layer 2, node type 'paper'" in found.message
    assert "docs/switching.md#the-proof" in found.message


def test_agreement_is_proved_only_where_results_were_compared():
    good = made("output", "Net", 1e-6, 0)
    assert verdict([good]).proved
    assert "1.0e-06" in verdict([good]).message
    for nothing in ([], [made("input", "Net", 0, 0)], [made("parameter", "w", 0, 0)]):
        assert verdict(nothing).status == "not proved"
        assert "nothing was compared" in verdict(nothing).message


def test_zeros_prove_nothing():
    zeros = Measure(OUTPUT, 0.0, 1e-4, 5, zeros=True)
    assert verdict([zeros]).status == "not proved"
    assert verdict([zeros, made("loss", "", 0, 1)]).proved
    assert measure(np.zeros(3), np.zeros(3)).zeros
    assert not measure(np.zeros(3), np.ones(3)).zeros


@pytest.mark.parametrize("largest", [1e-7, 0.3])
def test_random_modules_let_a_difference_prove_nothing(largest):
    found = verdict([made("output", "Net", largest, 0)], random=["Net.noise"])
    assert found.status == ("proved" if largest < 1e-4 else "not proved")
    assert ("Net.noise" in found.message) == (largest > 1e-4)


def test_what_cannot_be_compared_counts_as_infinite():
    assert Measure(OUTPUT, np.nan, 1e-4, 5).differs
    assert verdict([Measure(OUTPUT, np.inf, 1e-4, 5, reason="has the shape (2,)")]).message.count(
        "has the shape (2,)") == 1


def test_small_differences_of_single_precision_are_said_to_be_maybe_rounding():
    small, large = made("gradient", "w", 1e-3, 0), made("gradient", "w", 0.5, 0)
    double = Measure(Place("gradient", "w"), 1e-3, 1e-9, 5)
    assert "--double" in verdict([small]).message
    for other in (large, double):
        assert "--double" not in verdict([small, other]).message
