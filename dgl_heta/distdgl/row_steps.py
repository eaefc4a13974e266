"""Steps of DistEmbedding's optimizers: gradients of rows go to who has the rows, and are applied.

A row's gradient is the mean over the trainers whose batches have it, and Adam counts steps per row:
as DGL's SparseAdam and SparseAdagrad. For all embeddings of a step there is one exchange, of those
rows alone that another trainer updates (`train.learnable = exact`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from dgl.distributed.optim import SparseAdagrad, SparseAdam

from dgl_heta.comm.row_routing import RowRoute
from dgl_heta.distdgl.partial import whole
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import each_once, marked, sum_rows_with_bits
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

if TYPE_CHECKING:
    from dgl_heta.distdgl.embedding import Table


class Rows(NamedTuple):
    """Gradients of rows of one table.

    Attributes
    ----------
    ids : int64 (n,), each row once.
    at : int64 (n,), which row of `grads` is each one's gradient.
    grads : float32 (m, width).
    bits : int64 (n,), the trainers whose batches have the row.
    """

    ids: np.ndarray
    at: np.ndarray
    grads: np.ndarray
    bits: np.ndarray

    def some(self, chosen: np.ndarray) -> Rows:
        """Those at a mask."""
        return Rows(self.ids[chosen], self.at[chosen], self.grads, self.bits[chosen])

    def values(self) -> np.ndarray:
        """The gradients in the order of `ids`, (n, width)."""
        return self.grads[self.at]


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
    tables: list[Table] = [e.heta for e in embeddings]
    traces = [[_rows(table, *one) for one in e._trace] for e, table in zip(embeddings, tables)]
    shared = [i for i, table in enumerate(tables) if table.exact]
    if shared:
        _check_alike(optimizer, [embeddings[i] for i in shared])
    batches: list[list[list[Rows]]] = [[[rows] for rows in own] for own in traces]
    for i, routed in zip(shared, _route([tables[i] for i in shared], [traces[i] for i in shared])):
        batches[i] = routed
    for embedding, table, pieces in zip(embeddings, tables, batches):
        if optimizer._clean_grad:
            embedding.reset_trace()
        for ids, at, grads, counts in _joined(table, pieces):
            if len(ids):
                _update(optimizer, embedding, apply, ids, at, grads, counts)
    optimizer._clean_grad = False
    if shared:
        tables[0].session.world.barrier()  # owners are done before anyone pulls


_checked: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""Optimizers whose shared embeddings all trainers have agreed upon, with these."""


def _check_alike(optimizer: Any, embeddings: Sequence[Any]) -> None:
    """
    Raises
    ------
    HetaError
        The optimizers of two trainers have other embeddings, or the same in another order.
    """
    own = [[e.name, e.heta.count, e.heta.width] for e in embeddings]
    if _checked.get(optimizer) == own:
        return
    world = embeddings[0].heta.session.world
    for rank, other in enumerate(world.all_gather_json(own, "control")):
        if other != own:
            names = [" ".join(e[0] for e in each) for each in (own, other)]
            raise HetaError(f"a sparse optimizer has the DistEmbeddings {names[0]} here and "
                            f"{names[1]} on trainer {rank}; give all trainers' the same, in the "
                            "same order")
    _checked[optimizer] = own


def _rows(table: Table, index: Any, rows: Any, bits: np.ndarray) -> Rows:
    """What a script has read once, with the gradients."""
    ids = index.numpy().astype(np.int64, copy=False)
    grad = whole(rows.grad).cpu() if rows.grad is not None else torch.zeros(rows.shape)
    return _once(table, ids, grad.contiguous().numpy(), bits)


def _once(table: Table, ids: np.ndarray, grads: np.ndarray, bits: np.ndarray) -> Rows:
    """Each id once, with the sum of its gradients and the union of its bits."""
    if not each_once(ids, table.slots):
        ids, grads, bits = sum_rows_with_bits(ids, grads, bits, table.slots)
    return Rows(ids, np.arange(len(ids)), grads, bits)


