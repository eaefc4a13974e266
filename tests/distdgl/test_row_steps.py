"""Rows that a step updates: each once, whoever had gradients of it, in however many batches."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.distdgl import row_steps
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import each_once, marked
from tests.support.threads import ThreadComm, together

COUNT, WIDTH = 12, 3


def table() -> Any:
    return SimpleNamespace(slots=np.full(COUNT, -1, np.int32), width=WIDTH, count=COUNT)


@st.composite
def traces(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, some of them twice, with gradients and the bits of trainers."""
    ids = draw(st.lists(st.integers(0, COUNT - 1), max_size=8))
    grads = np.arange(1.0, len(ids) * WIDTH + 1, dtype=np.float32).reshape(-1, WIDTH)
    bits = draw(st.lists(st.integers(1, 7), min_size=len(ids), max_size=len(ids)))
    return np.array(ids, np.int64), grads, np.array(bits, np.int64)


Trace = tuple[np.ndarray, np.ndarray, np.ndarray]


@settings(deadline=None)
@given(st.lists(st.tuples(traces(), traces()), max_size=3))
def test_rows_are_summed_by_id_and_counted_by_batch(batches: list[tuple[Trace, Trace]]) -> None:
    of = table()
    pieces = [[row_steps._once(of, *own), row_steps._once(of, *others)] for own, others in batches]
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}
    for pair in batches:
        united: dict[int, int] = {}
        for ids, grads, bits in pair:
            for i, g, b in zip(ids.tolist(), grads, bits.tolist()):
                sums[i] = sums.get(i, np.zeros(WIDTH, np.float32)) + g
                united[i] = united.get(i, 0) | b
        for i, b in united.items():
            counts[i] = counts.get(i, 0) + b.bit_count()
    found = row_steps._joined(of, pieces)
    ids = np.concatenate([np.empty(0, np.int64), *(rows for rows, *_ in found)])
    assert sorted(ids.tolist()) == sorted(sums)
    for rows, at, grads, of_batches in found:
        for i, place, n in zip(rows.tolist(), at, of_batches):
            np.testing.assert_array_equal(grads[place], sums[i])
            assert n == counts[i]
    assert (of.slots == -1).all()


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


TABLES = [(9, 3), (5, 3), (7, 2)]
"""Rows and width of each."""
TRAINERS = [[0, 1], [2, 3]]
"""By machine."""


def tables_of(comm: ThreadComm) -> list[Any]:
    session = SimpleNamespace(world=comm, trainers=TRAINERS)
    return [SimpleNamespace(session=session, count=count, width=width,
                            slots=np.full(count, -1, np.int32),
                            bounds=np.array([0, count // 2, count])) for count, width in TABLES]


def read_by(rank: int, table: int) -> list[Trace]:
    """What a trainer has read of a table: up to two batches, of which some are empty."""
    generator = np.random.default_rng([rank, table])
    count, width = TABLES[table]
    return [(generator.choice(count, number, replace=False),
             generator.integers(-9, 9, (number, width)).astype(np.float32),
             generator.integers(1, 16, number)) for number in
            (generator.integers(0, count + 1, 2).tolist() if (rank + table) % 3 else [0])]


def test_each_row_comes_to_the_trainer_that_updates_it() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        tables = tables_of(comm)
        given = [[row_steps._once(table, *one) for one in read_by(comm.rank, place)]
                 for place, table in enumerate(tables)]
        return [row_steps._joined(table, batches)
                for table, batches in zip(tables, row_steps._route(tables, given))]
    found = together(4, work)
    for place, (count, width) in enumerate(TABLES):
        sums, counts = np.zeros((count, width)), np.zeros(count)
        for number in range(2):
            united = np.zeros(count, np.int64)
            for rank in range(4):
                for ids, grads, bits in read_by(rank, place)[number:number + 1]:
                    sums[ids] += grads
                    united[ids] |= bits
            counts += [bits.bit_count() for bits in united.tolist()]
        updated = []
        for rank, of_tables in enumerate(found):
            for ids, at, grads, of_batches in of_tables[place]:
                updated += ids.tolist()
                machines = (ids >= count // 2).astype(int)
                assert (np.array(TRAINERS)[machines, ids % 2] == rank).all()
                np.testing.assert_array_equal(grads[at], sums[ids])
                np.testing.assert_array_equal(of_batches, counts[ids])
        assert sorted(updated) == np.flatnonzero(counts).tolist()


@pytest.mark.parametrize("other", [[0, 1, 2], [0, 2, 1], [0, 1]])
def test_optimizers_of_other_embeddings_are_refused(other: list[int]) -> None:
    def work(comm: ThreadComm) -> str:
        tables = tables_of(comm)
        order = other if comm.rank == 1 else [0, 1, 2]
        try:
            row_steps._check_alike(Optimizer(), [
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
