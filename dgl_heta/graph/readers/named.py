"""Nodes with ids of their own, text or numbers, and the edges between them.

The nodes of a type are numbered once: in the order of the rows of its table, or, for a type without
a table, in the order of its ids, sorted as text by code points. So the numbers depend on what is in
the files and not on how it is divided into files or read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.tables import Table, arrow, edge_columns, first, repeated
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays


@dataclass(frozen=True)
class EdgeTables:
    """The edges of a relation, in the rows of some files.

    `columns` are those of the sources and the destinations, where somebody has said so.
    """

    relation: Relation
    paths: Sequence[Path]
    columns: Sequence[str] | None = None

    def ends(self) -> list[tuple[Table, tuple[str, str]]]:
        """The tables, each with the columns that hold the ends."""
        tables = [Table(path) for path in self.paths]
        return [(table, edge_columns(table, self.columns)) for table in tables]


@dataclass
class NamedNodes:
    """Ids of the nodes of some types; a type without a table gets them by :meth:`gather`."""

    _ids: dict[str, Any] = field(default_factory=dict)
    _tables: dict[str, Path] = field(default_factory=dict)

    def add_table(self, ntype: str, table: Table, column: str) -> int:
        """The nodes of a type are the rows of a table; returns their number.

        Raises
        ------
        InputError
            No such column, an empty id, two rows with one id, no rows.
        """
        ids = table.ids(column, ' of ids; say which it is by "id"')
        if not len(ids):
            raise InputError(f"{table.path} has no rows; node type '{ntype}' needs at least one")
        if (pair := repeated(ids)) is not None:
            raise InputError(f"{table.path}, row {pair[1] + 1}: column '{column}' is "
                             f"{quoted(ids[pair[1]].as_py())} as in row {pair[0] + 1}; every node "
                             "needs an id of its own")
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
        found: dict[str, list[Any]] = {t: [] for t in types}
        for edges in relations:
            ends = (edges.relation.src, edges.relation.dst)
            for table, columns in edges.ends() if {*ends} & {*types} else ():
                for ntype, column in zip(ends, columns):
                    if ntype in found:
                        found[ntype].append(pc.unique(table.ids(column)))
        for ntype, parts in found.items():
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

    def edges(self, tables: EdgeTables, counts: Mapping[str, int]) -> EdgeArrays:
        """The edges of a relation as numbers, int32 or int64, in memory.

        Raises
        ------
        InputError
            An end that no node has, or that is no number where the type has a `count`; by its file,
            its row and its value.
        """
        sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for table, columns in tables.ends():
            for side, ntype, column in zip(sides, (tables.relation.src, tables.relation.dst),
                                           columns):
                numbers = self.numbers(table, column, ntype, counts[ntype])
                wide = counts[ntype] >= 2**31
                side.append(numbers.astype(np.int64 if wide else np.int32))
        return EdgeArrays(*(np.concatenate(side) for side in sides))

    def numbers(self, table: Table, column: str, ntype: str, count: int) -> np.ndarray:
        """The nodes of a type whose ids are in a column, int64 or int32.

        Raises
        ------
        InputError
            As :meth:`edges`.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        ids = table.ids(column)
        if ntype not in self:
            digits = pc.match_substring_regex(ids, "^[0-9]{1,15}$")
            numbers = pc.cast(pc.if_else(digits, ids, "-1"), pa.int64())
            right = pc.and_(digits, pc.less(numbers, count))
            if (row := first(pc.invert(right))) is not None:
                raise InputError(f"{table.path}, row {row + 1}: column '{column}' is "
                                 f"{quoted(ids[row].as_py())}, but node type '{ntype}' has a "
                                 f"'count', so its ids are whole numbers from 0 to {count - 1}")
            plain: np.ndarray = numbers.to_numpy(zero_copy_only=False)
            return plain
        places = pc.index_in(ids, value_set=self._ids[ntype])
        if (row := first(pc.is_null(places))) is not None:
            raise InputError(f"{table.path}, row {row + 1}: column '{column}' is "
                             f"{quoted(ids[row].as_py())}, which is "
                             + (f"in no row of {self._tables[ntype]} (node type '{ntype}')"
                                if ntype in self._tables else
                                f"the id of no node of type '{ntype}'"))
        found: np.ndarray = places.to_numpy(zero_copy_only=False)
        return found
