"""Double quotes in a CSV, by which a parser makes one value of several rows in silence.

A value that begins with a quote goes on to the next one, over the ends of lines, and what follows
that up to the delimiter is of the value, too. So of `"Low,a` and, rows later, `12" vinyl,a` it
makes a single value, and the rows between are gone.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.whole_numbers import FileStream, file_blocks
from dgl_heta.system.jit import late_kernel

_DO = "write a quote in a value as two, and the value in quotes"
_BEGIN, _PLAIN, _QUOTED, _SECOND = range(4)
"""A byte is at the begin of a value, in one without quotes, in one with them, or after a quote in
such a one, which ends it or is the first of two."""


def check_quotes(path: Path, delimiter: str) -> None:
    """Refuse quotes that nobody can have meant as the parser takes them.

    Raises
    ------
    InputError
        A value in quotes that goes on after them, by its line; a quote without an end; where tabs
        divide columns, so that many programs give quotes no meaning, a value of several lines.
    """
    quotes, line, first, state = 0, 1, 1, _BEGIN
    for block in filter(None, file_blocks(path)):
        count = block.count(b'"')
        if count or state >= _QUOTED:  # else there is nothing to compile
            quotes += count
            state, begin, wrong = map(int, _followed(
                np.frombuffer(block, np.uint8), ord(delimiter), state))
            if begin >= 0:
                first = line + block.count(b"\n", 0, begin)
            if wrong >= 0:
                line += block.count(b"\n", 0, wrong)
                if delimiter == "\t":
                    _check_lines(path)
                raise InputError(f"{path}, line {line}: a value begins with a double quote in line "
                                 f"{first}, ends with one here, and goes on; {_DO}")
        else:
            state = _BEGIN if block[-1:] in (b"\n", b"\r", delimiter.encode()) else _PLAIN
        line += block.count(b"\n")
    if quotes % 2:
        raise InputError(f"{path} has an odd number of double quotes, so one has no end; {_DO}")
    if delimiter == "\t" and quotes:
        _check_lines(path)


def _check_lines(path: Path) -> None:
    """Refuse a line with an odd number of quotes."""
    for number, line in enumerate(io.BufferedReader(FileStream(path)), start=1):
        if line.count(b'"') % 2:
            raise InputError(f"{path}, line {number}, has an odd number of double quotes; {_DO}")


@late_kernel
def _followed(text, delimiter, state):  # type: ignore[no-untyped-def]
    """The state after a text, where the last value with quotes begins in it, and the first byte
    that is wrong; -1 where there is none."""
    begin = -1
    for at in range(len(text)):
        byte = text[at]
        if state == _QUOTED:
            if byte == 34:
                state = _SECOND
        elif state == _SECOND and byte == 34:
            state = _QUOTED
        elif byte == delimiter or byte == 10 or byte == 13:
            state = _BEGIN
        elif state == _SECOND:
            return state, begin, at
        elif state == _BEGIN and byte == 34:
            state, begin = _QUOTED, at
        elif state == _BEGIN:
            state = _PLAIN
    return state, begin, -1
