"""Nodes with ids of their own, text or numbers, and the edges between them.

The nodes of a type are numbered once: in the order of the rows of its table, or, for a type without
a table, in the order of its ids, sorted as text by code points. So the numbers depend on what is in
the files and not on how it is divided into files or read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.column_values import arrow, first, repeated
from dgl_heta.graph.readers.table_reader import Table
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays

ALL = "*"
"""As a node type: the one whose table has the id."""
_AS_TYPE = " as node type"


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
    tables: Sequence[Table]
    columns: Sequence[str] | None = None

    def types(self) -> set[str]:
        """The node types that columns of the tables name."""
        return {ntype for table in self.tables for end in (self.src, self.dst)
                if isinstance(end, Column) for ntype in table.codes(end.name, _AS_TYPE)[0]}

    def ends(self) -> Iterator[tuple[Table, tuple[tuple[str | Column, str], ...]]]:
        """Each table, with type and column of the sources, and of the destinations."""
        for table in self.tables:
            src, dst = _edge_columns(table, self.columns)
            yield table, ((self.src, src), (self.dst, dst))


@dataclass
class NamedNodes:
    """Ids of the nodes of some types; a type without a table gets them by :meth:`gather`."""

    _ids: dict[str, Any] = field(default_factory=dict)
    _tables: dict[str, Path] = field(default_factory=dict)
    _forms: dict[str, tuple[bool, str]] = field(default_factory=dict)

    def add_table(self, ntype: str, table: Table, column: str) -> int:
        """The nodes of a type are the rows of a table; returns their number.

        Raises
        ------
        InputError
            No such column, an empty id, two rows with one id, no rows.
        """
        ids = self._read(table, column, ntype, ' of ids; say which it is by "id"')
        if not len(ids):
            raise InputError(f"{table.path} has no rows; node type '{ntype}' needs at least one")
        if (pair := repeated(ids)) is not None:
            raise InputError(f"{table.at(pair[1])}: column '{column}' is "
                             f"{quoted(ids[pair[1]].as_py())} as in {table.at(pair[0])}; every "
                             "node needs an id of its own")
        self._ids[ntype], self._tables[ntype] = ids, table.path
        return len(ids)

    def add_ids(self, ntype: str, ids: NodeIds) -> None:
        """The nodes of a type have the ids of a store."""
        self._ids[ntype] = ids.to_arrow()

    def gather(self, types: Sequence[str], relations: Sequence[EdgeTables]) -> None:
        """The nodes of these types are those that edges name.

        Raises
        ------
        InputError
            No relation names any of a type.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        named_ids: dict[str, list[Any]] = {t: [] for t in types}
        for edges in relations:
            for table, ends in edges.ends():
                for end, column in ends:
                    for ntype, rows in _rows_by_type(table, end):
                        if ntype in named_ids:
                            named_ids[ntype].append(pc.unique(self._read(rows, column, ntype)))
        for ntype, parts in named_ids.items():
            ids = pc.unique(pa.chunked_array(parts, pa.large_string()))
            if not len(ids):
                raise InputError(f"no edge names a node of type '{ntype}', which has neither "
                                 "'count' nor 'table'; give it one")
            self._ids[ntype] = ids.take(pc.array_sort_indices(ids))

    def __contains__(self, ntype: str) -> bool:
        return ntype in self._ids

    def count(self, ntype: str) -> int:
        """Number of nodes of a type."""
        return len(self._ids[ntype])

    def node_ids(self) -> dict[str, NodeIds]:
        """The ids of all types."""
        return {ntype: NodeIds.of_arrow(ids) for ntype, ids in self._ids.items()}

    def edges(self, edges: EdgeTables, counts: Mapping[str, int]) -> dict[Relation, EdgeArrays]:
        """The edges by their relation, sorted; ends as numbers, int32 or int64, in memory.

        Raises
        ------
        InputError
            An end that no node has, or that is no number where the type has a `count`, or a type
            that there is not; by its file, its row and its value.
        """
        parts: dict[Relation, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        for table, ends in edges.ends():
            (sources, src_codes, src), (destinations, dst_codes, dst) = (
                self._side(table, column, end, counts) for end, column in ends)
            etypes, codes = _names(table, edges.etype, " as relation")
            codes = (codes * len(sources) + src_codes) * len(destinations) + dst_codes
            one = len(etypes) * len(sources) * len(destinations) == 1
            for code, rows in [(0, slice(None))] if one else _groups(codes):
                code, of_dst = divmod(code, len(destinations))
                code, of_src = divmod(code, len(sources))
                relation = Relation(sources[of_src], etypes[code], destinations[of_dst])
                for side, numbers, ntype in zip(parts.setdefault(relation, ([], [])), (src, dst),
                                                (relation.src, relation.dst)):
                    wide = counts[ntype] >= 2**31
                    side.append(numbers[rows].astype(np.int64 if wide else np.int32))
        return {relation: EdgeArrays(*(np.concatenate(side) for side in parts[relation]))
                for relation in sorted(parts)}

    def numbers(self, table: Table, column: str, ntype: str, count: int) -> np.ndarray:
        """The nodes of a type whose ids are in a column, int64 or int32.

        Raises
        ------
        InputError
            As :meth:`edges`.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        ids = self._read(table, column, ntype)
        if ntype not in self:
            digits = pc.match_substring_regex(ids, "^[0-9]{1,15}$")
            numbers = pc.cast(pc.if_else(digits, ids, "-1"), pa.int64())
            right = pc.and_(digits, pc.less(numbers, count))
            if (row := first(pc.invert(right))) is not None:
                raise table.wrong(column, row, ids, f", but node type '{ntype}' has a 'count', so "
                                  f"its ids are whole numbers from 0 to {count - 1}")
            plain: np.ndarray = numbers.to_numpy(zero_copy_only=False)
            return plain
        places = pc.index_in(ids, value_set=self._ids[ntype])
        if (row := first(pc.is_null(places))) is not None:
            raise table.wrong(column, row, ids, ", which is "
                              + (f"in no row of {self._tables[ntype]} (node type '{ntype}')"
                                 if ntype in self._tables else
                                 f"the id of no node of type '{ntype}'"))
        positions: np.ndarray = places.to_numpy(zero_copy_only=False)
        return positions

    def _side(self, table: Table, column: str, end: str | Column, counts: Mapping[str, int]
              ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Types of nodes at one end of edges, and of each row which of them, and which node."""
        if end == ALL:
            return self._of_all(table, column)
        types, codes = _names(table, end, _AS_TYPE)
        if isinstance(end, str):
            return types, codes, self.numbers(table, column, end, counts[end])
        numbers = np.zeros(len(codes), np.int64)
        for code, rows in _groups(codes):
            if types[code] not in counts:
                raise InputError(f"{table.at(rows[0])}: column '{end.name}' is "
                                 f"{quoted(types[code])}, which is no node type; node types: "
                                 f"{listing(counts)}" + nearest(types[code], counts))
            numbers[rows] = self.numbers(table.where(rows), column, types[code],
                                         counts[types[code]])
        return types, codes, numbers

    def _of_all(self, table: Table, column: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        """As :meth:`_side`, where the ids alone say which type a node is of."""
        pc = arrow("pyarrow.compute")
        types, ids, ends = self._all
        own = self._read(table, column, types[0])
        places = pc.index_in(own, value_set=ids)
        if (row := first(pc.is_null(places))) is not None:
            raise table.wrong(column, row, own, f", which is in no table of nodes (types "
                              f"{listing(types)})")
        indices = places.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.searchsorted(ends, indices, side="right")
        return types, codes, indices - np.concatenate([[0], ends])[codes]

    @cached_property
    def _all(self) -> tuple[list[str], Any, np.ndarray]:
        """The types with tables, the ids of them all, and where those of each type end."""
        types = list(self._tables)
        if not types:
            raise InputError(f"edges between nodes of type '{ALL}' need tables of nodes, which say "
                             "the types; 'nodes' has none")
        for ntype in types[1:]:
            self._check_form(ntype, *self._forms[types[0]])
        ids = arrow().concat_arrays([self._ids[ntype] for ntype in types])
        ends = np.cumsum([len(self._ids[ntype]) for ntype in types])
        if (pair := repeated(ids)) is not None:
            one, other = (types[int(np.searchsorted(ends, row, side="right"))] for row in pair)
            raise InputError(f"{quoted(ids[pair[0]].as_py())} is the id of a node of type '{one}' "
                             f"and of one of type '{other}', so it does not say which edges of "
                             f"'{ALL}' mean; give their types by columns, as \"src\": "
                             "{\"column\": \"…\"}")
        return types, ids, ends

    def _read(self, table: Table, column: str, ntype: str, use: str = "") -> Any:
        """A column of ids of nodes of a type, as text."""
        ids, are_bytes = table.ids(column, use)
        self._check_form(ntype, are_bytes, f"column '{column}' of {table.path}")
        return ids

    def _check_form(self, ntype: str, are_bytes: bool, where: str) -> None:
        """Refuse bytes beside text: one node would have two ids."""
        known, other = self._forms.setdefault(ntype, (are_bytes, where))
        if known != are_bytes:
            one, two = (where, other) if are_bytes else (other, where)
            raise InputError(f"ids of nodes of type '{ntype}' are bytes in {one}, but text or "
                             f"numbers in {two}; write them alike")


def _names(table: Table, name: str | Column, use: str) -> tuple[list[str], np.ndarray]:
    """The names that rows have, and which of them each has; for one name for all, a single 0."""
    return ([name], np.zeros(1, np.int64)) if isinstance(name, str) else table.codes(name.name, use)


def _groups(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each code that rows have, and its rows, ascending."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        yield int(codes[rows[0]]), rows


def _rows_by_type(table: Table, end: str | Column) -> Iterator[tuple[str, Table]]:
    """The types of nodes at an end of edges, each with its rows of the table."""
    if isinstance(end, str):
        yield end, table
        return
    types, codes = table.codes(end.name, _AS_TYPE)
    for code, rows in _groups(codes):
        yield types[code], table.where(rows)


def _edge_columns(table: Table, given: Sequence[str] | None) -> tuple[str, str]:
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
