"""Columns of a table of nodes as features: numbers standardised, categories one-hot, text hashed.

What was found out about a column (a mean, the categories) is a record that JSON can hold, and is
kept with the store. A table is read twice, in pieces: what is found out first, then the features.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.column_values import NUMBERS, arrow, as_text
from dgl_heta.graph.readers.columns import numbers
from dgl_heta.graph.readers.sizes import EXPANSION, expanded
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.readers.times import instants
from dgl_heta.system.disk import array_of, forget

MOST_CATEGORIES = 1 << 10
TEXT_WIDTH = 64
FREE_FEATURES = 1 << 30
"""Bytes that features may have, however small the table that they are made of."""
INDICATOR = "indicator"
PARTS = "parts"
_WORD = re.compile(r"\w+")
_DAY = 86400
_YEAR = 365.2425 * _DAY
_WEEK, _MONDAY = 7 * _DAY, 3 * _DAY  # 1970 began on a Thursday


def table_features(table: ColumnTable, columns: Mapping[str, Any], rows: np.ndarray | None = None,
                   file: Path | None = None) -> tuple[np.ndarray, list[dict]]:
    """The features of the nodes of a table, float32, and how each column became some.

    Parameters
    ----------
    columns : column to `number` (standardised) or `vector` (as it is), of one number or a list of
        as many in each row; either with `:indicator` for a column that says where there is none;
        to `category`; to `date`, of times, or `date:parts` without the time as a number; or to
        `text`, with a width after a colon (`text:128`).
    rows : the rows that means, deviations and categories are of, bool; None: all. A column without
        a value in them becomes no feature.
    file : a new `.npy` file for the features, which are a map of it then.

    Raises
    ------
    InputError
        No such column, another kind, values that are not of the kind, too many categories.
    """
    ways = [_way(table, name, str(text)) for name, text in columns.items()]
    for way in ways:
        way.needed = rows is None
    for name in columns:
        table.check(name, " for features")
    count = 0
    for piece in table.pieces(list(columns)):
        low, count = count, count + piece.num_rows
        part = piece if rows is None else piece.where(np.flatnonzero(rows[low:count]))
        for way in ways:
            way.see(part)
    for way in ways:
        way.width = way.found()
    width = sum(way.width for way in ways)
    if 4 * count * width > max(FREE_FEATURES, expanded(table.size)):
        raise InputError(f"features of {table.path} would take {4 * count * width:,} bytes: "
                         f"{count:,} nodes, {width:,} numbers each; they may have "
                         f"{FREE_FEATURES >> 20} MiB or {EXPANSION} times the table's size")
    made, low = array_of(file, np.float32, (count, width)), 0
    for piece in table.pieces(list(columns)):
        high = low + piece.num_rows
        np.concatenate([way.rows(piece) if way.width else np.empty((high - low, 0), np.float32)
                        for way in ways], 1, out=made[low:high])
        forget(made)
        low = high
    return made, [{"column": way.name, "kind": way.kind, **way.record} for way in ways if way.width]


class _Way(ABC):
    """How a column becomes features.

    Attributes
    ----------
    name, kind : the column, and the way's name.
    needed : whether it is an error if there is no value.
    width : numbers of a row; 0 where no value was seen.
    record : what was found out, complete when all rows were made.
    """

    kind: str
    needed = True
    width = 0

    def __init__(self, table: ColumnTable, name: str) -> None:
        self.table, self.name, self.record = table, name, dict[str, Any]()

    @abstractmethod
    def see(self, piece: ColumnTable) -> None:
        """Find out what the rows of a piece say."""

    @abstractmethod
    def found(self) -> int:
        """All that is to be found out was seen; returns the numbers of a row, 0 if there was no
        value."""

    @abstractmethod
    def rows(self, piece: ColumnTable) -> np.ndarray:
        """The features of the rows of a piece."""


def _way(table: ColumnTable, name: str, text: str) -> _Way:
    """What makes features of a column."""
    kind, _, option = text.partition(":")
    width = int(option) if option.isascii() and option.isdigit() and len(option) < 6 else 0
    if kind in ("number", "vector") and option in ("", INDICATOR):
        return _Numbers(table, name, kind, bool(option))
    if kind == "category" and not option:
        return _Category(table, name)
    if kind == "date" and option in ("", PARTS):
        return _Date(table, name, bool(option))
    if kind == "text" and (width or not option):
        return _Text(table, name, width or TEXT_WIDTH)
    raise InputError(f"column '{name}' of {table.path} is to be '{text}'; columns become features "
                     "as number, number:indicator, vector, vector:indicator, category, date, "
                     "date:parts, text, or text:WIDTH")


class _Moments:
    """Means and deviations of columns of numbers that come in pieces (Chan, Golub and LeVeque,
    1983); NaN counts as none."""

    def __init__(self) -> None:
        self.known: Any = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, values: np.ndarray) -> None:
        missing = np.isnan(values)
        known = (~missing).sum(0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.where(missing, 0, values).sum(0) / np.maximum(known, 1)
            squares = np.square(np.where(missing, 0, values - mean)).sum(0)
            both = np.maximum(self.known + known, 1)
            apart = mean - self._mean
            self._squares = self._squares + squares + apart**2 * (self.known * known / both)
            self._mean = np.where(np.equal(self.known, 0), mean,
                                  self._mean + apart * (known / both))
        self.known = self.known + known

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations, 0 where no number is known."""
        return (np.atleast_1d(self._mean),
                np.atleast_1d(np.sqrt(self._squares / np.maximum(self.known, 1))))


