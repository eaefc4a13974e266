"""DistEmbedding and DGL's sparse optimizers on a meta-partitioned graph.

The arithmetic is DGL's: a row's gradient is the mean over the trainers whose batches have it,
Adam counts steps per row. Rows live where DGL keeps them, in the key-value store's shared memory
on the machine that owns them. A type that one trainer uses never leaves it. For one that several
use, `train.learnable` says how:

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
from dgl.distributed.optim import SparseAdagrad, SparseAdam
from torch import Tensor

from dgl_heta.comm.row_routing import RowRoute
from dgl_heta.distdgl.session import Session, current
from dgl_heta.distdgl.sparse_steps import made, sparse_steps
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import check_ids, gather_rows, sum_rows_with_bits
from dgl_heta.system.jit import kernel
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
        if session.world.size > 62:
            raise HetaError(f"DistEmbedding on a meta-partitioned graph takes at most 62 trainers; "
                            f"there are {session.world.size}")
        users = session.users(ntype)
        self.alone = len(users) == 1
        self.used = session.world.rank in users
        self.replica = session.settings.train.learnable == "replica" and not self.alone
        self.exact = not self.replica and not self.alone
        book = self._tensor.part_policy.partition_book
        bounds = [0]
        for part in range(book.num_partitions()):
            bounds.append(bounds[-1] + len(book.partid2nids(part, ntype)))
        self.bounds = np.asarray(bounds)
        self.low, self.high = bounds[book.partid], bounds[book.partid + 1]
        count, width = self._tensor.shape
        self._slots: np.ndarray | None = None
        self.width, self._count = width, count
        self._copies: dict[str, np.ndarray] = {}
        self._pulled = np.zeros(count if self.replica else 0, bool)

    def read(self, index: Tensor) -> Tensor:
        """Rows by node id, (ids, width) float32."""
        ids = index.to("cpu", torch.int64).numpy()
        check_ids(ids, self._count)
        inside = (ids >= self.low) & (ids < self.high)
        if inside.all():
            return torch.from_numpy(gather_rows(_local(self._tensor), ids - self.low))
        if not self.replica:
            return self._pull(self._tensor, torch.from_numpy(ids))
        copies = self.copies("value", _local(self._tensor))
        missing = np.unique(ids[~inside & ~self._pulled[ids]])
        if len(missing):
            copies[missing] = self._pull(self._tensor, torch.from_numpy(missing)).numpy()
            self._pulled[missing] = True
        rows = gather_rows(copies, ids)
        rows[inside] = gather_rows(_local(self._tensor), ids[inside] - self.low)
        return torch.from_numpy(rows)

    def owners_rows(self, index: Tensor) -> Tensor:
        """Rows by node id as their owners have them, (ids, width) float32."""
        return self._pull(self._tensor, index.to("cpu", torch.int64)) if self.replica else (
            self.read(index))

    def bits(self, index: Tensor) -> np.ndarray:
        """For each id the trainers that read it in DistDGL for what this one does."""
        if self.alone and not self.used and len(index):
            raise HetaError(f"rows of the DistEmbedding of '{self.ntype}' are trained where its "
                            "relations are, but another trainer reads them with gradients; read "
                            "them by the input nodes that the data loader hands out")
        return self.session.handed.bits(self.ntype, index, self.session.world.rank)

    def copies(self, name: str, like: np.ndarray) -> np.ndarray:
        """This trainer's copies of rows that others own; only touched ones cost memory."""
        if name not in self._copies:
            self._copies[name] = np.zeros((self._count, *like.shape[1:]), like.dtype)
        return self._copies[name]

    def combine(self, ids: np.ndarray, grads: np.ndarray, bits: np.ndarray
                ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unique ids with the sums of their gradients and the union of their bits."""
        if self._slots is None:
            self._slots = np.full(self._count, -1, np.int32)
        return sum_rows_with_bits(ids, grads, bits, self._slots)


def call(embedding: Any, index: Tensor, device: torch.device) -> Tensor:
    """`DistEmbedding.__call__`."""
    table: Table = embedding.heta
    reading = table.session.reading
    if reading is not None:  # a copy of a module, for a proof
        given: Tensor = reading(embedding.name, index, table.owners_rows(index).to(device))
        return given
    rows = table.read(index).to(device, non_blocking=True)
    if torch.is_grad_enabled():
        rows.requires_grad_()
        rows.heta_rows = True  # type: ignore[attr-defined]
        embedding._trace.append((index.to("cpu"), rows, table.bits(index)))
    return rows


def step(optimizer: Any, embeddings: list[Any]) -> None:
    """`step` of SparseAdam or SparseAdagrad for embeddings of meta-partitioned node types."""
    if type(optimizer) is SparseAdam:
        apply: Callable[..., None] = _adam
    elif type(optimizer) is SparseAdagrad:
        apply = _adagrad
    else:
        raise HetaError(f"optimizer {type(optimizer).__name__} cannot be used on a "
                        "meta-partitioned graph; use dgl.distributed.optim.SparseAdam or "
                        "SparseAdagrad")
    for embedding in embeddings:
        table: Table = embedding.heta
        traces = [_trace(t) for t in embedding._trace]
        if table.exact:
            ids, grads, counts = _route(table, traces)
        else:
            ids, grads, counts = _join([table.combine(*trace) for trace in traces], table)
        if optimizer._clean_grad:
            embedding.reset_trace()
        if len(ids):
            _update(optimizer, embedding, apply, ids, grads, counts)
    optimizer._clean_grad = False
    if any(e.heta.exact for e in embeddings):
        embeddings[0].heta.session.world.barrier()  # owners are done before anyone pulls


def _trace(trace: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    index, rows, bits = trace
    grad = rows.grad.cpu() if rows.grad is not None else torch.zeros(rows.shape)
    return index.numpy().astype(np.int64, copy=False), grad.numpy(), bits


def _join(pieces: list[Any], table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unique ids, summed gradients, and in how many batches of trainers each of them is."""
    if len(pieces) == 1:
        ids, grads, bits = pieces[0]
        return ids, grads, _count_bits(bits)
    if not pieces:
        return np.empty(0, np.int64), np.empty((0, table.width), np.float32), np.empty(
            0, np.float32)
    ids = np.concatenate([p[0] for p in pieces])
    unique, place = np.unique(ids, return_inverse=True)
    grads = np.zeros((len(unique), table.width), np.float32)
    np.add.at(grads, place, np.concatenate([p[1] for p in pieces]))
    counts = np.zeros(len(unique), np.float32)
    np.add.at(counts, place, np.concatenate([_count_bits(p[2]) for p in pieces]))
    return unique, grads, counts


def _route(table: Table, traces: list[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bring gradients to the rows' owners; returns what this trainer is to update.

    A key is a row's id with the bits of the trainers whose seeds reach it; sums and unions of bits
    may be made on the way. Among the trainers of the machine that has a row, id mod trainers says
    which one updates it.
    """
    world, trainers = table.session.world, np.asarray(table.session.trainers)
    rounds = int(world.all_reduce(torch.tensor([len(traces)]), "max", "control"))
    none = (np.empty(0, np.int64), np.empty((0, table.width), np.float32), np.empty(0, np.int64))
    arrived = []
    for place in range(rounds):
        ids, grads, bits = table.combine(*traces[place]) if place < len(traces) else none
        machine = np.searchsorted(table.bounds, ids, side="right") - 1
        route = RowRoute(world, trainers[machine, ids % trainers.shape[1]],
                         np.stack([ids, bits], 1))
        keys = np.ascontiguousarray(route.asked.T)
        arrived.append(table.combine(keys[0], route.deliver(torch.from_numpy(grads)).numpy(),
                                     keys[1]))
    return _join(arrived, table)


def _update(optimizer: Any, embedding: Any, apply: Callable[..., None], ids: np.ndarray,
            grads: np.ndarray, counts: np.ndarray) -> None:
    table: Table = embedding.heta
    state = optimizer._state[embedding.name]
    local = [_local(t) for t in (embedding._tensor, *(state if isinstance(state, tuple)
                                                      else (state,)))]
    inside = (ids >= table.low) & (ids < table.high)
    if inside.all():
        apply(optimizer, ids - table.low, grads, counts, *local)
        return
    apply(optimizer, ids[inside] - table.low, grads[inside], counts[inside], *local)
    names = ["value", *(f"state {i}" for i in range(len(local) - 1))]
    copies = [table.copies(name, array) for name, array in zip(names, local)]
    apply(optimizer, ids[~inside], grads[~inside], counts[~inside], *copies)


def _local(tensor: Any) -> np.ndarray:
    """The rows of a DistTensor that this machine owns, in shared memory."""
    return tensor.local_partition.numpy()


def _adam(optimizer: Any, rows: np.ndarray, grads: np.ndarray, counts: np.ndarray,
          *state: np.ndarray) -> None:
    f = np.float32
    _adam_rows(rows, grads, counts, *state, f(optimizer._lr), f(optimizer._beta1),
               f(1 - optimizer._beta1), f(optimizer._beta2), f(1 - optimizer._beta2),
               f(optimizer._eps))


def _adagrad(optimizer: Any, rows: np.ndarray, grads: np.ndarray, counts: np.ndarray,
             *state: np.ndarray) -> None:
    _adagrad_rows(rows, grads, counts, *state, np.float32(optimizer._lr),
                  np.float32(optimizer._eps))


@kernel
def _count_bits(bits):  # type: ignore[no-untyped-def]
    """The number of bits that are set, at least 1."""
    out = np.empty(len(bits), np.float32)
    for i in range(len(bits)):
        word, n = bits[i], 0
        while word != 0:
            word &= word - 1
            n += 1
        out[i] = max(n, 1)
    return out


@kernel
def _adam_rows(rows, grads, counts, value, step, first, second, lr, beta1, keep1, beta2, keep2,
               eps):  # type: ignore[no-untyped-def]
    """Adam with a step count per row (dgl.distributed.optim.SparseAdam), one pass."""
    one = np.float32(1)
    for i in range(len(rows)):
        row = rows[i]
        step[row] += one
        correct1 = one / (one - beta1 ** step[row])
        correct2 = one / (one - beta2 ** step[row])
        scale = one / counts[i]
        x, m, v, g = value[row], first[row], second[row], grads[i]
        for k in range(len(g)):
            grad = g[k] * scale
            m[k] = beta1 * m[k] + keep1 * grad
            v[k] = beta2 * v[k] + keep2 * grad * grad
            x[k] -= lr * m[k] * correct1 / (np.sqrt(v[k] * correct2) + eps)


@kernel
def _adagrad_rows(rows, grads, counts, value, total, lr, eps):  # type: ignore[no-untyped-def]
    """dgl.distributed.optim.SparseAdagrad of DGL 2.1 on CPU, one pass.

    It keeps √(Σ + g²) + ε as the next step's Σ.
    """
    for i in range(len(rows)):
        x, s, g = value[rows[i]], total[rows[i]], grads[i]
        for k in range(len(g)):
            grad = g[k] / counts[i]
            s[k] = np.sqrt(s[k] + grad * grad) + eps
            x[k] -= lr * grad / s[k]


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
