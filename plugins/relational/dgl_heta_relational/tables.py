"""Tables of a database, whatever it is: columns, keys, and rows as Arrow's batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError
from dgl_heta.tools import as_text

ROWS = 1 << 16
"""Rows of a batch, at most."""
SEPARATOR = "|"


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
    """A table as the database declares it.

    Attributes
    ----------
    name : with its schema before it where that is not the first one.
    columns : name to Arrow's type; None where there is none for what it holds.
    key : columns of the primary key; None where none is declared, empty where rows need none.
    time : the column that says from when on a row is there.
    aside : columns of all foreign keys, also of those to tables that are not read.
    """

    name: str
    columns: Mapping[str, Any]
    key: tuple[str, ...] | None = None
    foreign: tuple[ForeignKey, ...] = ()
    time: str | None = None
    is_view: bool = False
    aside: tuple[str, ...] = ()

    @property
    def foreign_columns(self) -> list[str]:
        """The columns of its foreign keys."""
        return [column for key in self.foreign for column in key.columns]


def in_declared_case(found: Iterable[Table]) -> dict[str, Table]:
    """Tables by their names, whose foreign keys name tables and columns in the case in which these
    are declared: most databases take REFERENCES in any."""
    def declared(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
        cases = {name.lower(): name for name in known}
        return tuple(name if name in known else cases.get(name.lower(), name) for name in names)

    def settled(table: Table, key: ForeignKey) -> ForeignKey:
        (other,) = declared([key.table], tables)
        referred = tables[other].columns if other in tables else ()
        return ForeignKey(declared(key.columns, table.columns), other,
                          declared(key.referred, referred))

    tables = {table.name: table for table in found}
    return {name: replace(table, foreign=tuple(settled(table, key) for key in table.foreign))
            for name, table in tables.items()}


def check_key(column: Any, name: str, what: str) -> None:
    """
    Raises
    ------
    InputError
        Numbers with a fraction's type that are too large to be told from their neighbours.
    """
    if pa.types.is_floating(column.type):
        limit = {16: 11, 32: 24, 64: 53}[column.type.bit_width]
        large = column.filter(pc.greater_equal(pc.abs(column), 2.0 ** limit)).drop_null()
        if len(large):
            raise InputError(f"column '{name}' of {what} is a key, but has such numbers as "
                             f"{large[0].as_py():.0f}, of which {column.type} holds not every one, "
                             "so rows could be taken for others; declare it as whole numbers, or "
                             "read a view that CASTs it to text")


def joined(batch: Any, columns: Sequence[str], what: str) -> Any:
    """The key of each row as text (large_string), null where a column is.

    Several columns are joined by :data:`SEPARATOR`; a backslash stands before one in a text. `what`
    the rows are of is for messages.
    """
    for name in columns:
        check_key(batch.column(name), name, what)
    texts = [as_text(batch.column(name)) for name in columns]
    if len(texts) == 1:
        return texts[0]
    for mark in ("\\", SEPARATOR):
        texts = [pc.replace_substring(text, mark, "\\" + mark) for text in texts]
    return pc.binary_join_element_wise(*texts, pa.scalar(SEPARATOR, pa.large_string()))


class Database(AbstractContextManager["Database"], ABC):
    """Tables that are open for reading, all as of one moment.

    Attributes
    ----------
    name : of the graph.
    where : how messages and stores name the database; never with a password.
    tables : by their names; views among them.
    names : what queries call the tables.
    mark : what names in queries are quoted by.
    """

    name: str
    where: str
    tables: dict[str, Table]
    names: dict[str, str]
    mark = '"'

    def counts(self, table: Table, keys: Sequence[Sequence[str]] = ()) -> list[int]:
        """The rows of a table, and for each of some sets of columns the rows that have them all."""
        known = ["CASE WHEN " + " AND ".join(f"{self.quoted(name)} IS NOT NULL" for name in columns)
                 + " THEN 1 END" for columns in keys]
        counted = [f"count({what}) AS n{i}" for i, what in enumerate(["*", *known])]
        (batch,) = self.query(f"SELECT {', '.join(counted)} FROM {self.names[table.name]}")
        return [int(column[0].as_py()) for column in batch.columns]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        """Some columns of all rows, as record batches of the types that the table says."""
        yield from self._read(f"SELECT {', '.join(map(self.quoted, columns))} FROM "
                              f"{self.names[table.name]}", f"table '{table.name}'", table.columns)

    def query(self, text: str) -> Iterator[Any]:
        """The rows that a query gives, as record batches.

        Raises
        ------
        InputError
            It gives none.
        """
        return self._read(text, "the query of --task", None)

    def quoted(self, name: str, mark: str = "") -> str:
        """A name as queries write it, or with a `mark` of its own a text."""
        mark = mark or self.mark
        return mark + name.replace(mark, 2 * mark) + mark

    @abstractmethod
    def _read(self, query: str, what: str, columns: Mapping[str, Any] | None) -> Iterator[Any]:
        """Batches of the rows of a query; `columns` are their types, where they are known."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    def __exit__(self, *_: object) -> None:
        self.close()
