"""The table of seeds that `--task` makes: (id, time, label), one row a prediction."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import HetaError, InputError
from dgl_heta.tools import (
    IdShards,
    NodeIds,
    as_text,
    listing,
    replacing,
    scratch_directory,
)
from dgl_heta_relational.columns import Feature
from dgl_heta_relational.ids import MEMORY
from dgl_heta_relational.tables import ROWS, Database, Table
from dgl_heta_relational.task import seconds_of
from dgl_heta_relational.values import TIME

log = logging.getLogger("dgl_heta")
MARK = b"dgl-heta seeds"
"""What is in the file's metadata: such a file may be replaced."""
_NEEDED = ("id", "time", "label")
_WORDS = ("train", "val", "test")


@dataclass(frozen=True)
class Seeds:
    """A table of seeds that a query gave, in a file that has no name any more.

    Attributes
    ----------
    until : the last time of training, in seconds since 1970, if a column `split` says it.
    """

    path: Path
    content: Any
    until: int | None

    def check(self, ntype: str, count: int, ids: NodeIds | None) -> None:
        """Check that each row is of a node of a type, which has `count`; memory as the reader's.

        Raises
        ------
        InputError
            The ids have none that a row names.
        """
        asked = as_text(pq.read_table(pa.BufferReader(self.content), columns=["id"])
                        .column("id").combine_chunks())
        with scratch_directory(None, "dgl-heta-relational") as scratch:
            shards = IdShards(scratch / "ids", 24 * count, MEMORY)
            for low in range(0, count, ROWS):
                shards.add(pa.array(
                    ids.names(low, min(low + ROWS, count)) if ids else
                    [*map(str, range(low, min(low + ROWS, count)))], pa.large_string()), low)
            question, places = shards.ask(asked)
            shards.answer()
            wrong = np.flatnonzero(shards.answers(question)[places] < 0)
        if len(wrong):
            raise InputError(
                f"row {wrong[0] + 1} of the query of --task has the id '{asked[wrong[0]]}', which "
                f"is the id of no node of type '{ntype}'; {len(wrong):,} of {len(asked):,} rows "
                "have such")

    def write(self) -> None:
        """Put the table where it is to be, whole or not at all.

        Raises
        ------
        HetaError
            It cannot be written there.
        """
        try:
            with replacing(self.path) as new:
                new.write_bytes(memoryview(self.content))
        except OSError as error:
            raise HetaError(f"cannot write {self.path}, the table of --task: {error}; run the "
                            "command again, with --overwrite") from None


def read_seeds(database: Database, query: str, path: Path, scratch: Path) -> Seeds:
    """Read what a query gives, for the Parquet file `path`; nothing is written but to `scratch`.

    Raises
    ------
    InputError
        Other columns than id, time, label and split, empty values, a file of somebody else's, no
        directory for it.
    """
    if path.exists() and not _is_ours(path):
        raise InputError(f"{path} is there, and --task did not make it; choose another file for "
                         "its table by plugins.relational.seeds")
    if not path.parent.is_dir():
        raise InputError(f"plugins.relational.seeds is {path}, but there is no directory "
                         f"{path.parent}; make it, or choose another file for the table of --task")
    writer, until, rows, forms = None, list[int](), 0, [pa.timestamp("us"), TIME]
    try:
        for batch in database.query(query):
            batch = _checked(batch, rows, forms)
            writer = writer or pq.ParquetWriter(
                scratch, batch.schema.with_metadata({MARK: query.encode()}))
            try:
                writer.write_batch(batch.cast(writer.schema))
            except (pa.ArrowException, ValueError):
                raise InputError("columns of the query of --task have values of different types "
                                 f"after row {rows:,}; CAST them") from None
            rows += batch.num_rows
            if "split" in batch.schema.names:
                trained = batch.filter(pc.equal(batch.column("split"), "train")).column("time")
                until += [int(seconds_of(trained).max())] if len(trained) else []
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise InputError("the query of --task gives no rows; it must give one for each prediction")
    with pa.memory_map(str(scratch)) as file:
        return Seeds(path, file.read_buffer(), max(until, default=None))


def warn_of_answers(query: str, tables: Mapping[str, tuple[Table, list[Feature]]]) -> None:
    """Log a warning for each table of the graph that a query names, if features may say the label.

    A table with a time is there from then on, so of it only columns count that the query names.
    """
    text = re.sub(r"\bas\s+\w+", "", query, flags=re.IGNORECASE)

    def named(word: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)(?!\s+by\b)", text,
                         re.IGNORECASE) is not None

    for name, (table, features) in tables.items():
        columns = [f.column for f in features if f.column != table.time and (
            f.said or not f.constant) and (not table.time or named(f.column))]
        if columns and named(name):
            own = ", ".join(f'{column} = "none"' for column in columns)
            log.warning(
                "table '%s' of the query of --task is in the graph with its columns %s as "
                "features; where they say the label, leave it out by plugins.relational.skip, or "
                "them by plugins.relational.tables.\"%s\".features = {%s}", name,
                listing(columns), name, own if len(columns) < 4 else 'COLUMN = "none"')


def _is_ours(path: Path) -> bool:
    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def _checked(batch: Any, before: int, forms: list[Any]) -> Any:
    """A batch of (id, time, label), and split where it is there, with instants for times; `forms`
    as of :func:`_instants`."""
    names = batch.schema.names
    if {*names} - {"split"} != {*_NEEDED} or len({*names}) != len(names):
        raise InputError(f"the query of --task gives the columns {', '.join(names)}; it must give "
                         "id, time and label, and may give split: say SELECT … AS id, … AS time, "
                         "… AS label")
    columns = dict(zip(names, batch.columns))
    columns["time"] = _instants(columns["time"], forms)
    for name, column in columns.items():
        if column.null_count and name != "label":
            row = before + int(np.flatnonzero(column.is_null())[0]) + 1
            raise InputError(f"row {row} of the query of --task has no '{name}'")
    if "split" in columns and (wrong := [word for word in pc.unique(columns["split"]).to_pylist()
                                         if word not in _WORDS]):
        raise InputError(f"'split' of the query of --task is '{wrong[0]}'; it must be train, val "
                         "or test")
    return pa.record_batch([*columns.values()], [*columns])


def _instants(column: Any, forms: list[Any]) -> Any:
    """Times: dates, timestamps, or ISO 8601 as text. `forms` are types that the text may be of,
    without a zone and with one; that of the first batch stays."""
    if pa.types.is_temporal(column.type):
        return pc.cast(column, TIME)
    for kind in [*forms] if pa.types.is_large_string(column.type) else ():
        try:
            times = pc.cast(pc.cast(column, kind), TIME)
        except pa.ArrowException:
            continue
        forms[:] = [kind]
        return times
    raise InputError(f"'time' of the query of --task is such as '{column[0]}'; it must be a date, "
                     "a timestamp, or ISO 8601 as text, 2013-01-01 05:00:00, all with a zone or "
                     "none")
