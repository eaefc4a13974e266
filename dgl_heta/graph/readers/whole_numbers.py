"""Whole numbers in text files: ids as they are written, never by way of a floating point number.

Parsers that know floating point read `1e4294967297` as 10, or end the process. Here a line is
digits, spaces, and a comma, semicolon or tab, and anything else is an error with its line.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.sizes import EXPANSION, FREE_BYTES, expanded
from dgl_heta.system.jit import late_kernel

_BLOCK = 1 << 22
LONGEST_LINE = 1 << 16
"""Bytes of a line of text."""
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def pairs(path: Path, size: int, skip: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Two whole numbers per line, int64, in arrays of at most `size`; `skip` bytes are left out.

    Between them is a comma, a semicolon or a tab. Blank lines count for nothing. A number may have
    a sign and stand in double quotes.

    Raises
    ------
    InputError
        A line of another form or of more than :data:`LONGEST_LINE` bytes, by its number; a file
        that cannot be read or decompressed, or that is very much larger than it looks.
    """
    first, second = np.empty(size, np.int64), np.empty(size, np.int64)
    line, rest = 1, b""
    rows: int = 0
    for block in file_blocks(path):
        line += block.count(b"\n", 0, skip)
        block, skip = block[skip:], max(skip - len(block), 0)
        data = rest + block if rest else block
        # The last line may go on in the next block.
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 if block else len(data)
        text, start = np.frombuffer(data, np.uint8), 0
        while start < whole:
            rows, start, bad = map(int, _parse(text, start, whole, first, second, rows))
            if bad:
                raise _wrong(path, data, start, line, bad)
            if rows == size or (rows and not block):
                yield first[:rows], second[:rows]
                first, second, rows = np.empty(size, np.int64), np.empty(size, np.int64), 0
        line += data.count(b"\n", 0, whole)
        rest = data[whole:]
        if len(rest) > LONGEST_LINE:
            raise InputError(f"{path}, line {line}, has more than {LONGEST_LINE} bytes; every line "
                             "must be two whole numbers: source id, destination id")
    if rows:
        yield first[:rows], second[:rows]


