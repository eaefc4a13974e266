"""A database as a graph: one pass over its tables, then keys, labels and features from files.

Rows go to Parquet files in a temporary directory, ids to files beside them that map them to numbers
within bounded memory, so that the database is read once, as of one moment.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dgl_heta import EdgeArrays, GraphSource, HetaError, InputError, Relation, Task
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
from dgl_heta_relational.ids import MEMORY, Key, joined
from dgl_heta_relational.layout import Layout, make_layout
from dgl_heta_relational.seeds import read_seeds, warn_of_answers
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table
from dgl_heta_relational.task import Labelled, label_of, seconds_of

log = logging.getLogger("dgl_heta")


def read_graph(database: Database, settings: RelationalSettings, task: str | None) -> GraphSource:
    """Read the graph of a database.

    Parameters
    ----------
    task : a query for the rows to predict; the source's `write_seeds` makes `settings.seeds` of it.

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
    with scratch_directory(None, "dgl-heta-relational") as scratch:
        seeds = None if task is None else read_seeds(
            database, task, settings.seeds, scratch / "seeds.parquet")
        reading = _Reading(database, layout, settings, label, scratch)
        for table in (*layout.nodes.values(), *layout.links.values()):
            reading.table(table)
        if task is None or seeds is None:
            return reading.source(None)
        warn_of_answers(task, reading.features())
        source = reading.source(seeds.until)
        return replace(source, write_seeds=seeds.write, check_seeds=lambda ntype: seeds.check(
            ntype, source.node_counts[ntype], source.node_ids.get(ntype)))


@dataclass
class _Read:
    """What was read of a table.

    Attributes
    ----------
    count : of its rows.
    ids, times : of each row.
    asked : its foreign keys, whose rows were asked for.
    timeless : how many rows have no time, of a table that has one.
    """

    spool: Spool
    features: list[Feature]
    ids: TextFile
    times: ArrayFile
    asked: dict[ForeignKey, _Asked]
    count: int = 0
    timeless: int = 0


