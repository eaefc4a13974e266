"""What is predicted, where it is a column of a table: labels, and which rows are for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta import InputError, Task
from dgl_heta.tools import ALWAYS, MASKS, known_entries, listing, masks_of, node_task, task_columns
from dgl_heta_relational.layout import Layout
from dgl_heta_relational.settings import RelationalSettings

if TYPE_CHECKING:
    from dgl_heta_relational.columns import Spool


@dataclass(frozen=True)
class Labelled:
    """A column with labels.

    Attributes
    ----------
    columns : those that must be read for it: itself, and what the split is by.
    split : as the table reader has it (:func:`dgl_heta.tools.masks_of`).
    """

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
        known = known_entries(arrays[self.column], None)
        if self.kind == "classification":
            known &= arrays[self.column] >= 0
        masks, record = masks_of(self.split, table, arrays[self.column],
                                 known.reshape(len(known), -1).any(1), "plugins.relational.split",
                                 spool.path.with_suffix(".times"))
        arrays |= masks
        info: dict[str, Any] = {**labels.info(), **({"times": record} if record else {})}
        task = node_task(self.table, len(labels.names) or None, self.column,
                         {self.table: arrays}, counts, self.kind, None, info)
        until = None
        if times is not None:
            until = int(times.max(where=masks[MASKS[0]], initial=ALWAYS))
        return task, arrays, info, until


def label_of(settings: RelationalSettings, layout: Layout) -> Labelled | None:
    """The label that the settings name, if they do.

    Raises
    ------
    InputError
        No such table or column, or one that holds no labels.
    """
    if settings.label is None:
        return None
    name, _, column = settings.label.rpartition(".")
    table = layout.nodes.get(name)
    if table is None or column not in table.columns:
        raise InputError(f"plugins.relational.label is '{settings.label}'; it must be TABLE.COLUMN "
                         "of a table that is a node type: "
                         f"{listing(table.columns if table else layout.nodes)}")
    kind = table.columns[column]
    if kind is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)
                            or pa.types.is_boolean(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"plugins.relational.label is '{settings.label}', whose type is {kind}; "
                         "labels are text, numbers or truth values")
    split = settings.split
    if isinstance(split, str):
        if split not in table.columns:
            raise InputError(f"plugins.relational.split is '{split}', which is no column of table "
                             f"'{name}': {listing(table.columns)}")
        return Labelled(name, column, _kind_of(kind), (column, split), split)
    by_time = {"time": table.time} if table.time else {}
    return Labelled(name, column, _kind_of(kind), (column, *by_time.values()),
                    {"ratios": list(split), **by_time})


def _kind_of(kind: Any) -> str:
    return "regression" if pa.types.is_floating(kind) else "classification"


def seconds_of(column: Any) -> np.ndarray:
    """Dates or timestamps as seconds since 1970, int64; ALWAYS where there is none.

    A part of a second counts as a whole one: a row is not there before its time.
    """
    micros = pc.cast(pc.cast(column, pa.timestamp("us", getattr(column.type, "tz", None))),
                     pa.int64())
    values: np.ndarray = micros.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(np.asarray(column.is_valid()), -(-values // 10**6), ALWAYS)
