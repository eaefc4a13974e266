"""Items in nested arguments and results of a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

Path = tuple[Any, ...]
"""Keys and positions that lead to an item."""
T = TypeVar("T")


def items_of(kind: type[T], value: Any, path: Path = (), depth: int = 6
             ) -> Iterator[tuple[Path, T]]:
    """Yield each item of a type in nested mappings, lists and tuples, with its path."""
    if isinstance(value, kind):
        yield path, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from items_of(kind, item, (*path, key), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from items_of(kind, item, (*path, i), depth - 1)


def of_type(kind: type[T], value: Any) -> Iterator[T]:
    """The same without the paths."""
    return (item for _, item in items_of(kind, value))
