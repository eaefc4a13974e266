"""The table of seeds that `--task` makes: (id, time, label), one row a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from dgl_heta_relational.values import TIME

MARK = b"dgl-heta seeds"
"""What is in the file's metadata: such a file may be replaced."""
_NEEDED = ("id", "time", "label")
_WORDS = ("train", "val", "test")


@contextmanager
def write_seeds(database: Database, query: str | None, path: Path) -> Iterator[int | None]:
    """Write what a query gives to a Parquet file, which is there when the body has ended well.

    Yields the last time of training, in seconds since 1970, if a column `split` says it.

    Raises
    ------
    InputError
        Other columns than id, time, label and split, empty values, a file of somebody else's.
    """
    if query is None:
        yield None
        return
    if path.exists() and not _is_ours(path):
        raise InputError(f"{path} is there, and --task did not make it; choose another file for "
                         "its table by plugins.relational.seeds")
    with replacing(path) as new:
        writer, until, rows, forms = None, list[int](), 0, [pa.timestamp("us"), TIME]
        for batch in database.query(query):
            batch = _checked(batch, rows, forms)
            writer = writer or pq.ParquetWriter(
                new, batch.schema.with_metadata({MARK: query.encode()}))
            try:
                writer.write_batch(batch.cast(writer.schema))
            except (pa.ArrowException, ValueError):
                raise InputError("columns of the query of --task have values of different types "
                                 f"after row {rows:,}; CAST them") from None
            rows += batch.num_rows
            if "split" in batch.schema.names:
                trained = batch.filter(pc.equal(batch.column("split"), "train")).column("time")
                until += [int(seconds_of(trained).max())] if len(trained) else []
        if writer is None:
            raise InputError("the query of --task gives no rows; it must give one for each "
                             "prediction")
        writer.close()
        yield max(until, default=None)


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
