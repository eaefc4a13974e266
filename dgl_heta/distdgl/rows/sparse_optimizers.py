"""Steps of DistEmbedding's optimizers: gradients of rows go to who has the rows, and are applied.

A row's gradient is the mean over the times that trainers have read it since the last step, and Adam
counts steps per row: as DGL's SparseAdam and SparseAdagrad. A row of a batch is read once by each
trainer whose own batch has it in DistDGL, whoever reads it here; others as often as trainers read
them for themselves. For all embeddings of a step there is one exchange, of those rows alone that
another trainer updates (`train.learnable = exact`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from dgl.distributed.optim import SparseAdagrad, SparseAdam

from dgl_heta.comm.row_routing import RowRoute
from dgl_heta.distdgl.autograd.partial_gradients import whole
from dgl_heta.distdgl.rows.embedding_table import Table
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import each_once, marked, sum_rows, sum_rows_with_bits
from dgl_heta.features.sparse_optimizers import adagrad_by_row, adam_by_row
from dgl_heta.sampling.trainer_bits import count_trainers


class Rows(NamedTuple):
    """Gradients of rows of one table.

    Attributes
    ----------
    keys : int64 (n,), each once: a row's id times the number of reads, plus which of them it is.
    at : int64 (n,), which row of `grads` is each one's gradient.
    grads : float32 (m, width); with a column more, where anybody reads rows for himself: how often.
    bits : int64 (n,), the trainers whose batches have the row.
    """

    keys: np.ndarray
    at: np.ndarray
    grads: np.ndarray
    bits: np.ndarray

    def some(self, chosen: np.ndarray) -> Rows:
        """Those at a mask."""
        return Rows(self.keys[chosen], self.at[chosen], self.grads, self.bits[chosen])

    def values(self) -> np.ndarray:
        """The gradients in the order of `keys`, (n, width)."""
        return self.grads[self.at]


Read = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]
"""Ids of rows that were read at once, their gradients, and the trainers whose batches have them
(bits); None where this trainer has read them for itself."""


class Form(NamedTuple):
    """What all trainers know of a table's rows in a step.

    Attributes
    ----------
    reads : so many times rows of batches were read, the last of them on any trainer.
    counted : whether any trainer has read rows for itself.
    away : whether any has rows that another one updates.
    """

    reads: int
    counted: bool
    away: bool


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
    exact = [e for e, table in zip(embeddings, tables) if not table.replica]
    if exact:
        _check_alike(optimizer, exact)
    collected = collect(tables, [[_read(*one) for one in e._trace] for e in embeddings])
    for embedding, pieces in zip(embeddings, collected):
        if optimizer._clean_grad:
            embedding.reset_trace()
        for ids, at, grads, counts in pieces:
            if len(ids):
                _update(optimizer, embedding, apply, ids, at, grads, counts)
    optimizer._clean_grad = False
    if exact:
        tables[0].session.world.barrier()  # owners are done before anyone pulls


Counted = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Ids, places of gradients, gradients, and how often trainers have read each row (float32)."""


def collect(tables: Sequence[Table], reads: Sequence[Sequence[Read]]) -> list[list[Counted]]:
    """Per table the rows that this trainer is to update, in pieces without a row in common, of what
    all trainers have read; all of them call it alike."""
    exact = [i for i, table in enumerate(tables) if not table.replica]
    forms = [_form(table, own) for table, own in zip(tables, reads)]
    for i, form in zip(exact, _agreed([tables[i] for i in exact], [forms[i] for i in exact])):
        forms[i] = form
    pieces = [[_rows(*each)] for each in zip(tables, reads, forms)]
    sent = [i for i in exact if forms[i].away]
    for i, routed in zip(sent, _route([tables[i] for i in sent], [pieces[i][0] for i in sent],
                                      [forms[i] for i in sent])):
        pieces[i] = routed
    return [_counted(*each) for each in zip(tables, pieces, forms)]


