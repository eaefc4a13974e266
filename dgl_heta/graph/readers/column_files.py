"""Files with columns: CSV, Parquet, Arrow. What is read is whole, and no larger than it may be.

pyarrow trusts the offsets and indices that a file holds, so every column is validated before
anything else looks at it, and its size is known before it is decoded. Whatever pyarrow raises
becomes one error that names the file.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.column_values import arrow, decoded_bytes, plain
from dgl_heta.graph.readers.sizes import EXPANSION, FREE_BYTES, expanded
from dgl_heta.graph.readers.whole_numbers import file_blocks

TEXT_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
ENDINGS = (*TEXT_ENDINGS, ".parquet", ".arrow", ".feather")
DELIMITERS = ",;\t|"
LONGEST_ROW = 1 << 24
"""Bytes of a row of a CSV, the first line too."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into an InputError that names the file."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError,
            struct.error) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if "utf8" in text.lower():
            text += "; save it as UTF-8"
        raise InputError(f"cannot read {path}: {text}") from None


def check_size(path: Path, size: int) -> None:
    """Refuse a file that holds very much more than it looks like."""
    if size > expanded(path.stat().st_size):
        raise InputError(f"{path} would take {size:,} bytes of memory, more than {EXPANSION} times "
                         f"its size and {FREE_BYTES >> 20} MiB; if it is right, write it without "
                         "compression, dictionaries and runs of the same value")


class ColumnFile(Protocol):
    """A file with columns.

    Attributes
    ----------
    names : of its columns, in their order.
    """

    names: list[str]

    def read(self, names: Sequence[str]) -> list[Any]:
        """Some columns, each a ChunkedArray of what :func:`plain` makes.

        Raises
        ------
        InputError
            The file is damaged, or its columns take more memory than they may.
        """


def open_columns(path: Path, header: Sequence[str] | None = None) -> ColumnFile:
    """A file with columns, as its name says.

    Parameters
    ----------
    header : names of the columns of a text that has none in its first line.

    Raises
    ------
    InputError
        Another ending, a file that cannot be read, or a header for one that is no text.
    """
    if path.name.endswith(TEXT_ENDINGS):
        return TextColumns(path, header)
    if not path.name.endswith(ENDINGS):
        raise InputError(f"'{path}' is not a table by its name; tables end in "
                         f"{', '.join(ENDINGS)}")
    if header is not None:
        raise InputError(f"{path} has the names of its columns in itself; \"header\" is for text")
    return ParquetColumns(path) if path.suffix == ".parquet" else ArrowColumns(path)


class TextColumns:
    """A CSV. Of comma, semicolon, tab and bar, its delimiter is what the first line has most of."""

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self._path, self._header = path, header
        self._delimiter, first = self._first_row("\t" if ".tsv" in path.suffixes else DELIMITERS)
        if header is not None and len(header) != len(first):
            raise InputError(f"{path} has {len(first)} columns in its first line, but \"header\" "
                             f"is {quoted(list(header))}; it must name them all")
        self.names = list(header or first)

    def read(self, names: Sequence[str]) -> list[Any]:
        pa, pcsv = arrow(), arrow("pyarrow.csv")
        data = b"".join(file_blocks(self._path))
        self._check_quotes(data)
        with reading(self._path):
            table = pcsv.read_csv(
                pa.BufferReader(data),
                read_options=pcsv.ReadOptions(use_threads=False, block_size=LONGEST_ROW,
                                              column_names=self._header),
                parse_options=pcsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                convert_options=pcsv.ConvertOptions(
                    column_types={name: pa.large_string() for name in names},
                    include_columns=list(names), strings_can_be_null=False))
            return [table.column(name) for name in names]

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

    def _check_quotes(self, data: bytes) -> None:
        """Refuse a quote without an end, by which the parser would make one row of several."""
        if data.count(b'"') % 2:
            raise InputError(f"{self._path} has an odd number of double quotes, so one has no end; "
                             "write a quote in a value as two, and the value in quotes")
        if self._delimiter == "\t" and b'"' in data:  # where many programs give quotes no meaning
            for number, line in enumerate(io.BytesIO(data), start=1):
                if line.count(b'"') % 2:
                    raise InputError(f"{self._path}, line {number}, has an odd number of double "
                                     "quotes; write a quote in a value as two, and the value in "
                                     "quotes")


