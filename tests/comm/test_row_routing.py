"""Rows with one owner each: who asks gets the right rows, and the owner gets all gradients."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta.comm.row_routing import RowRoute, sorted_order
from tests.support.threads import ThreadComm, together

TABLE = torch.arange(40.0).view(10, 4)  # row r is on worker r % 3
KEYS = [np.array([4, 0, 4, 9, 1]), np.empty(0, np.int64), np.array([2, 5, 4])]


def work(comm: ThreadComm) -> tuple[Tensor, np.ndarray, Tensor, int]:
    keys = KEYS[comm.rank]
    route = RowRoute(comm, keys % 3, keys)
    assert (route.asked % 3 == comm.rank).all()
    rows = route.answer(TABLE[torch.from_numpy(route.asked)])
    return rows, route.asked, route.deliver(rows * 10), comm.traffic.bytes["learnable"]


def test_answers_are_in_the_order_of_the_keys_and_deliveries_in_that_of_the_asked() -> None:
    for keys, (rows, asked, delivered, _) in zip(KEYS, together(3, work)):
        torch.testing.assert_close(rows, TABLE[torch.from_numpy(keys)])
        torch.testing.assert_close(delivered, TABLE[torch.from_numpy(asked)] * 10)


def test_what_is_delivered_is_the_adjoint_of_what_is_answered() -> None:
    """Sums over who asked, as autograd has them for `table[keys]` on one process."""
    summed = torch.zeros_like(TABLE)
    for _, asked, delivered, _ in together(3, work):
        summed.index_add_(0, torch.from_numpy(asked), delivered)
    table = TABLE.clone().requires_grad_()
    keys = torch.from_numpy(np.concatenate(KEYS))
    table[keys].backward(TABLE[keys] * 10)
    torch.testing.assert_close(summed, table.grad)


def test_only_what_leaves_a_worker_is_counted() -> None:
    sent = [bytes_ for *_, bytes_ in together(3, work)]
    row = 4 * 4
    # Keys for others, sizes for others, rows that others asked for, gradients for others. A piece
    # of keys has a head, and here a byte a key.
    assert sent[0] == 3 + 1 + 2 * 8 + 0 * row + 3 * row
    assert sent[1] == 0 + 2 * 8 + 4 * row + 0
    assert sent[2] == 1 + 1 + 2 * 8 + 0 * row + 1 * row


@given(st.integers(1, 3).flatmap(lambda columns: st.lists(st.lists(
    st.one_of(st.integers(-2, 2), st.integers(-2**63, 2**63 - 1)), min_size=columns,
    max_size=columns), max_size=30).map(lambda rows: np.asarray(rows, np.int64).reshape(
        len(rows), columns))))
def test_keys_are_sorted_as_numpy_has_it(keys: np.ndarray) -> None:
    columns = list(np.ascontiguousarray(keys.T))
    np.testing.assert_array_equal(sorted_order(columns), np.lexsort(columns))


def test_keys_of_several_columns_come_whole_and_sorted() -> None:
    def route(comm: ThreadComm) -> tuple[np.ndarray, np.ndarray]:
        ids = np.random.default_rng(comm.rank).permutation(100)
        keys = np.stack([ids, 1 << (ids % 5) + comm.rank], 1)
        return keys, RowRoute(comm, ids // 60, keys).asked

    results = together(2, route)
    for rank, (_, asked) in enumerate(results):
        sent = [keys[keys[:, 0] // 60 == rank] for keys, _ in results]
        np.testing.assert_array_equal(asked, np.concatenate(
            [keys[np.lexsort(keys.T)] for keys in sent]))
