"""The rows of a DistEmbedding that a trainer reads: its machine's, others', copies of others'."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.features.row_kernels import check_ids, gather_rows
from dgl_heta.sampling.trainer_bits import check_trainers

Pull = Callable[[Any, Any], Tensor]  # DGL's own DistTensor.__getitem__


class Table:
    """One DistEmbedding as this trainer sees it.

    Parameters
    ----------
    session : of this trainer.
    embedding : the DistEmbedding.
    ntype : the node type whose rows it holds.
    pull : reads rows of a DistTensor over the network.

    Attributes
    ----------
    was_read : whether rows were read, so that trainers may have copies of them.
    """

    was_read = False

    def __init__(self, session: Session, embedding: Any, ntype: str, pull: Pull) -> None:
        self.session, self.ntype, self._pull = session, ntype, pull
        self._tensor = embedding._tensor
        session.connect()
        check_trainers(session.world.size, "DistEmbedding on a meta-partitioned graph takes at "
                       "most {most} trainers; there are {count}")
        users = session.users(ntype)
        self.exclusive = users == [session.world.rank]
        """True if no other trainer's batches have rows of it."""
        self.shared = len(users) > 1
        self.replica = session.settings.train.learnable == "replica" and self.shared
        trainers = len(session.groups.trainers[0])
        if self.replica and trainers > 1:
            refuse("replicas of several trainers", trainers=trainers)
        # The machine that has a row in shared memory goes by DistDGL's partition book, whose ids of
        # a type are contiguous by part.
        book = self._tensor.part_policy.partition_book
        bounds = [0]
        for part in range(book.num_partitions()):
            bounds.append(bounds[-1] + len(book.partid2nids(part, ntype)))
        self.bounds = np.asarray(bounds)
        self.low, self.high = bounds[book.partid], bounds[book.partid + 1]
        count, width = self._tensor.shape
        self._slots: np.ndarray | None = None
        self.width, self.count = width, count
        self._copies: np.ndarray | None = None
        # A script may make another optimizer later, whose states begin anew.
        self._state_copies: weakref.WeakKeyDictionary[Any, list[np.ndarray]] = (
            weakref.WeakKeyDictionary())
        self._pulled = np.zeros(count if self.replica else 0, bool)
        if self.replica:
            session.replicas[self._tensor._name] = self

    def read(self, index: Tensor) -> Tensor:
        """Return rows by node id, (ids, width) float32."""
        ids = bare(index).to("cpu", torch.int64).numpy()
        check_ids(ids, self.count)
        self.was_read = True
        inside = (ids >= self.low) & (ids < self.high)
        if inside.all():
            return torch.from_numpy(gather_rows(self.local(self._tensor), ids - self.low))
        if not self.replica:
            return self._pull(self._tensor, torch.from_numpy(ids))
        copies = self.copies()
        # A replica's first value is the owner's; after that this trainer updates its copy itself.
        missing = np.unique(ids[~inside & ~self._pulled[ids]])
        if len(missing):
            copies[missing] = self._pull(self._tensor, torch.from_numpy(missing)).numpy()
            self._pulled[missing] = True
        rows = gather_rows(copies, ids)
        rows[inside] = gather_rows(self.local(self._tensor), ids[inside] - self.low)
        return torch.from_numpy(rows)

    def owners_rows(self, index: Tensor) -> Tensor:
        """Return rows by node id as their owners have them, (ids, width) float32."""
        return self._pull(self._tensor, bare(index).to("cpu", torch.int64)) if self.replica else (
            self.read(index))

    def copies(self) -> np.ndarray:
        """Return this trainer's copies of rows that others own; only touched ones cost memory."""
        if self._copies is None:
            self._copies = self._zeros(self.local(self._tensor))
        return self._copies

    def state_copies(self, optimizer: Any, own: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return an optimizer's states of these copies; `own` are those of this machine's rows."""
        if optimizer not in self._state_copies:
            self._state_copies[optimizer] = [self._zeros(rows) for rows in own]
        return self._state_copies[optimizer]

    def _zeros(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((self.count, *like.shape[1:]), like.dtype)

    def local(self, tensor: Any) -> np.ndarray:
        """Return the rows of a DistTensor that this machine owns, in shared memory."""
        rows: np.ndarray = tensor.local_partition.numpy()
        return rows

    @property
    def slots(self) -> np.ndarray:
        """Return scratch of :func:`dgl_heta.features.row_kernels.sum_rows`, int32 (count,)."""
        if self._slots is None:
            self._slots = np.full(self.count, -1, np.int32)
        return self._slots
