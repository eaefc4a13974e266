"""Columns of tables as features: which, as what, and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import InputError
from dgl_heta.tools import ColumnTable, table_features
from dgl_heta_relational.settings import RelationalSettings, TableSettings
from dgl_heta_relational.tables import Table
from dgl_heta_relational.task import Labelled

FEW = 100
"""Different texts, at most, that are categories where they repeat; more are texts of words."""


@dataclass
class Feature:
    """A column that may become features, and what is seen of it.

    Attributes
    ----------
    said : what the settings say of it; "" where its type decides.
    known, nulls : rows with and without a value.
    values : the different values, as long as they are few.
    """

    column: str
    kind: Any
    said: str = ""
    known: int = 0
    nulls: int = 0
    values: set[Any] = field(default_factory=set)

    def see(self, column: Any) -> None:
        """Look at some values."""
        if pa.types.is_nested(self.kind):
            return
        self.nulls += column.null_count
        self.known += len(column) - column.null_count
        if len(self.values) <= FEW:
            few = pc.unique(column.drop_null()).slice(0, FEW + 1)
            if pa.types.is_temporal(few.type):  # Python has not all times
                few = few.view(pa.int32() if pa.types.is_date32(few.type) else pa.int64())
            self.values.update(few.to_pylist())

    @property
    def constant(self) -> bool:
        """Return whether all rows have the same."""
        return len(self.values) + bool(self.nulls) < 2

    def way(self, is_time: bool) -> str:
        """How it becomes features, in the table reader's words."""
        if self.said:
            return self.said
        if pa.types.is_temporal(self.kind):
            return "date:parts" if is_time else "date"
        if pa.types.is_large_string(self.kind):
            repeat = 2 * len(self.values) <= self.known
            return "category" if repeat and len(self.values) <= FEW else "text"
        return "number:indicator" if self.nulls else "number"


def chosen_features(table: Table, settings: RelationalSettings, label: Labelled | None
                    ) -> list[Feature]:
    """The columns that may become features: not keys, not the label.

    Raises
    ------
    InputError
        The label is to be a feature.
    """
    said = settings.tables.get(table.name, TableSettings()).features
    hidden = set(label.columns) - {table.time} if label and label.table == table.name else set()
    if wrong := [name for name in said if name in hidden and said[name] != "none"]:
        raise InputError(f"column '{wrong[0]}' of table '{table.name}' is the label, and is to be "
                         "a feature, too, which would give the answer away; take it out of "
                         f"plugins.relational.tables.\"{table.name}\".features")
    keys = {*(table.key or ()), *table.aside} - {table.time}
    found = []
    for name, kind in table.columns.items():
        way = said.get(name, "")
        if way == "none" or name in hidden or (name in keys and not way):
            continue
        if way or not (kind is None or pa.types.is_large_binary(kind) or pa.types.is_nested(kind)):
            found.append(Feature(name, kind, way))
    return found


class Spool:
    """Rows in a Parquet file, for what must look at them twice.

    Parameters
    ----------
    what : the rows are, for messages.
    schema : of the columns to keep.
    """

    def __init__(self, path: Path, what: str, schema: Any) -> None:
        self.path, self._what, self._names = path, what, schema.names
        self._writer = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)

    def write(self, batch: Any) -> None:
        """Add rows."""
        if self._names:
            self._writer.write_batch(batch.select(self._names).cast(self._writer.schema))

    def close(self) -> None:
        self._writer.close()

    def columns(self) -> ColumnTable:
        """The columns as a table of the table reader's."""
        table = ColumnTable(self.path)
        table.path = Path(self._what)
        return table


def made_features(table: Table, spool: Spool, chosen: Sequence[Feature], rows: np.ndarray | None,
                  path: Path) -> tuple[np.ndarray | None, list[dict[str, Any]], list[str]]:
    """The features of columns, or None; how they were made; columns that are left out.

    Means and categories are of `rows` (bool) alone.
    """
    notes = [f"column '{f.column}' of '{table.name}', which is the same in all rows"
             for f in chosen if f.constant and not f.said]
    ways = {f.column: f.way(f.column == table.time) for f in chosen if f.said or not f.constant}
    if not ways:
        return None, [], notes
    array, records = table_features(spool.columns(), ways, rows, path)
    made = {record["column"] for record in records}
    notes += [f"column '{name}' of '{table.name}', which has no value in training"
              for name in ways if name not in made]
    return array if records else None, records, notes
