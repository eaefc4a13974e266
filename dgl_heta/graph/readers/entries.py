"""Entries of a `metadata.json`: what each may hold, and how messages show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.array_files import files_of, inside
from dgl_heta.graph.readers.column_files import TextForm
from dgl_heta.graph.readers.edge_tables import Column

TEXT_KEYS = ("header", "delimiter", "decimal")
"""Keys of an entry that describe how its texts are written."""


def check_keys(item: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()
               ) -> None:
    """Check that `item` is an object with the required keys and no unknown ones."""
    required = tuple(required)
    allowed = (*required, *optional)
    if not isinstance(item, dict):
        raise InputError(f"{where} is {short(item)}; it must be an object with {listing(allowed)}")
    for key in item:
        if key not in allowed:
            raise InputError(f"{where}: unknown key '{key}'; keys: {listing(allowed)}"
                             + nearest(key, allowed))
    missing = [key for key in required if key not in item]
    if missing:
        raise InputError(f"{where} lacks {listing(missing)}")


def name_of(value: Any, where: str) -> str:
    """A name, of at least one character."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} is {short(value)}; it must be a name in quotes")
    return value


def name_or_column(value: Any, where: str) -> str | Column:
    """A node type or relation: a name, or the column that has it for each row."""
    if isinstance(value, dict):
        check_keys(value, where, required=("column",))
        return Column(name_of(value["column"], f"{where}: 'column'"))
    return name_of(value, where)


def count_of(value: Any, where: str) -> int:
    """A whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where} is {short(value)}; it must be a whole number, 1 or more")
    return value


def text_form(item: dict[str, Any], where: str) -> TextForm:
    """How the texts of an entry are written."""
    header, delimiter = item.get("header"), item.get("delimiter")
    if header is not None and not (isinstance(header, list) and header and all(
            isinstance(name, str) and name for name in header)):
        raise InputError(f"{where}: 'header' is {short(header)}; it must be the names of all "
                         "columns, of files whose first line has none")
    if delimiter is not None and not (isinstance(delimiter, str) and len(delimiter) == 1
                                      and delimiter.isascii() and delimiter not in '"\r\n\0'):
        raise InputError(f"{where}: 'delimiter' is {short(delimiter)}; it must be one character, "
                         "as \";\"")
    decimal = item.get("decimal", ".")
    if decimal not in (".", ","):
        raise InputError(f"{where}: 'decimal' is {short(decimal)}; it must be \".\" or \",\"")
    return TextForm(None if header is None else tuple(header), delimiter, decimal)


def files_in(directory: Path, files: Any, where: str
             ) -> Iterator[tuple[Path | tuple[Path, Path], str]]:
    """The files of an entry, each with how messages name it; a pair has the ends of edges apart."""
    if not isinstance(files, list) or not files:
        raise InputError(f"{where}: 'files' must be a list with at least one file")
    once: set[tuple[Path, ...]] = set()
    for index, item in enumerate(files):
        entry = f"{where}: files[{index}]"
        if isinstance(item, dict):
            check_keys(item, entry, required=("src_file", "dst_file"))
            src, dst = (inside(directory, item[key], f"{entry}: '{key}'")
                        for key in ("src_file", "dst_file"))
            found: list[tuple[Path, ...]] = [(src, dst)]
            named = short(item)
        else:
            found, named = [(path,) for path in files_of(directory, item, entry)], f"'{item}'"
        for paths in found:
            there = tuple(path.resolve() for path in paths)
            if there in once:
                raise InputError(f"{entry} is {named}, which names {' and '.join(map(str, paths))} "
                                 "again; a file is read once")
            once.add(there)
            yield (paths[0], paths[1]) if len(paths) == 2 else paths[0], f"{entry} is {named}"


def short(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
