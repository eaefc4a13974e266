"""DistEmbedding and DGL's sparse optimizers on a meta-partitioned graph.

The arithmetic is DGL's: a row's gradient is the mean over the times that trainers have read it, in
batches or for themselves (:mod:`dgl_heta.distdgl.handed`), and Adam counts steps per row. Rows live
where DGL keeps them, in the key-value store's shared memory on the machine that owns them. A type
whose rows only one trainer's batches have never leaves it, but for what others read for themselves.
For one that several use, `train.learnable` says how:

- `exact`: rows are pulled from their owners, gradients go to them: the same as DistDGL. Gradients
  of a machine's trainers are summed before they leave it. Rows are pulled by each trainer for
  itself: a script reads when it likes, and to share what was pulled trainers would have to wait for
  each other, at reads that the others may not make.
- `replica`: every user trains copies of the rows that it does not own; only a row's first value
  moves (Heta §4). A read through `emb.weight` gives the owner's row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dgl.distributed.dist_tensor import DistTensor
from torch import Tensor

from dgl_heta.distdgl.handed import bare
from dgl_heta.distdgl.row_steps import step
from dgl_heta.distdgl.session import Session, current
from dgl_heta.distdgl.sparse_steps import made, sparse_steps
from dgl_heta.distdgl.versions import homes
from dgl_heta.features.row_kernels import check_ids, gather_rows
from dgl_heta.sampling.trainer_bits import check_trainers
from dgl_heta.system.patching import patch_all, plain

Pull = Callable[[Any, Any], Tensor]  # DGL's own DistTensor.__getitem__


class Table:
    """One DistEmbedding as this trainer sees it.

    Parameters
    ----------
    session : of this trainer.
    embedding : the DistEmbedding.
    ntype : the node type whose rows it holds.
    pull : reads rows of a DistTensor over the network.
    """

    def __init__(self, session: Session, embedding: Any, ntype: str, pull: Pull) -> None:
        self.session, self.ntype, self._pull = session, ntype, pull
        self._tensor = embedding._tensor
        session.connect()
        check_trainers(session.world.size, "DistEmbedding on a meta-partitioned graph takes at "
                       "most {most} trainers; there are {count}")
        users = session.users(ntype)
        self.own = users == [session.world.rank]
        """Whether no other trainer's batches have rows of it."""
        self.shared = len(users) > 1
        self.replica = session.settings.train.learnable == "replica" and self.shared
        book = self._tensor.part_policy.partition_book
        bounds = [0]
        for part in range(book.num_partitions()):
            bounds.append(bounds[-1] + len(book.partid2nids(part, ntype)))
        self.bounds = np.asarray(bounds)
        self.low, self.high = bounds[book.partid], bounds[book.partid + 1]
        count, width = self._tensor.shape
        self._slots: np.ndarray | None = None
        self.width, self.count = width, count
        self._copies: dict[str, np.ndarray] = {}
        self._pulled = np.zeros(count if self.replica else 0, bool)

    def read(self, index: Tensor) -> Tensor:
        """Rows by node id, (ids, width) float32."""
        ids = bare(index).to("cpu", torch.int64).numpy()
        check_ids(ids, self.count)
        inside = (ids >= self.low) & (ids < self.high)
        if inside.all():
            return torch.from_numpy(gather_rows(self.local(self._tensor), ids - self.low))
        if not self.replica:
            return self._pull(self._tensor, torch.from_numpy(ids))
        copies = self.copies("value", self.local(self._tensor))
        missing = np.unique(ids[~inside & ~self._pulled[ids]])
        if len(missing):
            copies[missing] = self._pull(self._tensor, torch.from_numpy(missing)).numpy()
            self._pulled[missing] = True
        rows = gather_rows(copies, ids)
        rows[inside] = gather_rows(self.local(self._tensor), ids[inside] - self.low)
        return torch.from_numpy(rows)

    def owners_rows(self, index: Tensor) -> Tensor:
        """Rows by node id as their owners have them, (ids, width) float32."""
        return self._pull(self._tensor, bare(index).to("cpu", torch.int64)) if self.replica else (
            self.read(index))

    def copies(self, name: str, like: np.ndarray) -> np.ndarray:
        """This trainer's copies of rows that others own; only touched ones cost memory."""
        if name not in self._copies:
            self._copies[name] = np.zeros((self.count, *like.shape[1:]), like.dtype)
        return self._copies[name]

    def local(self, tensor: Any) -> np.ndarray:
        """The rows of a DistTensor of this type that this machine owns, in shared memory."""
        rows: np.ndarray = tensor.local_partition.numpy()
        return rows

    @property
    def slots(self) -> np.ndarray:
        """Scratch of :func:`dgl_heta.features.row_kernels.sum_rows`."""
        if self._slots is None:
            self._slots = np.full(self.count, -1, np.int32)
        return self._slots


