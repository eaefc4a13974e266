"""Rows that a step updates: each once, whoever had gradients of it, in however many batches."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.distdgl import row_steps
from dgl_heta.features.row_kernels import each_once, marked

COUNT, WIDTH = 12, 3


def table() -> Any:
    return SimpleNamespace(slots=np.full(COUNT, -1, np.int32), width=WIDTH, count=COUNT)


@st.composite
def traces(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, some of them twice, with gradients and the bits of trainers."""
    ids = draw(st.lists(st.integers(0, COUNT - 1), max_size=8))
    grads = np.arange(1.0, len(ids) * WIDTH + 1, dtype=np.float32).reshape(-1, WIDTH)
    bits = draw(st.lists(st.integers(1, 7), min_size=len(ids), max_size=len(ids)))
    return np.array(ids, np.int64), grads, np.array(bits, np.int64)


Trace = tuple[np.ndarray, np.ndarray, np.ndarray]


@settings(deadline=None)
@given(st.lists(st.tuples(traces(), traces()), max_size=3))
def test_rows_are_summed_by_id_and_counted_by_batch(batches: list[tuple[Trace, Trace]]) -> None:
    of = table()
    pieces = [[row_steps._once(of, *own), row_steps._once(of, *others)] for own, others in batches]
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}
    for pair in batches:
        united: dict[int, int] = {}
        for ids, grads, bits in pair:
            for i, g, b in zip(ids.tolist(), grads, bits.tolist()):
                sums[i] = sums.get(i, np.zeros(WIDTH, np.float32)) + g
                united[i] = united.get(i, 0) | b
        for i, b in united.items():
            counts[i] = counts.get(i, 0) + b.bit_count()
    found = row_steps._joined(of, pieces)
    ids = np.concatenate([np.empty(0, np.int64), *(rows for rows, *_ in found)])
    assert sorted(ids.tolist()) == sorted(sums)
    for rows, at, grads, of_batches in found:
        for i, place, n in zip(rows.tolist(), at, of_batches):
            np.testing.assert_array_equal(grads[place], sums[i])
            assert n == counts[i]
    assert (of.slots == -1).all()


@pytest.mark.parametrize(("ids", "once"), [([], True), ([3], True), ([3, 0, 11], True),
                                           ([3, 0, 3], False)])
def test_ids_that_are_there_twice_are_found(ids: list[int], once: bool) -> None:
    slots = np.full(COUNT, -1, np.int32)
    assert each_once(np.array(ids, np.int64), slots) == once
    assert (slots == -1).all()


def test_ids_among_others_are_marked() -> None:
    slots = np.full(COUNT, -1, np.int32)
    found = marked(np.array([5, 1, 11, 5]), np.array([11, 5]), slots)
    assert found.tolist() == [True, False, True, True]
    assert (slots == -1).all()
    assert marked(np.array([5]), np.empty(0, np.int64), slots).tolist() == [False]
