"""Sizes of the columns of a Parquet or Arrow file in memory, from the descriptions in the file.

They are read here, because pyarrow decompresses without asking how much it will be, and ends the
process where it is asked about a description that is damaged. Nothing here trusts an offset.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
           struct.error)
"""Errors that reading a damaged description may raise."""

_TAIL = 1 << 16
"""Bytes that are read at once of the end of a file, where most footers are shorter."""


def parquet_footer(file: BinaryIO) -> bytes:
    """The end of a Parquet file, which describes it; of one that is none whatever is there."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - _TAIL, 0))
    tail = file.read(_TAIL)
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length <= size:
        file.seek(size - length)
        tail = file.read(length)
    return tail[-length:]


def parquet_chunks(footer: bytes) -> Iterator[tuple[str, int, int]]:
    """Of each chunk in a Parquet file the column, its bytes without compression, and its values.

    A chunk is a column's part of a group of rows; of lists the values in them are counted.
    """
    groups, columns, metadata = 4, 1, 3  # of FileMetaData, RowGroup, ColumnChunk
    path, values, size = 3, 5, 6  # of ColumnMetaData
    for group in _Thrift(footer[:-8]).struct()[groups]:
        for column in group[columns]:
            chunk = column[metadata]
            yield chunk[path][0].decode(), chunk[size], chunk[values]


class _Thrift:
    """Thrift's compact protocol, in which Parquet describes itself."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> dict[int, Any]:
        """The struct that begins here: its fields by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (4, 5, 6):
            return self._integer()
        if kind in (3, 7):
            return self._bytes(1 if kind == 3 else 8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise ValueError("its description is damaged")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._data):
            raise ValueError("its description is damaged")
        kind = head & 15
        return [self._byte() == 1 if kind in (1, 2) else self._value(kind) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("its description ends too early")
        return self._data[self._at - count:self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("its description is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def arrow_buffers(file: BinaryIO) -> Iterator[int]:
    """Yield the size of each compressed buffer of an Arrow file once decompressed, in bytes.

    The footer of the file has blocks of dictionaries and of batches; each block begins with a
    message that describes its buffers.
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
        """Return whether a field is there."""
        return self._offset(slot) is not None

    def table(self, slot: int) -> _FlatTable:
        """The table in a field."""
        offset = self._offset(slot)
        if offset is None:
            raise ValueError("its description is damaged")
        return _FlatTable(self._data, offset + struct.unpack_from("<I", self._data, offset)[0])

    def structs(self, slot: int, form: str) -> Iterator[tuple[int, ...]]:
        """The structs of a vector in a field."""
        offset = self._offset(slot)
        if offset is not None:
            begin = offset + struct.unpack_from("<I", self._data, offset)[0]
            count, = struct.unpack_from("<I", self._data, begin)
            end = begin + 4 + count * struct.calcsize(form)
            if end > len(self._data):
                raise ValueError("its description is damaged")
            yield from struct.iter_unpack(form, self._data[begin + 4:end])

    def _offset(self, slot: int) -> int | None:
        fields = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        size, = struct.unpack_from("<H", self._data, fields)
        if 4 + 2 * slot >= size:
            return None
        offset, = struct.unpack_from("<H", self._data, fields + 4 + 2 * slot)
        return self._at + offset if offset else None
