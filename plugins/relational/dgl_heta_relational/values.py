"""Values of drivers as Arrow's batches, strictly: nothing is guessed, nothing is cut."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError

TIME, DATE, TEXT = pa.timestamp("us", "UTC"), pa.date32(), pa.large_string()
_AS_THEY_ARE: dict[Any, set[type]] = {
    TEXT: {str}, pa.int64(): {int}, pa.float64(): {float}, pa.bool_(): {bool},
    pa.large_binary(): {bytes}}
"""Types of Python whose values are of a type of Arrow's as they are."""


class BatchMaker:
    """Makes batches of columns of values.

    Parameters
    ----------
    where : what the rows are of, for messages.
    columns : name to Arrow's type, None for text of whatever it is; None: what the values say.
    """

    def __init__(self, where: str, columns: Mapping[str, Any] | None) -> None:
        self._where, self._columns = where, columns
        self._zoned: dict[str, bool] = {}

    def batch(self, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Any:
        """A record batch of some rows, by columns.

        Raises
        ------
        InputError
            A value that is not what its column is declared as; times with and without a zone.
        """
        return pa.record_batch([self._array(name, values)
                                for name, values in zip(names, columns)], list(names))

    def _array(self, name: str, values: Sequence[Any]) -> Any:
        kind = (self._columns[name] or TEXT) if self._columns else _seen(values)
        try:
            return self._made(name, values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        for value in values:  # the first that is wrong by itself is told
            try:
                self._made(name, [value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                text, form = repr(value), ""
                if kind in (TIME, DATE):
                    form = (", a time as ISO 8601, 2013-01-01 05:00:00; where numbers are times, "
                            "read a view that converts them")
                raise InputError(
                    f"column '{name}' of {self._where} is declared as {kind}, but has the value "
                    f"{text if len(text) < 80 else text[:77] + '…'}; correct it{form}, or declare "
                    "the column as what it holds") from None
        raise InputError(f"column '{name}' of {self._where} has values of different types")

    def _made(self, name: str, values: Sequence[Any], kind: Any) -> Any:
        """Values as an array, times as instants: those without a zone as of UTC."""
        seen = {*map(type, values)} - {type(None)}
        if seen <= _AS_THEY_ARE.get(kind, set()):
            return pa.array(values, kind)
        known = [value for value in values if value is not None]
        if kind not in (TIME, DATE):
            return pa.array([None if value is None else _plain(value, kind) for value in values],
                            kind)
        if known and isinstance(known[0], str):  # SQLite has no times
            return self._written(name, pa.array(values, TEXT), kind)
        if not all(isinstance(value, datetime.date) for value in known):
            raise TypeError("a number is no time: Arrow would count it from 1970, in its own unit")
        if kind == TIME:
            self._check_zones(name, {getattr(value, "tzinfo", None) is not None
                                     for value in known}, known)
        return pa.array(values, kind)

    def _written(self, name: str, text: Any, kind: Any) -> Any:
        """Times as ISO 8601 text."""
        if kind == DATE:
            return pc.cast(text, kind)
        has_time = pc.match_substring_regex(text, ":")  # 2020-01-01 ends as a zone might
        zoned = pc.and_(has_time, pc.match_substring_regex(
            text, r"[0-9](Z|z|[+-][0-9]{2}(:?[0-9]{2})?)$"))
        self._check_zones(name, {*pc.unique(zoned.drop_null()).to_pylist()}, text)
        if not self._zoned.get(name):
            zone, none, midnight = (pa.scalar(mark, TEXT) for mark in ("Z", "", " 00:00:00Z"))
            text = pc.binary_join_element_wise(text, pc.if_else(has_time, zone, midnight), none)
        return pc.cast(text, TIME)

    def _check_zones(self, name: str, zoned: set[bool], values: Sequence[Any]) -> None:
        """Refuse a column where some times have a zone and some have none."""
        for each in zoned:
            if self._zoned.setdefault(name, each) != each:
                raise InputError(f"column '{name}' of {self._where} has times with a zone and "
                                 f"times without, such as '{values[0]}'; write them all alike")


def _seen(values: Sequence[Any]) -> Any:
    """The type of a query's column, which nobody declares: that of its values."""
    kinds = {type(value) for value in values if value is not None}
    for known, of in (({bool}, pa.bool_()), ({int, bool}, pa.int64()),
                      ({int, bool, float, decimal.Decimal}, pa.float64()),
                      ({datetime.datetime}, TIME), ({datetime.date}, DATE)):
        if kinds and kinds <= known:
            return of
    return TEXT


def _plain(value: Any, kind: Any) -> Any:
    """A value of a driver as one that Arrow knows.

    Raises
    ------
    TypeError
        It is not of the kind.
    """
    if kind == TEXT:
        if isinstance(value, bytes | memoryview):
            raise TypeError("bytes are no text")
        return str(value)
    if kind == pa.large_binary():
        return value if isinstance(value, str) else bytes(value)
    if isinstance(value, str):
        raise TypeError("text is no number")
    if isinstance(value, datetime.time):
        return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if kind == pa.float64():
        return float(value)
    if kind == pa.bool_():
        return bool(value) if value in (0, 1) else value
    return int(value) if value == int(value) else value
