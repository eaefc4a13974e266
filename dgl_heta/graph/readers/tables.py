"""Tables of nodes and edges: CSV, Parquet and Arrow files, read by pyarrow, a column at a time.

In a CSV everything is text until somebody says what it is. Rows count from 1, the header left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.readers.whole_numbers import LONGEST_LINE, file_blocks
from dgl_heta.system.optional import optional

TEXT_ENDINGS = (".csv", ".csv.gz")
ENDINGS = (*TEXT_ENDINGS, ".parquet", ".arrow", ".feather")
MISSING = ("nan", "NaN", "NAN")
"""What programs write into a CSV where there is no value."""


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow.

    Raises
    ------
    InputError
        It is not installed.
    """
    return optional(module, "a table of nodes or edges", "parquet")


class Table:
    """A table in a file, open for reading; columns are read when they are asked for.

    Attributes
    ----------
    path : the file.
    names : of its columns, in their order.
    is_text : whether every value is text (CSV).

    Raises
    ------
    InputError
        Another ending, a file that cannot be read, columns without a name or with the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_text = path.name.endswith(TEXT_ENDINGS)
        if not path.name.endswith(ENDINGS):
            raise InputError(f"'{path}' is not a table by its name; tables end in "
                             f"{', '.join(ENDINGS)}")
        self._types: dict[str, Any] = {}
        if self.is_text:
            self.names = _header(path)
        else:
            schema = self._read(None)
            self.names = list(schema.names)
            self._types = dict(zip(schema.names, schema.types))
        if twice := {n for n in self.names if not n or self.names.count(n) > 1}:
            raise InputError(f"{path}: column {quoted(sorted(twice)[0])} is there "
                             f"{self.names.count(sorted(twice)[0])} times, or has no name; the "
                             "columns of a table need different names")

    def column(self, name: str, use: str = "") -> Any:
        """A whole column as Arrow has it (a ChunkedArray); that of a CSV is text.

        `use` says what the column is for, where the table lacks it.
        """
        self.check(name, use)
        return self._read(name)

    def check(self, name: str, use: str = "") -> None:
        """Refuse the name of a column that is not there."""
        if name not in self.names:
            raise InputError(f"{self.path} has no column '{name}'{use}; its columns: "
                             f"{listing(self.names)}" + nearest(name, self.names))

    def ids(self, name: str, use: str = "") -> Any:
        """A column of ids as text, in one large_string array; whole numbers become their digits.

        Raises
        ------
        InputError
            No such column, values that are neither text nor whole numbers, an empty one.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        found = plain(self.column(name, use))
        if not (is_text(found.type) or pa.types.is_integer(found.type)):
            raise InputError(
                f"column '{name}' of {self.path} holds {found.type} values; ids must be text or "
                "whole numbers" + (" (in pandas whole numbers become floating point where one is "
                                   "missing)" if pa.types.is_floating(found.type) else ""))
        ids = whole(pc.cast(found, pa.large_string()))
        empty = pc.fill_null(pc.equal(ids, ""), True)
        if self.is_text:
            empty = pc.or_(empty, pc.is_in(ids, value_set=pa.array(MISSING, pa.large_string())))
        if (row := first(empty)) is not None:
            value = ids[row].as_py()
            raise InputError(f"{self.path}, row {row + 1}: column '{name}' is "
                             f"{quoted(value) if value else 'empty'}, which is no id; every row "
                             "needs one")
        return ids

    def _read(self, name: str | None) -> Any:
        """A column; of files that are not text, the schema where no name is given."""
        arrow()
        try:
            if self.is_text:
                return _csv_column(self.path, str(name))
            if self.path.suffix == ".parquet":
                with arrow("pyarrow.parquet").ParquetFile(self.path) as file:
                    if name is None:
                        return file.schema_arrow
                    return file.read(columns=[name]).column(name)
            with arrow("pyarrow.ipc").open_file(str(self.path)) as file:
                return file.schema if name is None else file.read_all().column(name)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, NotImplementedError) as error:  # pyarrow's too
            raise InputError(f"cannot read {self.path}: "
                             f"{' '.join(str(error).split()) or type(error).__name__}") from None


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text, of any kind."""
    return str(kind) in ("string", "large_string", "string_view")


def plain(column: Any) -> Any:
    """A column without dictionaries (pandas' categories)."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    kind = column.type
    return pc.cast(column, kind.value_type) if pa.types.is_dictionary(kind) else column


def whole(column: Any) -> Any:
    """A column in one array."""
    pa = arrow()
    if isinstance(column, pa.ChunkedArray):
        found = column.combine_chunks()
        column = (pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found)
    return column


def first(flags: Any) -> int | None:
    """The number of the first that is true, or None."""
    places = np.flatnonzero(flags.to_numpy(zero_copy_only=False))
    return int(places[0]) if len(places) else None


def repeated(ids: Any) -> tuple[int, int] | None:
    """Two rows with one id, the first such, or None."""
    pc = arrow("pyarrow.compute")
    if len(pc.unique(ids)) == len(ids):
        return None
    codes = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    again = order[1:][codes[order][1:] == codes[order][:-1]]
    row = int(again.min())
    return int(np.flatnonzero(codes == codes[row])[0]), row


def edge_columns(table: Table, given: Sequence[str] | None) -> tuple[str, str]:
    """The columns of a table of edges that hold their ends.

    They are those that are given, else `src` and `dst`, else a Parquet or Arrow file's only two.
    A CSV must name them, because a file without a header begins with an edge.

    Raises
    ------
    InputError
        The table has no such columns.
    """
    if given is not None:
        return given[0], given[1]
    if {"src", "dst"} <= set(table.names):
        return "src", "dst"
    if len(table.names) == 2 and not table.is_text:
        return table.names[0], table.names[1]
    begins = "'s first line names" if table.is_text else " has"
    raise InputError(f"{table.path}{begins} columns {', '.join(map(quoted, table.names[:8]))}; "
                     "edges are in columns src and dst, or say which by \"columns\": "
                     "[\"…\", \"…\"] beside \"files\"")


def _header(path: Path) -> list[str]:
    """The fields of a CSV's first line."""
    data = b""
    for block in file_blocks(path):
        data += block
        if not block or len(data) > LONGEST_LINE:
            break
    try:
        text = data[:4 * LONGEST_LINE].decode("utf-8", "ignore")
        names = next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error as error:
        raise InputError(f"cannot read {path} as CSV: {error}") from None
    if not names:
        raise InputError(f"{path} is empty; its first line must name its columns")
    return names


def _csv_column(path: Path, name: str) -> Any:
    pa, pcsv = arrow(), arrow("pyarrow.csv")
    data = b"".join(file_blocks(path))
    if data.count(b'"') % 2:
        raise InputError(f"{path} has an odd number of double quotes, so one has no end; write a "
                         "quote in a value as two, and the value in quotes")
    return pcsv.read_csv(
        pa.BufferReader(data),
        read_options=pcsv.ReadOptions(use_threads=False, block_size=1 << 24),
        parse_options=pcsv.ParseOptions(newlines_in_values=True),
        convert_options=pcsv.ConvertOptions(column_types={name: pa.large_string()},
                                            include_columns=[name], strings_can_be_null=False)
    ).column(name)