def _route(tables: Sequence[Table], traces: Sequence[list[Rows]]) -> list[list[list[Rows]]]:
    """Bring gradients to the rows' owners. Per table and batch what this trainer is to update, in
    pieces that may have rows in common; every trainer must call it alike.

    A key is a row's id with the bits of the trainers whose seeds reach it; sums and unions of bits
    may be made on the way. Among the trainers of the machine that has a row, id mod trainers says
    which one updates it.
    """
    if not tables:
        return []
    world = tables[0].session.world
    rounds = world.all_reduce(torch.tensor([len(t) for t in traces]), "max", "control").tolist()
    found: list[list[list[Rows]]] = [[[] for _ in range(count)] for count in rounds]
    for width in sorted({table.width for table in tables}):
        alike = [i for i, table in enumerate(tables) if table.width == width]
        for number in range(max(rounds[i] for i in alike)):
            now = [i for i in alike if number < rounds[i]]
            given = [traces[i][number] if number < len(traces[i]) else _none(width) for i in now]
            for i, pieces in zip(now, _exchanged([tables[i] for i in now], given)):
                found[i][number] = pieces
    return found


def _exchanged(tables: Sequence[Table], given: Sequence[Rows]) -> list[list[Rows]]:
    """Rows of several tables of one width: the own ones, and those that came from others."""
    world, trainers = tables[0].session.world, np.asarray(tables[0].session.trainers)
    first = np.cumsum([0, *(table.count for table in tables)])  # the tables one after the other
    own, keys, owners, grads = [], [], [], []
    for table, rows, start in zip(tables, given, first):
        machine = np.searchsorted(table.bounds, rows.ids, side="right") - 1
        owner = trainers[machine, rows.ids % trainers.shape[1]]
        away = owner != world.rank
        there = rows.some(away)
        own.append(rows.some(~away) if away.any() else rows)
        keys.append(np.stack([there.ids + start, there.bits], 1))
        owners.append(owner[away])
        grads.append(there.values())
    route = RowRoute(world, np.concatenate(owners), np.concatenate(keys))
    arrived = route.deliver(torch.from_numpy(np.concatenate(grads))).numpy()
    ids, bits = np.ascontiguousarray(route.asked.T)
    of_table = np.searchsorted(first, ids, side="right") - 1
    pieces = []
    for place, (table, mine) in enumerate(zip(tables, own)):
        chosen = np.flatnonzero(of_table == place)
        pieces.append([mine, _once(table, ids[chosen] - first[place], arrived[chosen],
                                   bits[chosen])])
    return pieces


def _none(width: int) -> Rows:
    none = np.empty(0, np.int64)
    return Rows(none, none, np.empty((0, width), np.float32), none)


