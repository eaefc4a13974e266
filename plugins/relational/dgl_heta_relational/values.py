"""Columns in the few types of Arrow's that readers know, strictly: nothing is guessed, nothing cut.

Files and DuckDB have Arrow's columns (:func:`as_declared`), drivers have values of Python's
(:class:`BatchMaker`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError
from dgl_heta.tools import ALWAYS, plain_column, sort_of

TIME, TEXT = pa.timestamp("us", "UTC"), pa.large_string()


def seconds_of(column: Any) -> np.ndarray:
    """Dates or timestamps as seconds since 1970, int64; ALWAYS where there is none.

    A part of a second counts as a whole one: a row is not there before its time.
    """
    micros = pc.cast(pc.cast(column, pa.timestamp("us", getattr(column.type, "tz", None))),
                     pa.int64())
    values: np.ndarray = micros.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(np.asarray(column.is_valid()), -(-values // 10**6), ALWAYS)


def declared(kind: Any) -> Any:
    """The type that :func:`as_declared` makes of one of Arrow's; None where readers know none."""
    kind = _known(pa.nulls(0, kind)).type
    return None if sort_of(kind) == "other" else kind


def as_declared(batch: Any, what: str) -> Any:
    """A batch with its columns in the types that readers know; others as they are.

    Raises
    ------
    InputError
        A time that microseconds do not reach, in rows of `what`.
    """
    columns = []
    for name, column in zip(batch.schema.names, batch.columns):
        try:
            columns.append(_known(column))
        except pa.ArrowInvalid as error:
            raise InputError(f"column '{name}' of {what} has a value that cannot be read "
                             f"({error}); correct it, or leave it empty") from None
    return pa.record_batch(columns, batch.schema.names)


def _known(column: Any) -> Any:
    column = plain_column(column)
    if pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        whole = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
        return pc.divide(pc.cast(pc.cast(column, whole), pa.float64()), float(per_second))
    if pa.types.is_timestamp(column.type):  # what is finer than microseconds is cut
        return pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz),
                               safe=column.type.unit != "ns"), TIME)
    if pa.types.is_floating(column.type):  # as pandas has a number that is missing
        return pc.if_else(pc.is_nan(column), None, column)
    return column


class BatchMaker:
    """Makes batches of columns of values.

    Parameters
    ----------
    where : what the rows are of, for messages.
    columns : name to Arrow's type, None for text of whatever it is; None: what the values say.
    """

    def __init__(self, where: str, columns: Mapping[str, Any] | None) -> None:
        self._where, self._columns = where, columns
        self._forms: dict[str, Any] = {}  # of times as text: with a zone, or without

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
        kind = (self._columns[name] or TEXT) if self._columns else None
        try:
            return self._made(name, values, kind)
        except _WRONG:
            pass
        for value in values:  # the first that is wrong by itself is told
            try:
                self._made(name, [value], kind)
            except _WRONG:
                text, form = repr(value), ""
                if kind == TIME:
                    form = (", a time as ISO 8601, 2013-01-01 05:00:00, all with a zone or none; "
                            "where numbers are times, read a view that converts them")
                raise InputError(
                    f"column '{name}' of {self._where} is declared as {kind}, but has the value "
                    f"{text if len(text) < 80 else text[:77] + '…'}; correct it{form}, or declare "
                    "the column as what it holds") from None
        raise InputError(f"column '{name}' of {self._where} has values of different types")

    def _made(self, name: str, values: Sequence[Any], kind: Any) -> Any:
        """Values as an array, times as instants: those without a zone as of UTC."""
        if kind == TEXT:
            if any(isinstance(value, bytes | memoryview) for value in values):
                raise TypeError("bytes are no text")
            return pa.array([value if value is None else str(value) for value in values], TEXT)
        if kind in (pa.uint64(), pa.large_binary()):  # of values that tell less
            return pa.array(values, kind)
        found = _known(pa.array(values))
        if pa.types.is_temporal(found.type) and len({
                (type(value), getattr(value, "tzinfo", None) is None)
                for value in values if value is not None}) > 1:
            raise TypeError("Arrow would cut times beside dates, and take all for times of a zone")
        if kind is None:  # with as many digits as a batch happens to need
            return pc.cast(found, pa.float64()) if pa.types.is_decimal(found.type) else found
        if found.null_count == len(found):
            return pa.nulls(len(found), kind)
        if kind == TIME and found.type == TEXT:  # SQLite has no times
            return self._written(name, found)
        if (found.type == TEXT) or (kind == TIME) != pa.types.is_temporal(found.type):
            raise TypeError("text is no number, and no number is a time")
        made = pc.cast(found, kind)
        if kind == pa.bool_() and not pc.cast(made, found.type).equals(found):
            raise TypeError("a truth value is 0 or 1")
        return made

    def _written(self, name: str, text: Any) -> Any:
        """Times as ISO 8601 text, all of the form of the first ones."""
        known = self._forms.get(name)
        for form in [known] if known else (pa.timestamp("us"), TIME):
            with suppress(pa.ArrowInvalid):
                times = pc.cast(pc.cast(text, form), TIME)
                self._forms[name] = form
                return times
        raise ValueError("no time of the column's form")


_WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError)