class _Numbers(_Way):
    """Numbers, in standard deviations from their mean, or as they are (`vector`).

    The mean stands where one is missing; `indicator`: then a 1 in rows that miss one.
    """

    def __init__(self, table: ColumnTable, name: str, kind: str, indicator: bool) -> None:
        super().__init__(table, name)
        self.kind, self._indicator, self._moments = kind, indicator, _Moments()
        self._width, self._missing = 0, 0

    def see(self, piece: ColumnTable) -> None:
        values = self._values(piece)
        if values is not None:
            self._moments.add(values)

    def found(self) -> int:
        self._mean, self._deviation = self._moments.found()
        if not np.any(self._moments.known):
            if not self.needed:
                return 0
            raise InputError(f"column '{self.name}' of {self.table.path} has no number in any row")
        return len(self._mean) + self._indicator

    def rows(self, piece: ColumnTable) -> np.ndarray:
        values, standardise = self._values(piece), self.kind == "number"
        if values is None:
            values = np.full((piece.num_rows, len(self._mean)), np.nan)
        missing = np.isnan(values)
        with np.errstate(over="ignore", invalid="ignore"):
            if standardise:
                rows = np.where(missing, 0, values - self._mean) / np.where(
                    self._deviation > 0, self._deviation, 1)
            else:
                rows = np.where(missing, self._mean, values)
            rows = rows.astype(np.float32)
        if not (np.isfinite(rows).all()
                and (np.isfinite(self._deviation).all() or not standardise)):
            raise InputError(f"column '{self.name}' of {self.table.path} has numbers too large for "
                             "features, which are float32; divide them before")
        self._missing += int(missing.any(1).sum())
        self._keep(standardise)
        if self._indicator:
            rows = np.concatenate([rows, missing.any(1, keepdims=True).astype(np.float32)], 1)
        return rows

    def _keep(self, standardise: bool) -> None:
        wide = len(self._mean) > 1
        if standardise or self._missing:
            self.record["mean"] = self._mean.tolist() if wide else float(self._mean[0])
        if standardise:
            self.record["deviation"] = (self._deviation.tolist() if wide
                                        else float(self._deviation[0]))
        if wide or not standardise:
            self.record["width"] = len(self._mean)
        if self._missing or self._indicator:
            self.record["missing"] = self._missing
        if self._indicator:
            self.record["indicator"] = True

    def _values(self, piece: ColumnTable) -> np.ndarray | None:
        """The numbers of a piece, NaN where one is missing; None where it has none at all."""
        (column,) = piece.columns([self.name])
        if column.null_count == len(column):
            return None
        values = numbers(piece, self.name, column, some=False)
        self._width = self._width or values.shape[1]
        if values.shape[1] != self._width:
            raise InputError(f"{piece.at(0)}: column '{self.name}' has a list of "
                             f"{values.shape[1]}, but one of {self._width} before; all rows must "
                             "have as many numbers")
        return values


