"""Rows of an array, as many at a time as a cache holds: products and sums without all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.row_kernels import add_edges, filled_rows, gather_into, new_rows

CHUNK = 1 << 20
"""Bytes of rows that are gathered at once."""
DTYPES = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32,
          np.dtype(np.float64): torch.float64}


class EdgePiece(NamedTuple):
    """Some edges, in the order of their destination rows.

    Attributes
    ----------
    edges : which.
    rows : their destination rows; the first and the last may have further edges in other pieces.
    indptr : (rows + 1,) int64, where each row's edges begin, among these edges.
    values : (edges, width), the source row of each.
    """

    edges: slice
    rows: slice
    indptr: np.ndarray
    values: Tensor


class ChunkedRows:
    """Rows of an array: gathered piece by piece, or aggregated from where they are."""

    def __init__(self, array: np.ndarray, ids: np.ndarray) -> None:
        self.array, self.ids, self.width = array, ids, array.shape[1]

    def pieces(self, ids: np.ndarray, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """`(start, rows)` one after another; the rows' memory is used again."""
        step = min(max(CHUNK // (self.width * dtype.itemsize), 1), max(len(ids), 1))
        stored = np.empty((step, self.width), self.array.dtype)
        native = torch.from_numpy(stored)
        converted = native if native.dtype == dtype else torch.empty(step, self.width, dtype=dtype)
        for start in range(0, len(ids), step):
            count = min(step, len(ids) - start)
            gather_into(self.array, ids[start:start + count], stored[:count])
            if converted is not native:
                converted[:count].copy_(native[:count])
            yield start, converted[:count]

    def gather(self, ids: np.ndarray, dtype: torch.dtype) -> Tensor:
        out = _new(len(ids), self.width, dtype)
        if DTYPES[self.array.dtype] == dtype:
            gather_into(self.array, ids, out.numpy())
        else:
            for start, rows in self.pieces(ids, dtype):
                out[start:start + len(rows)] = rows
        return out

    def times(self, ids: np.ndarray, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Rows times `weight` (width, out)."""
        out = torch.empty(len(ids), weight.shape[1], dtype=weight.dtype)
        for start, rows in self.pieces(ids, weight.dtype):
            into = out[start:start + len(rows)]
            if bias is None:
                torch.mm(rows, weight, out=into)
            else:
                torch.addmm(bias, rows, weight, out=into)
        return out

    def transposed_times(self, ids: np.ndarray, right: Tensor) -> Tensor:
        """Rows transposed times `right` (n, out): the gradient of a weight."""
        out = torch.zeros(self.width, right.shape[1], dtype=right.dtype)
        used = filled_rows(right.numpy())  # a slice's gradient is mostly zeros
        some = right if len(used) == len(ids) else right[torch.from_numpy(used)]
        for start, rows in self.pieces(ids[used], right.dtype):
            out.addmm_(rows.t(), some[start:start + len(rows)])
        return out

    def aggregate(self, indptr: np.ndarray, indices: np.ndarray, mean: bool, dtype: torch.dtype
                  ) -> Tensor:
        """Sum or mean over in-edges (destinations, width)."""
        out = _new(len(indptr) - 1, self.width, dtype).zero_()
        if DTYPES[self.array.dtype] == dtype:
            add_edges(indptr, self.ids[indices], self.array, mean, out.numpy())
            return out
        for piece in self.edge_pieces(indptr, indices, dtype):
            add_edges(piece.indptr, np.arange(len(piece.values)), piece.values.numpy(), False,
                      out[piece.rows].numpy())
        if mean:
            out /= torch.from_numpy(np.maximum(np.diff(indptr), 1))[:, None]
        return out

    def edge_pieces(self, indptr: np.ndarray, indices: np.ndarray, dtype: torch.dtype
                    ) -> Iterator[EdgePiece]:
        """The source rows of all edges, one after another; their memory is used again."""
        for start, values in self.pieces(self.ids[indices], dtype):
            stop = start + len(values)
            first = int(np.searchsorted(indptr, start, "right")) - 1
            last = int(np.searchsorted(indptr, stop))
            yield EdgePiece(slice(start, stop), slice(first, last),
                            np.clip(indptr[first:last + 1] - start, 0, len(values)), values)


def _new(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    numpy = next(n for n, t in DTYPES.items() if t == dtype)
    return torch.from_numpy(new_rows(rows, width, numpy))
