"""Predictions as a table, CSV or Parquet: ids of nodes, names of classes, probabilities."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.system.optional import optional

_ROWS = 2**18  # of a row group
_NUMBERS = 2**22  # of it


def arrow() -> Any:
    """The package pyarrow.

    Raises
    ------
    InputError
        It is not installed.
    """
    optional("pyarrow.parquet", "Parquet", "parquet")
    return optional("pyarrow", "Parquet", "parquet")


@dataclass(frozen=True)
class Output:
    """The form of a prediction's rows.

    Attributes
    ----------
    what : predictions, probabilities, scores or embeddings.
    ids : of the nodes, where they have some.
    classes : names of the classes, where the columns are classes and have names.
    best : rows are scores of classes, of which the best is the prediction.
    """

    what: str
    ids: NodeIds | None = None
    classes: Sequence[str] = ()
    best: bool = False

    def write_csv(self, rows: Path, out: Path) -> None:
        """Write the rows of a `.npy` file (nodes,) or (nodes, width), with a header.

        The columns are `id`, or `node`, the row's number, where nodes have no ids; and `class` and
        `probability` of predicted classes, or a column for each number of a row.
        """
        with out.open("w", encoding="utf-8", newline="") as file:
            writer, begun = csv.writer(file, lineterminator="\n"), False
            for names, part in self._parts(rows):
                columns = self._columns(part)
                if columns is None:
                    width = int(np.prod(part.shape[1:], dtype=np.int64))
                    part = part.reshape(len(part), -1)
                    single = part.dtype == np.float32  # whose own digits are the shortest
                    head = self._heads(width)
                    body = part.astype("U32").tolist() if single else part.tolist()
                else:
                    head, body = list(columns), [list(row) for row in zip(*columns.values())]
                if not begun:
                    writer.writerow(["id" if self.ids else "node", *head])
                    begun = True
                writer.writerows([name, *values] for name, values in zip(names, body))

    def write_parquet(self, rows: Path, out: Path) -> None:
        """Write the rows of a `.npy` file (nodes,) or (nodes, width), a row group at a time.

        The columns are `id` or `node` as in a CSV, then `class` and `probability` of predicted
        classes, or one with the name of `what`: values or lists of fixed length.
        """
        pyarrow = arrow()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(out.open("wb"))  # whose name may be none of UTF-8
            writer = None
            for names, part in self._parts(rows):
                columns: dict[str, Any] | None = self._columns(part)
                if columns is not None:  # a part may have no class at all
                    kind = pyarrow.string() if self.classes else pyarrow.int64()
                    columns = {
                        "class": pyarrow.array(columns["class"], kind),
                        "probability": pyarrow.array(columns["probability"], pyarrow.float64())}
                else:
                    values = pyarrow.array(part.ravel())
                    if part.ndim == 2:
                        values = pyarrow.FixedSizeListArray.from_arrays(values, part.shape[1])
                    columns = {self.what: values}
                table = pyarrow.table({"id" if self.ids else "node": names, **columns})
                writer = writer or stack.enter_context(
                    pyarrow.parquet.ParquetWriter(file, table.schema))
                writer.write_table(table)

    def _parts(self, rows: Path) -> Iterator[tuple[Any, np.ndarray]]:
        """Names and rows of some nodes at a time."""
        array = np.lib.format.open_memmap(rows, "r")
        step = max(min(_ROWS, _NUMBERS // max(int(np.prod(array.shape[1:])), 1)), 1)
        for low in range(0, max(len(array), 1), step):
            part = np.ascontiguousarray(array[low:low + step])
            high = low + len(part)
            yield self.ids.names(low, high) if self.ids else np.arange(low, high), part

    def _columns(self, scores: np.ndarray) -> dict[str, list[Any]] | None:
        """The predicted classes, where rows are scores of classes; none of those not finite."""
        if not self.best:
            return None
        finite = np.isfinite(scores).all(1)
        scores = np.where(finite[:, None], scores, 0.0)
        best = scores.argmax(1)
        wide = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
        sure = wide[np.arange(len(wide)), best] / wide.sum(1)
        return {"class": [(self.classes[i] if self.classes else i) if there else None
                          for i, there in zip(best.tolist(), finite)],
                "probability": [float(f"{x:.6g}") if there else None
                                for x, there in zip(sure.tolist(), finite)]}

    def _heads(self, width: int) -> list[str]:
        """Names of the columns of a row's numbers."""
        one = {"predictions": "label", "probabilities": "probability"}.get(
            self.what, self.what.removesuffix("s"))
        if width == 1:
            return [one if self.what != "predictions" else "prediction"]
        named = self.classes if len(self.classes) == width else range(width)
        return [f"{one}_{name}" for name in named]
