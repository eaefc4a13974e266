"""Times in a column as instants: of Arrow's types, ISO 8601, numbers, or text of another format.

A time without a zone is taken as one of UTC, a date as its first moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.column_values import NUMBERS, arrow, as_text, first, sort_of
from dgl_heta.graph.readers.columns import NO_NUMBER
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.source import check_seconds
from dgl_heta.system.disk import forget, new_array

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_WHOLE = r"^-?([0-9]{1,18}|[0-8][0-9]{18})$"
_FIXED = r"^-?[0-9]{1,19}(\.[0-9]{1,18})?$"
_BASIC = ((r"^(\d{4})(\d\d)(\d\d)[Tt](\d\d)(\d\d)(\d\d)", r"\1-\2-\3T\4:\5:\6"),
          (r"^(\d{4})(\d\d)(\d\d)[Tt](\d\d)(\d\d)", r"\1-\2-\3T\4:\5"))
_EXTENDED = (r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:(?:[Tt]| +)"
             r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
             r"(?:[.,](?P<part>[0-9]{1,9}))?)?)?(?P<zone> ?(?:[Zz]|UTC|GMT|"
             r"(?P<sign>[+-])(?P<ahead>[0-9]{2}):?(?P<by>[0-9]{2})?))?)?)?$")
_ZONED = r"[0-9]:[0-9.,:]+ *([Zz]|UTC|GMT|[+-][0-9]{2}:?([0-9]{2})?)\s*$"
_FORMS = ("a time is a number or written 2026-11-23T09:30:00+01:00, where only year and month must "
          "be there; another format is said by \"time_format\", as \"%d.%m.%Y %H:%M\"")


@dataclass(frozen=True)
class Instants:
    """When each row of a table was.

    Attributes
    ----------
    keys : arrays to sort by, as `numpy.lexsort` takes them: the last one counts first.
    known : which rows have a time, bool.
    text : what a row's time is, in UTC: for people.
    """

    keys: tuple[np.ndarray, ...]
    known: np.ndarray
    text: Callable[[int], Any]


def instants(table: ColumnTable, name: str, form: str | None, needed: np.ndarray,
             file: Path | None = None) -> Instants:
    """The times in a column of a table.

    Parameters
    ----------
    form : how they are written, in the codes of Python's `strptime`; None: as numbers or ISO 8601.
    needed : the rows that need a time, bool.
    file : a new file, of which the times are a map then, if Arrow's types say what they are.

    Raises
    ------
    InputError
        No such column, a value that is no time, a row without one that needs it.
    """
    if file is not None and form is None:
        table.check(name, " of times")
        kind = next(table.pieces([name])).columns([name])[0].type
        if sort_of(kind) == "time" and not arrow().types.is_duration(kind):
            return _mapped(table, name, needed, file, getattr(kind, "tz", None) is not None)
    column = table.column(name, ("text", "time", *NUMBERS), "a time is a date, a timestamp, a "
                          "number or text", " of times")
    sort = sort_of(column.type)
    if form is not None:
        if sort not in ("text", "whole"):
            raise InputError(f"'time_format' is for text, but column '{name}' of {table.path} "
                             f"holds {column.type} values; leave it out")
        times = _formatted(table, name, as_text(column), form)
    elif sort == "time":
        times = _typed(column)
    else:
        times = _written(table, name, column) if sort == "text" else _numbers(table, name, column)
    if (row := first(needed & ~times.known)) is not None:
        raise table.wrong(name, row, column, "; every labelled node needs a time")
    return times


def _mapped(table: ColumnTable, name: str, needed: np.ndarray, file: Path, zoned: bool) -> Instants:
    """The times of a column of dates or timestamps, which is read in pieces."""
    keys, known, low = new_array(file, np.int64, (2, len(needed))), np.zeros_like(needed), 0
    for piece in table.pieces([name]):
        high = low + piece.num_rows
        times = instants(piece, name, None, needed[low:high])
        keys[:, low:high], known[low:high] = times.keys, times.known
        forget(keys)
        low = high
    return _moments(keys[1], keys[0], known, zoned)


def column_seconds(table: ColumnTable, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The times in a column, each row's, as whole seconds since 1970 in UTC: int64, rounded down,
    and rounded up.

    Raises
    ------
    InputError
        As :func:`instants`; numbers that are no whole seconds, times with a zone beside others
        without.
    """
    pc = arrow("pyarrow.compute")
    (column,) = table.columns([name], " of times")
    times = instants(table, name, None, np.ones(len(column), np.bool_))
    if sort_of(column.type) == "text":
        zoned = pc.match_substring_regex(column, _ZONED).to_numpy(zero_copy_only=False)
        if zoned.any() and not zoned.all():
            row = first(~zoned)
            raise table.wrong(name, int(row or 0), column, ", a time without a zone, but others "
                              "have one; give all of them one, or none")
    if len(times.keys) == 1 and len(column) and not isinstance(times.text(0), int):
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; numbers "
                         "that are times are whole seconds since 1970")
    whole = np.asarray(times.keys[-1], np.int64)
    return whole, whole + (times.keys[0] > 0) if len(times.keys) == 2 else whole


