"""Steps of DistEmbedding's optimizers: gradients of rows go to who has the rows, and are applied.

A row's gradient is the mean over the times that trainers have read it since the last step, and Adam
counts steps per row: as DGL's SparseAdam and SparseAdagrad. A row of a batch is read once by each
trainer whose own batch has it in DistDGL, whoever reads it here; others as often as trainers read
them for themselves.

The owner of a row divides: a mean of means would weigh readers differently, and no trainer but the
owner learns of all of them. So gradients travel as sums, with what the number of readers follows
from: the bits of the trainers whose batches have the row, which are united, not added, because
several machines may read a row for one trainer.

Who trains replicas (`train.learnable = replica`) sends nothing. For all other embeddings of a step
there are collectives, in one order on all trainers: the forms of all tables; for each width of rows
an exchange of keys with their bits, and one of gradients, with those rows alone that another
trainer updates; a barrier at the end.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from dgl.distributed.optim import SparseAdagrad, SparseAdam

from dgl_heta.comm.row_routing import RowRoute
from dgl_heta.distdgl.autograd.partial_gradients import whole
from dgl_heta.distdgl.batch_ids import Readers
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.rows.embedding_table import Table
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import each_once, marked, sum_rows, sum_rows_with_bits
from dgl_heta.features.row_optimizers import adagrad_by_row, adam_by_row
from dgl_heta.sampling.trainer_bits import count_trainers


class Rows(NamedTuple):
    """Gradients of rows of one table.

    A row that two batches have counts once for each, so a row's id is no key: its readers' bits
    would be united over both. The key is id × reads + number of the read, as :class:`Form` counts
    reads; where each trainer has read once, that is the id.

    Attributes
    ----------
    keys : int64 (n,), each once.
    at : int64 (n,), which row of `grads` is each one's gradient.
    grads : float32 (m, width); with a column more, where any trainer reads rows for itself: how
        often.
    bits : int64 (n,), the trainers whose batches have the row.
    """

    keys: np.ndarray
    at: np.ndarray
    grads: np.ndarray
    bits: np.ndarray

    def masked(self, mask: np.ndarray) -> Rows:
        """Return the rows at a mask; gradients are not copied."""
        return Rows(self.keys[mask], self.at[mask], self.grads, self.bits[mask])

    def values(self) -> np.ndarray:
        """Return the gradients in the order of `keys`, (n, width)."""
        return self.grads[self.at]


class Read(NamedTuple):
    """Rows that were read at once.

    Attributes
    ----------
    ids, grads : of the rows; int64 (n,), float32 (n, width).
    bits : int64 (n,), the trainers whose batches have them; None where this trainer has read them
        for itself.
    batch : the number of the batch.
    """

    ids: np.ndarray
    grads: np.ndarray
    bits: np.ndarray | None
    batch: int = 0


class Form(NamedTuple):
    """Facts about a table's rows in a step on which all trainers agree.

    Attributes
    ----------
    first, last : the batches of which rows were read, on any trainer; `last` is before `first`
        where nobody has.
    times : so often were rows of one batch read at most.
    counted : whether any trainer has read rows for itself.
    away : whether any has rows that another one updates.
    """

    first: int
    last: int
    times: int
    counted: bool
    away: bool

    @property
    def reads(self) -> int:
        """As many as there may have been. A trainer may leave out one, as of no rows, so they are
        numbered by their batches, which all trainers have alike."""
        return max(1, self.last - self.first + 1) * self.times

    def numbers(self, reads: Sequence[Read]) -> Iterator[int]:
        """Yield the number of each read; 0 for one that is of no batch."""
        before: Counter[int] = Counter()
        for read in reads:
            at = (read.batch - self.first) * self.times + before[read.batch]
            yield at if read.bits is not None else 0
            before[read.batch] += read.bits is not None


_NEVER = 1 << 62
"""The first batch, where there is none."""

Counted = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Ids, positions of gradients, gradients, and how often trainers have read each row (float32)."""


