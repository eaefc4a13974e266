"""Columns of a table of nodes as features: numbers standardised, categories one-hot, text hashed.

What was found out about a column (a mean, the categories) is a record that JSON can hold, and is
kept with the store. Means and categories are those of all rows, whichever are trained on.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.column_values import NUMBERS, arrow, as_text
from dgl_heta.graph.readers.columns import numbers
from dgl_heta.graph.readers.sizes import EXPANSION, expanded
from dgl_heta.graph.readers.table_reader import Table

MOST_CATEGORIES = 1 << 10
TEXT_WIDTH = 64
FREE_FEATURES = 1 << 30
"""Bytes that features may have, however small the table that they are made of."""
INDICATOR = "indicator"
_WORD = re.compile(r"\w+")
Made = tuple[np.ndarray, dict[str, Any]]
"""Features of a column, float32, a row per node; what was found out."""


def table_features(table: Table, columns: Mapping[str, Any]) -> tuple[np.ndarray, list[dict]]:
    """The features of the nodes of a table, float32, and how each column became some.

    Parameters
    ----------
    columns : column to `number` (standardised) or `vector` (as it is), of one number or a list of
        as many in each row; either with `:indicator` for a column that says where there is none;
        to `category`; or to `text`, with a width after a colon (`text:128`).

    Raises
    ------
    InputError
        No such column, another kind, values that are not of the kind, too many categories.
    """
    ways = {name: _way(table, name, str(text)) for name, text in columns.items()}
    parts, records, width = [], [], 0
    for name, column in zip(ways, table.columns(list(ways), " for features")):
        kind, make, option = ways[name]
        rows, record = make(table, name, column, option)
        width += rows.shape[1]
        _check_room(table, len(rows), width)
        parts.append(rows)
        records.append({"column": name, "kind": kind, **record})
    return np.concatenate(parts, 1), records


def _way(table: Table, name: str, text: str) -> tuple[str, Callable[..., Made], Any]:
    """How a column becomes features: the kind, what makes them, and its option."""
    kind, _, option = text.partition(":")
    width = int(option) if option.isascii() and option.isdigit() and len(option) < 6 else 0
    if kind in ("number", "vector") and option in ("", INDICATOR):
        return kind, _number if kind == "number" else _vector, bool(option)
    if kind == "category" and not option:
        return kind, _category, None
    if kind == "text" and (width or not option):
        return kind, _text, width or TEXT_WIDTH
    raise InputError(f"column '{name}' of {table.path} is to be '{text}'; columns become features "
                     "as number, number:indicator, vector, vector:indicator, category, text, or "
                     "text:WIDTH")


def _number(table: Table, name: str, column: Any, indicator: bool) -> Made:
    """Numbers in standard deviations from their mean."""
    return _numbers(table, name, column, indicator, standardise=True)


def _vector(table: Table, name: str, column: Any, indicator: bool) -> Made:
    """Numbers as they are."""
    return _numbers(table, name, column, indicator, standardise=False)


def _numbers(table: Table, name: str, column: Any, indicator: bool, standardise: bool) -> Made:
    """Numbers, their mean where one is missing; `indicator`: then a 1 in rows that miss one."""
    values = numbers(table, name, column)
    missing = np.isnan(values)
    known = np.maximum((~missing).sum(0), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.where(missing, 0, values).sum(0) / known
        apart = np.where(missing, 0, values - mean)
        deviation = np.sqrt(np.square(apart).sum(0) / known)
        if standardise:
            rows = apart / np.where(deviation > 0, deviation, 1)
        else:
            rows = np.where(missing, mean, values)
        rows = rows.astype(np.float32)
    if not (np.isfinite(rows).all() and (np.isfinite(deviation).all() or not standardise)):
        raise InputError(f"column '{name}' of {table.path} has numbers too large for features, "
                         "which are float32; divide them before")
    record: dict[str, Any] = {}
    if standardise or missing.any():
        record["mean"] = mean.tolist() if len(mean) > 1 else float(mean[0])
    if standardise:
        record["deviation"] = deviation.tolist() if len(mean) > 1 else float(deviation[0])
    if len(mean) > 1 or not standardise:
        record["width"] = len(mean)
    if (count := int(missing.any(1).sum())) or indicator:
        record["missing"] = count
    if indicator:
        record["indicator"] = True
        rows = np.concatenate([rows, missing.any(1, keepdims=True).astype(np.float32)], 1)
    return rows, record


def _category(table: Table, name: str, column: Any, _: None) -> Made:
    """A column per category, sorted as text; an empty value has a 1 in none."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    text = _words(table, name, column)
    known = pc.unique(pc.if_else(pc.equal(text, ""), None, text)).drop_null()
    if not 0 < len(known) <= MOST_CATEGORIES:
        raise InputError(f"column '{name}' of {table.path} has {len(known):,} categories; there "
                         f"must be between 1 and {MOST_CATEGORIES:,}: take it as text or number, "
                         "or not")
    names = sorted(known.to_pylist())
    places = pc.index_in(text, value_set=pa.array(names, pa.large_string()))
    rows = _room(table, len(text), len(names))
    has = np.flatnonzero(places.is_valid())
    rows[has, places.drop_null().to_numpy()] = 1
    return rows, {"values": names}


def _text(table: Table, name: str, column: Any, width: int) -> Made:
    """Words in lower case, each added or subtracted in the column of its CRC-32; length 1."""
    text = _words(table, name, column)
    rows = _room(table, len(text), width)
    for row, value in enumerate(text.to_pylist()):
        for word in _WORD.findall((value or "").lower()):
            code = zlib.crc32(word.encode())
            rows[row, (code >> 1) % width] += 1 - 2 * (code & 1)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1), {"width": width, "hash": "crc32"}


def _words(table: Table, name: str, column: Any) -> Any:
    table.check_sort(name, column, ("text", "bytes", *NUMBERS), "categories and texts are text, "
                     "numbers or truth values")
    return as_text(column)


def _room(table: Table, count: int, width: int) -> np.ndarray:
    """Features (count, width), float32, all 0 yet."""
    _check_room(table, count, width)
    return np.zeros((count, width), np.float32)


def _check_room(table: Table, count: int, width: int) -> None:
    """Refuse features that are very much larger than the table that they are made of."""
    most = max(FREE_FEATURES, expanded(table.size))
    if 4 * count * width > most:
        raise InputError(f"features of {table.path} would take {4 * count * width:,} bytes: "
                         f"{count:,} nodes, {width:,} numbers each; they may have "
                         f"{FREE_FEATURES >> 20} MiB or {EXPANSION} times the table's size")
