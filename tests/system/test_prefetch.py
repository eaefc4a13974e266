"""Memory that is asked for ahead: results are the same, whatever the array and the rows."""

from __future__ import annotations

import numpy as np
import pytest

from dgl_heta.features import row_kernels
from dgl_heta.system.jit import COMPILES, kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row

pytestmark = pytest.mark.skipif(not COMPILES, reason="numba is not there")


@kernel
def total(array, rows):  # type: ignore[no-untyped-def]
    found = 0.0
    for i in range(len(rows)):
        prefetch(array, rows, i)
        prefetch_row(array, rows[i])
        found += array[rows[i]].sum()
    return found


@kernel
def ask(array, rows):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        prefetch(array, rows, i)
        prefetch_row(array, rows[i])
    return len(rows)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(40, 3), (40, 200), (40, 2, 5), (40, 0)])
@pytest.mark.parametrize("view", [np.s_[:], np.s_[::-1], np.s_[::2]])
@pytest.mark.parametrize("count", [0, 1, AHEAD, AHEAD + 1, 5 * AHEAD])
def test_rows_are_the_same(dtype: type, shape: tuple[int, ...], view: slice, count: int) -> None:
    generator = np.random.default_rng(0)
    array = generator.standard_normal(shape)[view]
    rows = generator.integers(0, len(array), 2 * count, dtype=dtype)[::2]
    assert total(array, rows) == pytest.approx(array[rows].sum())


@pytest.mark.parametrize("row", [-1, 10, 1 << 40, -(1 << 62)])
def test_a_row_that_is_not_there_does_no_harm(row: int) -> None:
    assert ask(np.zeros((10, 4)), np.full(3 * AHEAD, row)) == 3 * AHEAD


def test_kernels_ask_and_count_no_references() -> None:
    """A function in the place of these, with arrays as arguments, would count references to them
    in every round."""
    array, rows = np.zeros((9, 4), np.float32), np.arange(3)
    row_kernels.gather_rows(array, rows)
    row_kernels.add_edges(np.array([0, 3]), rows, array, False, np.zeros((1, 4), np.float32))
    for function in (row_kernels._gather, row_kernels.add_edges):
        again = type(function)(function.py_func, targetoptions=function.targetoptions)
        signature = function.signatures[-1]
        again.compile(signature)
        calls = [line for line in again.inspect_llvm(signature).splitlines() if "call " in line]
        assert any("llvm.prefetch" in line for line in calls)
        assert not any("NRT_incref" in line for line in calls)