def header_bytes(path: Path) -> int:
    """Number of bytes to skip: up to and including a header, or 0.

    A first line in which no field is a number is a header.

    Raises
    ------
    InputError
        It is not text, or its first line has no end.
    """
    data, ended = b"", False
    for block in file_blocks(path):
        data, ended = data + block, not block
        if len(data) > LONGEST_LINE or ended:
            break
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            if len(line) >= LONGEST_LINE:
                raise InputError(f"cannot read {path} as CSV: its first line has more than "
                                 f"{LONGEST_LINE} bytes")
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"cannot read {path} as CSV: {error}") from None
            fields = [field.strip().strip('"') for field in re.split("[,;\t]", text)]
            named = len(fields) > 1 and all(f and not _is_number(f) for f in fields)
            return sum(map(len, lines[:number])) if named else 0
    return 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def file_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed, without a byte order mark; an empty block at the end.

    Raises
    ------
    InputError
        It cannot be read, expands beyond its limit, or is UTF-16 text.
    """
    packed = path.suffix == ".gz"
    try:
        most = expanded(path.stat().st_size) if packed else None
        with path.open("rb", buffering=_BLOCK) as raw, (
                gzip.open(raw) if packed else raw) as file:
            done = 0
            while block := file.read(_BLOCK):
                if not done:
                    block = block.removeprefix(_BOM)
                    if block.startswith(_UTF_16) or b"\0" in block[:1000]:
                        raise InputError(f"{path} is UTF-16 text, or none; save it as UTF-8 (in "
                                         "Excel as CSV UTF-8)")
                done += len(block)
                if most is not None and done > most:
                    raise InputError(
                        f"{path} expands to more than {EXPANSION} times its size and "
                        f"{FREE_BYTES >> 20} MiB; if it is right, decompress it yourself")
                yield block
        yield b""
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path} as CSV: {reason}") from None


class FileStream(io.RawIOBase):
    """What :func:`file_blocks` yields, as a file."""

    def __init__(self, path: Path) -> None:
        self._blocks, self._rest = file_blocks(path), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._blocks, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _wrong(path: Path, data: bytes, at: int, line: int, kind: int) -> InputError:
    begin = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
    ends = [end for end in (data.find(b"\n", at), data.find(b"\r", at)) if end >= 0]
    shown = data[begin:min([*ends, len(data)])].decode("utf-8", "replace")
    number = line + data.count(b"\n", 0, begin)
    columns = len(re.split("[,;\t]", shown))
    if kind != 2 and columns > 2:
        return InputError(f"{path}, line {number}: {quoted(shown, 80)} has {columns} columns; a "
                          "file of edges has two whole numbers a line, source id and destination "
                          "id; leave the others out, or make it a table ('columns' beside its "
                          "'files', node types without a 'count')")
    what = ("a number that does not fit in 64 bits" if kind == 2 else "not two whole numbers")
    return InputError(f"{path}, line {number}: {quoted(shown, 80)} is {what}; every line must be "
                      "two whole numbers in digits: source id, destination id")


# In one piece: a call per character or number would cost more than the parsing.
@late_kernel
def _parse(text, start, stop, first, second, rows):  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
    """Read lines until `stop` or until the arrays are full: rows, position, 0 or what is wrong."""
    at = start
    while at < stop and rows < len(first):
        if text[at] == 10 or text[at] == 13 or text[at] == 32 or text[at] == 9:
            at += 1  # between lines, or before the first number
            continue
        for column in range(2):
            while at < stop and (text[at] == 32 or text[at] == 9):
                at += 1
            quote = at < stop and text[at] == 34
            if quote:
                at += 1
            negative = at < stop and text[at] == 45
            if at < stop and (text[at] == 45 or text[at] == 43):
                at += 1
            begin, value = at, np.int64(0)
            while at < stop and 48 <= text[at] <= 57:
                digit = np.int64(text[at]) - 48
                if value > (9223372036854775807 - digit) // 10:
                    return rows, begin, 2
                value = value * 10 + digit
                at += 1
            if at == begin:
                return rows, min(at, stop - 1), 1
            if quote:
                if at == stop or text[at] != 34:
                    return rows, min(at, stop - 1), 1
                at += 1
            tab = False
            while at < stop and (text[at] == 32 or text[at] == 9):
                tab |= text[at] == 9
                at += 1
            if column == 0:
                first[rows] = -value if negative else value
                if at < stop and (text[at] == 44 or text[at] == 59):  # comma, semicolon
                    at += 1
                elif not tab:
                    return rows, min(at, stop - 1), 1
            else:
                second[rows] = -value if negative else value
                if at < stop and text[at] != 10 and text[at] != 13:
                    return rows, at, 1
        rows += 1
    return rows, at, 0


def check_numbers(path: Path, whole: bool) -> None:
    """Refuse a CSV file with numbers that a parser of floating point would misread or end by.

    Parameters
    ----------
    whole : whether every number must be whole, in at most 18 digits; else exponents may have
        three digits. Fields that do not begin like a number are left alone.

    Raises
    ------
    InputError
        Such a number, by its line; a line of more than a MiB; as :func:`pairs`.
    """
    line, rest = 1, b""
    for block in file_blocks(path):
        data = rest + block if rest else block
        stop = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 if block else len(data)
        at = int(_misread(np.frombuffer(data, np.uint8), stop, whole))
        if at >= 0:
            begin = max(data.rfind(mark, 0, at) for mark in (b"\n", b"\r", b",")) + 1
            shown = re.split(rb"[,\r\n]", data[begin:begin + 400], maxsplit=1)[0]
            number = line + data.count(b"\n", 0, begin)
            what = ("a whole number in plain digits" if whole
                    else "a number of a size that can be read")
            raise InputError(f"{path}, line {number}: "
                             f"{quoted(shown.decode('utf-8', 'replace'), 80)} is not {what}")
        line += data.count(b"\n", 0, stop)
        rest = data[stop:]
        if len(rest) > 1 << 20:
            raise InputError(f"{path}, line {line}, has more than a MiB")


@late_kernel
def _misread(text, stop, whole):  # type: ignore[no-untyped-def]
    """The position in a field that is wrong, or -1."""
    number, digits, exponent, started = False, 0, False, False
    for at in range(stop):
        byte = text[at]
        if byte == 44 or byte == 10 or byte == 13:
            number, digits, exponent, started = False, 0, False, False
            continue
        if byte == 32 or byte == 9 or byte == 34:
            continue
        digit = 48 <= byte <= 57
        if not started:
            started = True
            number = digit or byte == 43 or byte == 45 or byte == 46
            digits = 1 if digit else 0
            if whole and byte == 46:
                return at
            continue
        if not number:
            continue
        if digit:
            digits += 1
            if (digits > 18 and whole) or (exponent and digits > 3):
                return at
        elif whole:
            return at
        elif byte == 69 or byte == 101:
            exponent, digits = True, 0
    return -1
