"""What is predicted, where it is a column of a table: labels, and which rows are for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dgl_heta import InputError, Task
from dgl_heta.tools import (
    ALWAYS,
    MASKS,
    known_entries,
    listing,
    masks_of,
    node_task,
    task_columns,
)
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
        No such table or column, or one that the rows are to be split by.
    """
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
    kind = "regression" if table.columns[column] in (pa.float32(), pa.float64()) else (
        "classification")
    if isinstance(split, str):
        return Labelled(name, column, kind, (column, split), split)
    by_time = {"time": table.time} if table.time else {}
    return Labelled(name, column, kind, (column, *by_time.values()),
                    {"ratios": list(split), **by_time})
