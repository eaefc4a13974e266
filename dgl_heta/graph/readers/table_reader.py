"""Tables of nodes and edges: CSV, Parquet and Arrow files, some columns at a time.

In a CSV everything is text until somebody says what it is. Rows count from 1, the header left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.readers.column_files import PIECE, TEXT_ENDINGS, TextForm, reading
from dgl_heta.graph.readers.column_values import arrow, as_text, first, sort_of
from dgl_heta.graph.readers.hive_columns import open_hive
from dgl_heta.graph.source import MOST_CLASSES
from dgl_heta.system.remote_files import for_each

MISSING = ("nan", "NaN", "NAN")
"""Texts that programs write into a CSV where there is no value."""


class ColumnTable:
    """A table in one file or in several, open for reading; columns are read when asked for.

    Parameters
    ----------
    path : the file, or what stands for several: a directory, a name with wildcards.
    files : the files that it stands for, one after the other.
    form : how texts among them are written.
    root : a directory below which the names of directories may be `column=value`, as Hive writes
        them: columns of text that the files there do not have themselves.

    Attributes
    ----------
    path, form : as given.
    names : of the columns, in their order; of several files those of the first.
    own_names : those of them that no directory gives.
    is_text : whether every value is text (CSV).
    size : bytes of its files.
    num_rows : rows, where this is a piece of a table.

    Raises
    ------
    InputError
        Another ending, or a file that cannot be read.
    """

    def __init__(self, path: Path, files: Sequence[Path] = (), form: TextForm | None = None,
                 root: Path | None = None) -> None:
        self.path, self.form = path, form or TextForm()
        self._paths = tuple(files) or (path,)
        self._files = for_each(partial(open_hive, form=form, root=root), self._paths)
        self.names, self.own_names = self._files[0].names, self._files[0].own
        self.size = sum(path.stat().st_size for path in self._paths)
        self.is_text = self._paths[0].name.endswith(TEXT_ENDINGS)
        self._known = [frozenset(file.names) for file in self._files]
        self._ends = np.zeros(0, np.int64)
        self._rows: np.ndarray | None = None
        self._kept: dict[str, Any] = {}
        self._unnested: dict[str, Any] = {}
        self.num_rows = 0
        self._start: int | None = None  # of a piece: its first row in the whole table
        self._values: dict[str, set[str]] = {}  # that codes() found in pieces

    def check(self, name: str, use: str = "") -> None:
        """Refuse the name of a column that is not there; `use` says what it is for."""
        for path, file, known in zip(self._paths, self._files, self._known):
            if name not in known:
                raise InputError(f"{path} has no column '{name}'{use}; its columns: "
                                 f"{listing(file.names)}" + nearest(name, file.names))

    def columns(self, names: Sequence[str], use: str = "") -> list[Any]:
        """Whole columns, each one array of a type that :func:`column_values.plain` leaves.

        Raises
        ------
        InputError
            No such column, files that cannot be read, a column of different types in two of them.
        """
        for name in names:
            self.check(name, use)
        if self._rows is None:
            return self._read(names) if self._start is None else [self._kept[n] for n in names]
        if not self._kept.keys() >= {*names}:
            self._kept.clear()  # they stay, for whoever reads other rows of them
            self._kept.update(zip(names, self._read(names)))
        return [self._unnested[name] if name in self._unnested else
                self._kept[name].take(arrow().array(self._rows)) for name in names]

    def column(self, name: str, sorts: Collection[str], wanted: str, use: str = "") -> Any:
        """A whole column of one of some sorts (:func:`column_values.sort_of`).

        Raises
        ------
        InputError
            It is of another sort; then `wanted` says what it must be.
        """
        (column,) = self.columns([name], use)
        self.check_sort(name, column, sorts, wanted)
        return column

    def check_sort(self, name: str, column: Any, sorts: Collection[str], wanted: str) -> None:
        """Refuse a column of this table that is of none of the sorts."""
        if sort_of(column.type) not in sorts:
            raise InputError(f"column '{name}' of {self.path} holds {_said(column.type)} values; "
                             f"{wanted}")

    def ids(self, name: str, use: str = "") -> tuple[Any, bool]:
        """A column of ids as text (:func:`column_values.as_text`), and whether they were bytes.

        Raises
        ------
        InputError
            No such column, values that cannot be ids, an empty one.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        column = self.column(
            name, ("text", "whole", "decimal", "bytes"), "ids must be text, whole numbers or bytes "
            "(in pandas whole numbers become floating point where one is missing)", use)
        ids = as_text(column)
        empty = pc.fill_null(pc.equal(ids, ""), True)
        if self.is_text:
            empty = pc.or_(empty, pc.is_in(ids, value_set=pa.array(MISSING, pa.large_string())))
        if (row := first(empty)) is not None:
            raise self.wrong(name, row, ids, ", which is no id; every row needs one")
        if sort_of(column.type) == "decimal":
            whole = pc.match_substring_regex(ids, "^-?[0-9]+$")
            if (row := first(pc.invert(whole))) is not None:
                raise self.wrong(name, row, ids, "; numbers that are ids must be whole")
        return ids, sort_of(column.type) == "bytes"

    def codes(self, name: str, use: str) -> tuple[list[str], np.ndarray]:
        """The different values of a column, sorted as text, and which of them each row has.

        Raises
        ------
        InputError
            No such column, an empty value, more than
            :data:`~dgl_heta.graph.source.MOST_CLASSES` different ones.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        column = self.column(name, ("text", "whole", "truth"), "it must be text", use)
        text = as_text(column)
        if (row := first(pc.fill_null(pc.equal(text, ""), True))) is not None:
            raise self.wrong(name, row, text, f"; every row needs a value{use}")
        names = sorted(pc.unique(text).to_pylist())
        known = {*names} if self._start is None else self._values.setdefault(name, set())
        known.update(names)
        if len(known) > MOST_CLASSES:
            raise InputError(f"column '{name}' of {self.path} has {len(known):,} different values; "
                             f"there may be {MOST_CLASSES:,}{use}")
        codes = pc.index_in(text, value_set=pa.array(names, pa.large_string()))
        return names, codes.to_numpy(zero_copy_only=False)

    @property
    def counts(self) -> np.ndarray:
        """Rows of each of its files, once columns were read."""
        return np.diff(self._ends, prepend=0)

    def where(self, rows: np.ndarray) -> ColumnTable:
        """These rows of the table (their numbers, ascending) as a table."""
        part = copy(self)
        part._rows = rows if self._rows is None else self._rows[rows]
        return part

    def unnested(self, name: str, use: str) -> tuple[ColumnTable, np.ndarray]:
        """The table with a row for each value of a column, if that is one of lists, and the rows
        of these, int64. Errors are as of :meth:`columns`."""
        (column,) = self.columns([name], use)
        if sort_of(column.type) != "list":
            return self, np.arange(len(column))
        pc = arrow("pyarrow.compute")
        rows = pc.list_parent_indices(column).to_numpy().astype(np.int64)
        table = self.where(rows)
        table._unnested = {name: pc.list_flatten(column)}
        return table, rows

    def pieces(self, names: Sequence[str]) -> Iterator[ColumnTable]:
        """The table as tables of some of its rows, one after the other, with some of its columns.

        A piece may have no rows.

        Raises
        ------
        InputError
            As :meth:`columns`.
        """
        pa, types, row = arrow(), dict[str, dict[Any, Path]](), 0
        self._ends = np.zeros(0, np.int64)
        for path, file in zip(self._paths, self._files):
            for columns in file.pieces(names):
                with reading(self.path):
                    arrays = {name: pa.concat_arrays(self._alike(
                        name, [column], [path], types.setdefault(name, {}))[0].chunks)
                        if len(column) else pa.array([], column.type)
                        for name, column in zip(names, columns)}
                for low in range(0, max(len(columns[0]), 1), PIECE):
                    piece = copy(self)
                    piece._kept = {name: array[low:low + PIECE] for name, array in arrays.items()}
                    piece._rows, piece._start = None, row
                    stop = row + len(piece._kept[names[0]])
                    if self._rows is not None:
                        own = slice(*np.searchsorted(self._rows, (row, stop)))
                        piece._rows = self._rows[own] - row
                    piece.num_rows = stop - row if piece._rows is None else len(piece._rows)
                    yield piece
                    row = stop
            self._ends = np.append(self._ends, row)

    def at(self, row: int) -> str:
        """Where a row is, as messages say it; rows of columns that were read, from 0."""
        if self._rows is not None:
            row = int(self._rows[row])
        row += self._start or 0
        part = int(np.searchsorted(self._ends, row, side="right"))
        begin = int(self._ends[part - 1]) if part else 0
        where = self.path if len(self._paths) == 1 else self._paths[part]
        return f"{where}, row {row - begin + 1}"

    def wrong(self, name: str, row: int, column: Any, why: str) -> InputError:
        """The error that a value of a column is: text, a number, or nothing."""
        value = column[row].as_py()
        said = "empty" if value is None or value == "" else quoted(value)
        return InputError(f"{self.at(row)}: column '{name}' is {said}{why}")

    def _read(self, names: Sequence[str]) -> list[Any]:
        pa = arrow()
        parts = [file.read(names) for file in self._files]
        self._ends = np.cumsum([len(columns[0]) for columns in parts])
        joined = []
        with reading(self.path):
            for name, of_files in zip(names, zip(*parts)):
                columns = self._alike(name, of_files, self._paths, {})
                chunks = [chunk for column in columns for chunk in column.chunks]
                joined.append(pa.concat_arrays(chunks) if chunks else
                             pa.array([], columns[0].type))
        return joined

    def _alike(self, name: str, columns: Sequence[Any], paths: Sequence[Path],
               types: dict[Any, Path]) -> Sequence[Any]:
        """A column as the files have it, of one type: a file without a value has that of others,
        and whole numbers beside floating point are floating point, as pandas writes both.

        `types` are those of pieces before, to which these are added.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        types |= {column.type: path for path, column in zip(paths, columns)
                  if column.null_count < len(column)}
        known = types or {columns[0].type: self.path}
        if len(known) > 1 and {sort_of(kind) for kind in known} <= {"whole", "float"}:
            known = {pa.float64(): self.path}
            columns = [pc.cast(column, pa.float64()) for column in columns]
        if len(known) > 1:
            (one, path), (other, where), *_ = known.items()
            raise InputError(f"column '{name}' holds {_said(one)} values in {path} and "
                             f"{_said(other)} values in {where}; the files of a table have columns "
                             "of the same type")
        (kind,) = known
        return [column if column.type == kind else pa.chunked_array([pa.nulls(len(column), kind)])
                for column in columns]


def _said(kind: Any) -> str:
    """A type as messages name it."""
    sort = sort_of(kind)
    return sort if sort in ("text", "bytes") else str(kind)
