"""Rows that a step updates: each once, whoever had gradients of it, in however many batches."""

from __future__ import annotations

import os
import weakref
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
import torch

from dgl_heta.distdgl.rows import embedding_steps
from dgl_heta.distdgl.rows.embedding_table import Table
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import each_once, marked
from tests.support.threads import ThreadComm, together

COUNT = 12


@pytest.mark.parametrize(("ids", "once"), [([], True), ([3], True), ([3, 0, 11], True),
                                           ([3, 0, 3], False)])
def test_ids_that_are_there_twice_are_found(ids: list[int], once: bool) -> None:
    slots = np.full(COUNT, -1, np.int32)
    assert each_once(np.array(ids, np.int64), slots) == once
    assert (slots == -1).all()


def test_ids_among_others_are_marked() -> None:
    slots = np.full(COUNT, -1, np.int32)
    found = marked(np.array([5, 1, 11, 5]), np.array([11, 5]), slots)
    assert found.tolist() == [True, False, True, True]
    assert (slots == -1).all()
    assert marked(np.array([5]), np.empty(0, np.int64), slots).tolist() == [False]


TABLES = [(9, 3, True), (5, 3, False), (7, 2, True), (6, 3, False)]
"""Rows and width of each, and whether several trainers' batches have rows of it."""
TRAINERS = [[0, 1], [2, 3]]
"""By machine."""
EXAMPLES = 4
"""Whole steps that are drawn for each of the trainers."""


def tables_of(comm: ThreadComm) -> list[Any]:
    session = SimpleNamespace(world=comm, groups=SimpleNamespace(trainers=TRAINERS))
    return [SimpleNamespace(
        session=session, count=count, width=width, slots=np.full(count, -1, np.int32),
        bounds=np.array([0, count // 2, count]), shared=shared,
        exclusive=comm.rank == 0, replica=False, low=0, high=count // 2)
        for count, width, shared in TABLES]


def reads_of(example: int, rank: int, table: int) -> list[embedding_steps.Read]:
    """What a trainer reads of a table in a step: of batches, with the trainers whose batches have a
    row, each once, in one batch for each of several trainers; and for itself in any number. That
    nobody else does in the first example. Batches of which a trainer has no row it may leave out,
    and two reads may be of one batch."""
    generator = np.random.default_rng([example, rank, table])
    count, width, shared = TABLES[table]
    found = []
    for place in range(1 if example == 0 else generator.integers(0, 4)):
        alone = example > 0 and (example + place) % 3 == 0
        least = not shared and example == 0
        ids = (generator.integers(0, count, generator.integers(0, 9)) if alone else
               generator.choice(count // 2 if least else count,
                                0 if least and rank else generator.integers(
                                    0, 1 + count // (1 + least)), replace=place == 1))
        grads = generator.integers(-9, 9, (len(ids), width)).astype(np.float32)
        if len(ids) or example % 2 == 0:
            found.append(embedding_steps.Read(ids, grads, None if alone else generator.integers(
                1, 16, len(ids)), place + 7 if example < 3 else 9))
    return found


def place_of(reads: list[embedding_steps.Read], number: int) -> tuple[int, int]:
    """The batch of a read, and how many reads of it a trainer has made before."""
    batch = reads[number].batch
    return batch, sum(r.batch == batch and r.bits is not None for r in reads[:number])


def test_each_row_is_updated_once_by_all_that_trainers_have_read() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        tables = tables_of(comm)
        return [embedding_steps.collect(tables, [reads_of(example, comm.rank, place)
                                           for place in range(len(TABLES))])
                for example in range(EXAMPLES)]
    found = together(4, work)
    for example in range(EXAMPLES):
        for place, (count, width, _) in enumerate(TABLES):
            sums, counts = np.zeros((count, width)), np.zeros(count)
            every = [reads_of(example, rank, place) for rank in range(4)]
            united: dict[tuple[int, int], np.ndarray] = {}
            for reads in every:
                for number, (ids, grads, bits, _) in enumerate(reads):
                    np.add.at(sums, ids, grads)
                    if bits is None:
                        np.add.at(counts, ids, 1)
                    else:
                        words = united.setdefault(place_of(reads, number),
                                                  np.zeros(count, np.int64))
                        np.bitwise_or.at(words, ids, bits)
            for words in united.values():
                counts += [bits.bit_count() for bits in words.tolist()]
            updated = []
            for rank in range(4):
                for ids, at, grads, times in found[rank][example][place]:
                    updated += ids.tolist()
                    machines = (ids >= count // 2).astype(int)
                    if TABLES[place][2] or example:
                        assert (np.array(TRAINERS)[machines, ids % 2] == rank).all()
                    np.testing.assert_array_equal(grads[at], sums[ids])
                    np.testing.assert_array_equal(times, counts[ids])
            assert sorted(updated) == np.flatnonzero(counts).tolist()


def test_a_second_optimizer_begins_anew_for_copies_of_others_rows_too() -> None:
    """In replicas: own rows and copies move alike, whatever an earlier optimizer has done."""
    def rows(*shape: int) -> SimpleNamespace:
        return SimpleNamespace(local_partition=torch.zeros(*shape))

    def optimizer() -> SimpleNamespace:  # with states in the store, as DGL makes them
        return Weak(_lr=0.1, _beta1=0.9, _beta2=0.999, _eps=1e-8,
                    _state={"e": (rows(4), rows(4, 2), rows(4, 2))})

    class Weak(SimpleNamespace):
        __hash__ = object.__hash__

    table: Any = object.__new__(Table)
    table.low, table.high, table.count, table._tensor = 0, 4, 8, rows(4, 2)
    table._copies, table._state_copies = None, weakref.WeakKeyDictionary()
    embedding = SimpleNamespace(name="e", heta=table, _tensor=table._tensor)
    for made, grad, steps in ((optimizer(), 1.0, 9), (optimizer(), -1.0, 1)):
        for _ in range(steps):
            embedding_steps._update(
                made, embedding, embedding_steps._adam, np.array([1, 6]), np.arange(2),
                np.full((2, 2), grad, np.float32), np.ones(2, np.float32))
    np.testing.assert_array_equal(table.local(table._tensor)[1], table.copies()[6])


@pytest.mark.parametrize("other", [[0, 1, 2], [0, 2, 1], [0, 1]])
def test_optimizers_of_other_embeddings_are_refused(other: list[int]) -> None:
    def work(comm: ThreadComm) -> str:
        tables = tables_of(comm)
        order = other if comm.rank == 1 else [0, 1, 2]
        try:
            embedding_steps._check_alike(Optimizer(), [
                SimpleNamespace(name=f"table{i}", heta=tables[i]) for i in order])
        except HetaError as error:
            return str(error)
        return ""
    messages = together(4, work)
    if other == [0, 1, 2]:
        assert messages == [""] * 4
    else:
        assert all("DistEmbeddings" in message for message in messages)
        assert "table0 table1 table2 here and" in messages[0]
        assert "on trainer 1;" in messages[0]


class Optimizer:
    """What is checked once for each."""


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(HetaError, match="optimizer Optimizer cannot be used on a meta-partitioned"):
        embedding_steps.step(Optimizer(), [])