class ParquetColumns:
    """A Parquet file.

    Attributes
    ----------
    schema : Arrow's.
    num_rows : as the file says.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata: Any = None
        with self._open() as file:
            self._metadata, self.schema = file.metadata, file.schema_arrow
            self.names = list(self.schema.names)
            self.num_rows = int(file.metadata.num_rows)

    def read(self, names: Sequence[str]) -> list[Any]:
        batches, size = [], 0
        for batch in self.batches(names):
            size += batch.get_total_buffer_size()
            check_size(self._path, size)
            batches.append(batch)
        return _validated(self._path, batches, self.schema, names)

    def batches(self, names: Sequence[str], rows: int = 1 << 17) -> Iterator[Any]:
        """Some columns, at most so many rows at a time, not validated yet.

        Raises
        ------
        InputError
            The file is damaged, or the columns take more memory than they may.
        """
        with self._open() as file:
            rows = min(rows, self._batch_rows(names))
            yield from file.iter_batches(rows, columns=list(names), use_threads=False)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        parquet = arrow("pyarrow.parquet")
        with reading(self._path), parquet.ParquetFile(
                self._path, metadata=self._metadata, page_checksum_verification=True) as file:
            yield file

    def _batch_rows(self, names: Sequence[str]) -> int:
        """How many rows may be decoded at a time: no value is larger than what all have encoded.

        Raises
        ------
        InputError
            The columns take more memory than they may.
        """
        metadata = self._metadata
        wanted = [i for i, path in enumerate(self._leaves)
                  if path in names or path.partition(".")[0] in names]
        encoded, largest, values = 0, 1, self.num_rows * len(names)
        for group in range(metadata.num_row_groups):
            for leaf in wanted:
                chunk = metadata.row_group(group).column(leaf)
                encoded += chunk.total_uncompressed_size
                largest = max(largest, chunk.total_uncompressed_size)
                values += max(chunk.num_values - metadata.row_group(group).num_rows, 0)
        check_size(self._path, max(encoded, 8 * values))
        return max(1, min(expanded(self._path.stat().st_size) // largest, 1 << 17))

    @cached_property
    def _leaves(self) -> list[str]:
        schema = self._metadata.schema
        return [schema.column(i).path for i in range(len(schema))]


class ArrowColumns:
    """A file of Arrow's IPC format, such as Feather."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            self._schema = file.schema
            self.names = list(file.schema.names)

    def read(self, names: Sequence[str]) -> list[Any]:
        with reading(self._path), self._path.open("rb") as raw:
            for size in _decompressed(raw):
                check_size(self._path, size)
        places = [self.names.index(name) for name in names]
        with self._open(included_fields=places, use_threads=False) as file:
            batches, size = [], 0
            for number in range(file.num_record_batches):
                batches.append(file.get_batch(number))
                size += max(batches[-1].get_total_buffer_size(), 8 * batches[-1].num_rows)
                check_size(self._path, size)
        return _validated(self._path, batches, self._schema, names)

    @contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        ipc = arrow("pyarrow.ipc")
        with reading(self._path), ipc.open_file(
                str(self._path), options=ipc.IpcReadOptions(**options)) as file:
            yield file


def _validated(path: Path, batches: list[Any], schema: Any, names: Sequence[str]) -> list[Any]:
    """Columns that are whole, of the types that :func:`plain` leaves."""
    columns, size = [], 0
    with reading(path):
        for name in names:
            column = arrow().chunked_array([batch.column(name) for batch in batches],
                                           schema.field(name).type)
            column.validate(full=True)
            size += decoded_bytes(column)
            check_size(path, size)
            columns.append(plain(column))
    return columns


def _decompressed(file: BinaryIO) -> Iterator[int]:
    """What the compressed buffers of an Arrow file say that they become, in bytes.

    pyarrow makes room for them without asking, and ends the process where a batch tells of more
    buffers than it has. What they are stands in flatbuffers: the footer of the file has blocks of
    dictionaries and of batches, and each block begins with a message that describes its buffers.

    Raises
    ------
    ValueError, struct.error
        The descriptions are damaged.
    """
    file.seek(-10, io.SEEK_END)
    length, _ = struct.unpack("<i6s", file.read(10))
    file.seek(-10 - length, io.SEEK_END)
    footer = _FlatTable.root(file.read(max(length, 0)))
    dictionaries, batches = 2, 3
    for slot in (dictionaries, batches):
        for start, prefix, _ in footer.structs(slot, "<qi4xq"):
            file.seek(start)
            begin = file.read(4)
            size = begin if begin != b"\xff" * 4 else file.read(4)
            header = _FlatTable.root(file.read(max(struct.unpack("<i", size)[0], 0))).table(2)
            batch = header.table(1) if slot == dictionaries else header
            buffers = list(batch.structs(2, "<qq"))
            if not all(0 <= count <= len(buffers) for count, in batch.structs(4, "<q")):
                raise ValueError("a batch tells of more buffers than it has")
            if batch.has(3):  # it is compressed
                for offset, stored in buffers:
                    if stored >= 8:
                        file.seek(start + prefix + offset)
                        yield struct.unpack("<q", file.read(8))[0]


class _FlatTable:
    """A table in a flatbuffer; its fields have numbers, the slots."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @classmethod
    def root(cls, data: bytes) -> _FlatTable:
        """The table that a flatbuffer is of."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def has(self, slot: int) -> bool:
        """Whether a field is there."""
        return self._place(slot) is not None

    def table(self, slot: int) -> _FlatTable:
        """The table in a field."""
        place = self._place(slot)
        if place is None:
            raise ValueError("the description of a batch is damaged")
        return _FlatTable(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def structs(self, slot: int, form: str) -> Iterator[tuple[int, ...]]:
        """The structs of a vector in a field."""
        place = self._place(slot)
        if place is not None:
            begin = place + struct.unpack_from("<I", self._data, place)[0]
            count, = struct.unpack_from("<I", self._data, begin)
            end = begin + 4 + count * struct.calcsize(form)
            if end > len(self._data):
                raise ValueError("the description of a batch is damaged")
            yield from struct.iter_unpack(form, self._data[begin + 4:end])

    def _place(self, slot: int) -> int | None:
        fields = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        size, = struct.unpack_from("<H", self._data, fields)
        if 4 + 2 * slot >= size:
            return None
        offset, = struct.unpack_from("<H", self._data, fields + 4 + 2 * slot)
        return self._at + offset if offset else None