def step(optimizer: Any, embeddings: list[Any]) -> None:
    """Step as SparseAdam or SparseAdagrad for embeddings of meta-partitioned node types."""
    if type(optimizer) is SparseAdam:
        apply: Callable[..., None] = _adam
    elif type(optimizer) is SparseAdagrad:
        apply = _adagrad
    else:
        refuse("another sparse optimizer", optimizer=type(optimizer).__name__)
    tables: list[Table] = [e.heta for e in embeddings]
    routed = [e for e, table in zip(embeddings, tables) if not table.replica]
    if routed:
        _check_alike(optimizer, routed)
    collected = collect(tables, [[_read(*one) for one in e._trace] for e in embeddings])
    for embedding, pieces in zip(embeddings, collected):
        if optimizer._clean_grad:
            embedding.reset_trace()
        for ids, at, grads, counts in pieces:
            if len(ids):
                _update(optimizer, embedding, apply, ids, at, grads, counts)
    optimizer._clean_grad = False
    if routed:
        tables[0].session.world.barrier()  # owners are done before anyone pulls


def collect(tables: Sequence[Table], reads: Sequence[Sequence[Read]]) -> list[list[Counted]]:
    """Return per table the rows that this trainer is to update, of what all trainers have read.

    They come in pieces without a row in common. All trainers call it alike.
    """
    routed = [i for i, table in enumerate(tables) if not table.replica]
    forms = [_form(table, of_table) for table, of_table in zip(tables, reads)]
    for i, form in zip(routed, _agreed([tables[i] for i in routed], [forms[i] for i in routed])):
        forms[i] = form
    pieces = [[_rows(*each)] for each in zip(tables, reads, forms)]
    # The forms are the same on all trainers, so they leave out the same tables here.
    sent = [i for i in routed if forms[i].away]
    for i, rows in zip(sent, _route([tables[i] for i in sent], [pieces[i][0] for i in sent],
                                    [forms[i] for i in sent])):
        pieces[i] = rows
    return [_counted(*each) for each in zip(tables, pieces, forms)]


class _Checked:
    """Optimizers whose shared embeddings all trainers have agreed upon, with these."""

    def __init__(self) -> None:
        self.embeddings: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _check_alike(optimizer: Any, embeddings: Sequence[Any]) -> None:
    """Check that the optimizers of all trainers have the same embeddings in the same order.

    Raises
    ------
    HetaError
        They have not.
    """
    here = [[e.name, e.heta.count, e.heta.width] for e in embeddings]
    checked = state_of(_Checked).embeddings
    if checked.get(optimizer) == here:
        return
    world = embeddings[0].heta.session.world
    for rank, there in enumerate(world.all_gather_json(here, "control")):
        if there != here:
            names = [" ".join(e[0] for e in each) for each in (here, there)]
            raise HetaError(f"a sparse optimizer has the DistEmbeddings {names[0]} here and "
                            f"{names[1]} on trainer {rank}; give all trainers' the same, in the "
                            "same order")
    checked[optimizer] = here


def _read(index: Any, rows: Any, readers: Readers | None) -> Read:
    """Return one entry of DGL's trace of an embedding as a read."""
    grad = whole(rows.grad).cpu() if rows.grad is not None else torch.zeros(rows.shape)
    ids = index.numpy().astype(np.int64, copy=False)
    of = (None,) if readers is None else (readers.bits, readers.batch)
    return Read(ids, grad.contiguous().numpy(), *of)


def _form(table: Table, reads: Sequence[Read]) -> Form:
    """Return the form of a table's rows as this trainer has read them."""
    batches = Counter(read.batch for read in reads if read.bits is not None)
    away = table.shared or any(len(read.ids) and not (
        table.exclusive and read.ids.min() >= table.low and read.ids.max() < table.high)
        for read in reads)
    return Form(min(batches, default=_NEVER), max(batches, default=0),
                max(batches.values(), default=1), any(read.bits is None for read in reads), away)


