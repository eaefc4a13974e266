"""A function that a loaded library calls by name, replaced for that library alone.

A library finds the functions of others by a table that the system's loader fills in. Another
address there is another function.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
DYNAMIC = 2  # a segment's type
STRINGS, SYMBOLS, RELOCATIONS, CALLS = 5, 6, (7, 8), (23, 2)  # tags: a table, or with its bytes
SYMBOL_BYTES = 24
READ_WRITE = 3


class _Segment(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                *((name, ctypes.c_uint64) for name in (
                    "offset", "address", "physical", "bytes", "memory", "align"))]


class _Library(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("path", ctypes.c_char_p),
                ("segments", ctypes.POINTER(_Segment)), ("count", ctypes.c_uint16)]


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
_kept: list[Any] = []  # functions that libraries call


def replace_call(library: str, name: str, function: Any) -> bool:
    """Let a library call `function` by a name; returns whether it calls that name at all.

    Parameters
    ----------
    library : its path, as it was loaded.
    function : a ctypes function, which takes and returns what the library expects.
    """
    places = _places(library, name)
    for address in places:
        page = address & -os.sysconf("SC_PAGESIZE")
        if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(address + 8 - page), READ_WRITE):
            raise OSError(ctypes.get_errno(), f"cannot replace {name} in {library}")
        ctypes.c_void_p.from_address(address).value = ctypes.cast(function, ctypes.c_void_p).value
    if places:
        _kept.append(function)
    return bool(places)


def _places(library: str, name: str) -> list[int]:
    """Where the addresses of a function are that a library calls."""
    if struct.calcsize("P") != 8:
        return []
    addresses: list[int] = []

    def visit(entry: Any, size: int, data: Any) -> int:
        loaded = entry.contents
        if loaded.path and os.path.realpath(os.fsdecode(loaded.path)) == os.path.realpath(library):
            addresses.extend(_in_library(loaded, name.encode()))
        return 0

    LIBC.dl_iterate_phdr(_Visit(visit), None)
    return addresses


def _in_library(loaded: Any, name: bytes) -> list[int]:
    tags: dict[int, int] = {}
    for segment in loaded.segments[:loaded.count]:
        if segment.type == DYNAMIC:
            at = loaded.base + segment.address
            while (tag := struct.unpack("qQ", ctypes.string_at(at, 16)))[0]:
                tags[tag[0]], at = tag[1], at + 16
    return [loaded.base + offset
            for table, size in (RELOCATIONS, CALLS) if table in tags
            for offset, info, _ in struct.iter_unpack(
                "QQq", ctypes.string_at(tags[table], tags[size]))
            if info >> 32 and _name(tags, info >> 32) == name]


def _name(tags: dict[int, int], number: int) -> bytes:
    at = tags[SYMBOLS] + SYMBOL_BYTES * number
    (offset,) = struct.unpack("I", ctypes.string_at(at, 4))
    return ctypes.string_at(tags[STRINGS] + offset)