def read_instant(given: str | int, name: str) -> int:
    """A time, in ISO 8601 (without a zone of UTC) or seconds since 1970, as the latter.

    Raises
    ------
    InputError
        It is none; `name` says what has it.
    """
    if isinstance(given, int | np.integer):
        check_seconds(np.array([given]), lambda _: name)
        return int(given)
    try:
        when = datetime.fromisoformat(given.strip().replace("Z", "+00:00"))
    except (AttributeError, ValueError):
        raise InputError(f"{name} is '{given}'; a time is written 2026-11-23 or "
                         "2026-11-23T09:30:00+01:00") from None
    return int(when.replace(tzinfo=when.tzinfo or timezone.utc).timestamp() // 1)


def _moments(seconds: np.ndarray, nanoseconds: np.ndarray, known: np.ndarray, zoned: bool
             ) -> Instants:
    """Instants as whole seconds since 1970 and the rest of each."""
    def text(row: int) -> str:
        part = f".{int(nanoseconds[row]):09}".rstrip("0").rstrip(".")
        return f"{np.datetime64(int(seconds[row]), 's')}{part}{'Z' * zoned}"

    return Instants((nanoseconds, seconds), known, text)


def _typed(column: Any) -> Instants:
    """Times of Arrow's types: timestamps, dates, durations."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    kind, known = column.type, np.asarray(column.is_valid())
    if pa.types.is_date32(kind):
        column, unit = pc.cast(column, pa.int32()), "s"
    else:
        column, unit = pc.cast(column, pa.int64()), getattr(kind, "unit", "ms")
    values = np.asarray(pc.fill_null(column, 0), np.int64)
    if pa.types.is_duration(kind):
        return Instants((values,), known, lambda row: f"{values[row]} {unit}")
    if pa.types.is_date32(kind):
        values = values * 86400
    seconds, rest = np.divmod(values, _PER_SECOND[unit])
    return _moments(seconds, rest * (10**9 // _PER_SECOND[unit]), known,
                    zoned=getattr(kind, "tz", None) is not None)


def _numbers(table: ColumnTable, name: str, column: Any) -> Instants:
    pa, pc = arrow(), arrow("pyarrow.compute")
    sort = sort_of(column.type)
    if sort == "float":
        column = pc.if_else(pc.is_nan(column), None, column)
        if (row := first(pc.fill_null(pc.is_inf(column), False))) is not None:
            raise table.wrong(name, row, column, f"; {_FORMS}")
    known = np.asarray(column.is_valid())
    keys = pc.rank(column, tiebreaker="dense") if sort == "decimal" else pc.fill_null(
        pc.cast(column, pa.int64()) if sort == "truth" else column, 0)

    def value(row: int) -> Any:
        number = column[row].as_py()
        return float(number) if sort == "decimal" else number

    return Instants((np.asarray(keys),), known, value)


def _written(table: ColumnTable, name: str, column: Any) -> Instants:
    """Numbers, or times of ISO 8601, as text."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    text = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(text, value_set=pa.array([*NO_NUMBER, None], pa.large_string()))
    text = pc.if_else(missing, None, text)

    def all_are(form: str) -> bool:
        return pc.all(pc.match_substring_regex(text, form)).as_py() is not False

    if all_are(_NUMBER):
        kinds = {_WHOLE: pa.int64(), _FIXED: pa.decimal128(38, 18), _NUMBER: pa.float64()}
        kind = next(kind for form, kind in kinds.items() if all_are(form))
        return _numbers(table, name, pc.cast(text, kind))
    for pattern, replacement in _BASIC:
        text = pc.replace_substring_regex(text, pattern, replacement)
    fields = pc.extract_regex(text, _EXTENDED)

    def field(of: str, default: str = "0") -> np.ndarray:
        digits = pc.struct_field(fields, of)
        return np.asarray(pc.fill_null(pc.cast(pc.if_else(
            pc.equal(digits, ""), default, digits), pa.int64()), 0))

    year, month, day = field("year"), field("month"), field("day", "1")
    hour, minute, second = field("hour"), field("minute"), field("second")
    ahead, by = field("ahead"), field("by")
    nanoseconds = np.asarray(pc.fill_null(pc.cast(pc.utf8_rpad(
        pc.struct_field(fields, "part"), 9, "0"), pa.int64()), 0))
    months = (12 * (year - 1970) + np.clip(month, 1, 12) - 1).astype("datetime64[M]")
    first_day = months.astype("datetime64[D]").astype(np.int64)
    days = (months + 1).astype("datetime64[D]").astype(np.int64) - first_day
    of_day = 3600 * hour + 60 * minute + second
    known = np.asarray(text.is_valid())
    wrong = known & (np.asarray(fields.is_null()) | (month < 1) | (month > 12) | (day < 1)
                     | (day > days) | (of_day + (nanoseconds > 0) > 86400) | (minute > 59)
                     | (second > 59) | (ahead > 23) | (by > 59))
    if (row := first(wrong)) is not None:
        raise table.wrong(name, row, column, f"; {_FORMS}")
    behind = np.asarray(pc.fill_null(pc.equal(pc.struct_field(fields, "sign"), "-"), False))
    seconds = (first_day + day - 1) * 86400 + of_day - np.where(behind, -1, 1) * (
        3600 * ahead + 60 * by)
    zoned = pc.any(pc.not_equal(pc.struct_field(fields, "zone"), "")).as_py()
    return _moments(seconds, nanoseconds, known, zoned=bool(zoned))


def _formatted(table: ColumnTable, name: str, column: Any, form: str) -> Instants:
    """Text of a format of the user's."""
    _check_format(form)
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    # Seconds, nanoseconds, whether there is a time.
    instants = np.zeros((len(texts) + 1, 3), np.int64)
    zoned = False
    for code, text in enumerate(texts):
        if text.strip() in NO_NUMBER:
            continue
        try:
            when = datetime.strptime(text.strip(), form)
        except ValueError:
            row = first(np.asarray(encoded.indices.fill_null(-1)) == code)
            raise table.wrong(name, int(row or 0), column,
                              f", which is not of 'time_format' {quoted(form)}") from None
        zoned = zoned or when.tzinfo is not None
        apart = when.replace(tzinfo=when.tzinfo or timezone.utc) - _EPOCH
        instants[code] = apart.days * 86400 + apart.seconds, apart.microseconds * 1000, 1
    rows = instants[np.asarray(encoded.indices.fill_null(len(texts)))]
    return _moments(rows[:, 0], rows[:, 1], rows[:, 2] > 0, zoned)


def _check_format(form: str) -> None:
    """Refuse a format that Python cannot read, that says no year, or that Python takes for the same
    time where texts differ: it reads weeks (%W) and weekdays (%a) by each other alone."""
    when = datetime(2000, 12, 31, 23, 59, 58, tzinfo=timezone.utc)
    texts = {(when - timedelta(days=17 * i, hours=5 * i, minutes=7 * i)).strftime(form)
             for i in range(60)}
    try:
        times = {datetime.strptime(text, form) for text in texts}
        right = ("%Z" not in form and datetime.strptime(when.strftime(form), form).year == 2000
                 and len(times) == len(texts) and ("%I" not in form or "%p" in form))
    except Exception:  # strptime makes a regular expression of it, and raises what that raises
        right = False
    if not right:
        raise InputError(f"'time_format' is {quoted(form)}; it must be written in the codes of "
                         "Python's strptime, with a year, without %Z (%z reads +01:00), %I with "
                         "%p, and weeks with weekdays (%G-%V-%u), as \"%d.%m.%Y %H:%M\"")