Counted = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Ids, places of gradients, gradients, and in how many batches of trainers each row is."""


def _joined(table: Table, batches: Sequence[list[Rows]]) -> list[Counted]:
    """The batches that were read since the last step as rows to update, each row in one piece."""
    if len(batches) == 1:
        return [(rows.ids, rows.at, rows.grads, _count_bits(rows.bits))
                for rows in _apart(table, batches[0])]
    rows = [piece for pieces in batches for piece in _apart(table, pieces)]
    if not rows:
        return []
    ids = np.concatenate([piece.ids for piece in rows])
    unique, place = np.unique(ids, return_inverse=True)
    grads = np.zeros((len(unique), table.width), np.float32)
    np.add.at(grads, place, np.concatenate([piece.values() for piece in rows]))
    counts = np.zeros(len(unique), np.float32)
    np.add.at(counts, place, np.concatenate([_count_bits(piece.bits) for piece in rows]))
    return [(unique, np.arange(len(unique)), grads, counts)]


def _apart(table: Table, pieces: list[Rows]) -> list[Rows]:
    """Pieces without a row in common: those that the first, long one has from others, too, are
    summed."""
    if len(pieces) < 2 or not len(pieces[1].ids):
        return pieces[:1]
    own, others = pieces
    both = marked(own.ids, others.ids, table.slots)
    if not both.any():
        return pieces
    common = own.some(both)
    summed = _once(table, np.concatenate([common.ids, others.ids]),
                   np.concatenate([common.values(), others.values()]),
                   np.concatenate([common.bits, others.bits]))
    return [own.some(~both), summed]


def _update(optimizer: Any, embedding: Any, apply: Callable[..., None], ids: np.ndarray,
            at: np.ndarray, grads: np.ndarray, counts: np.ndarray) -> None:
    table: Table = embedding.heta
    state = optimizer._state[embedding.name]
    local = [table.local(t) for t in (embedding._tensor, *(state if isinstance(state, tuple)
                                                           else (state,)))]
    inside = (ids >= table.low) & (ids < table.high)
    if inside.all():
        apply(optimizer, ids - table.low, at, grads, counts, *local)
        return
    apply(optimizer, ids[inside] - table.low, at[inside], grads, counts[inside], *local)
    names = ["value", *(f"state {i}" for i in range(len(local) - 1))]
    copies = [table.copies(name, array) for name, array in zip(names, local)]
    apply(optimizer, ids[~inside], at[~inside], grads, counts[~inside], *copies)


def _adam(optimizer: Any, rows: np.ndarray, at: np.ndarray, grads: np.ndarray, counts: np.ndarray,
          *state: np.ndarray) -> None:
    f = np.float32
    _adam_rows(rows, at, grads, counts, *state, f(optimizer._lr), f(optimizer._beta1),
               f(1 - optimizer._beta1), f(optimizer._beta2), f(1 - optimizer._beta2),
               f(optimizer._eps))


def _adagrad(optimizer: Any, rows: np.ndarray, at: np.ndarray, grads: np.ndarray,
             counts: np.ndarray, *state: np.ndarray) -> None:
    _adagrad_rows(rows, at, grads, counts, *state, np.float32(optimizer._lr),
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
def _adam_rows(rows, at, grads, counts, value, step, first, second, lr, beta1, keep1, beta2, keep2,
               eps):  # type: ignore[no-untyped-def]
    """Adam with a step count per row (dgl.distributed.optim.SparseAdam), one pass."""
    one = np.float32(1)
    for i in range(len(rows)):
        prefetch(value, rows, i)
        prefetch(step, rows, i)
        prefetch(first, rows, i)
        prefetch(second, rows, i)
        prefetch(grads, at, i)
        row = rows[i]
        step[row] += one
        correct1 = one / (one - beta1 ** step[row])
        correct2 = one / (one - beta2 ** step[row])
        scale = one / counts[i]
        x, m, v, g = value[row], first[row], second[row], grads[at[i]]
        for k in range(len(g)):
            grad = g[k] * scale
            m[k] = beta1 * m[k] + keep1 * grad
            v[k] = beta2 * v[k] + keep2 * grad * grad
            x[k] -= lr * m[k] * correct1 / (np.sqrt(v[k] * correct2) + eps)


@kernel
def _adagrad_rows(rows, at, grads, counts, value, total, lr, eps):  # type: ignore[no-untyped-def]
    """dgl.distributed.optim.SparseAdagrad of DGL 2.1 on CPU, one pass.

    It keeps √(Σ + g²) + ε as the next step's Σ.
    """
    for i in range(len(rows)):
        prefetch(value, rows, i)
        prefetch(total, rows, i)
        prefetch(grads, at, i)
        x, s, g = value[rows[i]], total[rows[i]], grads[at[i]]
        for k in range(len(g)):
            grad = g[k] / counts[i]
            s[k] = np.sqrt(s[k] + grad * grad) + eps
            x[k] -= lr * grad / s[k]
