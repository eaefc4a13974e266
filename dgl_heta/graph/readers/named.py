"""Nodes with ids of their own, text or numbers, and the edges between them.

The nodes of a type are numbered once: in the order of the rows of its table, or, for a type without
a table, in the order of its ids, sorted as text by code points. So the numbers depend on what is in
the files and not on how it is divided into files or read.

Tables are read once, in pieces, and written as Parquet to a scratch directory. DuckDB sorts the ids
and joins them with the edges there, within its memory and by temporary files. So memory does not
grow with edges or nodes; the numbers stay in files that are mapped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing, nearest, quoted
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.column_files import PIECE
from dgl_heta.graph.readers.column_values import arrow, first
from dgl_heta.graph.readers.table_reader import Table
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays
from dgl_heta.system.disk import MappedArrays
from dgl_heta.system.leftovers import scratch_directory

ALL = "*"
"""As a node type: the one whose table has the id."""
LEAST_MB = 256
_AS_TYPE, _AS_RELATION = " as node type", " as relation"


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

    def pieces(self, table: Table) -> Iterator[tuple[Table, str, str]]:
        """A table in pieces that have the columns of its edges, with those of both ends."""
        src, dst = _edge_columns(table, self.columns)
        names = {src: "", dst: ""} | {
            name.name: use for name, use in (
                (self.src, _AS_TYPE), (self.dst, _AS_TYPE), (self.etype, _AS_RELATION))
            if isinstance(name, Column)}
        for name, use in names.items():
            table.check(name, use)
        for piece in table.pieces([*names]):
            yield piece, src, dst


class IdColumns:
    """Columns of ids; for each type of nodes, whether they are bytes."""

    def __init__(self) -> None:
        self._forms: dict[str, tuple[bool, str]] = {}

    def numbers(self, table: Table, column: str, ntype: str, count: int, known: Any = None
                ) -> np.ndarray:
        """The nodes of a type whose ids are in a column, int64 or int32.

        `known` are the ids of all nodes (large_string); None where their numbers are the ids.

        Raises
        ------
        InputError
            An id that no node has, by its row.
        """
        pc, ids = arrow("pyarrow.compute"), self.read(table, column, ntype)
        numbers = _whole(ids, count) if known is None else pc.index_in(ids, value_set=known)
        if (row := first(pc.is_null(numbers))) is not None:
            raise table.wrong(column, row, ids, _no_number(ntype, count) if known is None else
                              f", which is the id of no node of type '{ntype}'")
        positions: np.ndarray = numbers.to_numpy(zero_copy_only=False)
        return positions

    def read(self, table: Table, column: str, ntype: str, use: str = "") -> Any:
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
    memory_mb : memory for ids, of which DuckDB gets half; it cannot do with less than
        :data:`LEAST_MB`.
    """

    def __init__(self, reading: ExitStack, memory_mb: int) -> None:
        super().__init__()
        self._reading, self._database_mb = reading, max(memory_mb // 2, LEAST_MB)
        self._tables: dict[str, Path] = {}
        self._types, self._etypes = {ALL: 0}, dict[str, int]()  # names, and what stands for them
        self._asked: list[tuple[Table, tuple[str, str]]] = []
        self._rows = [0]  # of all tables that were asked, where each begins

    def add_table(self, ntype: str, table: Table, column: str) -> int:
        """The nodes of a type are the rows of a table; returns their number.

        Raises
        ------
        InputError
            No such column, an empty id, two rows with one id, no rows.
        """
        use, rows = ' of ids; say which it is by "id"', 0
        table.check(column, use)
        code = self._types.setdefault(ntype, len(self._types))
        with self._writing(f"ids-{code}", type="int32", id="large_string", number="int64") as write:
            for piece in table.pieces([column]):
                ids = self.read(piece, column, ntype, use)
                write(np.full(len(ids), code), ids, np.arange(rows, rows + len(ids)))
                rows += len(ids)
        if not rows:
            raise InputError(f"{table.path} has no rows; node type '{ntype}' needs at least one")
        if (same := self._repeated(f"ids-{code}")) is not None:
            id, (_, one), (_, other) = same
            raise InputError(f"{table.at(other)}: column '{column}' is {quoted(id)} as in "
                             f"{table.at(one)}; every node needs an id of its own")
        self._tables[ntype] = table.path
        return rows

    def ask(self, relations: Sequence[EdgeTables], counts: Mapping[str, int], is_open: bool
            ) -> set[str]:
        """Read the ends of edges; returns the types that only they name.

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
        ends = {f"{end}{part}": kind for end in ("src", "dst") for part, kind in (
            ("_type", "int32"), ("", "large_string"), ("_number", "int64"))}
        if not relations:
            return set()
        before = {*self._types}
        with self._writing("edges", row="int64", entry="int32", etype="int32", **ends) as write:
            for entry, edges in enumerate(relations):
                for table in edges.tables:
                    row = self._rows[-1]
                    for piece, *columns in edges.pieces(table):
                        sides = [self._ask(piece, end, column, counts, is_open)
                                 for end, column in zip((edges.src, edges.dst), columns)]
                        rows = np.arange(row, row + piece.num_rows)
                        write(rows, np.full(len(rows), entry), _coded(
                            self._etypes, *_names(piece, edges.etype, _AS_RELATION)),
                            *sides[0], *sides[1])
                        row += len(rows)
                    self._rows.append(row)
                    self._asked.append((table, _edge_columns(table, edges.columns)))
        return {*self._types} - before

    def _ask(self, piece: Table, end: str | Column, column: str, counts: Mapping[str, int],
             is_open: bool) -> tuple[np.ndarray, Any, Any]:
        """Of one end of edges the codes of types, the ids, and the numbers that are known."""
        pa, pc = arrow(), arrow("pyarrow.compute")
        types, codes = _names(piece, end, _AS_TYPE)
        ids, are_bytes = piece.ids(column)
        for code, ntype in enumerate(types):
            if isinstance(end, Column) and ntype not in counts and not is_open:
                row = int(np.flatnonzero(codes == code)[0])
                raise InputError(f"{piece.at(row)}: column '{end.name}' is {quoted(ntype)}, which "
                                 f"is no node type; node types: {listing(counts)}"
                                 + nearest(ntype, counts))
            self.check_form(next(iter(self._tables), ALL) if ntype == ALL else ntype, are_bytes,
                            f"column '{column}' of {piece.path}")
        limits = pa.array([None if ntype in self._tables else counts.get(ntype) or None
                           for ntype in types], pa.int64()).take(pa.array(codes))
        numbers = _whole(ids, limits)
        wrong = first(pc.and_(pc.is_valid(limits), pc.is_null(numbers)))
        if wrong is not None:
            row, ntype = wrong, types[codes[wrong]]
            raise piece.wrong(column, row, ids, _no_number(ntype, counts[ntype]))
        return _coded(self._types, types, codes), ids, numbers

    def gather(self, types: Sequence[str]) -> dict[str, int]:
        """The nodes of these types are those that edges name; returns how many each has.

        Raises
        ------
        InputError
            No relation names any of a type.
        """
        if not self._asked:
            return {}
        codes = ", ".join(str(self._types.get(ntype, -1)) for ntype in types) or "-1"
        self._copy("ids-named", f"""
            SELECT type, id, row_number() OVER (PARTITION BY type ORDER BY id) - 1 AS number FROM (
                SELECT DISTINCT type, id FROM (
                    SELECT src_type AS type, src AS id FROM {self._file("edges")} UNION ALL
                    SELECT dst_type, dst FROM {self._file("edges")}) WHERE type IN ({codes}))""")
        counts = dict(self._sql(f"SELECT type, count(*) FROM {self._file('ids-named')} "
                                "GROUP BY type").fetchall())
        for ntype in types:
            if self._types.get(ntype) not in counts:
                raise InputError(f"no edge names a node of type '{ntype}', which has neither "
                                 "'count' nor 'table'; give it one")
        return {ntype: counts[self._types[ntype]] for ntype in types}

    def node_ids(self) -> dict[str, NodeIds]:
        """The ids of all types, mapped."""
        if not self._tables and not self._asked:
            return {}
        offsets, text = (MappedArrays(self._scratch / name) for name in ("offsets", "text"))
        names = [*self._types]
        for batch in self._copy("sorted", f"FROM {self._file('ids-*')} ORDER BY type, number"):
            for (code,), rows in _runs(batch["type"]):
                ids = NodeIds.of_arrow(batch["id"][rows].cast(arrow().large_string()))
                done = text.sizes.get(names[code], 0)
                offsets.append(names[code], ids.offsets[done > 0:] + done)
                text.append(names[code], ids.text)
        ends, texts = offsets.mapped(), text.mapped()
        return {ntype: NodeIds(ends[ntype], texts[ntype]) for ntype in ends}

    def edges(self, relations: Sequence[EdgeTables], counts: Mapping[str, int]
              ) -> list[dict[Relation, EdgeArrays]]:
        """The edges of what was asked for, by their relation, sorted; ends int32 or int64, mapped.

        Raises
        ------
        InputError
            An end that no node has, by its file, its row and its value.
        """
        if not relations:
            return []
        self._join(any(ALL in (edges.src, edges.dst) for edges in relations))
        types, etypes = [*self._types], [*self._etypes]
        files = {end: MappedArrays(self._scratch / end) for end in ("src", "dst")}
        for batch in self._copy("numbered", f"""
                SELECT entry, coalesce(s.own, src_type) AS src_type, etype,
                    coalesce(d.own, dst_type) AS dst_type, coalesce(src_number, s.number) AS src,
                    coalesce(dst_number, d.number) AS dst {_JOIN}
                ORDER BY entry, 2, etype, 4, row"""):
            if batch["src"].null_count or batch["dst"].null_count:
                self._refuse()
            for (entry, src, etype, dst), rows in _runs(
                    *(batch[name] for name in ("entry", "src_type", "etype", "dst_type"))):
                relation = Relation(types[src], etypes[etype], types[dst])
                for (end, file), ntype in zip(files.items(), (relation.src, relation.dst)):
                    file.append((entry, relation), batch[end][rows].to_numpy().astype(
                        np.int64 if counts[ntype] >= 2**31 else np.int32))
        src_ends, dst_ends = (file.mapped() for file in files.values())
        found: list[dict[Relation, EdgeArrays]] = [{} for _ in relations]
        for edges, own in zip(relations, found):  # a relation whose files have no rows
            names = [n for n in (edges.src, edges.etype, edges.dst) if isinstance(n, str)]
            if len(names) == 3 and ALL not in names:
                own[Relation(*names)] = EdgeArrays(np.empty(0, np.int32), np.empty(0, np.int32))
        for entry, relation in sorted(src_ends):
            found[entry][relation] = EdgeArrays(src_ends[entry, relation],
                                                dst_ends[entry, relation])
        return found

    def _join(self, with_all: bool) -> None:
        """Have all ids known to :data:`_JOIN`, those of types with tables as :data:`ALL`, too."""
        known = f"SELECT type, id, type AS own, number FROM {self._file('ids-*')}"
        if with_all:
            if not self._tables:
                raise InputError(f"edges between nodes of type '{ALL}' need tables of nodes, which "
                                 "say the types; 'nodes' has none")
            for ntype in self._tables:
                self.check_form(ntype, *self._forms[next(iter(self._tables))])
            codes = ", ".join(str(self._types[ntype]) for ntype in self._tables)
            known += f" UNION ALL SELECT 0, id, type, number FROM {self._file('ids-*')} " \
                     f"WHERE type IN ({codes})"
            if (same := self._repeated("ids-*", f"type IN ({codes})")) is not None:
                id, one, other = same
                types = [*self._types]
                raise InputError(
                    f"{quoted(id)} is the id of a node of type '{types[one[0]]}' and of one of "
                    f"type '{types[other[0]]}', so it does not say which edges of '{ALL}' mean; "
                    "give their types by columns, as \"src\": {\"column\": \"…\"}")
        self._sql(f"CREATE VIEW ids AS {known}")
        self._sql(f"CREATE VIEW edges AS FROM {self._file('edges')}")

    def _refuse(self) -> NoReturn:
        """Raise the error of the first id that no node has."""
        wrong = []
        for side, (end, ids) in enumerate((("src", "s"), ("dst", "d"))):
            for row, id, code in self._sql(f"""
                    SELECT min(row), arg_min({end}, row), arg_min({end}_type, row) {_JOIN}
                    WHERE {end}_number IS NULL AND {ids}.number IS NULL""").fetchall():
                if row is not None:
                    number = bisect_right(self._rows, row) - 1
                    wrong.append((number, side, row - self._rows[number], id, code))
        number, side, row, id, code = min(wrong)
        (table, columns), ntype = self._asked[number], [*self._types][code]
        raise InputError(f"{table.at(row)}: column '{columns[side]}' is {quoted(id)}, which is " + (
            f"in no table of nodes (types {listing(self._tables)})" if ntype == ALL else
            f"in no row of {self._tables[ntype]} (node type '{ntype}')"))

    def _repeated(self, file: str, where: str = "true"
                  ) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
        """The first id that is there twice, with types and numbers of its first two nodes."""
        found = self._sql(f"""
            SELECT id, list_sort(list((type::BIGINT << 44) | number)) AS nodes
            FROM {self._file(file)} WHERE {where} AND id IN (
                SELECT id FROM {self._file(file)} WHERE {where} GROUP BY id HAVING count(*) > 1)
            GROUP BY id ORDER BY nodes[2] LIMIT 1""").fetchone()
        return found and (found[0], *(divmod(node, 1 << 44) for node in found[1][:2]))

    @contextmanager
    def _writing(self, name: str, **columns: str) -> Iterator[Callable[..., None]]:
        """A function that writes rows of a new file, given its columns."""
        pa, parquet = arrow(), arrow("pyarrow.parquet")
        schema = pa.schema([(column, getattr(pa, kind)()) for column, kind in columns.items()])
        with parquet.ParquetWriter(self._scratch / f"{name}.parquet", schema) as file:
            yield lambda *arrays: file.write_table(pa.table(
                [pa.array(array, kind) for array, kind in zip(arrays, schema.types)], schema))

    def _copy(self, name: str, query: str) -> Iterator[Any]:
        """Write what a query selects to a new file; returns its batches."""
        self._sql(f"COPY ({query}) TO {self._file(name)} (FORMAT parquet)")
        return (batch for batch in arrow("pyarrow.parquet").ParquetFile(
            self._scratch / f"{name}.parquet").iter_batches(PIECE))

    def _sql(self, query: str) -> Any:
        try:
            return self._database.execute(query)
        except arrow("duckdb").Error as error:
            raise HetaError(f"ids of nodes cannot be sorted in {self._scratch.parent} (TMPDIR) "
                            f"with {self._database_mb} MB: {str(error).splitlines()[0]}") from None

    def _file(self, name: str) -> str:
        """A file, or several, as SQL names it."""
        return _literal(self._scratch / f"{name}.parquet")

    @cached_property
    def _scratch(self) -> Path:
        return self._reading.enter_context(scratch_directory(None, "dgl-heta-ids"))

    @cached_property
    def _database(self) -> Any:
        database = self._reading.enter_context(arrow("duckdb").connect(config={
            "memory_limit": f"{self._database_mb}MiB", "threads": 1,
            "temp_directory": str(self._scratch), "preserve_insertion_order": False,
            "autoinstall_known_extensions": False, "autoload_known_extensions": False}))
        database.execute(f"SET allowed_directories = [{_literal(self._scratch)}]")
        database.execute("SET enable_external_access = false")  # to all else
        database.execute("SET enable_progress_bar = false")
        return database


_JOIN = """FROM edges LEFT JOIN ids AS s ON s.type = src_type AND s.id = src
    LEFT JOIN ids AS d ON d.type = dst_type AND d.id = dst"""


def _whole(ids: Any, count: Any) -> Any:
    """Ids that are whole numbers below `count` as int64, others as null."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    digits = pc.match_substring_regex(ids, "^[0-9]{1,15}$")
    numbers = pc.cast(pc.if_else(digits, ids, None), pa.int64())
    return pc.if_else(pc.less(numbers, count), numbers, None)


def _no_number(ntype: str, count: int) -> str:
    return (f", but node type '{ntype}' has a 'count', so its ids are whole numbers from 0 to "
            f"{count - 1}")


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _names(table: Table, name: str | Column, use: str) -> tuple[list[str], np.ndarray]:
    """The names that rows of a piece have, and which of them each has."""
    if isinstance(name, Column):
        return table.codes(name.name, use)
    return [name], np.zeros(table.num_rows, np.int64)


def _coded(known: dict[str, int], names: Sequence[str], codes: np.ndarray) -> np.ndarray:
    """The numbers of names that rows have; new names get new ones."""
    numbers = [known.setdefault(name, len(known)) for name in names]
    return np.array(numbers, np.int32)[codes]


def _runs(*columns: Any) -> Iterator[tuple[list[int], slice]]:
    """The values of columns that stay the same for some rows, and these rows."""
    values = np.stack([column.to_numpy() for column in columns])
    ends = np.flatnonzero((values[:, 1:] != values[:, :-1]).any(0)) + 1
    for low, high in pairwise([0, *ends.tolist(), values.shape[1]]):
        yield values[:, low].tolist(), slice(low, high)


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