class _Checked:
    """Optimizers whose shared embeddings all trainers have agreed upon, with these."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _check_alike(optimizer: Any, embeddings: Sequence[Any]) -> None:
    """
    Raises
    ------
    HetaError
        The optimizers of two trainers have other embeddings, or the same in another order.
    """
    own = [[e.name, e.heta.count, e.heta.width] for e in embeddings]
    checked = state_of(_Checked).of
    if checked.get(optimizer) == own:
        return
    world = embeddings[0].heta.session.world
    for rank, other in enumerate(world.all_gather_json(own, "control")):
        if other != own:
            names = [" ".join(e[0] for e in each) for each in (own, other)]
            raise HetaError(f"a sparse optimizer has the DistEmbeddings {names[0]} here and "
                            f"{names[1]} on trainer {rank}; give all trainers' the same, in the "
                            "same order")
    checked[optimizer] = own


def _read(index: Any, rows: Any, bits: np.ndarray | None) -> Read:
    """What a script has read at once."""
    grad = whole(rows.grad).cpu() if rows.grad is not None else torch.zeros(rows.shape)
    return index.numpy().astype(np.int64, copy=False), grad.contiguous().numpy(), bits


def _form(table: Table, reads: Sequence[Read]) -> Form:
    """What one trainer knows of it."""
    of_batches = [place for place, (_, _, bits) in enumerate(reads) if bits is not None]
    away = table.shared or any(len(ids) and not (
        table.own and ids.min() >= table.low and ids.max() < table.high) for ids, _, _ in reads)
    return Form(1 + max(of_batches, default=0), any(bits is None for _, _, bits in reads), away)


def _agreed(tables: Sequence[Table], forms: Sequence[Form]) -> list[Form]:
    """The same of all trainers, who all ask."""
    if not tables or tables[0].session.world.size == 1:
        return [form._replace(away=False) for form in forms]
    every = tables[0].session.world.all_reduce(torch.tensor(forms, dtype=torch.int64), "max",
                                               "control")
    return [Form(reads, bool(counted), bool(away)) for reads, counted, away in every.tolist()]


def _rows(table: Table, reads: Sequence[Read], form: Form) -> Rows:
    """What a trainer has read of a table since the last step, each row of each batch once."""
    found = []
    for place, (ids, grads, bits) in enumerate(reads):
        if bits is None:
            ids, grads = sum_rows(ids, _column(grads, 1), table.slots)
            found.append(Rows(ids * form.reads, np.arange(len(ids)), grads,
                              np.zeros(len(ids), np.int64)))
        else:
            if not each_once(ids, table.slots):  # seeds of several trainers
                ids, grads, bits = sum_rows_with_bits(ids, grads, bits, table.slots)
            found.append(Rows(ids if form.reads == 1 else ids * form.reads + place,
                              np.arange(len(ids)),
                              _column(grads, 0) if form.counted else grads, bits))
    if not found:
        return _none(table.width + form.counted)
    return found[0] if len(found) == 1 else _once(table, found, form)


def _column(grads: np.ndarray, value: int) -> np.ndarray:
    """Gradients with a number more in each row."""
    return np.column_stack([grads, np.full(len(grads), value, grads.dtype)])


def _none(width: int) -> Rows:
    none = np.empty(0, np.int64)
    return Rows(none, none, np.empty((0, width), np.float32), none)


def _once(table: Table, pieces: Sequence[Rows], form: Form) -> Rows:
    """Rows of several pieces, each key once, with the sum of its gradients and the union of its
    bits."""
    keys, bits = (np.concatenate([piece[column] for piece in pieces]) for column in (0, 3))
    grads = np.concatenate([piece.values() for piece in pieces])
    if form.reads == 1:  # keys are ids
        if not each_once(keys, table.slots):
            keys, grads, bits = sum_rows_with_bits(keys, grads, bits, table.slots)
        return Rows(keys, np.arange(len(keys)), grads, bits)
    unique, place = np.unique(keys, return_inverse=True)
    sums, united = np.zeros((len(unique), grads.shape[1]), grads.dtype), np.zeros_like(unique)
    np.add.at(sums, place, grads)
    np.bitwise_or.at(united, place, bits)
    return Rows(unique, np.arange(len(unique)), sums, united)


def _route(tables: Sequence[Table], given: Sequence[Rows], forms: Sequence[Form]
           ) -> list[list[Rows]]:
    """Bring gradients to the rows' owners. Per table what this trainer is to update, in pieces that
    may have keys in common; every trainer must call it alike.

    What is sent is keyed by a row's key with the bits of the trainers whose seeds reach it; sums
    and unions of bits may be made on the way. Among the trainers of the machine that has a row, id
    mod trainers says which one updates it.
    """
    found: dict[int, list[Rows]] = {}
    for width in sorted({rows.grads.shape[1] for rows in given}):
        alike = [i for i, rows in enumerate(given) if rows.grads.shape[1] == width]
        found.update(zip(alike, _exchanged([tables[i] for i in alike], [given[i] for i in alike],
                                           [forms[i] for i in alike])))
    return [found[i] for i in range(len(tables))]


def _exchanged(tables: Sequence[Table], given: Sequence[Rows], forms: Sequence[Form]
               ) -> list[list[Rows]]:
    """Rows of several tables of one width: the own ones, and those that came from others."""
    world, trainers = tables[0].session.world, np.asarray(tables[0].session.groups.trainers)
    first = np.cumsum([0, *(table.count * form.reads for table, form in zip(tables, forms))])
    own, keys, owners, grads = [], [], [], []  # the tables' keys one after the other
    for table, rows, form, start in zip(tables, given, forms, first):
        ids = rows.keys if form.reads == 1 else rows.keys // form.reads
        machine = np.searchsorted(table.bounds, ids, side="right") - 1
        owner = trainers[machine, ids % trainers.shape[1]]
        away = owner != world.rank
        there = rows.some(away)
        own.append(rows.some(~away) if away.any() else rows)
        keys.append(np.stack([there.keys + start, there.bits], 1))
        owners.append(owner[away])
        grads.append(there.values())
    route = RowRoute(world, np.concatenate(owners), np.concatenate(keys))
    arrived = route.deliver(torch.from_numpy(np.concatenate(grads))).numpy()
    found, bits = np.ascontiguousarray(route.asked.T)
    of_table = np.searchsorted(first, found, side="right") - 1
    pieces = []
    for place, (table, mine) in enumerate(zip(tables, own)):
        chosen = np.flatnonzero(of_table == place)
        pieces.append([mine, _once(table, [Rows(
            found[chosen] - first[place], chosen, arrived, bits[chosen])], forms[place])])
    return pieces


def _counted(table: Table, pieces: list[Rows], form: Form) -> list[Counted]:
    """Pieces as rows to update, each row in one of them."""
    if form.reads == 1:
        found = [(rows.keys, rows.at, rows.grads, _counts(rows, form))
                 for rows in _apart(table, pieces, form)]
    else:
        rows = _once(table, pieces, form)
        ids, sums = sum_rows(rows.keys // form.reads, np.column_stack([
            rows.grads, _counts(rows, form)]), table.slots)
        found = [(ids, np.arange(len(ids)), sums[:, :-1], sums[:, -1])]
    return [(ids, at, np.ascontiguousarray(grads[:, :table.width]), np.maximum(counts, 1))
            for ids, at, grads, counts in found]


def _counts(rows: Rows, form: Form) -> np.ndarray:
    """How often trainers have read each, float32."""
    counts: np.ndarray = count_trainers(rows.bits)
    return counts + rows.grads[rows.at, -1] if form.counted else counts


def _apart(table: Table, pieces: list[Rows], form: Form) -> list[Rows]:
    """Pieces without a key in common: those that the first, long one has from others, too, are
    summed."""
    if len(pieces) < 2 or not len(pieces[1].keys):
        return pieces[:1]
    own, others = pieces
    both = marked(own.keys, others.keys, table.slots)
    if not both.any():
        return pieces
    return [own.some(~both), _once(table, [own.some(both), others], form)]


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
    adam_by_row(rows, at, grads, counts, *state, f(optimizer._lr), f(optimizer._beta1),
                f(1 - optimizer._beta1), f(optimizer._beta2), f(1 - optimizer._beta2),
                f(optimizer._eps))


def _adagrad(optimizer: Any, rows: np.ndarray, at: np.ndarray, grads: np.ndarray,
             counts: np.ndarray, *state: np.ndarray) -> None:
    adagrad_by_row(rows, at, grads, counts, *state, np.float32(optimizer._lr),
                   np.float32(optimizer._eps))