class _Category(_Way):
    """A column per category, sorted as text; an empty value, or one not seen, has a 1 in none."""

    kind = "category"

    def __init__(self, table: ColumnTable, name: str) -> None:
        super().__init__(table, name)
        self._known: set[str] = set()

    def see(self, piece: ColumnTable) -> None:
        self._known.update(arrow("pyarrow.compute").unique(_words(piece, self.name)).to_pylist())

    def found(self) -> int:
        names = self.record["values"] = sorted(self._known - {None, ""})
        if not self.needed <= len(names) <= MOST_CATEGORIES:
            raise InputError(f"column '{self.name}' of {self.table.path} has {len(names):,} "
                             f"categories; there must be between 1 and {MOST_CATEGORIES:,}: take "
                             "it as text or number, or not")
        return len(names)

    def rows(self, piece: ColumnTable) -> np.ndarray:
        pa, pc = arrow(), arrow("pyarrow.compute")
        names = pa.array(self.record["values"], pa.large_string())
        places = pc.index_in(_words(piece, self.name), value_set=names)
        rows = np.zeros((len(places), len(names)), np.float32)
        has = np.flatnonzero(places.is_valid())
        rows[has, places.drop_null().to_numpy()] = 1
        return rows


class _Date(_Way):
    """A time, as `number`, and as the hands of clocks: sine and cosine of the time of the year, of
    the week and, where times are not all midnights, of the day. All 0 where there is none.

    `parts`: the hands alone, which are the same in years to come.
    """

    kind = "date"

    def __init__(self, table: ColumnTable, name: str, parts: bool) -> None:
        super().__init__(table, name)
        self._parts = parts
        self._moments, self._periods = _Moments(), [_YEAR, _WEEK]

    def see(self, piece: ColumnTable) -> None:
        seconds = self._seconds(piece)
        self._moments.add(seconds[:, None])
        if len(self._periods) == 2 and np.nan_to_num(seconds % _DAY).any():
            self._periods.append(_DAY)

    def found(self) -> int:
        if not (self.needed or np.any(self._moments.known)):
            return 0
        (mean,), (deviation,) = self._moments.found()
        self.record |= {"missing": 0, "parts": ["year", "week", "day"][:len(self._periods)]}
        if not self._parts:
            self.record |= {"mean": float(mean), "deviation": float(deviation)}
        return (not self._parts) + 2 * len(self._periods)

    def rows(self, piece: ColumnTable) -> np.ndarray:
        seconds = self._seconds(piece)
        self.record["missing"] += int(np.isnan(seconds).sum())
        columns = [] if self._parts else [
            (seconds - self.record["mean"]) / (self.record["deviation"] or 1)]
        for period in self._periods:
            angle = 2 * np.pi * (((seconds + _MONDAY * (period == _WEEK)) / period) % 1)
            columns += [np.sin(angle), np.cos(angle)]
        return np.nan_to_num(np.stack(columns, 1)).astype(np.float32)

    def _seconds(self, piece: ColumnTable) -> np.ndarray:
        """Seconds since 1970, NaN where there is no time."""
        (column,) = piece.columns([self.name])
        piece.check_sort(self.name, column, ("time", "text"), "a date is a date, a timestamp, or "
                         "ISO 8601 as text")
        times = instants(piece, self.name, None, np.zeros(len(column), bool))
        if len(times.keys) != 2 and times.known.any():
            raise InputError(f"column '{self.name}' of {self.table.path} holds {column.type} "
                             "values, which are no dates; take it as number")
        return np.where(times.known, times.keys[-1] + times.keys[0] / 1e9, np.nan)


class _Text(_Way):
    """Words in lower case, each added or subtracted in the column of its CRC-32; length 1."""

    kind = "text"

    def __init__(self, table: ColumnTable, name: str, width: int) -> None:
        super().__init__(table, name)
        self.record = {"width": width, "hash": "crc32"}

    def see(self, piece: ColumnTable) -> None:
        _words(piece, self.name)

    def found(self) -> int:
        return int(self.record["width"])

    def rows(self, piece: ColumnTable) -> np.ndarray:
        width = self.record["width"]
        text = _words(piece, self.name).to_pylist()
        rows = np.zeros((len(text), width), np.float32)
        for row, value in enumerate(text):
            for word in _WORD.findall((value or "").lower()):
                code = zlib.crc32(word.encode())
                rows[row, (code >> 1) % width] += 1 - 2 * (code & 1)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(length > 0, length, 1)


def _words(table: ColumnTable, name: str) -> Any:
    (column,) = table.columns([name])
    table.check_sort(name, column, ("text", "bytes", *NUMBERS), "categories and texts are text, "
                     "numbers or truth values")
    return as_text(column)
