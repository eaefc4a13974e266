"""Tables of learnable features in a memory-mapped file, for those larger than memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.direct_reads import prefetch
from dgl_heta.features.row_table import RowTable
from dgl_heta.system.disk import free_bytes, reserve


class DiskTables:
    """Makes tables in files of a directory, which vanish with the process.

    A row is value, first and second moment side by side, so that reading and updating it touches
    the same pages. The file is a working copy: what must last is in checkpoints.

    Parameters
    ----------
    directory : is made if it is not there; on a disk, not in memory.
    fits : whether what they hold will stay in memory; if not, rows are asked for beforehand.
    """

    def __init__(self, directory: Path, fits: bool = True) -> None:
        self._directory, self._fits = directory, fits

    def __call__(self, name: str, rows: int, width: int, dtype: torch.dtype) -> RowTable:
        """A table of zeros.

        Raises
        ------
        InputError
            There is too little space for it.
        """
        if not rows * width:
            return RowTable(torch.zeros((rows, width), dtype=dtype))
        size = rows * 3 * width * dtype.itemsize
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            free = free_bytes(self._directory)
            if free < size:
                raise InputError(
                    f"learnable features '{name}' need {size / 1e6:,.0f} MB in {self._directory}, "
                    f"where {free / 1e6:,.0f} MB are free; make room, use another run directory, "
                    "or keep them in memory (cache.tables=memory)")
            handle, path = tempfile.mkstemp(prefix=".table-", dir=self._directory)
            os.unlink(path)  # the mapping keeps it; nothing is left behind, however we end
            reserve(handle, size, self._directory)
            mapped = mmap.mmap(handle, size)  # has a handle of its own
        except OSError as error:
            raise HetaError(f"cannot make a table for '{name}' in {self._directory}: "
                            f"{error.strerror or error}") from None
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        number = np.float64 if dtype == torch.float64 else np.float32
        whole = torch.from_numpy(np.frombuffer(mapped, number).reshape(rows, 3 * width))
        table = RowTable(*whole.chunk(3, 1))
        table.evict = lambda: _evict(mapped, handle)
        if not self._fits:
            row_bytes = 3 * width * dtype.itemsize
            table.prefetch = lambda ids: prefetch(handle, 0, row_bytes, ids)
        return table


def _evict(mapped: mmap.mmap, handle: int) -> None:
    mapped.flush()
    mapped.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: the file keeps what was written
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def memory_tables(name: str, rows: int, width: int, dtype: torch.dtype) -> RowTable:
    """A table of zeros in memory."""
    return RowTable(torch.zeros((rows, width), dtype=dtype))
