"""Features that a store keeps in fewer bytes than they were given in: as float16 or int8.

A column of int8 has a scale, s = max |x| / 127 over all rows, float32: a number x is kept as
round(x / s) and read as that times s, at most s / 2 away.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.arrays import as_trained, check_finite
from dgl_heta.graph.source import GraphSource
from dgl_heta.system.disk import forget, row_starts

_MOST = 127


class EncodedRows:
    """Features (rows, columns) of a node type in the numbers that a store keeps them as; rows are
    converted when they are sliced."""

    def __init__(self, rows: np.ndarray, dtype: str, ntype: str) -> None:
        self._rows, self._ntype, self.dtype = rows, ntype, np.dtype(dtype)
        self.shape, self.ndim = rows.shape, rows.ndim
        self.nbytes = rows.shape[0] * rows.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def scale(self) -> np.ndarray | None:
        """Of each column (columns,) float32; None where there is none.

        Raises
        ------
        InputError
            A number is not finite, or too large.
        """
        if self.dtype.kind != "i":
            return None
        most = np.zeros(self.shape[1])
        starts = row_starts(len(self), self._rows.dtype.itemsize * self.shape[1])
        for start in starts:
            most = np.maximum(most, np.abs(self._checked(start, start + starts.step)).max(0))
            forget(self._rows)
        with np.errstate(over="ignore"):
            scale = (most / _MOST).astype(np.float32)
        self._check_large(scale)
        return np.where(scale > 0, scale, np.float32(1))

    def __getitem__(self, rows: slice) -> np.ndarray:
        found = self._checked(*rows.indices(len(self))[:2])
        if self.scale is not None:
            return np.rint(found / self.scale).clip(-_MOST, _MOST).astype(self.dtype)
        with np.errstate(over="ignore"):
            converted = found.astype(self.dtype)
        self._check_large(converted)
        return converted

    def _checked(self, start: int, stop: int) -> np.ndarray:
        rows = np.asarray(self._rows[start:stop])
        check_finite("feat", rows, self._ntype, start)
        return rows

    def _check_large(self, numbers: np.ndarray) -> None:
        if not np.isfinite(numbers).all():
            raise InputError(f"features of node type '{self._ntype}' have numbers too large for "
                             f"{self.dtype}; leave --feature-dtype out, or scale them")


def encoded(source: GraphSource) -> GraphSource:
    """The graph with features as a store is to keep them (`GraphSource.feature_dtype`).

    Raises
    ------
    InputError
        No node type has features.
    """
    if not source.feature_dtype:
        return source
    arrays: dict[str, dict[str, Any]] = {t: dict(of) for t, of in source.node_arrays.items()}
    given = {kind: dict(known) for kind, known in source.given.items()}
    for ntype, of in arrays.items():
        if "feat" in of:
            rows = as_trained("feat", of["feat"], ntype, given.get(ntype, {}), source.task)
            of["feat"] = EncodedRows(rows, source.feature_dtype, ntype)
            given.get(ntype, {}).pop("feat", None)
    return replace(source, node_arrays=arrays, given=given, feature_dtype="")
