"""Data of a graph that other trainers' rows would be needed for, known by name alone."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from dgl.frame import Column

from dgl_heta.errors import HetaError


class Absent(Column):
    """A column of a frame that is known by name alone: whoever reads it is told why."""

    def __init__(self, rows: int, why: str) -> None:
        super().__init__(torch.empty(0))
        self._rows, self._why = rows, why

    def __len__(self) -> int:
        return self._rows

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise HetaError(self._why)

    data = property(_refuse, _refuse)  # type: ignore[assignment]
    astype = deepclone = extend = update = _refuse  # type: ignore[assignment]

    def clone(self) -> Absent:
        return self

    def to(self, *_: Any, **__: Any) -> Absent:
        return self

    def subcolumn(self, rowids: Any) -> Absent:
        return Absent(len(rowids), self._why)
