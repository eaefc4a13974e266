"""Files with columns: CSV, Parquet, Arrow. What is read is whole, and no larger than it may be.

pyarrow trusts the offsets and indices that a file holds, so every column is validated before
anything else looks at it, and its size is known before it is decoded. Whatever pyarrow raises
becomes one error that names the file.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.column_sizes import (
    DAMAGED,
    arrow_buffers,
    parquet_chunks,
    parquet_footer,
)
from dgl_heta.graph.readers.column_values import arrow, decoded_bytes, plain_column
from dgl_heta.graph.readers.quotes import check_quotes
from dgl_heta.graph.readers.sizes import EXPANSION, FREE_BYTES, expanded
from dgl_heta.graph.readers.whole_numbers import FileStream, file_blocks

TEXT_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
ENDINGS = (*TEXT_ENDINGS, ".parquet", ".arrow", ".feather")
DELIMITERS = ",;\t|"
PIECE = 1 << 16
"""Rows that are read at a time, where not all are."""
LONGEST_ROW = 1 << 24
"""Bytes of a row of a CSV, the first line too."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into an InputError that names the file."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if "utf8" in text.lower():
            text += "; save it as UTF-8"
        raise InputError(f"cannot read {path}: {text}") from None


@contextmanager
def _describing(path: Path) -> Iterator[None]:
    """What is wrong with the description in a file that is read becomes an error."""
    with reading(path):
        try:
            yield
        except DAMAGED as error:
            raise ValueError(str(error)) from None


def check_size(path: Path, size: int) -> None:
    """Refuse a file that holds very much more than it looks like."""
    if size > expanded(path.stat().st_size):
        raise InputError(f"{path} would take {size:,} bytes of memory, more than {EXPANSION} times "
                         f"its size and {FREE_BYTES >> 20} MiB; if it is right, write it without "
                         "compression, dictionaries and runs of the same value")


@dataclass(frozen=True)
class TextForm:
    """How a text (CSV) is written, as far as somebody says so.

    Attributes
    ----------
    header : the names of its columns, where its first line has none.
    delimiter : what divides its columns; None: whichever its first line has most of.
    decimal : what stands before the fraction of a number.
    """

    header: tuple[str, ...] | None = None
    delimiter: str | None = None
    decimal: str = "."


