"""Values of a column, whatever type a file gives them: the few types that readers know.

:func:`plain_column` leaves text as large_string, whole numbers as int64 or uint64, float32 or
float64, bool, decimals, times, bytes as large_binary, and lists. :func:`sort_of` says which of them
a column has, and whoever reads one says which it takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dgl_heta.system.optional import optional

NUMBERS = ("whole", "float", "decimal", "truth")
"""Answers of :func:`sort_of` for numbers; `truth` is bool."""
_MOST_DIGITS = 76
"""Of a decimal of Arrow's."""


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow.

    Raises
    ------
    InputError
        It is not installed.
    """
    return optional(module, "a table of nodes or edges", "parquet")


def sort_of(kind: Any) -> str:
    """Of an Arrow type: text, whole, float, decimal, truth, bytes, time, list or other."""
    types = arrow().types
    if types.is_decimal(kind) and abs(kind.scale) > _MOST_DIGITS:
        return "other"  # of a damaged file; pyarrow ends the process where it computes with it
    if str(kind) in ("string", "large_string", "string_view"):
        return "text"
    if (str(kind) in ("binary", "large_binary", "binary_view")
            or types.is_fixed_size_binary(kind)):
        return "bytes"
    for sort, of in (("truth", types.is_boolean), ("whole", types.is_integer),
                     ("float", types.is_floating), ("decimal", types.is_decimal),
                     ("time", types.is_timestamp), ("time", types.is_date),
                     ("time", types.is_duration), ("list", types.is_list),
                     ("list", types.is_large_list), ("list", types.is_fixed_size_list)):
        if of(kind):
            return sort
    return "other"


def decoded_bytes(column: Any) -> int:
    """The bytes that readers make of a validated column (a ChunkedArray), or a few less."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    size = 8 * len(column)
    for chunk in column.chunks:
        kind = chunk.type
        if pa.types.is_dictionary(kind):
            if sort_of(kind.value_type) in ("text", "bytes"):
                lengths = pc.cast(pc.binary_length(plain_column(chunk.dictionary)), pa.int64())
                size += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        elif str(kind) in ("string_view", "binary_view"):
            # A view has 16 bytes, the first four are its length; those of a null say nothing.
            lengths = np.frombuffer(chunk.buffers()[1], np.int32)[::4]
            lengths = lengths[chunk.offset:chunk.offset + len(chunk)]
            known = chunk.is_valid().to_numpy(zero_copy_only=False)
            size += int(lengths[known].sum(dtype=np.int64))
        else:
            size += chunk.nbytes
        if sort_of(kind) == "list":  # of which matrix makes float64
            size += 8 * (pc.sum(pc.list_value_length(chunk)).as_py() or 0)
    return size


def plain_column(column: Any) -> Any:
    """A validated column or array as one of the types above; one of another type as it is."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_column(pc.cast(column, kind.storage_type))
    if pa.types.is_dictionary(kind):
        if isinstance(column, pa.ChunkedArray):
            chunks = [plain_column(chunk) for chunk in column.chunks]
            return pa.chunked_array(chunks or [plain_column(pa.array([], kind.value_type))])
        return plain_column(column.dictionary).take(column.indices)
    sort = sort_of(kind)
    if sort == "text" or pa.types.is_null(kind):
        return pc.cast(column, pa.large_string())
    if sort == "bytes":
        return pc.cast(column, pa.large_binary())
    if sort == "whole" and kind != pa.uint64():
        return pc.cast(column, pa.int64())
    if pa.types.is_float16(kind):
        return pc.cast(column, pa.float32())
    if sort == "decimal" and (kind.bit_width < 128 or not 0 <= kind.scale < kind.precision):
        return pc.cast(column, pa.decimal256(_MOST_DIGITS,
                                             min(max(kind.scale, 0), _MOST_DIGITS - 1)))
    return column


def as_text(column: Any) -> Any:
    """A plain array of text, numbers or bytes as text: a large_string array.

    Whole numbers become their digits, whichever type holds them, 16 bytes a UUID, other bytes their
    hexadecimal digits. A NaN becomes null.
    """
    pa, pc = arrow(), arrow("pyarrow.compute")
    sort, text = sort_of(column.type), pa.large_string()
    if sort == "bytes":
        return _hexadecimal(column)
    if sort in ("float", "decimal"):
        truncated = pc.trunc(column)
        whole = pc.equal(truncated, column)
        if sort == "float":
            column = pc.if_else(pc.is_nan(column), None, column)
            whole = pc.and_(whole, pc.less(pc.abs(truncated), 2.0**63))
            digits = pc.cast(pc.if_else(whole, truncated, None), pa.int64())
        else:
            digits = pc.cast(truncated, pa.decimal256(_MOST_DIGITS, 0))
        return pc.if_else(whole, pc.cast(digits, text), pc.cast(column, text))
    return pc.cast(column, text)


def _hexadecimal(column: Any) -> Any:
    pa, pc = arrow(), arrow("pyarrow.compute")
    full = pc.fill_null(column, b"")
    _, ends, data = full.buffers()
    offsets = np.frombuffer(ends, np.int64)[full.offset:full.offset + len(full) + 1]
    digits = bytes(data or b"")[offsets[0]:offsets[-1]].hex().encode()
    text = pa.LargeStringArray.from_buffers(
        len(full), pa.py_buffer(2 * (offsets - offsets[0])), pa.py_buffer(digits))
    text = pc.replace_substring_regex(text, "^(.{8})(.{4})(.{4})(.{4})(.{12})$",
                                      r"\1-\2-\3-\4-\5")
    return pc.if_else(column.is_valid(), text, None)


def matrix(column: Any) -> np.ndarray | None:
    """An array of numbers, or of lists of as many, as float64 (rows, numbers in a row).

    NaN where a value or a whole row is missing. None if rows have different numbers of values, or
    none, or hold anything else.
    """
    pa, pc = arrow(), arrow("pyarrow.compute")
    if sort_of(column.type) == "list":
        known = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = pc.unique(pc.drop_null(pc.list_value_length(column))).to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            return None
        inner = matrix(column.flatten())
        if inner is None or inner.shape[1] != 1:
            return None
        rows = np.full((len(column), lengths[0]), np.nan)
        rows[known] = inner.reshape(-1, lengths[0])
        return rows
    if sort_of(column.type) not in NUMBERS:
        return None
    values = pc.cast(column, pa.float64(), safe=False)
    return np.asarray(pc.fill_null(values, float("nan")).to_numpy(zero_copy_only=False))[:, None]


def first(flags: Any) -> int | None:
    """The number of the first that is true, or None."""
    rows = np.flatnonzero(np.asarray(flags))
    return int(rows[0]) if len(rows) else None


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
