"""A database as a graph: one pass over its tables, then keys, labels and features from files.

Rows go to Parquet files in a temporary directory, ids to files beside them that map them to numbers
within bounded memory, so that the database is read once, as of one moment.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
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
    read_instant,
    scratch_directory,
    with_reverse,
)
from dgl_heta_relational.columns import Spool, chosen_features, label_of, made_features
from dgl_heta_relational.layout import Layout, make_layout
from dgl_heta_relational.seeds import read_seeds, warn_of_answers
from dgl_heta_relational.tables import Database, ForeignKey, Table, joined, seconds_of

log = logging.getLogger("dgl_heta")
MEMORY = 512 << 20
"""Bytes for ids."""
NOBODY = "\0"
"""The beginning of texts that no key can be."""


def read_graph(database: Database, task: str | None = None) -> GraphSource:
    """Read the graph of a database.

    Parameters
    ----------
    task : a query for the rows to predict; the source's `write_seeds` makes the file `seeds` of the
        settings of it.

    Raises
    ------
    InputError
        Keys, columns, times or settings that are not as they must be.
    HetaError
        The database cannot be read to its end, or changed meanwhile.
    """
    layout = make_layout(database)
    if database.settings.label is not None and task is not None:
        raise InputError("plugins.relational.label and --task both say what to predict; leave one "
                         "of them out")
    with scratch_directory(None, "dgl-heta-relational") as scratch:
        seeds = None if task is None else read_seeds(database, task, scratch / "seeds.parquet")
        reading = _Reading(database, layout, scratch)
        for table in layout.tables.values():
            reading.table(table)
        if task is None or seeds is None:
            return reading.source(None)
        warn_of_answers(task, ((read.table, read.spool.features)
                               for read in reading.nodes.values()), layout.relations)
        source = reading.source(seeds.until)
        return replace(source, write_seeds=seeds.write, check_seeds=partial(seeds.check, source))


@dataclass
class _Asked:
    """The rows that a foreign key names: a question for each batch, and the place of each row's
    answer; `nulls` are rows that name none."""

    places: ArrayFile
    questions: list[int] = field(default_factory=list)
    nulls: int = 0


@dataclass
class _Read:
    """What was read of a table: columns, ids and times of its rows, and what its foreign keys name.

    `own` are the columns of its primary key, and whatever else foreign keys refer to, `ends` how
    many rows there were after each batch.
    """

    table: Table
    own: list[tuple[str, ...]]
    spool: Spool
    ids: TextFile
    times: ArrayFile
    asked: dict[ForeignKey, _Asked]
    ends: list[int] = field(default_factory=lambda: [0])

    @property
    def count(self) -> int:
        """Rows until now."""
        return self.ends[-1]


class _Reading:
    """What is read of a database, in files of a temporary directory; `nodes` is what was read of
    the tables that are node types."""

    def __init__(self, database: Database, layout: Layout, scratch: Path) -> None:
        self._label = label_of(database.settings, layout)
        self._database, self._layout, self._settings = database, layout, database.settings
        self._scratch, self._names = scratch, itertools.count()
        self._read: dict[str, _Read] = {}
        self.nodes: dict[str, _Read] = {}
        self._notes: list[str] = []
        tables = layout.tables
        self._sizes = {name: database.counts(table)[0] for name, table in tables.items()}
        keys = {(key.table, key.referred) for table in tables.values() for key in table.foreign}
        keys |= {(name, table.key) for name, table in layout.nodes.items() if table.key}
        self._shards = {(name, columns): IdShards(
            self._path(), 24 * len(columns) * self._sizes[name], MEMORY)
            for name, columns in sorted(keys)}

    def table(self, table: Table) -> None:
        """Read a table; a primary key that is empty or not unique is an error, and so is another
        number of rows than the database counted."""
        what = f"table '{table.name}' of {self._database.where}"
        is_node = table.name in self._layout.nodes
        label = self._label.columns if self._label and self._label.table == table.name else ()
        features = chosen_features(table, label) if is_node else []
        kept = [*dict.fromkeys([*(f.column for f in features), *label])]
        read = self._read[table.name] = _Read(
            table, [columns for name, columns in self._shards if name == table.name],
            Spool(self._path(".parquet"), f"table '{table.name}'", pa.schema(
                [(name, table.columns[name] or pa.large_string()) for name in kept]), features),
            TextFile(self._path()), self._file(),
            {key: _Asked(self._file()) for key in table.foreign})
        if is_node:
            self.nodes[table.name] = read
        needed = dict.fromkeys([*itertools.chain(*read.own), *table.foreign_columns, *kept,
                                *([table.time] if table.time else [])])
        with closing(read.spool):
            for batch in self._database.batches(table, [*needed] or [*table.columns][:1]):
                if batch.num_rows:
                    self._add(batch, read, what)
        if read.count != self._sizes[table.name]:
            raise HetaError(f"{what} changed while it was read: it has {read.count:,} rows, and "
                            f"had {self._sizes[table.name]:,}; read it when nothing writes to it")
        for columns in read.own:
            if (pair := self._shards[table.name, columns].repeated()) is not None:
                raise InputError(f"{what} has two rows whose key ({', '.join(columns)}) is "
                                 f"'{pair[2]}'; every row needs a key of its own")

    def _add(self, batch: Any, read: _Read, what: str) -> None:
        """Add rows of a table."""
        table = read.table
        for columns in read.own:
            ids = joined(batch, columns, what)
            if columns == table.key:
                if ids.null_count:
                    row = read.count + int(np.flatnonzero(ids.is_null())[0]) + 1
                    raise InputError(f"{what}, row {row}: its key ({', '.join(columns)}) is empty; "
                                     "every row needs one")
                read.ids.append(ids)
            elif ids.null_count:
                ids = pa.array([f"{NOBODY}{read.count + i}" if text is None else text
                                for i, text in enumerate(ids.to_pylist())], pa.large_string())
            self._shards[table.name, columns].add(ids, read.count)
        for key, asked in read.asked.items():
            ids = joined(batch, key.columns, what)
            question, places = self._shards[key.table, key.referred].ask(ids.fill_null(NOBODY))
            asked.questions.append(question)
            asked.places.append(places)
            asked.nulls += ids.null_count
        if table.time:
            try:
                read.times.append(seconds_of(batch.column(table.time)))
            except pa.ArrowInvalid as error:
                raise InputError(f"column '{table.time}' of {what} has a date that is no time of "
                                 f"a row ({error}); correct it, or leave it empty") from None
        read.spool.write(batch)
        read.ends.append(read.count + batch.num_rows)

    def source(self, until: int | None) -> GraphSource:
        """The graph of what was read; `until` is the time where training ends, if seeds say it."""
        for shards in self._shards.values():
            shards.answer()
        times: dict[Any, np.ndarray] = {name: self._mapped(read.times)[0]
                                        for name, read in self.nodes.items() if len(read.times)}
        edges = self._edges(times)
        counts = {name: read.count for name, read in self.nodes.items()}
        arrays: dict[str, dict[str, np.ndarray]] = {}
        info: dict[str, Any] = {"format": "database", "path": self._database.where}
        task: Task | None = None
        if self._label is not None:
            name = self._label.table
            task, arrays[name], more, until = self._label.task(
                self._read[name].spool, times.get(name), counts)
            info |= more
        if self._settings.train_until is not None:
            until = read_instant(self._settings.train_until, "plugins.relational.train_until")
        elif until is None and times:
            log.warning("means and categories are of all rows, later ones, too: nothing says where "
                        "training ends; give plugins.relational.train_until, or a column 'split' "
                        "in --task")
        info |= self._features(times, until, arrays)
        ids = {name: NodeIds(*self._mapped(read.ids.offsets, read.ids.text))
               for name, read in self.nodes.items() if len(read.ids)}
        source = GraphSource(self._database.name, counts, edges, arrays, task, info, node_ids=ids,
                             times=times).without_empty()
        if self._notes:
            source.info["left out"] = [*source.info.get("left out", []), *self._notes]
        return with_reverse(source)

    def _features(self, times: Mapping[Any, np.ndarray], until: int | None,
                  arrays: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
        """Add the features of all node types, whose means and categories are of rows up to a time,
        None: of all; returns how they were made, and of what not."""
        recipes, unused = {}, {}
        for name, read in self.nodes.items():
            rows = None if until is None or name not in times else times[name] <= until
            feat, recipe, notes = made_features(read.table, read.spool, rows, self._path())
            self._notes += notes
            if feat is not None:
                arrays.setdefault(name, {})["feat"], recipes[name] = feat, recipe
            seen = {feature.column for feature in read.spool.features}
            if left := [column for column in read.table.columns if column not in seen]:
                unused[name] = left
        return {"columns": recipes, "columns that are not used": unused}

    def _edges(self, times: dict[Any, np.ndarray]) -> dict[Relation, Any]:
        """The edges of all relations; adds the times of those of link tables. Keys that lead to no
        row are counted, or refused."""
        edges: dict[Relation, Any] = {}
        for relation, (table, keys) in self._layout.relations.items():
            read = self._read[table.name]
            lost, begin = [-read.asked[key].nulls for key in keys], self._file()
            ends = [ArrayFile(self._path(), np.int64 if self._read[t].count >= 2**31 else np.int32)
                    for t in (relation.src, relation.dst)]
            for batch, (low, high) in enumerate(itertools.pairwise(read.ends)):
                both = [np.arange(low, high)]
                for i, key in enumerate(keys):
                    asked, shards = read.asked[key], self._shards[key.table, key.referred]
                    both.append(shards.answers(asked.questions[batch])[
                        asked.places.read(low, high)])
                    lost[i] += np.count_nonzero(both[-1] < 0)
                there = (both[-2] >= 0) & (both[-1] >= 0)
                for file, numbers in zip(ends, both[-2:]):
                    file.append(numbers[there])
                if len(keys) == 2 and table.time:
                    begin.append(read.times.read(low, high)[there])
            for key, count in zip(keys, lost):
                if count and self._settings.missing == "error":
                    raise InputError(
                        f"{self._database.where} has {count:,} rows of table '{table.name}' whose "
                        f"'{key.name}' is in no row of table '{key.table}'; "
                        "plugins.relational.missing = \"count\" leaves these edges out")
                if count:
                    self._notes.append(
                        f"{count:,} keys '{key.name}' of '{table.name}', which name no row")
            edges[relation] = EdgeArrays(*self._mapped(*ends))
            if len(begin):
                (times[relation],) = self._mapped(begin)
        return edges

    def _file(self) -> ArrayFile:
        return ArrayFile(self._path(), np.int64)

    def _mapped(self, *files: ArrayFile) -> list[np.ndarray]:
        return mapped_files(files, self._path())

    def _path(self, ending: str = "") -> Path:
        """A name for a new file."""
        return self._scratch / f"{next(self._names)}{ending}"
