"""The module `__main__` of a program that runs in this process, also after its last line."""

from __future__ import annotations

import contextlib
import runpy
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

OF_FILE = ("__file__", "__loader__", "__package__", "__spec__")
"""What tells processes that are started later where their program is."""

_Temporary = runpy._TempModule


class _Left(runpy._TempModule):
    """Puts nothing back at the program's end, and is for one program: not for what that runs."""

    def __enter__(self) -> _Left:
        vars(runpy)["_TempModule"] = _Temporary
        super().__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        sys.modules["__main__"] = _what_is_left(self.module)


@contextlib.contextmanager
def main_that_stays() -> Iterator[None]:
    """Let what runpy runs in the body as `__main__` be found by that name later, too: its threads,
    and what it calls at the end of the process, may pickle its classes.

    By that alone nothing stays alive: DistDGL's tensors must be gone before its servers are.
    """
    vars(runpy)["_TempModule"] = _Left
    try:
        yield
    finally:
        vars(runpy)["_TempModule"] = _Temporary


def _what_is_left(module: ModuleType) -> ModuleType:
    """A module that finds classes and functions of another for as long as something else keeps
    them."""
    found: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
    for name, value in vars(module).copy().items():
        if callable(value):
            with contextlib.suppress(TypeError):  # there are some of C without weak references
                found[name] = value

    def find(name: str) -> Any:
        value = found.get(name)
        if value is None:
            raise AttributeError(f"module '__main__' has no attribute '{name}' any longer")
        return value

    left = ModuleType("__main__", module.__doc__)
    vars(left).update({name: getattr(module, name, None) for name in OF_FILE}, __getattr__=find)
    return left
