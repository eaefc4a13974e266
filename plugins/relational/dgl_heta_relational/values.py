"""Values of drivers as Arrow's batches, strictly: nothing is guessed, nothing is cut."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError

TIME = pa.timestamp("us", "UTC")


class BatchMaker:
    """Makes batches of rows of tuples.

    Parameters
    ----------
    where : what the rows are of, for messages.
    columns : name to Arrow's type, None for text of whatever it is; None: what the values say.
    """

    def __init__(self, where: str, columns: Mapping[str, Any] | None) -> None:
        self._where, self._columns = where, columns
        self._names: list[str] = []
        self._zoned: dict[str, bool] = {}

    def name(self, names: list[str]) -> None:
        """Take these names for the columns."""
        self._names = list(self._columns or names)

    def batch(self, rows: Sequence[Any]) -> Any:
        """A record batch of some rows.

        Raises
        ------
        InputError
            A value that is not what its column is declared as; times with and without a zone.
        """
        columns = list(zip(*rows)) if rows else [()] * len(self._names)
        return pa.record_batch([self._array(name, values)
                                for name, values in zip(self._names, columns)], self._names)

    def _array(self, name: str, values: Sequence[Any]) -> Any:
        kind = self._columns[name] if self._columns else _seen(values)
        try:
            if kind in (TIME, pa.date32()):
                return self._times(name, values, kind)
            return pa.array(_simple(values, kind), kind or pa.large_string())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise self._wrong(name, values, kind) from None

    def _times(self, name: str, values: Sequence[Any], kind: Any) -> Any:
        """Times as instants, those without a zone as of UTC; not some with and some without."""
        known = [value for value in values if value is not None]
        if known and isinstance(known[0], str):  # SQLite has no times
            return self._written(name, values, kind)
        if kind == TIME:
            zoned = {getattr(value, "tzinfo", None) is not None for value in known}
            self._check_zones(name, zoned, known)
            values = [datetime.datetime.combine(value, datetime.time())
                      if isinstance(value, datetime.date)
                      and not isinstance(value, datetime.datetime) else value for value in values]
        return pa.array(values, kind)

    def _written(self, name: str, values: Sequence[Any], kind: Any) -> Any:
        """Times as ISO 8601 text."""
        text = pa.array(values, pa.large_string())
        if kind == pa.date32():
            return pc.cast(text, kind)
        zoned = pc.match_substring_regex(text, r"[0-9](Z|z|[+-][0-9]{2}(:?[0-9]{2})?)$")
        has_time = pc.match_substring_regex(text, ":")  # 2020-01-01 ends as a zone might
        zoned = pc.and_(zoned, has_time)
        self._check_zones(name, set(pc.unique(zoned.drop_null()).to_pylist()), values)
        if not self._zoned.get(name):
            zone, none, midnight = (pa.scalar(mark, pa.large_string())
                                    for mark in ("Z", "", " 00:00:00Z"))
            text = pc.binary_join_element_wise(text, pc.if_else(has_time, zone, midnight), none)
        return pc.cast(text, TIME)

    def _check_zones(self, name: str, zoned: set[bool], values: Sequence[Any]) -> None:
        """Refuse a column where some times have a zone and some have none."""
        for each in zoned:
            if self._zoned.setdefault(name, each) != each:
                raise InputError(f"column '{name}' of {self._where} has times with a zone and "
                                 f"times without, such as {str(values[0])!r}; write them all alike")

    def _wrong(self, name: str, values: Sequence[Any], kind: Any) -> InputError:
        """The error that a column is, by the first value that is not of its type."""
        for value in values:
            try:
                if kind in (TIME, pa.date32()):
                    BatchMaker(self._where, {name: kind})._times(name, [value], kind)
                else:
                    pa.array(_simple([value], kind), kind or pa.large_string())
            except Exception:  # whatever it is, it is the value that is told
                text = repr(value)
                return InputError(
                    f"column '{name}' of {self._where} is declared as {kind}, but has the value "
                    f"{text if len(text) < 80 else text[:77] + '…'}; correct it, or declare the "
                    "column as what it holds")
        return InputError(f"column '{name}' of {self._where} has values of different types")


def _seen(values: Sequence[Any]) -> Any:
    """The type of a query's column, which nobody declares: that of its values."""
    kinds = {type(value) for value in values if value is not None}
    for kind, of in (({bool}, pa.bool_()), ({int, bool}, pa.int64()),
                     ({int, bool, float, decimal.Decimal}, pa.float64()),
                     ({datetime.datetime}, TIME), ({datetime.date}, pa.date32())):
        if kinds and kinds <= kind:
            return of
    return pa.large_string()


def _simple(values: Sequence[Any], kind: Any) -> list[Any]:
    """Values of drivers as those that Arrow knows."""
    if kind == pa.float64():
        return [value if value is None or isinstance(value, float) else _number(value)
                for value in values]
    if kind == pa.bool_():
        return [bool(value) if value in (0, 1) else value for value in values]
    if kind == pa.int64():
        return [int(value) if isinstance(value, decimal.Decimal | float) and value == int(value)
                else value for value in values]
    if kind == pa.large_binary():
        return [bytes(value) if isinstance(value, memoryview | bytearray) else value
                for value in values]
    if kind in (None, pa.large_string()):
        return [value if value is None or isinstance(value, str) else _text(value)
                for value in values]
    return list(values)


def _number(value: Any) -> float:
    if isinstance(value, datetime.time):
        return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        raise TypeError("text is no number")
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        raise TypeError("bytes are no text")
    return str(value) if not isinstance(value, uuid.UUID) else str(value)
