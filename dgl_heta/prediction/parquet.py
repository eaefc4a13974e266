"""Predictions as a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.system.optional import optional

_ROWS = 2**18  # of a row group


def arrow() -> Any:
    """The package pyarrow.

    Raises
    ------
    InputError
        It is not installed.
    """
    optional("pyarrow.parquet", "Parquet", "parquet")
    return optional("pyarrow", "Parquet", "parquet")


def write_parquet(rows: Path, out: Path, column: str) -> None:
    """Write the rows of a `.npy` file (nodes,) or (nodes, width), a row group at a time.

    The columns are `node`, the row's number, and `column`, values or lists of fixed length.
    """
    pyarrow = arrow()
    array = np.lib.format.open_memmap(rows, "r")
    writer = None
    for low in range(0, max(len(array), 1), _ROWS):
        part = np.ascontiguousarray(array[low:low + _ROWS])
        values = pyarrow.array(part.ravel())
        if array.ndim == 2:
            values = pyarrow.FixedSizeListArray.from_arrays(values, array.shape[1])
        table = pyarrow.table({"node": np.arange(low, low + len(part)), column: values})
        writer = writer or pyarrow.parquet.ParquetWriter(out, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