def _agreed(tables: Sequence[Table], forms: Sequence[Form]) -> list[Form]:
    """Return forms for which the rows of all trainers have room; all of them call it."""
    if not tables or tables[0].session.world.size == 1:
        return [form._replace(away=False) for form in forms]
    every = tables[0].session.world.all_reduce(torch.tensor(
        [form._replace(first=-form.first) for form in forms], dtype=torch.int64), "max", "control")
    return [Form(-first, last, times, bool(counted), bool(away))
            for first, last, times, counted, away in every.tolist()]


def _rows(table: Table, reads: Sequence[Read], form: Form) -> Rows:
    """Return what a trainer has read of a table since the last step, each row of a batch once."""
    pieces = []
    for number, (ids, grads, bits, _) in zip(form.numbers(reads), reads):
        if bits is None:
            # No bits: these are counted, in the column that is summed with the gradients.
            ids, grads = sum_rows(ids, _with_column(grads, 1), table.slots)
            pieces.append(Rows(ids * form.reads, np.arange(len(ids)), grads,
                               np.zeros(len(ids), np.int64)))
        else:
            if not each_once(ids, table.slots):  # seeds of several trainers
                ids, grads, bits = sum_rows_with_bits(ids, grads, bits, table.slots)
            pieces.append(Rows(ids if form.reads == 1 else ids * form.reads + number,
                               np.arange(len(ids)),
                               _with_column(grads, 0) if form.counted else grads, bits))
    if not pieces:
        none = np.empty(0, np.int64)
        return Rows(none, none, np.empty((0, table.width + form.counted), np.float32), none)
    return pieces[0] if len(pieces) == 1 else _once(table, pieces, form)


def _with_column(grads: np.ndarray, value: int) -> np.ndarray:
    """Return gradients with a number more in each row."""
    return np.column_stack([grads, np.full(len(grads), value, grads.dtype)])


def _once(table: Table, pieces: Sequence[Rows], form: Form) -> Rows:
    """Return the rows of several pieces with each key once: sums of gradients, unions of bits."""
    keys, bits = (np.concatenate([piece[column] for piece in pieces]) for column in (0, 3))
    grads = np.concatenate([piece.values() for piece in pieces])
    if form.reads == 1:  # keys are ids
        if not each_once(keys, table.slots):
            keys, grads, bits = sum_rows_with_bits(keys, grads, bits, table.slots)
        return Rows(keys, np.arange(len(keys)), grads, bits)
    unique, position = np.unique(keys, return_inverse=True)
    sums, united = np.zeros((len(unique), grads.shape[1]), grads.dtype), np.zeros_like(unique)
    np.add.at(sums, position, grads)
    np.bitwise_or.at(united, position, bits)
    return Rows(unique, np.arange(len(unique)), sums, united)


def _route(tables: Sequence[Table], rows: Sequence[Rows], forms: Sequence[Form]
           ) -> list[list[Rows]]:
    """Bring gradients to the rows' owners; every trainer must call it alike.

    Return per table what this trainer is to update, in pieces that may have keys in common. Tables
    of one width travel together, the narrowest first: the order is the same on all trainers,
    because widths follow from the tables and the forms.
    """
    pieces: dict[int, list[Rows]] = {}
    for width in sorted({of_table.grads.shape[1] for of_table in rows}):
        alike = [i for i, of_table in enumerate(rows) if of_table.grads.shape[1] == width]
        pieces.update(zip(alike, _exchanged([tables[i] for i in alike], [rows[i] for i in alike],
                                            [forms[i] for i in alike])))
    return [pieces[i] for i in range(len(tables))]


