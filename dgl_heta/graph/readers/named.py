"""Nodes with ids of their own, text or numbers, and the edges between them.

The nodes of a type are numbered once: in the order of the rows of its table, or, for a type without
a table, in the order of its ids, sorted as text by code points. So the numbers depend on what is in
the files and not on how it is divided into files or read.

Tables are read once, in pieces. The ids at the ends of edges are questions
(:mod:`dgl_heta.graph.readers.id_shards`), answered when all ids are known. So memory does not grow
with edges or nodes; what is read here stays in one mapped file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.column_values import arrow, first
from dgl_heta.graph.readers.edge_tables import (
    ALL,
    AS_TYPE,
    Column,
    EdgeTables,
    by_relation,
    groups,
)
from dgl_heta.graph.readers.id_shards import ArrayFile, IdShards, TextFile, mapped_files
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.memory import give_back

MB = 1 << 20


class _Piece(NamedTuple):
    """Edges of a piece of a table, one relation after the other.

    Attributes
    ----------
    relations, counts : places in :attr:`NamedNodes._relations`, and how many edges each has.
    questions : for sources and destinations, the question of each type that has ids.
    """

    relations: np.ndarray
    counts: np.ndarray
    questions: list[dict[str, int]]


class _Asked(NamedTuple):
    """A table of edges; `values` are places in answers, or numbers where a type has a count."""

    edges: EdgeTables
    table: ColumnTable
    pieces: list[_Piece]
    values: tuple[ArrayFile, ArrayFile]


class IdColumns:
    """Columns of ids; for each type of nodes, whether they are bytes."""

    def __init__(self) -> None:
        self._forms: dict[str, tuple[bool, str]] = {}

    def numbers(self, table: ColumnTable, column: str, ntype: str, count: int, known: Any = None
                ) -> np.ndarray:
        """The nodes of a type whose ids are in a column, int64 or int32.

        `known` are the ids of all nodes (large_string); None where their numbers are the ids.

        Raises
        ------
        InputError
            An id that no node has, by its row.
        """
        pa, pc = arrow(), arrow("pyarrow.compute")
        ids = self.read(table, column, ntype)
        if known is not None:
            places = pc.index_in(ids, value_set=known)
            if (row := first(pc.is_null(places))) is not None:
                raise table.wrong(column, row, ids,
                                  f", which is the id of no node of type '{ntype}'")
            positions: np.ndarray = places.to_numpy(zero_copy_only=False)
            return positions
        digits = pc.match_substring_regex(ids, "^[0-9]{1,15}$")
        numbers = pc.cast(pc.if_else(digits, ids, "-1"), pa.int64())
        right = pc.and_(digits, pc.less(numbers, count))
        if (row := first(pc.invert(right))) is not None:
            raise table.wrong(column, row, ids, f", but node type '{ntype}' has a 'count', so "
                              f"its ids are whole numbers from 0 to {count - 1}")
        plain: np.ndarray = numbers.to_numpy(zero_copy_only=False)
        return plain

    def read(self, table: ColumnTable, column: str, ntype: str, use: str = "") -> Any:
        """A column of ids of nodes of a type, as text."""
        ids, are_bytes = table.ids(column, use)
        self.check_form(ntype, are_bytes, f"column '{column}' of {table.path}")
        return ids

    def check_form(self, ntype: str, are_bytes: bool, where: str) -> None:
        """Refuse bytes beside text: one node would have two ids."""
        known, other = self._forms.setdefault(ntype, (are_bytes, where))
        if known != are_bytes:
            one, two = (where, other) if are_bytes else (other, where)
            raise InputError(f"ids of nodes of type '{ntype}' are bytes in {one}, but text or "
                             f"numbers in {two}; write them alike")


class NamedNodes(IdColumns):
    """Ids of the nodes of some types, and the edges that name them.

    Call :meth:`add_table`, :meth:`ask`, :meth:`gather`, and then the others.

    Parameters
    ----------
    reading : closed when all is read, which removes the files by their names.
    memory_mb : memory for ids.
    """

    def __init__(self, reading: ExitStack, memory_mb: int) -> None:
        super().__init__()
        self._reading, self._memory, self._paths = reading, memory_mb * MB, itertools.count()
        self._texts: dict[str, TextFile] = {}
        self._shards: dict[str, IdShards] = {}
        self._tables: dict[str, Path] = {}
        self._asked: list[list[_Asked]] = []
        self._relations: dict[Relation, int] = {}

    def add_table(self, ntype: str, table: ColumnTable, column: str) -> int:
        """The nodes of a type are the rows of a table; returns their number.

        Raises
        ------
        InputError
            No such column, an empty id, two rows with one id, no rows.
        """
        use = ' of ids; say which it is by "id"'
        table.check(column, use)
        texts, shards = TextFile(self._path()), self._shards_of(ntype, table.size)
        for piece in table.pieces([column]):
            ids = self.read(piece, column, ntype, use)
            shards.add(ids, len(texts))
            texts.append(ids)
        if not len(texts):
            raise InputError(f"{table.path} has no rows; node type '{ntype}' needs at least one")
        if (pair := shards.repeated()) is not None:
            raise InputError(f"{table.at(pair[1])}: column '{column}' is {quoted(pair[2])} as in "
                             f"{table.at(pair[0])}; every node needs an id of its own")
        self._texts[ntype], self._tables[ntype] = texts, table.path
        return len(texts)

    def ask(self, relations: Sequence[EdgeTables], counts: Mapping[str, int], is_open: bool
            ) -> set[str]:
        """Read the ends of edges; returns the types that columns of the tables name.

        Parameters
        ----------
        counts : node type to the number of nodes, 0 where it is not known.
        is_open : whether columns may name types that are not in `counts`.

        Raises
        ------
        InputError
            A row without an id, one that is no number where the type has a `count`, or a type that
            there is not; by its file, its row and its value.
        """
        size, named = sum(table.size for edges in relations for table in edges.tables), set[str]()
        for edges in relations:
            self._asked.append([])
            for table in edges.tables:
                asked = _Asked(edges, table, [], (ArrayFile(self._path(), np.int64),
                                                  ArrayFile(self._path(), np.int64)))
                self._asked[-1].append(asked)
                for piece in edges.pieces(table):
                    sides = [self._ask(piece, *end, counts, is_open, size, named)
                             for end in edges.ends(table)]
                    groups = edges.relations(piece)
                    for file, (_, values) in zip(asked.values, sides):
                        file.append(np.concatenate([values[:0], *(values[r] for _, r in groups)]))
                    asked.pieces.append(_Piece(
                        np.array([self._relations.setdefault(relation, len(self._relations))
                                  for relation, _ in groups], np.int32),
                        np.array([len(sides[0][1][rows]) for _, rows in groups]),
                        [questions for questions, _ in sides]))
                    give_back()
        return named

    def _ask(self, piece: ColumnTable, end: str | Column, column: str, counts: Mapping[str, int],
             is_open: bool, size: int, named: set[str]) -> tuple[dict[str, int], np.ndarray]:
        """The questions for one end of edges, and the value of each row, as :class:`_Asked` has it.
        """
        questions: dict[str, int] = {}

        def value(ntype: str, rows: ColumnTable) -> np.ndarray:
            if counts.get(ntype) and ntype not in self._tables:
                return self.numbers(rows, column, ntype, counts[ntype])
            ids = self.read(rows, column, next(iter(self._tables), ALL) if ntype == ALL else ntype)
            known = sum(texts.size for texts in self._texts.values()) if ntype == ALL else size
            questions[ntype], places = self._shards_of(ntype, known).ask(ids)
            return places

        if isinstance(end, str):
            return questions, value(end, piece)
        types, codes = piece.codes(end.name, AS_TYPE)
        named.update(types)
        values = np.zeros(len(codes), np.int64)
        for code, rows in groups(codes):
            if types[code] not in counts and not is_open:
                raise InputError(f"{piece.at(rows[0])}: column '{end.name}' is "
                                 f"{quoted(types[code])}, which is no node type; node types: "
                                 f"{listing(counts)}" + nearest(types[code], counts))
            values[rows] = value(types[code], piece.where(rows))
        return questions, values

    def gather(self, types: Sequence[str]) -> dict[str, int]:
        """The nodes of these types are those that edges name; returns how many each has.

        Raises
        ------
        InputError
            No relation names any of a type.
        """
        for ntype in types:
            texts = self._texts[ntype] = TextFile(self._path())
            if ntype in self._shards:
                self._shards[ntype].number(texts)
            if not len(texts):
                raise InputError(f"no edge names a node of type '{ntype}', which has neither "
                                 "'count' nor 'table'; give it one")
        return {ntype: len(self._texts[ntype]) for ntype in types}

    def node_ids(self) -> dict[str, NodeIds]:
        """The ids of all types."""
        arrays = mapped_files([file for texts in self._texts.values()
                               for file in (texts.offsets, texts.text)], self._path())
        return {ntype: NodeIds(*pair)
                for ntype, pair in zip(self._texts, zip(arrays[::2], arrays[1::2]))}

    def edges(self, counts: Mapping[str, int]) -> list[dict[Relation, EdgeArrays]]:
        """The edges of all that was asked for, by their relation, sorted; ends int32 or int64.

        Raises
        ------
        InputError
            An end that no node has, by its file, its row and its value.
        """
        if ALL in self._shards:
            self._add_all()
        for shards in self._shards.values():
            shards.answer()
        found: list[dict[Relation, tuple[ArrayFile, ArrayFile]]] = []
        for tables in self._asked:
            found.append({})
            for asked in tables:
                for relation, *numbers in self._answered(asked):
                    if relation not in found[-1]:
                        src, dst = (ArrayFile(
                            self._path(), np.int64 if counts[t] >= 2**31 else np.int32)
                            for t in (relation.src, relation.dst))
                        found[-1][relation] = src, dst
                    for file, side in zip(found[-1][relation], numbers):
                        file.append(side)
        arrays = iter(mapped_files([file for files in found for pair in files.values()
                                    for file in pair], self._path()))
        every = [{relation: EdgeArrays(next(arrays), next(arrays)) for relation in files}
                 for files in found]
        return [{relation: edges[relation] for relation in sorted(edges)} for edges in every]

    def _answered(self, asked: _Asked) -> Iterator[tuple[Relation, np.ndarray, np.ndarray]]:
        """Edges of one relation, some at a time, in their order."""
        for sides in zip(*(self._of_side(asked, side) for side in (0, 1))):
            (relation, src), (_, dst) = sides
            if min(src.min(initial=0), dst.min(initial=0)) < 0:
                self._refuse(asked)
            (sources, of_src, src), (destinations, of_dst, dst) = (
                self._typed(ntype, numbers)
                for ntype, numbers in ((relation.src, src), (relation.dst, dst)))
            for one, rows in by_relation((sources, of_src), ([relation.etype], np.zeros(1, int)),
                                          (destinations, of_dst)):
                yield one, src[rows], dst[rows]

    def _of_side(self, asked: _Asked, side: int) -> Iterator[tuple[Relation, np.ndarray]]:
        """The numbers at one end, -1 where no node has the id, of a relation in a piece."""
        relations, low = [*self._relations], 0
        for piece in asked.pieces:
            answers = {ntype: self._shards[ntype].answers(question)
                       for ntype, question in piece.questions[side].items()}
            for index, count in zip(piece.relations, piece.counts):
                relation, values = relations[index], asked.values[side].read(low, low + count)
                ntype = relation.dst if side else relation.src
                yield relation, answers[ntype][values] if ntype in answers else values
                low += count

    def _refuse(self, asked: _Asked) -> NoReturn:
        """Raise the error of the first id that no node has; its table is read again for its text.
        """
        for side, (_, column) in enumerate(asked.edges.ends(asked.table)):
            numbers = self._of_side(asked, side)
            for piece in asked.edges.pieces(asked.table):
                ids, _ = piece.ids(column)
                if wrong := [(int(np.arange(len(ids))[rows][at]), relation)
                             for relation, rows in asked.edges.relations(piece)
                             for at in np.flatnonzero(next(numbers)[1] < 0)[:1]]:
                    row, relation = min(wrong)
                    ntype = relation.dst if side else relation.src
                    raise piece.wrong(column, row, ids, (
                        f", which is in no table of nodes (types {listing(self._tables)})"
                        if ntype == ALL else
                        f", which is in no row of {self._tables[ntype]} (node type '{ntype}')"))
        raise AssertionError("no id is missing")

    def _typed(self, ntype: str, numbers: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
        """The types of nodes, which of them each is of, and their numbers; :data:`ALL` divided."""
        if ntype != ALL:
            return [ntype], np.zeros(1, np.int64), numbers
        ends = self._ends
        codes = np.searchsorted(ends, numbers, side="right")
        return [*self._tables], codes, numbers - np.concatenate([[0], ends])[codes]

    @property
    def _ends(self) -> np.ndarray:
        """Where the nodes of each type with a table end, if they are numbered one after the other.
        """
        return np.cumsum([len(self._texts[ntype]) for ntype in self._tables])

    def _add_all(self) -> None:
        """Have the ids of all types with tables be known as those of :data:`ALL`."""
        types, shards, number = [*self._tables], self._shards[ALL], 0
        if not types:
            raise InputError(f"edges between nodes of type '{ALL}' need tables of nodes, which say "
                             "the types; 'nodes' has none")
        for ntype in types:
            self.check_form(ntype, *self._forms[types[0]])
            for ids in self._texts[ntype].batches(self._memory // 16):
                shards.add(ids, number)
                number += len(ids)
        if (pair := shards.repeated()) is not None:
            one, other = (types[int(i)] for i in np.searchsorted(self._ends, pair[:2], "right"))
            raise InputError(f"{quoted(pair[2])} is the id of a node of type '{one}' "
                             f"and of one of type '{other}', so it does not say which edges of "
                             f"'{ALL}' mean; give their types by columns, as \"src\": "
                             "{\"column\": \"…\"}")

    def _shards_of(self, ntype: str, size: int) -> IdShards:
        if ntype not in self._shards:
            self._shards[ntype] = IdShards(self._path(), size, self._memory)
        return self._shards[ntype]

    def _path(self) -> Path:
        """A name for a new file."""
        return self._scratch / str(next(self._paths))

    @cached_property
    def _scratch(self) -> Path:
        return self._reading.enter_context(scratch_directory(None, "dgl-heta-ids"))
