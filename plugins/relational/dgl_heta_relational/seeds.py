"""The table of seeds that `--task` makes: (id, time, label), one row a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import InputError
from dgl_heta.tools import replacing
from dgl_heta_relational.tables import Database
from dgl_heta_relational.task import seconds_of

MARK = b"dgl-heta seeds"
"""What is in the file's metadata: such a file may be replaced."""
_NEEDED = ("id", "time", "label")
_WORDS = ("train", "val", "test")


def write_seeds(database: Database, query: str, path: Path) -> int | None:
    """Write what a query gives to a Parquet file; returns the last time of training, in seconds
    since 1970, if a column `split` says it.

    Raises
    ------
    InputError
        Other columns than id, time, label and split, empty values, a file of somebody else's.
    """
    if path.exists() and not _is_ours(path):
        raise InputError(f"{path} is there, and --task did not make it; choose another file for "
                         "its table by plugins.relational.seeds")
    until = []
    with replacing(path) as new:
        writer = None
        rows = 0
        for batch in database.query(query):
            batch = _checked(batch, rows)
            if batch.num_rows == 0 and rows:
                continue
            if writer is None:
                schema = batch.schema.with_metadata({MARK: query.encode()})
                writer = pq.ParquetWriter(new, schema)
            writer.write_batch(batch.cast(writer.schema))
            rows += batch.num_rows
            if "split" in batch.schema.names and batch.num_rows:
                trained = seconds_of(batch.filter(pc.equal(batch.column("split"), "train"))
                                     .column("time"))
                until += [int(trained.max())] if len(trained) else []
        if writer is not None:
            writer.close()
        if not rows:
            raise InputError("the query of --task gives no rows; it must give one for each "
                             "prediction")
    return max(until) if until else None


def _is_ours(path: Path) -> bool:
    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def _checked(batch: Any, before: int) -> Any:
    """A batch of (id, time, label), and split where it is there, with instants for times."""
    names = batch.schema.names
    extra = [name for name in names if name not in (*_NEEDED, "split")]
    if extra or [name for name in _NEEDED if name not in names]:
        raise InputError(f"the query of --task gives the columns {', '.join(names)}; it must give "
                         "id, time and label, and may give split: say SELECT … AS id, … AS time, "
                         "… AS label")
    columns = {name: batch.column(name) for name in names}
    if batch.num_rows and pa.types.is_large_string(columns["time"].type):
        columns["time"] = _instants(columns["time"])
    elif batch.num_rows and not pa.types.is_temporal(columns["time"].type):
        raise InputError("'time' of the query of --task holds numbers; it must be a date or a "
                         "timestamp, or ISO 8601 as text")
    for name, column in columns.items():
        if column.null_count and name != "label":
            row = before + int(np.flatnonzero(column.is_null())[0]) + 1
            raise InputError(f"row {row} of the query of --task has no '{name}'")
    if "split" in columns and (wrong := [w for w in pc.unique(columns["split"]).to_pylist()
                                         if w not in _WORDS]):
        raise InputError(f"'split' of the query of --task is '{wrong[0]}'; it must be train, val "
                         "or test")
    return pa.record_batch([*columns.values()], [*columns])


def _instants(text: Any) -> Any:
    """Times as ISO 8601 text, all with a zone or none."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return pc.cast(pc.cast(text, kind), pa.timestamp("us", "UTC"))
        except pa.ArrowException:
            continue
    raise InputError(f"'time' of the query of --task is text such as '{text[0]}'; all must be ISO "
                     "8601, as 2013-01-01 05:00:00, and all with a zone or none")