class ColumnFile(ABC):
    """A file with columns, which is read in Arrow's batches.

    Attributes
    ----------
    names : of its columns, in their order.
    """

    _path: Path
    _schema: Any
    names: list[str]

    def read(self, names: Sequence[str]) -> list[Any]:
        """Some columns, each a ChunkedArray of what :func:`plain_column` makes.

        Raises
        ------
        InputError
            The file is damaged, or its columns take more memory than they may.
        """
        return self._joined([*self._batches(names)], names)

    def pieces(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """As :meth:`read`, in pieces of about :data:`PIECE` rows, of which one may have none."""
        batches, rows = list[Any](), 0
        for batch in self._batches(names):
            batches.append(batch)
            rows += batch.num_rows
            if rows >= PIECE:
                yield self._joined(batches, names)
                batches, rows = [], 0
        yield self._joined(batches, names)

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Some columns as the file has them, whose size was checked."""

    def _joined(self, batches: list[Any], names: Sequence[str]) -> list[Any]:
        return _validated(self._path, batches, self._schema, names)


def open_columns(path: Path, form: TextForm | None = None) -> ColumnFile:
    """A file with columns, as its name says.

    Raises
    ------
    InputError
        Another ending, a file that cannot be read, columns without a name or with the same, or a
        header for what is no text.
    """
    form = form or TextForm()
    if path.name.endswith(TEXT_ENDINGS):
        return TextColumns(path, form)
    if not path.name.endswith(ENDINGS):
        raise InputError(f"'{path}' is not a table by its name; tables end in "
                         f"{', '.join(ENDINGS)}")
    if form.header is not None:
        raise InputError(f"{path} has the names of its columns in itself; \"header\" is for text")
    return ParquetColumns(path) if path.suffix == ".parquet" else ArrowColumns(path)


def _apart(path: Path, names: Sequence[str]) -> list[str]:
    """The names of the columns of a file, which must be different."""
    if wrong := [name for name, times in Counter(names).items() if times > 1 or not name]:
        raise InputError(f"{path}: column {quoted(wrong[0])} is there {names.count(wrong[0])} "
                         "times, or has no name; the columns of a table need different names")
    return list(names)


class TextColumns(ColumnFile):
    """A CSV, whatever divides its columns."""

    def __init__(self, path: Path, form: TextForm) -> None:
        self._path, self._header = path, form.header
        self._delimiter, first = self._first_row(
            form.delimiter or ("\t" if ".tsv" in path.suffixes else DELIMITERS))
        if form.header is not None and len(form.header) != len(first):
            raise InputError(f"{path} has {len(first)} columns in its first line, but \"header\" "
                             f"is {quoted(list(form.header))}; it must name them all")
        if form.header == tuple(first):
            raise InputError(f"{path} has the names of its columns in its first line; leave "
                             "\"header\" out")
        self.names = _apart(path, form.header or first)

    def _joined(self, batches: list[Any], names: Sequence[str]) -> list[Any]:
        return [arrow().chunked_array([batch.column(name) for batch in batches],
                                      arrow().large_string()) for name in names]

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        check_quotes(self._path, self._delimiter)
        done = 0
        for block in (1 << 20, LONGEST_ROW):  # pyarrow reads 32 blocks ahead
            row = 0
            try:
                with self._reader(names, block) as reader:
                    for batch in reader:
                        new, row = batch[max(done - row, 0):], row + batch.num_rows
                        done = max(done, row)
                        yield new
                return
            except InputError as error:
                if block == LONGEST_ROW or "straddling object" not in str(error):
                    raise

    @contextmanager
    def _reader(self, names: Sequence[str], block: int) -> Iterator[Any]:
        """Batches of some columns, text, in the order of `names`."""
        pa, pcsv = arrow(), arrow("pyarrow.csv")
        with reading(self._path), FileStream(self._path) as stream, io.BufferedReader(
                stream) as file, pcsv.open_csv(
                file,
                read_options=pcsv.ReadOptions(use_threads=False, block_size=block,
                                              column_names=self._header),
                parse_options=pcsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                convert_options=pcsv.ConvertOptions(
                    column_types={name: pa.large_string() for name in names},
                    include_columns=list(names), strings_can_be_null=False)) as reader:
            yield reader

    def _first_row(self, delimiters: str) -> tuple[str, list[str]]:
        """The delimiter by which the first row has most fields, and these."""
        data = b""
        for block in file_blocks(self._path):
            data += block
            if not block or b"\n" in data or len(data) > LONGEST_ROW:
                break
        text = data[:LONGEST_ROW].decode("utf-8", "replace")
        rows, wrong = {}, ""
        for delimiter in delimiters:
            try:
                rows[delimiter] = next(csv.reader(io.StringIO(text, newline=""), strict=True,
                                                  delimiter=delimiter), [])
            except csv.Error as error:
                wrong = wrong or str(error)
        delimiter = max(rows, key=lambda delimiter: len(rows[delimiter]), default="")
        if not rows.get(delimiter):
            raise InputError(f"cannot read {self._path} as CSV: {wrong}" if wrong else
                             f"{self._path} is empty; its first line must name its columns")
        if any("\ufffd" in field for field in rows[delimiter]):
            raise InputError(f"the first line of {self._path} is not UTF-8 text; save it as UTF-8")
        return delimiter, rows[delimiter]


class ParquetColumns(ColumnFile):
    """A Parquet file.

    Attributes
    ----------
    schema : Arrow's.
    num_rows : as the file says.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _describing(path), path.open("rb") as file:
            self._footer = parquet_footer(file)
        parquet = arrow("pyarrow.parquet")
        with reading(path):
            self._metadata = parquet.read_metadata(io.BytesIO(self._footer))
            self.schema = self._schema = self._metadata.schema.to_arrow_schema()
        self.names = _apart(path, self.schema.names)
        self.num_rows = int(self._metadata.num_rows)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        size = 0
        for batch in self.batches(names):
            size += batch.get_total_buffer_size()
            check_size(self._path, size)
            yield batch

    @property
    def group_rows(self) -> list[int]:
        """The rows of each row group, which can be read by itself."""
        groups = range(self._metadata.num_row_groups)
        return [int(self._metadata.row_group(group).num_rows) for group in groups]

    def batches(self, names: Sequence[str], rows: int = 1 << 17, group: int | None = None
                ) -> Iterator[Any]:
        """Some columns, at most so many rows at a time, not validated yet; of one row group or all.

        Raises
        ------
        InputError
            The file is damaged, or the columns take more memory than they may.
        """
        rows, read = min(rows, self._batch_rows(names)), 0
        groups, wanted = (None, self.num_rows) if group is None else ([group],
                                                                     self.group_rows[group])
        with self._open() as file:
            for batch in file.iter_batches(rows, row_groups=groups, columns=list(names),
                                           use_threads=False):
                read += batch.num_rows
                yield batch
        if read != wanted:
            raise InputError(f"cannot read {self._path}: it has {read:,} rows of {wanted:,} that "
                             "it names")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        parquet = arrow("pyarrow.parquet")
        with reading(self._path), self._path.open("rb") as raw, parquet.ParquetFile(
                raw, metadata=self._metadata, page_checksum_verification=True) as file:
            yield file

    def _batch_rows(self, names: Sequence[str]) -> int:
        """How many rows may be decoded at a time: no value is larger than what all have encoded.

        Raises
        ------
        InputError
            The columns take more memory than they may.
        """
        chunks = [self._chunks[name] for name in names]
        values = max(sum(count for each in chunks for _, count in each),
                     self.num_rows * len(names))
        check_size(self._path, max(sum(size for each in chunks for size, _ in each), 8 * values))
        largest = sum(max([1, *(size for size, _ in each)]) for each in chunks)
        return max(1, min(expanded(self._path.stat().st_size) // largest, 1 << 17))

    @cached_property
    def _chunks(self) -> dict[str, list[tuple[int, int]]]:
        """Of each column the bytes without compression and the values of its chunks."""
        chunks: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}
        with _describing(self._path):
            for name, size, values in parquet_chunks(self._footer):
                if name in chunks:
                    chunks[name].append((size, values))
        return chunks


class ArrowColumns(ColumnFile):
    """A file of Arrow's IPC format, such as Feather."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            self._schema = file.schema
            self.names = _apart(path, file.schema.names)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        with _describing(self._path), self._path.open("rb") as raw:
            for size in arrow_buffers(raw):
                check_size(self._path, size)
        places = {name: index for index, name in enumerate(self.names)}
        with self._open(included_fields=[places[name] for name in names],
                        use_threads=False) as file:
            size = 0
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                batch.validate()  # as to the lengths of its columns
                size += max(batch.get_total_buffer_size(), 8 * batch.num_rows)
                check_size(self._path, size)
                yield batch

    @contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        ipc = arrow("pyarrow.ipc")
        with reading(self._path), self._path.open("rb") as raw, ipc.open_file(
                raw, options=ipc.IpcReadOptions(**options)) as file:
            yield file


def _validated(path: Path, batches: list[Any], schema: Any, names: Sequence[str]) -> list[Any]:
    """Columns that are whole, of the types that :func:`plain_column` leaves."""
    columns, size = [], 0
    with reading(path):
        for name in names:
            column = arrow().chunked_array([batch.column(name) for batch in batches],
                                           schema.field(name).type)
            column.validate(full=True)
            size += decoded_bytes(column)
            check_size(path, size)
            columns.append(plain_column(column))
    return columns
