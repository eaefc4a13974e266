"""Rows that have one owner each: ids go to the owners, rows come back, gradients go there.

This is what keeps learnable features exact where several workers use a node type: every row lives
on one worker, with its optimizer state. In a step each worker asks the owners for the rows that its
batch reads (:meth:`RowRoute.answer`), and brings them the gradients of these rows
(:meth:`RowRoute.deliver`), which the owners sum. Delivering is the adjoint of answering, over the
same route::

    rows_w[i] = table[ids_w[i]]              ∂L/∂table[r] = Σ_w Σ_{i: ids_w[i] = r} ∂L/∂rows_w[i]

Bytes that a worker sends, by the cause `learnable`: the keys of the rows that it asks other workers
for, sorted and packed (:mod:`dgl_heta.comm.packed_ids`: a byte or two for each, and for each
further column), and 8 for every other worker; then a row of D numbers for each one that others
asked it for, and D numbers for each gradient that it delivers to another worker. (Heta keeps
learnable features within a worker's parameters, §4; rows that several partitions use have no place
in its text.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.packed_ids import pack, unpack


class RowRoute:
    """The way from this worker's keys to their owners and back; every worker must make one.

    Parameters
    ----------
    world : the workers.
    owner : int64 (n,), the rank that owns each key.
    keys : int64 (n,) or (n, columns), in any order: what an owner knows a row by, and more.

    Attributes
    ----------
    asked : the keys that workers ask this one for, those of worker 0 first, sorted by their last
        column, then by the one before it.
    """

    def __init__(self, world: Comm, owner: np.ndarray, keys: np.ndarray) -> None:
        self._world = world
        order = sorted_order([*(keys.T if keys.ndim > 1 else keys[None]), owner])
        self._order = torch.from_numpy(order)  # the i-th key that is sent is keys[order[i]]
        self._send = np.bincount(owner, minlength=world.size).tolist()
        data, sizes = pack(keys[order], self._send)
        ones = [1] * world.size
        arriving = world.all_to_all_rows(torch.tensor(sizes), ones, ones, "learnable").tolist()
        arrived = world.all_to_all_rows(torch.from_numpy(data), sizes, arriving, "learnable")
        self.asked, self._receive = unpack(arrived.numpy(), arriving, keys.shape[1:])

    def answer(self, rows: Tensor) -> Tensor:
        """Rows for the keys in `asked` (asked, D) go to who asked; returns those for this worker's
        keys, in their order (n, D)."""
        arrived = self._world.all_to_all_rows(rows, self._receive, self._send, "learnable")
        out = torch.empty_like(arrived)
        out[self._order] = arrived
        return out

    def deliver(self, rows: Tensor) -> Tensor:
        """Rows of this worker's keys (n, D) go to the owners; returns those for the keys in
        `asked`, in their order (asked, D)."""
        return self._world.all_to_all_rows(rows[self._order], self._send, self._receive,
                                           "learnable")


def sorted_order(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Where the i-th of the sorted keys stands (int64); the last column decides first, equal keys
    stay in their order. As np.lexsort, by 16 bits at a time, which is faster.

    Parameters
    ----------
    columns : int64 (n,) each.
    """
    order = np.arange(len(columns[0]))
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        above = (column - low).view(np.uint64)
        for shift in range(0, (high - low).bit_length(), 16):
            digits = (above >> np.uint64(shift)).astype(np.uint16)
            order = order[np.argsort(digits[order], kind="stable")]
    return order
