"""A database as a graph: one pass over its tables, then keys, labels and features from files.

Rows go to Parquet files in a temporary directory, ids to files beside them that map them to numbers
within bounded memory, so that the database is read once, as of one moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dgl_heta import EdgeArrays, GraphSource, HetaError, InputError, Relation
from dgl_heta.tools import (
    ArrayFile,
    IdShards,
    NodeIds,
    TextFile,
    mapped_files,
    scratch_directory,
    with_reverse,
)
from dgl_heta_relational.columns import Feature, Spool, chosen_features
from dgl_heta_relational.ids import Key, joined
from dgl_heta_relational.layout import Layout, make_layout
from dgl_heta_relational.seeds import write_seeds
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import Database, ForeignKey, Table
from dgl_heta_relational.task import Labelled, label_of, seconds_of

MEMORY = 512 << 20
"""Bytes for ids."""


def read_graph(database: Database, settings: RelationalSettings, task: str | None) -> GraphSource:
    """Read the graph of a database.

    Parameters
    ----------
    task : a query for the rows to predict, whose answer becomes `settings.seeds`.

    Raises
    ------
    InputError
        Keys, columns, times or settings that are not as they must be.
    HetaError
        The database cannot be read to its end, or changed meanwhile.
    """
    layout = make_layout(database, settings)
    label = label_of(settings, layout)
    if label is not None and task is not None:
        raise InputError("plugins.relational.label and --task both say what to predict; leave one "
                         "of them out")
    with ExitStack() as reading:
        scratch = reading.enter_context(scratch_directory(None, "dgl-heta-relational"))
        seeds_until = None if task is None else write_seeds(database, task, settings.seeds)
        read = _Reading(database, layout, settings, label, scratch)
        for table in (*layout.nodes.values(), *layout.links.values()):
            read.table(table)
        return read.source(seeds_until)


@dataclass
class _Asked:
    """A foreign key whose rows were asked for.

    Attributes
    ----------
    rows : the rows that have the key.
    places : of each of them where the answer is; `pieces` has the question and the rows of each
        batch.
    """

    key: Key
    rows: ArrayFile
    places: ArrayFile
    pieces: list[tuple[int, int]]

    def answers(self, shards: IdShards) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows that have the key and the rows that it names, -1 where there is none."""
        low = 0
        for question, count in self.pieces:
            high = low + count
            found = shards.answers(question)
            yield self.rows.read(low, high), found[self.places.read(low, high)]
            low = high