def _exchanged(tables: Sequence[Table], rows: Sequence[Rows], forms: Sequence[Form]
               ) -> list[list[Rows]]:
    """Return rows of several tables of one width: those that stay here, and those that arrive."""
    first = np.cumsum([0, *(table.count * form.reads for table, form in zip(tables, forms))])
    world = tables[0].session.world
    stay, keys, owners, grads = [], [], [], []
    for table, of_table, form, start in zip(tables, rows, forms, first):
        owner = _owners(table, of_table.keys if form.reads == 1 else of_table.keys // form.reads)
        away = owner != world.rank
        leave = of_table.masked(away)
        stay.append(of_table.masked(~away) if away.any() else of_table)
        # The tables' keys are numbered one after the other, so that one exchange serves them all.
        # Sums and unions may be made on the way, between machines (comm.row_routing), so a key
        # travels with its bits.
        keys.append(np.stack([leave.keys + start, leave.bits], 1))
        owners.append(owner[away])
        grads.append(leave.values())
    route = RowRoute(world, np.concatenate(owners), np.concatenate(keys))
    arrived = route.deliver(torch.from_numpy(np.concatenate(grads))).numpy()
    arrived_keys, bits = np.ascontiguousarray(route.asked.T)
    of_table = np.searchsorted(first, arrived_keys, side="right") - 1
    pieces = []
    for number, (table, here) in enumerate(zip(tables, stay)):
        chosen = np.flatnonzero(of_table == number)
        pieces.append([here, _once(table, [Rows(
            arrived_keys[chosen] - first[number], chosen, arrived, bits[chosen])], forms[number])])
    return pieces


def _owners(table: Table, ids: np.ndarray) -> np.ndarray:
    """Return the rank of the trainer that updates each row.

    A row is in the shared memory of one machine; its trainers share the work by id mod trainers.
    """
    trainers = np.asarray(table.session.groups.trainers)
    machine = np.searchsorted(table.bounds, ids, side="right") - 1
    owners: np.ndarray = trainers[machine, ids % trainers.shape[1]]
    return owners


def _counted(table: Table, pieces: list[Rows], form: Form) -> list[Counted]:
    """Return pieces as rows to update, each row in one of them, with its number of reads."""
    if form.reads == 1:
        counted = [(rows.keys, rows.at, rows.grads, _counts(rows, form))
                   for rows in _apart(table, pieces, form)]
    else:
        rows = _once(table, pieces, form)
        ids, sums = sum_rows(rows.keys // form.reads, np.column_stack([
            rows.grads, _counts(rows, form)]), table.slots)
        counted = [(ids, np.arange(len(ids)), sums[:, :-1], sums[:, -1])]
    return [(ids, at, np.ascontiguousarray(grads[:, :table.width]), np.maximum(counts, 1))
            for ids, at, grads, counts in counted]


def _counts(rows: Rows, form: Form) -> np.ndarray:
    """Return how often trainers have read each row, float32 (n,)."""
    counts: np.ndarray = count_trainers(rows.bits)
    return counts + rows.grads[rows.at, -1] if form.counted else counts


def _apart(table: Table, pieces: list[Rows], form: Form) -> list[Rows]:
    """Return pieces without a key in common.

    The first, long one stays as it is, not copied; only keys that others have sent, too, are summed
    with what they sent.
    """
    if len(pieces) < 2 or not len(pieces[1].keys):
        return pieces[:1]
    here, arrived = pieces
    both = marked(here.keys, arrived.keys, table.slots)
    if not both.any():
        return pieces
    return [here.masked(~both), _once(table, [here.masked(both), arrived], form)]


def _update(optimizer: Any, embedding: Any, apply: Callable[..., None], ids: np.ndarray,
            at: np.ndarray, grads: np.ndarray, counts: np.ndarray) -> None:
    """Apply gradients to rows in this machine's shared memory, and to copies of others' rows."""
    table: Table = embedding.heta
    state = optimizer._state[embedding.name]
    local = [table.local(t) for t in (embedding._tensor, *(state if isinstance(state, tuple)
                                                           else (state,)))]
    inside = (ids >= table.low) & (ids < table.high)
    if inside.all():
        apply(optimizer, ids - table.low, at, grads, counts, *local)
        return
    # Rows of other machines are here in replicas alone; their optimizer states are copies, too.
    apply(optimizer, ids[inside] - table.low, at[inside], grads, counts[inside], *local)
    copies = [table.copies(), *table.state_copies(optimizer, local[1:])]
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
