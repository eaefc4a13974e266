"""Tables of a database, whatever it is: columns, keys, and rows as Arrow's batches.

Batches have the few types of Arrow's that readers know; nothing is guessed, nothing cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError
from dgl_heta.tools import ALWAYS, as_text, plain_column, sort_of
from dgl_heta_relational.settings import RelationalSettings

ROWS = 1 << 16
"""Rows of a batch, at most."""
SEPARATOR = "|"
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that name a row of another by `referred` columns of that; where a
    database says none, they are those of its primary key."""

    columns: tuple[str, ...]
    table: str
    referred: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its relation."""
        return " ".join(self.columns)


@dataclass(frozen=True)
class Table:
    """A table as the database and the settings declare it.

    Attributes
    ----------
    name : with its schema before it where that is not the first one.
    quoted : what queries call it.
    declared : name of each column to Arrow's type; None where there is none for what it holds.
    key : columns of the primary key; None where none is declared, empty where rows need none.
    time : the column that says from when on a row is there.
    ways : what the settings say of columns as features.
    aside : columns of all foreign keys, also of those to tables that are not read.
    """

    name: str
    quoted: str
    declared: Mapping[str, Any]
    key: tuple[str, ...] | None = None
    foreign: tuple[ForeignKey, ...] = ()
    is_view: bool = False
    time: str | None = None
    ways: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Name of each column to the type that its batches have; None where readers know none."""
        kinds = {name: None if kind is None else as_known(pa.nulls(0, kind)).type
                 for name, kind in self.declared.items()}
        return {name: None if kind is None or sort_of(kind) == "other" else kind
                for name, kind in kinds.items()}

    @property
    def foreign_columns(self) -> list[str]:
        """The columns of its foreign keys."""
        return [column for key in self.foreign for column in key.columns]


def by_name(found: Iterable[Table]) -> dict[str, Table]:
    """Tables by their names, whose foreign keys name tables and columns in the case in which these
    are declared: most databases take REFERENCES in any."""
    def declared(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
        cases = {name.lower(): name for name in known}
        return tuple(name if name in known else cases.get(name.lower(), name) for name in names)

    tables = {table.name: table for table in found}
    for name, table in tables.items():
        keys = []
        for key in table.foreign:
            (other,) = declared([key.table], tables)
            referred = tables[other].declared if other in tables else ()
            keys.append(ForeignKey(declared(key.columns, table.declared), other,
                                   declared(key.referred, referred)))
        tables[name] = replace(table, foreign=tuple(keys))
    return tables


def as_known(column: Any) -> Any:
    """A column in the type that readers know: times in UTC, times of a day and durations in
    seconds, NaN as null as pandas has it; one of another type as it is."""
    column = plain_column(column)
    if pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        whole = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
        return pc.divide(pc.cast(pc.cast(column, whole), pa.float64()), float(per_second))
    if pa.types.is_timestamp(column.type):  # what is finer than microseconds is cut
        return pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz),
                               safe=column.type.unit != "ns"), TIME)
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), None, column)
    return column


def seconds_of(column: Any) -> np.ndarray:
    """Dates or timestamps as seconds since 1970, int64; ALWAYS where there is none.

    A part of a second counts as a whole one: a row is not there before its time.
    """
    micros = pc.cast(pc.cast(column, TIME), pa.int64())
    values: np.ndarray = micros.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(np.asarray(column.is_valid()), -(-values // 10**6), ALWAYS)


def joined(batch: Any, columns: Sequence[str], what: str) -> Any:
    """The key of each row as text (large_string), null where a column is.

    Several columns are joined by :data:`SEPARATOR`; a backslash stands before one in a text.
    Numbers with a fraction's type that are too large to be told from their neighbours are refused.
    """
    texts = []
    for name in columns:
        column = batch.column(name)
        if pa.types.is_floating(column.type):
            exact = 2.0 ** (24 if column.type == pa.float32() else 53)
            large = column.filter(pc.greater_equal(pc.abs(column), exact)).drop_null()
            if len(large):
                raise InputError(f"column '{name}' of {what} is a key, but has such numbers as "
                                 f"{large[0].as_py():.0f}, of which {column.type} holds not every "
                                 "one, so rows could be taken for others; declare it as whole "
                                 "numbers, or read a view that CASTs it to text")
        texts.append(as_text(column))
    if len(texts) == 1:
        return texts[0]
    for mark in ("\\", SEPARATOR):
        texts = [pc.replace_substring(text, mark, "\\" + mark) for text in texts]
    return pc.binary_join_element_wise(*texts, pa.scalar(SEPARATOR, pa.large_string()))


class Database(AbstractContextManager["Database"], ABC):
    """Tables, views among them, that are open for reading, all as of one moment."""

    settings: RelationalSettings
    name: str  # of the graph
    where: str  # how messages and stores name the database; never with a password
    tables: dict[str, Table]
    mark = '"'  # what names in queries are quoted by

    def counts(self, table: Table, keys: Sequence[Sequence[str]] = ()) -> list[int]:
        """The rows of a table, and for each of some sets of columns the rows that have them all."""
        known = ["CASE WHEN " + " AND ".join(f"{self.quoted(name)} IS NOT NULL" for name in columns)
                 + " THEN 1 END" for columns in keys]
        counted = [f"count({what}) AS n{i}" for i, what in enumerate(["*", *known])]
        (batch,) = self.query(f"SELECT {', '.join(counted)} FROM {table.quoted}", "a count")
        return [int(column[0].as_py()) for column in batch.columns]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        """Some columns of all rows, as record batches of the types that the table says."""
        yield from self.query(f"SELECT {', '.join(map(self.quoted, columns))} FROM {table.quoted}",
                              f"table '{table.name}'", table.declared)

    def quoted(self, name: str) -> str:
        """A name as queries write it."""
        return self.mark + name.replace(self.mark, 2 * self.mark) + self.mark

    def check_schemas(self, known: Sequence[str]) -> None:
        """Refuse settings of schemas that there are not."""
        if wrong := [name for name in self.settings.schemas if name not in known]:
            raise InputError(f"plugins.relational.schemas names '{wrong[0]}', which {self.where} "
                             f"does not have; schemas: {', '.join(known)}")

    @abstractmethod
    def query(self, text: str, what: str, declared: Mapping[str, Any] | None = None
              ) -> Iterator[Any]:
        """The rows that a query gives, as record batches; one that gives none is refused. `what`
        they are of is for messages, and `declared` are types of columns, where they are known."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    def __exit__(self, *_: object) -> None:
        self.close()
