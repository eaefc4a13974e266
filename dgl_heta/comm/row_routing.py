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

Where there are several machines and one has several workers, a row that some of them read crosses
between machines once, and so does the sum of its gradients: workers ask one of their machine for
the rows of other machines, id mod workers, and that one asks the owner, once. What is sent so
within the machine counts as the cause `machine`, and `learnable` is what crosses.
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
    world : the workers; by way of the machine's where it has such.
    owner : int64 (n,), the rank in `world` that owns each key; one for all keys of an id.
    keys : int64 (n,) or (n, columns), in any order: an id, what an owner knows a row by, and more.
        Further columns are sets of bits: from a machine comes the union of its workers' sets.

    Attributes
    ----------
    asked : the keys that workers ask this one for: from its machine, then from the others, those
        of worker 0 first; each worker's sorted by their last column, then by the one before it.
    """

    def __init__(self, world: Comm, owner: np.ndarray, keys: np.ndarray) -> None:
        self._world, machine = world, world.machine
        self._near: _Way | None = None
        if machine is None:
            self._far = _Way(world, "learnable", owner, keys)
            self.asked = self._far.asked
            return
        rank_of = np.full(world.size, -1)
        rank_of[[world.ranks.index(rank) for rank in machine.ranks]] = np.arange(machine.size)
        # By id, so that all workers of a machine ask the same one for a row: it then crosses
        # between machines once, and so does the sum of its gradients.
        ids = keys[:, 0] if keys.ndim > 1 else keys
        # An owner on this machine is asked directly: passing by another worker would only add a
        # copy.
        to = np.where(rank_of[owner] < 0, ids % machine.size, rank_of[owner])
        self._near = near = _Way(machine, "machine", to, np.column_stack([keys, owner]))
        columns, owners = near.asked[:, :-1], near.asked[:, -1]
        is_local = owners == world.rank
        first, self._group, united = _unite(columns[~is_local])
        self._far = _Way(world, "learnable", owners[~is_local][first], united)
        self._local, self._passed = (torch.from_numpy(np.flatnonzero(some)) for some in
                                    (is_local, ~is_local))
        asked = np.concatenate([columns[is_local], self._far.asked])
        self.asked = asked.reshape(-1, *keys.shape[1:])

    def answer(self, rows: Tensor) -> Tensor:
        """Rows for the keys in `asked` (asked, D) go to who asked; returns those for this worker's
        keys, in their order (n, D)."""
        if self._near is None:
            return self._far.answer(rows)
        own, others = rows.tensor_split([len(self._local)])
        gathered = rows.new_empty((len(self._near.asked), *rows.shape[1:]))
        # Rows of other machines arrive rounded to the wire's type; own ones are rounded, too, so
        # that a row's numbers do not depend on who reads it.
        gathered[self._local] = self._world.rounded(own, "learnable")
        gathered[self._passed] = self._far.answer(others)[self._group]
        return self._near.answer(gathered)

    def deliver(self, rows: Tensor) -> Tensor:
        """Rows of this worker's keys (n, D) go to the owners; returns those for the keys in
        `asked`, in their order (asked, D), those of another machine summed."""
        if self._near is None:
            return self._far.deliver(rows)
        arrived = self._near.deliver(rows)
        sums = rows.new_zeros((self._far.sent, *rows.shape[1:]))
        # Here the gradients of one machine become one: the owner adds one number per machine. Not
        # divided: whoever steps divides by the number of workers, once.
        sums.index_add_(0, self._group, arrived[self._passed])
        return torch.cat([arrived[self._local], self._far.deliver(sums)])


class _Way:
    """From keys to workers of one group and back, directly.

    Parameters
    ----------
    to : int64 (n,), the rank in `comm` that each key goes to.
    keys : int64 (n,) or (n, columns).
    """

    def __init__(self, comm: Comm, cause: str, to: np.ndarray, keys: np.ndarray) -> None:
        self._comm, self._cause, self.sent = comm, cause, len(keys)
        # Sorted by worker, then by id: differences of neighbours are small, and packed they take a
        # byte or two.
        order = sorted_order([*(keys.T if keys.ndim > 1 else keys[None]), to])
        self._order = torch.from_numpy(order)  # the i-th key that is sent is keys[order[i]]
        self._send = np.bincount(to, minlength=comm.size).tolist()
        data, sizes = pack(keys[order], self._send)
        ones = [1] * comm.size
        # Sizes go first, for nobody knows how many bytes others' keys take when packed.
        arriving = comm.all_to_all_rows(torch.tensor(sizes), ones, ones, cause).tolist()
        arrived = comm.all_to_all_rows(torch.from_numpy(data), sizes, arriving, cause)
        self.asked, self._receive = unpack(arrived.numpy(), arriving, keys.shape[1:])

    def answer(self, rows: Tensor) -> Tensor:
        arrived = self._comm.all_to_all_rows(rows, self._receive, self._send, self._cause)
        # Rows come in the order in which keys were sent, sorted; they go back to where the keys
        # stood.
        out = torch.empty_like(arrived)
        out[self._order] = arrived
        return out

    def deliver(self, rows: Tensor) -> Tensor:
        return self._comm.all_to_all_rows(rows[self._order], self._send, self._receive,
                                          self._cause)


def _unite(keys: np.ndarray) -> tuple[np.ndarray, Tensor, np.ndarray]:
    """Keys (n, columns) with each id once: where each id is first, which of them each key is
    (int64), and the ids with the union of the other columns."""
    if not len(keys):
        return np.empty(0, np.int64), torch.empty(0, dtype=torch.int64), keys
    order = sorted_order([keys[:, 0]])
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered[:, 0], prepend=~ordered[0, 0]))
    group = np.empty(len(keys), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(keys)))
    united = ordered[starts]
    for column in range(1, keys.shape[1]):
        united[:, column] = np.bitwise_or.reduceat(ordered[:, column], starts)
    return order[starts], torch.from_numpy(group), united


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
