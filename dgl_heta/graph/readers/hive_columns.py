"""Columns in the names of directories, `year=2020/part-0.parquet`, as Hive and Spark write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dgl_heta.graph.readers.column_files import ColumnFile, TextForm, open_columns
from dgl_heta.graph.readers.column_values import arrow

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class HiveColumns:
    """A file with columns (`own`), and those of text that its directories give it."""

    def __init__(self, file: ColumnFile, given: Mapping[str, str | None]) -> None:
        self._file, self._given = file, given
        self.own, self.names = file.names, [*file.names, *given]

    def read(self, names: Sequence[str]) -> list[Any]:
        return self._filled(names, self._file.read(self._own(names)))

    def pieces(self, names: Sequence[str]) -> Iterator[list[Any]]:
        return (self._filled(names, piece) for piece in self._file.pieces(self._own(names)))

    def _own(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._given] or self.own[:1]

    def _filled(self, names: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        pa, read, rows = arrow(), dict(zip(self._own(names), columns)), len(columns[0])
        return [read[name] if name in read else pa.chunked_array(
            [pa.repeat(pa.scalar(self._given[name], pa.large_string()), rows)]) for name in names]


def open_hive(path: Path, form: TextForm | None, root: Path | None) -> HiveColumns:
    """A file with columns, and those of its directories below `root`; what it has itself counts.

    Raises
    ------
    InputError
        As :func:`~dgl_heta.graph.readers.column_files.open_columns`.
    """
    file = open_columns(path, form)
    parts = [part.partition("=") for part in path.relative_to(root).parts[:-1]] if root else []
    given = {unquote(name): None if value == _NO_VALUE else unquote(value)
             for name, is_column, value in parts if name and is_column}
    return HiveColumns(file, {n: value for n, value in given.items() if n not in file.names})
