"""Tables whose rows are edges, of one relation or of as many as their columns name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.schema import Relation

ALL = "*"
"""As a node type: the one whose table has the id."""
AS_TYPE, _AS_RELATION = " as node type", " as relation"


@dataclass(frozen=True)
class Column:
    """A name that is another in each row of a table: what this column says."""

    name: str


@dataclass(frozen=True)
class EdgeTables:
    """Edges in the rows of some tables: of one relation, or of as many as their columns name.

    `columns` are those of the ids of sources and destinations, where somebody has said so.
    """

    src: str | Column
    etype: str | Column
    dst: str | Column
    tables: Sequence[ColumnTable]
    columns: Sequence[str] | None = None

    def ends(self, table: ColumnTable) -> tuple[tuple[str | Column, str], tuple[str | Column, str]]:
        """Type and column of the sources in a table, and of the destinations."""
        src, dst = _edge_columns(table, self.columns)
        return (self.src, src), (self.dst, dst)

    def pieces(self, table: ColumnTable) -> Iterator[ColumnTable]:
        """A table with the columns of its edges."""
        names = {column: "" for _, column in self.ends(table)}
        names |= {name.name: use for name, use in (
            (self.src, AS_TYPE), (self.dst, AS_TYPE), (self.etype, _AS_RELATION))
            if isinstance(name, Column)}
        for name, use in names.items():
            table.check(name, use)
        return table.pieces([*names])

    def relations(self, piece: ColumnTable) -> list[tuple[Relation, Any]]:
        """The relations in a piece, and the rows of each; :data:`ALL` is a type here."""
        return [*by_relation(_names(piece, self.src, AS_TYPE),
                              _names(piece, self.etype, _AS_RELATION),
                              _names(piece, self.dst, AS_TYPE))]


def _names(table: ColumnTable, name: str | Column, use: str) -> tuple[list[str], np.ndarray]:
    """The names that rows have, and which of them each has; for one name for all, a single 0."""
    return ([name], np.zeros(1, np.int64)) if isinstance(name, str) else table.codes(name.name, use)


def groups(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each code that rows have, and its rows, ascending."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        yield int(codes[rows[0]]), rows


Names = tuple[list[str], np.ndarray]
"""Names, and which of them each row has, or one 0 for all rows."""


def by_relation(sources: Names, etypes: Names, destinations: Names
                 ) -> Iterator[tuple[Relation, Any]]:
    """The relations that rows are of, with the rows of each, ascending; a slice of all for one."""
    sizes = len(sources[0]), len(destinations[0])
    if len(etypes[0]) * sizes[0] * sizes[1] == 1:
        yield Relation(sources[0][0], etypes[0][0], destinations[0][0]), slice(None)
        return
    codes = (etypes[1] * sizes[0] + sources[1]) * sizes[1] + destinations[1]
    for code, rows in groups(codes):
        code, of_dst = divmod(code, sizes[1])
        of_etype, of_src = divmod(code, sizes[0])
        yield Relation(sources[0][of_src], etypes[0][of_etype], destinations[0][of_dst]), rows


def _edge_columns(table: ColumnTable, given: Sequence[str] | None) -> tuple[str, str]:
    """The columns of a table of edges that hold their ends.

    They are those that are given, else `src` and `dst`, else a Parquet or Arrow file's only two.
    A CSV must name them, because a file without a header begins with an edge.

    Raises
    ------
    InputError
        The table has no such columns.
    """
    if given is not None:
        return given[0], given[1]
    if {"src", "dst"} <= set(table.names):
        return "src", "dst"
    if len(table.own_names) == 2 and not table.is_text:
        return table.own_names[0], table.own_names[1]
    begins = "'s first line names" if table.is_text else " has"
    raise InputError(f"{table.path}{begins} columns {', '.join(map(quoted, table.names[:8]))}; "
                     "edges are in columns src and dst, or say which by \"columns\": "
                     "[\"…\", \"…\"] beside \"files\"")
