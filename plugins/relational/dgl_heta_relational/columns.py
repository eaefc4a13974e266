"""Columns of tables as features and as labels: which, as what, and what is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import InputError, Task
from dgl_heta.tools import (
    ALWAYS,
    MASKS,
    ColumnTable,
    listing,
    masks_of,
    node_task,
    sort_of,
    table_features,
    task_columns,
)
from dgl_heta_relational.layout import Layout
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import Table

FEW = 100
"""Different texts, at most, that are categories where they repeat; more are texts of words."""


@dataclass
class Feature:
    """A column that may become features, and what is seen of it: rows with and without a value, and
    the different ones, as long as they are few. `said` is what the settings say, "": its type."""

    column: str
    kind: Any
    said: str = ""
    known: int = 0
    nulls: int = 0
    values: set[Any] = field(default_factory=set)

    def see(self, column: Any) -> None:
        """Look at some values."""
        if pa.types.is_nested(column.type):
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


def chosen_features(table: Table, label: Collection[str]) -> list[Feature]:
    """The columns that may become features: of keys those that the settings name, and none that the
    `label` is read from, which they must not name."""
    hidden = {*label} - {table.time}
    if wrong := [name for name, way in table.ways.items() if name in hidden and way != "none"]:
        raise InputError(f"column '{wrong[0]}' of table '{table.name}' is the label, and is to be "
                         "a feature, too, which would give the answer away; take it out of "
                         f"plugins.relational.tables.\"{table.name}\".features")
    keys = {*(table.key or ()), *table.aside} - {table.time}
    left = {name for name, kind in table.columns.items() if name in hidden or name in keys
            or kind is None or sort_of(kind) in ("bytes", "list")}
    ways = {name: table.ways.get(name, "none" if name in left else "") for name in table.columns}
    return [Feature(name, table.columns[name], way) for name, way in ways.items() if way != "none"]


class Spool:
    """Rows in a Parquet file, for what must look at them twice; `what` they are is for messages,
    `schema` is of the columns to keep, and `features` see what is written."""

    def __init__(self, path: Path, what: str, schema: Any, features: Sequence[Feature] = ()
                 ) -> None:
        self.path, self._what, self._schema, self.features = path, what, schema, features
        self._writer = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)
        self.close = self._writer.close

    def write(self, batch: Any) -> None:
        """Add rows."""
        for feature in self.features:
            feature.see(batch.column(feature.column))
        self._writer.write_batch(batch.select(self._schema.names).cast(self._schema))

    def columns(self) -> ColumnTable:
        """The columns as a table of the table reader's."""
        table = ColumnTable(self.path)
        table.path = Path(self._what)
        return table


def made_features(table: Table, spool: Spool, rows: np.ndarray | None, path: Path
                  ) -> tuple[np.ndarray | None, list[dict[str, Any]], list[str]]:
    """The features of a table, float32, or None; how they were made; columns that are left out.

    Means and categories are of `rows` (bool) alone.
    """
    ways = {f.column: f.way(f.column == table.time)
            for f in spool.features if f.said or not f.constant}
    notes = [f"column '{f.column}' of '{table.name}', which is the same in all rows"
             for f in spool.features if f.column not in ways]
    if not ways:
        return None, [], notes
    array, records = table_features(spool.columns(), ways, rows, path)
    made = {record["column"] for record in records}
    notes += [f"column '{name}' of '{table.name}', which has no value in training"
              for name in ways if name not in made]
    return array if records else None, records, notes


@dataclass(frozen=True)
class Labelled:
    """A column with labels, the `columns` to read for it (itself, and what the split is by), and
    the split as :func:`dgl_heta.tools.masks_of` takes it."""

    table: str
    column: str
    kind: str
    columns: tuple[str, ...]
    split: Any

    def task(self, spool: Spool, times: np.ndarray | None, counts: Mapping[str, int]
             ) -> tuple[Task, dict[str, np.ndarray], dict[str, Any], int | None]:
        """The task, the labels and masks, what a store keeps of them, the last time of training."""
        table, arrays = spool.columns(), dict[str, np.ndarray]()
        labels = task_columns(table, self.column, self.kind, None, arrays,
                              file=spool.path.with_suffix(".labels"))
        masks, record = masks_of(self.split, table, arrays[self.column], self.kind,
                                 "plugins.relational.split", file=spool.path.with_suffix(".times"))
        arrays |= masks
        info: dict[str, Any] = {**labels.info(), **({"times": record} if record else {})}
        task = node_task(self.table, len(labels.names) or None, self.column,
                         {self.table: arrays}, counts, self.kind, None, info)
        until = None if times is None else int(times.max(where=masks[MASKS[0]], initial=ALWAYS))
        return task, arrays, info, until


def label_of(settings: RelationalSettings, layout: Layout) -> Labelled | None:
    """The label that the settings name, if they do; it, and what rows are split by, are columns of
    a node type."""
    if settings.label is None:
        return None
    name, _, column = settings.label.rpartition(".")
    table, split = layout.nodes.get(name), settings.split
    for said, text, one in (("label", settings.label, column), ("split", split, split)):
        if isinstance(one, str) and (table is None or one not in table.columns):
            raise InputError(f"plugins.relational.{said} is '{text}'; label must be TABLE.COLUMN "
                             "of a table that is a node type, and split a column of it: "
                             f"{listing(table.columns if table else layout.nodes)}")
    assert table is not None
    for relation, (of, keys) in layout.relations.items():
        if of is table and (wrong := [key for key in keys if column in key.columns]):
            skip = f"leave table '{wrong[0].table}' out by plugins.relational.skip, or "
            raise InputError(f"column '{column}' of table '{name}' is the label, and a foreign "
                             f"key, whose relation '{relation}' would give the answer away; "
                             f"{skip * (wrong[0].table != name)}predict its links (task.relation)")
    kind = "regression" if table.columns[column] in (pa.float32(), pa.float64()) else (
        "classification")
    if isinstance(split, str):
        return Labelled(name, column, kind, (column, split), split)
    by_time = {"time": table.time} if table.time else {}
    return Labelled(name, column, kind, (column, *by_time.values()),
                    {"ratios": list(split), **by_time})
