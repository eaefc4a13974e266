"""Refusals at the first use: of a column of a graph's data, of a name of a block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from dgl.frame import Column
from dgl.heterograph import DGLBlock


class RefusedColumn(Column):
    """A column of a frame that is known by name alone: `refusal` raises when it is read."""

    def __init__(self, rows: int, refusal: Callable[[], NoReturn]) -> None:
        super().__init__(torch.empty(0))  # DGL's column needs some tensor
        self._rows, self._refusal = rows, refusal

    def __len__(self) -> int:
        return self._rows

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self._refusal()

    data = property(_refuse, _refuse)  # type: ignore[assignment]
    astype = deepclone = extend = update = _refuse  # type: ignore[assignment]

    # A local scope, a move or a slice of the graph reads nothing.

    def clone(self) -> RefusedColumn:
        return self

    def to(self, *_: Any, **__: Any) -> RefusedColumn:
        return self

    def subcolumn(self, rowids: Any) -> RefusedColumn:
        return RefusedColumn(len(rowids), self._refusal)


def check_names(cls: type[DGLBlock], names: Iterable[str]) -> None:
    """Let a class call its `check_name(name)` before each of these methods and properties of
    DGLBlock, with the name."""
    for name in names:
        setattr(cls, name, _checked(name))


def _checked(name: str) -> Any:
    original: Any = inspect.getattr_static(DGLBlock, name)
    if isinstance(original, property):
        def get(self: Any) -> Any:
            self.check_name(name)
            return original.__get__(self)
        return property(get, doc=original.__doc__)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.check_name(name)
        return original(self, *args, **kwargs)
    return call