def call(embedding: Any, index: Tensor, device: torch.device) -> Tensor:
    """`DistEmbedding.__call__`."""
    table: Table = embedding.heta
    reading = table.session.reading
    if reading is not None:  # a copy of a module, for a proof
        given: Tensor = reading(embedding.name, bare(index), table.owners_rows(index).to(device))
        return given
    with table.session.scope.aside():
        rows = table.read(index).to(device, non_blocking=True)
    if torch.is_grad_enabled():
        rows.requires_grad_()
        rows.heta_rows = True  # type: ignore[attr-defined]
        with table.session.scope.aside():
            readers = table.session.handed.readers(table.ntype, index)
        if readers is not None:
            table.session.scope.learn(rows, table.ntype, readers.others)
        embedding._trace.append((bare(index).to("cpu"), rows, readers and readers.bits))
    table.session.scope.read(rows, bare(index), lambda ids: table.read(ids).to(device))
    return rows


def _open(embedding: Any) -> None:
    """Called for every new DistEmbedding: takes over those of nodes of the graph's types."""
    session, policy = current(), embedding._tensor.part_policy
    embedding.heta = None
    if session is None or session.reference or not policy.policy_str.startswith("node~"):
        return
    embedding.heta = Table(session, embedding, policy.policy_str.removeprefix("node~"),
                           plain(DistTensor.__getitem__))
    session.embeddings.append(embedding.heta)


def _init(original: Any) -> Any:
    def __init__(self: Any, num_embeddings: int, embedding_dim: int, name: Any = None,
                 init_func: Any = None, part_policy: Any = None) -> None:
        original(self, num_embeddings, embedding_dim, name, init_func, part_policy)
        _open(self)
    return __init__


def _call(original: Any) -> Any:
    def __call__(self: Any, idx: Any, device: Any = None) -> Any:
        device = torch.device("cpu") if device is None else device
        if getattr(self, "heta", None) is None:
            return original(self, idx, device)
        return call(self, idx, device)
    return __call__


def _step(original: Any) -> Any:
    def sparse_step(self: Any) -> None:
        ours = [e for e in self._params if getattr(e, "heta", None) is not None]
        if not ours:
            apart = sparse_steps()
            original(self) if apart is None else apart.step(self)
            return
        clean, others = self._clean_grad, [e for e in self._params if e not in ours]
        step(self, ours)
        if others:
            everything, self._params, self._clean_grad = self._params, others, clean
            try:
                original(self)
            finally:
                self._params = everything
    return sparse_step


def _made(original: Any) -> Any:
    def __init__(self: Any, params: Any, lr: float) -> None:
        original(self, params, lr)
        made(self)
    return __init__


PATCHES = (
    *patch_all(homes("DistEmbedding", "__init__"), _init, "learnable features"),
    *patch_all(homes("DistEmbedding", "__call__"), _call, "learnable features"),
    *patch_all(homes("DistSparseGradOptimizer", "__init__"), _made,
               "steps of trainers that have unequal numbers of them"),
    *patch_all(homes("DistSparseGradOptimizer", "step"), _step,
               "learnable features; steps of trainers that have unequal numbers of them"),
)
