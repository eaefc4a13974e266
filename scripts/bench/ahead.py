"""Kernels with and without memory that is asked for ahead, one thread, interleaved.

    python scripts/bench/ahead.py [--rows 1000000] [--width 64] [--edges 250000] [--degree 10]

A table of so many rows is read and written at random: rows gathered, summed over in-edges, their
gradients added, attention's products and sums with four heads, a step of SparseAdam; and neighbours
are sampled. Without: the same loops, compiled with requests that do nothing. Prints the median
milliseconds of both over the rounds. Results must agree first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from common import in_turns, markdown
from numba import njit, types
from numba.extending import intrinsic

from dgl_heta.features import row_kernels, row_optimizers
from dgl_heta.nn import messages, row_sums
from dgl_heta.sampling import sampling_kernels

HEADS = 4


def _no_row(typing: Any, array: Any, row: Any) -> Any:
    return types.void(array, row), lambda context, *_: context.get_dummy_value()


def _none_ahead(typing: Any, array: Any, rows: Any, at: Any) -> Any:
    return types.void(array, rows, at), lambda context, *_: context.get_dummy_value()


NOTHING = {"prefetch_row": intrinsic(_no_row), "prefetch": intrinsic(_none_ahead)}


def without(kernel: Any) -> Callable[..., Any]:
    """The same loop, which asks for nothing."""
    made = kernel.py_func
    bare = FunctionType(made.__code__, {**made.__globals__, **NOTHING}, made.__name__,
                        made.__defaults__, made.__closure__)
    found: Callable[..., Any] = njit(nogil=True, error_model="numpy")(bare)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--edges", type=int, default=250_000)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    cells = []
    for name, kernel, arguments in cases(chosen):
        both = {"asked": kernel, "not asked": without(kernel)}
        results = []
        for function in both.values():
            given = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
            function(*given)
            results.append([x for x in given if isinstance(x, np.ndarray)])
        for one, other in zip(*results):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        medians = in_turns({label: partial(function, *arguments)
                            for label, function in both.items()}, chosen.rounds)
        asked, waited = (medians[label] for label in both)
        cells.append([name, f"{waited:.1f}", f"{asked:.1f}", f"{waited / asked:.1f}"])
    print(markdown(["loop", "ms without", "ms", "faster"], cells))


def cases(chosen: argparse.Namespace) -> list[tuple[str, Any, list[Any]]]:
    """Name, kernel and arguments."""
    generator, f32 = np.random.default_rng(0), np.float32
    count, width, edges = chosen.rows, chosen.width, chosen.edges
    table = generator.standard_normal((count, width), f32)
    indices = generator.integers(count, size=edges, dtype=np.int32)
    indptr = np.append(np.arange(0, edges, chosen.degree), edges)
    rows = len(indptr) - 1
    ids = generator.permutation(count)[:edges]
    of_rows, of_edges = (generator.standard_normal((n, width), f32) for n in (rows, len(ids)))
    ends = generator.standard_normal((rows, HEADS, width // HEADS), f32)
    scores = generator.standard_normal((edges, HEADS), f32)
    heads = table.reshape(count, HEADS, -1)
    dots, weighted = messages._OF_HEADS
    drawn = np.arange(0, edges + 1)
    places = [np.full(count, -1, np.int32), np.empty(count, np.int64)]
    whole = np.arange(0, 10 * edges + 1, 10)
    return [
        ("rows gathered", row_kernels._gather, [table, ids, of_edges]),
        ("sums", row_kernels.add_edges, [indptr, indices, table, False, of_rows]),
        ("gradient of sums", row_sums._sum_backward,
         [indptr, indices, of_rows, False, table.copy()]),
        ("products per head", dots.forward, [indptr, indices, heads, ends, scores]),
        ("gradient of products", dots.backward,
         [indptr, indices, scores, heads, ends, heads.copy(), ends.copy()]),
        ("weighted sums", weighted.forward, [indptr, indices, heads, scores, ends.copy()]),
        ("gradient of weighted sums", weighted.backward,
         [indptr, indices, ends, heads, scores, heads.copy(), scores.copy()]),
        ("SparseAdam", row_optimizers.adam_by_row,
         [ids, np.arange(len(ids)), of_edges, np.ones(len(ids), f32), table.copy(),
          np.zeros(count, f32), np.zeros_like(table), np.zeros_like(table),
          *map(f32, (0.01, 0.9, 0.1, 0.999, 0.001, 1e-8))]),
        ("neighbours sampled", sampling_kernels.sample_neighbors,
         [whole, generator.integers(count, size=10 * edges, dtype=np.int32),
          generator.permutation(edges)[:edges // 10], 5, np.uint64(7), None, drawn[:edges // 10 + 1]
          * 5, np.empty(edges, np.int32), *places, 0, None, None])]


if __name__ == "__main__":
    main()
