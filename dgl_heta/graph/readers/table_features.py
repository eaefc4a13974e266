"""Columns of a table of nodes as features: numbers standardised, categories one-hot, text hashed.

What was found out about a column (a mean, the categories) is a record that JSON can hold, and is
kept with the store. Means and categories are those of all rows, whichever are trained on.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.columns import numbers
from dgl_heta.graph.readers.tables import Table, arrow, is_text, plain, whole

KINDS = ("number", "category", "text")
MOST_CATEGORIES = 1 << 10
TEXT_WIDTH = 64
_WORD = re.compile(r"\w+")


def table_features(table: Table, columns: Mapping[str, Any]) -> tuple[np.ndarray, list[dict]]:
    """The features of the nodes of a table, float32, and how each column became some.

    Parameters
    ----------
    columns : column to `number`, `category`, or `text` with a width after a colon (`text:128`).

    Raises
    ------
    InputError
        No such column, another kind, values that are not of the kind, too many categories.
    """
    parts, records = [], []
    for name, text in columns.items():
        kind, _, width = str(text).partition(":")
        wide = int(width) if width.isascii() and width.isdigit() and len(width) < 6 else 0
        if kind not in KINDS or (width and (kind != "text" or not wide)):
            raise InputError(f"column '{name}' of {table.path} is to be '{text}'; columns become "
                             "features as number, category, text, or text:WIDTH")
        table.check(name, " for features")
        if kind == "number":
            rows, record = _number(table, name)
        elif kind == "category":
            rows, record = _category(table, name)
        else:
            rows, record = _text(table, name, wide or TEXT_WIDTH)
        parts.append(rows)
        records.append({"column": name, "kind": kind, **record})
    return np.concatenate(parts, 1), records


def _number(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    values = numbers(table, name, np.dtype(np.float64))
    mean, deviation = float(values.mean()), float(values.std())
    rows = (values - mean) / (deviation or 1.0)
    return rows.astype(np.float32)[:, None], {"mean": mean, "deviation": deviation}


def _category(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    """A column per category, sorted as text; an empty value has a 1 in none."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    text = _words(table, name)
    known = sorted(value for value in pc.unique(text).to_pylist() if value)
    if not 0 < len(known) <= MOST_CATEGORIES:
        raise InputError(f"column '{name}' of {table.path} has {len(known):,} categories; there "
                         f"must be between 1 and {MOST_CATEGORIES:,}: take it as text, or not")
    places = pc.fill_null(pc.index_in(text, value_set=pa.array(known, pa.large_string())), -1)
    rows: np.ndarray = (places.to_numpy(zero_copy_only=False)[:, None]
                        == np.arange(len(known))[None])
    return rows.astype(np.float32), {"values": known}


def _text(table: Table, name: str, width: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Words in lower case, each added or subtracted in the column of its CRC-32; length 1."""
    found = _words(table, name)
    rows = np.zeros((len(found), width), np.float32)
    for row, text in enumerate(found.to_pylist()):
        for word in _WORD.findall((text or "").lower()):
            code = zlib.crc32(word.encode())
            rows[row, (code >> 1) % width] += 1 - 2 * (code & 1)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1), {"width": width, "hash": "crc32"}


def _words(table: Table, name: str) -> Any:
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = whole(plain(table.column(name)))
    if not (is_text(column.type) or pa.types.is_integer(column.type)
            or pa.types.is_boolean(column.type)):
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; categories "
                         "and texts are text, whole numbers or truth values")
    return pc.cast(column, pa.large_string())