class _Reading:
    """What is read of a database, in files of a temporary directory."""

    def __init__(self, database: Database, layout: Layout, settings: RelationalSettings,
                 label: Labelled | None, scratch: Path) -> None:
        self._database, self._layout, self._settings = database, layout, settings
        self._label, self._scratch, self._paths = label, scratch, itertools.count()
        self._counts: dict[str, int] = {}
        self._ids: dict[str, TextFile] = {}
        self._times: dict[str, ArrayFile] = {}
        self._spools: dict[str, Spool] = {}
        self._asked: dict[tuple[str, ForeignKey], _Asked] = {}
        self._features: dict[str, list[Feature]] = {}
        self._shards: dict[Key, IdShards] = {}
        self._sizes = {name: database.counts(table, ())[0]
                       for name, table in (layout.nodes | dict(layout.links)).items()}
        keys = {self._key_of(key) for table in (*layout.nodes.values(), *layout.links.values())
                for key in table.foreign}
        keys |= {Key(name, table.key) for name, table in layout.nodes.items() if table.key}
        for key in keys:
            size = 24 * len(key.columns) * self._sizes[key.table]
            self._shards[key] = IdShards(self._path(), size, MEMORY)
        self._notes: list[str] = []

    def table(self, table: Table) -> None:
        """Read a table.

        Raises
        ------
        InputError
            An empty primary key.
        HetaError
            Another number of rows than the database counted.
        """
        is_node = table.name in self._layout.nodes
        features = self._features[table.name] = chosen_features(
            table, self._settings, self._label) if is_node else []
        own = [key for key in self._shards if key.table == table.name] if is_node else []
        foreign = [(key, self._key_of(key)) for key in table.foreign]
        label = self._label if self._label and self._label.table == table.name else None
        columns = [*dict.fromkeys([
            *(c for key in own for c in key.columns), *(c for key in table.foreign
                                                        for c in key.columns),
            *(f.column for f in features), *([table.time] if table.time else []),
            *(label.columns if label else [])])]
        if table.time:
            self._times[table.name] = ArrayFile(self._path(), np.int64)
        if table.key and is_node:
            self._ids[table.name] = TextFile(self._path())
        spool = Spool(self._path().with_suffix(".parquet"), table, [*dict.fromkeys(
            [*(f.column for f in features), *(label.columns if label else [])])])
        row = 0
        with spool:
            for batch in self._database.batches(table, columns or [*table.columns][:1]):
                self._add_ids(table, own, batch, row)
                for key, other in foreign:
                    self._ask(table, key, other, batch, row)
                if table.time:
                    self._times[table.name].append(seconds_of(batch.column(table.time)))
                spool.write(batch, features)
                row += batch.num_rows
        if row != self._sizes[table.name]:
            raise HetaError(f"table '{table.name}' of {self._database.where} changed while it was "
                            f"read: it has {row:,} rows, and had {self._sizes[table.name]:,}; "
                            "read it when nothing writes to it")
        self._counts[table.name], self._spools[table.name] = row, spool
        for key in own:
            if (pair := self._shards[key].repeated()) is not None:
                raise InputError(f"table '{table.name}' of {self._database.where} has two rows "
                                 f"whose key ({', '.join(key.columns)}) is '{pair[2]}'; every row "
                                 "needs a key of its own")

    def source(self, seeds_until: int | None) -> GraphSource:
        """The graph of what was read; `seeds_until` is the time where training ends, if seeds say
        it."""
        for shards in self._shards.values():
            shards.answer()
        edges = self._edges()
        times: dict[Any, np.ndarray] = {name: self._mapped(file)
                                        for name, file in self._times.items()
                                        if name in self._layout.nodes}
        times |= self._link_times
        arrays: dict[str, dict[str, np.ndarray]] = {}
        info: dict[str, Any] = {"format": "database", "path": self._database.where}
        task, until = None, seeds_until
        if self._label is not None:
            spool = self._spools[self._label.table]
            task, arrays[self._label.table], more, until = self._label.task(
                spool, times.get(self._label.table), self._counts)
            info |= more
        until = self._until(until, times)
        recipes, unused = {}, {}
        for name, table in self._layout.nodes.items():
            rows = None if until is None or name not in times else times[name] <= until
            made = self._spools[name].features(self._features[name], rows, self._path())
            if made.array is not None:
                arrays.setdefault(name, {})["feat"] = made.array
                recipes[name] = made.records
            self._notes += made.notes
            read = {f.column for f in self._features[name]}
            if left := [c for c in table.columns if c not in read]:
                unused[name] = left
        info |= {"columns": recipes, "columns that are not used": unused}
        ids = {name: NodeIds(*(self._mapped(file) for file in (texts.offsets, texts.text)))
               for name, texts in self._ids.items() if len(texts)}
        source = GraphSource(self._database.name, self._counts_of_nodes(), edges, arrays, task,
                             info, node_ids=ids, times=times).without_empty()
        notes = [*source.info.get("left out", []), *self._notes]
        source = replace(source, info={**source.info, **({"left out": notes} if notes else {})})
        return with_reverse(source)

    def _until(self, until: int | None, times: Mapping[Any, np.ndarray]) -> int | None:
        """The time up to which rows count for means and categories; None: all of them."""
        if self._settings.train_until is not None:
            column = pa.array([self._settings.train_until], pa.large_string())
            try:
                return int(seconds_of(pa.compute.cast(column, pa.timestamp("us")))[0])
            except pa.ArrowException:
                raise InputError("plugins.relational.train_until is "
                                 f"'{self._settings.train_until}'; it must be a time, as "
                                 "2013-09-01 00:00:00") from None
        if until is None and times and self._label is None:
            self._notes.append("nothing of the future, but from means and categories, which are of "
                               "all rows: plugins.relational.train_until says where training ends")
        return until

    def _counts_of_nodes(self) -> dict[str, int]:
        return {name: self._counts[name] for name in self._layout.nodes}

    def _key_of(self, key: ForeignKey) -> Key:
        """The columns that a foreign key refers to."""
        own = self._layout.nodes[key.table].key
        return Key(key.table, key.referred or own or ())

    def _add_ids(self, table: Table, own: list[Key], batch: Any, row: int) -> None:
        """The ids of rows, by their primary key and by whatever columns else keys refer to."""
        for key in own:
            ids = joined(batch, key.columns)
            if key.columns == table.key:
                if ids.null_count:
                    raise InputError(
                        f"table '{table.name}' of {self._database.where}, row "
                        f"{row + int(np.flatnonzero(ids.is_null())[0]) + 1}: its key "
                        f"({', '.join(key.columns)}) is empty; every row needs one")
                self._ids[table.name].append(ids)
            elif ids.null_count:  # as many texts that no key can be
                ids = pa.array([f"\0{row + i}" if text is None else text
                                for i, text in enumerate(ids.to_pylist())], pa.large_string())
            self._shards[key].add(ids, row)

    def _ask(self, table: Table, key: ForeignKey, other: Key, batch: Any, row: int) -> None:
        """Ask for the rows that a foreign key names."""
        asked = self._asked.setdefault((table.name, key), _Asked(
            other, ArrayFile(self._path(), np.int64), ArrayFile(self._path(), np.int64), []))
        ids = joined(batch, key.columns)
        known = np.flatnonzero(ids.is_valid())
        if len(known):
            question, places = self._shards[other].ask(ids.drop_null())
            asked.rows.append(known + row)
            asked.places.append(places)
            asked.pieces.append((question, len(known)))

    def _edges(self) -> dict[Relation, EdgeArrays]:
        """The edges of all relations, and the times of those of link tables."""
        edges: dict[Relation, EdgeArrays] = {}
        self._link_times: dict[Relation, np.ndarray] = {}
        for relation, table in self._layout.relations.items():
            if table.name in self._layout.links:
                edges[relation] = self._link(relation, table)
                continue
            key = next(k for k in table.foreign
                       if k.name == relation.etype and k.table == relation.dst)
            asked = self._asked[table.name, key]
            src, dst = self._ends(relation)
            lost = 0
            for rows, named in asked.answers(self._shards[asked.key]):
                there = named >= 0
                lost += int((~there).sum())
                src.append(rows[there])
                dst.append(named[there])
            self._missing(table, key, lost)
            edges[relation] = EdgeArrays(*self._both(src, dst))
        return edges

    def _link(self, relation: Relation, table: Table) -> EdgeArrays:
        """The edges of a link table: rows both of whose keys name a row."""
        found = []
        for key in table.foreign:
            asked = self._asked[table.name, key]
            named = np.full(self._counts[table.name], -2)
            for rows, numbers in asked.answers(self._shards[asked.key]):
                named[rows] = numbers
            self._missing(table, key, int((named == -1).sum()))
            found.append(named)
        there = (found[0] >= 0) & (found[1] >= 0)
        ends = self._ends(relation)
        for file, named in zip(ends, found):
            file.append(named[there])
        if table.name in self._times:
            times = self._times[table.name]
            self._link_times[relation] = times.read(0, len(times))[there]
        return EdgeArrays(*self._both(*ends))

    def _missing(self, table: Table, key: ForeignKey, lost: int) -> None:
        """Say, or refuse, that keys lead to no row."""
        if not lost:
            return
        if self._settings.missing == "error":
            raise InputError(
                f"{self._database.where} has {lost:,} rows of table '{table.name}' whose "
                f"'{key.name}' is in no row of table '{key.table}'; plugins.relational.missing = "
                "\"count\" leaves these edges out")
        self._notes.append(f"{lost:,} keys '{key.name}' of '{table.name}', which name no row")

    def _ends(self, relation: Relation) -> tuple[ArrayFile, ArrayFile]:
        src, dst = (ArrayFile(self._path(), np.int64 if self._counts[t] >= 2**31 else np.int32)
                    for t in (relation.src, relation.dst))
        return src, dst

    def _both(self, *files: ArrayFile) -> list[np.ndarray]:
        return mapped_files(files, self._path())

    def _mapped(self, file: ArrayFile) -> np.ndarray:
        return mapped_files([file], self._path())[0]

    def _path(self) -> Path:
        """A name for a new file."""
        return self._scratch / str(next(self._paths))