@dataclass
class _Asked:
    """A foreign key's rows, and where the answer for each of them is; `pieces` are the questions,
    with how many rows each has."""

    key: Key
    rows: ArrayFile
    places: ArrayFile
    pieces: list[tuple[int, int]] = field(default_factory=list)

    def answers(self, shards: IdShards) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows that have the key, and the rows that it names, -1 where there is none."""
        low = 0
        for question, count in self.pieces:
            high = low + count
            yield self.rows.read(low, high), shards.answers(question)[self.places.read(low, high)]
            low = high


class _Reading:
    """What is read of a database, in files of a temporary directory."""

    def __init__(self, database: Database, layout: Layout, settings: RelationalSettings,
                 label: Labelled | None, scratch: Path) -> None:
        self._database, self._layout, self._settings = database, layout, settings
        self._label, self._scratch, self._names = label, scratch, itertools.count()
        self._read: dict[str, _Read] = {}
        self._notes: list[str] = []
        tables = {**layout.nodes, **layout.links}
        self._sizes = {name: database.counts(table, ())[0] for name, table in tables.items()}
        keys = {self._key_of(key) for table in tables.values() for key in table.foreign}
        keys |= {Key(name, table.key) for name, table in layout.nodes.items() if table.key}
        self._shards = {key: IdShards(
            self._path(), 24 * len(key.columns) * self._sizes[key.table], MEMORY) for key in keys}

    def table(self, table: Table) -> None:
        """Read a table.

        Raises
        ------
        InputError
            A primary key that is empty, or that two rows have.
        HetaError
            Another number of rows than the database counted.
        """
        is_node = table.name in self._layout.nodes
        features = chosen_features(table, self._settings, self._label) if is_node else []
        label = self._label.columns if self._label and self._label.table == table.name else ()
        kept = [*dict.fromkeys([*(f.column for f in features), *label])]
        own = [key for key in self._shards if key.table == table.name]
        columns = dict.fromkeys([*(c for key in own for c in key.columns), *table.foreign_columns,
                                 *kept, *([table.time] if table.time else [])])
        read = self._read[table.name] = _Read(
            Spool(self._path(".parquet"), table, kept), features, TextFile(self._path()),
            self._file(), {key: _Asked(self._key_of(key), self._file(), self._file())
                           for key in table.foreign})
        with read.spool:
            for batch in self._database.batches(table, [*columns] or [*table.columns][:1]):
                self._add_ids(table, own, batch, read)
                for key, asked in read.asked.items():
                    self._ask(joined(batch, key.columns), asked, read.count)
                if table.time:
                    read.times.append(self._times(table, batch.column(table.time)))
                    read.timeless += batch.column(table.time).null_count
                read.spool.write(batch, features)
                read.count += batch.num_rows
        if read.count != self._sizes[table.name]:
            raise HetaError(f"table '{table.name}' of {self._database.where} changed while it was "
                            f"read: it has {read.count:,} rows, and had "
                            f"{self._sizes[table.name]:,}; read it when nothing writes to it")
        if read.timeless:
            log.warning("%s of %s rows of table '%s' have no time in '%s', so they are always "
                        "there, for seeds of any time", f"{read.timeless:,}", f"{read.count:,}",
                        table.name, table.time)
        for named in own:
            if (pair := self._shards[named].repeated()) is not None:
                raise InputError(f"table '{table.name}' of {self._database.where} has two rows "
                                 f"whose key ({', '.join(named.columns)}) is '{pair[2]}'; every "
                                 "row needs a key of its own")

    def features(self) -> dict[str, tuple[Table, list[Feature]]]:
        """The node types' tables, and their columns that may become features."""
        return {name: (table, self._read[name].features)
                for name, table in self._layout.nodes.items()}

    def source(self, until: int | None) -> GraphSource:
        """The graph of what was read; `until` is the time where training ends, if seeds say it."""
        for shards in self._shards.values():
            shards.answer()
        nodes = {name: self._read[name] for name in self._layout.nodes}
        times: dict[Any, np.ndarray] = {name: self._mapped(read.times)[0]
                                        for name, read in nodes.items() if len(read.times)}
        edges = self._edges(times)
        counts = {name: read.count for name, read in nodes.items()}
        arrays: dict[str, dict[str, np.ndarray]] = {}
        info: dict[str, Any] = {"format": "database", "path": self._database.where}
        task: Task | None = None
        if self._label is not None:
            name = self._label.table
            task, arrays[name], more, until = self._label.task(
                self._read[name].spool, times.get(name), counts)
            info |= more
        info |= self._features(nodes, times, self._until(until, times), arrays)
        ids = {name: NodeIds(*self._mapped(read.ids.offsets, read.ids.text))
               for name, read in nodes.items() if len(read.ids)}
        source = GraphSource(self._database.name, counts, edges, arrays, task, info, node_ids=ids,
                             times=times).without_empty()
        notes = [*source.info.get("left out", []), *self._notes]
        return with_reverse(replace(source, info={
            **source.info, **({"left out": notes} if notes else {})}))

    def _features(self, nodes: Mapping[str, _Read], times: Mapping[Any, np.ndarray],
                  until: int | None, arrays: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
        """Add the features of all node types; returns how they were made, and of what not."""
        recipes, unused = {}, {}
        for name, read in nodes.items():
            rows = None if until is None or name not in times else times[name] <= until
            feat, recipe, notes = read.spool.features(read.features, rows, self._path())
            self._notes += notes
            if feat is not None:
                arrays.setdefault(name, {})["feat"], recipes[name] = feat, recipe
            seen = {feature.column for feature in read.features}
            if left := [c for c in self._layout.nodes[name].columns if c not in seen]:
                unused[name] = left
        return {"columns": recipes, "columns that are not used": unused}

    def _until(self, until: int | None, times: Mapping[Any, np.ndarray]) -> int | None:
        """The time up to which rows count for means and categories; None: all of them."""
        text = self._settings.train_until
        if text is not None:
            try:
                when = pa.compute.cast(pa.array([text]), pa.timestamp("us"))
            except pa.ArrowException:
                raise InputError(f"plugins.relational.train_until is '{text}'; it must be a time, "
                                 "as 2013-09-01 00:00:00") from None
            return int(seconds_of(when)[0])
        if until is None and times:
            log.warning("means and categories are of all rows, later ones, too: nothing says where "
                        "training ends; give plugins.relational.train_until, or a column 'split' "
                        "in --task")
        return until

    def _times(self, table: Table, column: Any) -> np.ndarray:
        """The times of rows, in seconds."""
        try:
            return seconds_of(column)
        except pa.ArrowInvalid as error:
            raise InputError(f"column '{table.time}' of table '{table.name}' of "
                             f"{self._database.where} has a date that is no time of a row "
                             f"({error}); correct it, or leave it empty") from None

    def _key_of(self, key: ForeignKey) -> Key:
        """The columns that a foreign key refers to."""
        return Key(key.table, key.referred or self._layout.nodes[key.table].key or ())

    def _add_ids(self, table: Table, own: list[Key], batch: Any, read: _Read) -> None:
        """The ids of rows, by their primary key and by whatever columns else keys refer to."""
        for key in own:
            ids = joined(batch, key.columns)
            if key.columns == table.key:
                if ids.null_count:
                    row = read.count + int(np.flatnonzero(ids.is_null())[0]) + 1
                    raise InputError(f"table '{table.name}' of {self._database.where}, row {row}: "
                                     f"its key ({', '.join(key.columns)}) is empty; every row "
                                     "needs one")
                read.ids.append(ids)
            elif ids.null_count:  # as many texts that no key can be
                ids = pa.array([f"\0{read.count + i}" if text is None else text
                                for i, text in enumerate(ids.to_pylist())], pa.large_string())
            self._shards[key].add(ids, read.count)

    def _ask(self, ids: Any, asked: _Asked, row: int) -> None:
        """Ask for the rows that the keys of rows from `row` on name."""
        known = np.flatnonzero(ids.is_valid())
        if len(known):
            question, places = self._shards[asked.key].ask(ids.drop_null())
            asked.rows.append(known + row)
            asked.places.append(places)
            asked.pieces.append((question, len(known)))

    def _edges(self, times: dict[Any, np.ndarray]) -> dict[Relation, Any]:
        """The edges of all relations; adds the times of those of link tables."""
        edges: dict[Relation, Any] = {}
        for relation, table in self._layout.relations.items():
            ends = [ArrayFile(self._path(), np.int64 if self._read[t].count >= 2**31 else np.int32)
                    for t in (relation.src, relation.dst)]
            if table.name in self._layout.links:
                kept = self._link(table, ends)
                if table.time:
                    times[relation] = self._mapped(kept)[0]
            else:
                key = next(k for k in table.foreign
                           if k.name == relation.etype and k.table == relation.dst)
                asked, lost = self._read[table.name].asked[key], 0
                for rows, named in asked.answers(self._shards[asked.key]):
                    known = named >= 0
                    lost += int((~known).sum())
                    ends[0].append(rows[known])
                    ends[1].append(named[known])
                self._missing(table, key, lost)
            edges[relation] = EdgeArrays(*self._mapped(*ends))
        return edges

    def _link(self, table: Table, ends: list[ArrayFile]) -> ArrayFile:
        """Append the edges of a link table, which are rows both of whose keys name one; returns
        the times of these, if the table has some."""
        read, kept, found = self._read[table.name], self._file(), []
        for key, asked in read.asked.items():
            named, lost = ArrayFile(self._path(), np.int64), 0
            for rows, numbers in asked.answers(self._shards[asked.key]):
                lost += int((numbers < 0).sum())
                of_rows = np.full(rows[-1] + 1 - len(named), -1)
                of_rows[rows - len(named)] = numbers
                named.append(of_rows)
            named.append(np.full(read.count - len(named), -1))
            self._missing(table, key, lost)
            found.append(named)
        for low in range(0, read.count, ROWS):
            high = min(low + ROWS, read.count)
            numbers = np.stack([named.read(low, high) for named in found])
            there = (numbers >= 0).all(0)
            for file, own in zip(ends, numbers):
                file.append(own[there])
            if table.time:
                kept.append(read.times.read(low, high)[there])
        return kept

    def _missing(self, table: Table, key: ForeignKey, lost: int) -> None:
        """Say, or refuse, that keys lead to no row."""
        if lost and self._settings.missing == "error":
            raise InputError(
                f"{self._database.where} has {lost:,} rows of table '{table.name}' whose "
                f"'{key.name}' is in no row of table '{key.table}'; plugins.relational.missing = "
                "\"count\" leaves these edges out")
        if lost:
            self._notes.append(f"{lost:,} keys '{key.name}' of '{table.name}', which name no row")

    def _file(self) -> ArrayFile:
        return ArrayFile(self._path(), np.int64)

    def _mapped(self, *files: ArrayFile) -> list[np.ndarray]:
        return mapped_files(files, self._path())

    def _path(self, ending: str = "") -> Path:
        """A name for a new file."""
        return self._scratch / f"{next(self._names)}{ending}"
