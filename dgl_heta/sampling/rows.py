"""Rows of a batch: which node has which row, per node type, while a batch is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dgl_heta.sampling.sampling_kernels import give_rows


class NodeRows:
    """Rows of one node type in order of first appearance.

    Attributes
    ----------
    row_of : int32, per node id its row, or -1.
    buffer, size : int64, the node of each row, and how many rows there are.
    """

    def __init__(self, row_of: np.ndarray) -> None:
        self.row_of = row_of
        self.buffer = np.empty(0, np.int64)
        self.size = 0
        self._hidden = 0  # rows that `row_of` does not know

    def __len__(self) -> int:
        return self.size

    def ids(self) -> np.ndarray:
        """The node of each row; a view that the next rows may leave behind."""
        return self.buffer[:self.size]

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The row of each id, int32; -1 for those that are none."""
        return self.row_of[ids]

    def give(self, ids: np.ndarray, out: np.ndarray, indptr: np.ndarray, shifts: np.ndarray | None
             ) -> int:
        """Fill `out` with the rows of nodes, new ones for those that have none; room for these was
        made. Returns their number, or BAD where one is no node. They are by the edges of other
        nodes, `indptr`; `shifts` of these are what ids of pairs are more by.
        """
        self.size, given = give_rows(ids, out, self.row_of, self.buffer, self.size)
        return int(given)

    def reserve(self, extra: int) -> None:
        """Make room for up to `extra` more rows."""
        most = len(self.row_of) + self._hidden
        need = min(self.size + extra, most)
        if need > len(self.buffer):
            grown = np.empty(max(need, min(2 * len(self.buffer), most)), np.int64)
            grown[:self.size] = self.ids()
            self.buffer = grown

    def add(self, ids: np.ndarray, findable: bool = True) -> None:
        """Append ids that are not yet rows; unless `findable`, their neighbours get new rows.

        An id given twice is two rows, of which its neighbours find the last.
        """
        start, rows = self.size, np.arange(self.size, self.size + len(ids), dtype=np.int32)
        if findable:
            self.row_of[ids] = rows
            self._hidden += int(np.count_nonzero(self.row_of[ids] != rows))
        else:
            self._hidden += len(ids)
        self.reserve(len(ids))
        self.buffer[start:start + len(ids)] = ids
        self.size += len(ids)

    def take_back(self, size: int) -> None:
        """Forget the rows from `size` on."""
        self.row_of[self.buffer[size:self.size]] = -1
        self.size = size


class RowScratch:
    """Empty :class:`NodeRows` of several node types, for one batch at a time or for many.

    `row_of` has an entry for every node, which is too much to fill for each batch: it is used
    again, and only what a batch wrote is cleared. Batches that are sampled at the same time, by
    several threads, have arrays of their own; there are as many as were ever in use at once.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)
        self._idle: list[dict[str, np.ndarray]] = []
        with self.borrow():  # so that memory that is missing is missed at the start
            pass

    @contextmanager
    def borrow(self) -> Iterator[dict[str, NodeRows]]:
        """Rows per node type for the body. After an error there they are not used again."""
        try:
            places = self._idle.pop()
        except IndexError:
            places = {t: np.full(n, -1, np.int32) for t, n in self._counts.items()}
        rows = {t: NodeRows(row_of) for t, row_of in places.items()}
        yield rows
        for table in rows.values():
            table.take_back(0)
        self._idle.append(places)
