"""Ids as few bytes: differences of neighbours, a byte each where ids are sorted and dense.

A piece is a head and codes. The head is the number of ids, and two bits. A code is what an id has
more than the one before it, seven bits a byte, low ones first; of signed ones the sign is the
lowest bit. In runs, each code is followed by how often it comes again, so numbers that repeat take
nearly nothing. A piece is written the shorter way. Nothing is lost of any int64, and the order
stays; sorted ids take the fewest bytes. An empty piece has no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgl_heta.system.jit import kernel

_MOST = 10
"""Bytes of a code, at most."""
_ONE, _TWO, _SEVEN = np.uint64(1), np.uint64(2), np.uint64(7)
_LOW, _MORE = np.uint64(127), np.uint64(128)


def pack(keys: np.ndarray, counts: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """The bytes (uint8) of pieces of keys, one after the other, and how many each has.

    Parameters
    ----------
    keys : int64 (n,) or (n, columns); columns are packed by themselves.
    counts : of keys in each piece, n in all.
    """
    columns = np.ascontiguousarray(keys.T if keys.ndim > 1 else keys[None])
    out = np.empty(_MOST * (columns.size + len(columns) * len(counts)), np.uint8)
    at, start, sizes = 0, 0, []
    for count in counts:
        before = at
        for column in columns:
            at = _pack(column[start:start + count], out, at)
        start += count
        sizes.append(at - before)
    return out[:at], sizes


def unpack(data: np.ndarray, sizes: Sequence[int], width: Sequence[int] = ()
           ) -> tuple[np.ndarray, list[int]]:
    """The keys (n, *width) of pieces, one after the other, and how many each has.

    Parameters
    ----------
    data : uint8, as from :func:`pack`.
    sizes : of the pieces, in bytes.
    width : (), or the number of columns.
    """
    ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    counts = [int(_count(data, end - size)) if size else 0 for end, size in zip(ends, sizes)]
    columns = np.empty((width[0] if width else 1, sum(counts)), np.int64)
    start = 0
    for end, size, count in zip(ends, sizes, counts):
        at = end - size
        for column in columns:
            at = _unpack(data, at, column[start:start + count])
        start += count
    return columns.T if width else columns[0], counts


@kernel
def _code(more, signed):  # type: ignore[no-untyped-def]
    bits = np.uint64(more)
    return (bits << _ONE) ^ np.uint64(more >> 63) if signed else bits


@kernel
def _length(code):  # type: ignore[no-untyped-def]
    length = 1
    while code > _LOW:
        code >>= _SEVEN
        length += 1
    return length


@kernel
def _write(out, at, code):  # type: ignore[no-untyped-def]
    while code > _LOW:
        out[at] = np.uint8(code & _LOW | _MORE)
        code >>= _SEVEN
        at += 1
    out[at] = np.uint8(code)
    return at + 1


@kernel
def _read(data, at):  # type: ignore[no-untyped-def]
    code, shift = np.uint64(0), np.uint64(0)
    while True:
        byte = np.uint64(data[at])
        code |= (byte & _LOW) << shift
        at += 1
        if byte <= _LOW:
            return code, at
        shift += _SEVEN


@kernel
def _count(data, at):  # type: ignore[no-untyped-def]
    return np.int64(_read(data, at)[0] >> _TWO)


@kernel
def _pack(ids, out, at):  # type: ignore[no-untyped-def]
    """Write a piece into `out` from `at` on; returns where it ends."""
    if len(ids) == 0:
        return at
    signed, last = False, np.int64(0)
    for i in range(len(ids)):
        signed |= ids[i] < last
        last = ids[i]
    plain, runs, again, before, last = 0, 0, np.uint64(0), np.uint64(0), np.int64(0)
    for i in range(len(ids)):
        code = _code(ids[i] - last, signed)
        last = ids[i]
        length = _length(code)
        plain += length
        if i > 0 and code == before:
            again += _ONE
        else:
            runs += length + (_length(again) if i > 0 else 0)
            again, before = np.uint64(0), code
    runs += _length(again)
    in_runs = runs < plain
    at = _write(out, at, np.uint64(len(ids) << 2 | signed << 1 | in_runs))
    again, before, last = np.uint64(0), np.uint64(0), np.int64(0)
    for i in range(len(ids)):
        code = _code(ids[i] - last, signed)
        last = ids[i]
        if not in_runs:
            at = _write(out, at, code)
        elif i > 0 and code == before:
            again += _ONE
        else:
            if i > 0:
                at = _write(out, at, again)
            at = _write(out, at, code)
            again, before = np.uint64(0), code
    return _write(out, at, again) if in_runs else at


@kernel
def _unpack(data, at, ids):  # type: ignore[no-untyped-def]
    """Read a piece from `at` on into `ids`; returns where it ends."""
    if len(ids) == 0:
        return at
    head, at = _read(data, at)
    signed, in_runs = head & _TWO != 0, head & _ONE != 0
    last, i = np.int64(0), 0
    while i < len(ids):
        code, at = _read(data, at)
        times = np.uint64(1)
        if in_runs:
            times, at = _read(data, at)
            times += _ONE
        if signed:
            more = np.int64(code >> _ONE) ^ -np.int64(code & _ONE)
        else:
            more = np.int64(code)
        for _ in range(np.int64(times)):
            last += more
            ids[i] = last
            i += 1
    return at
