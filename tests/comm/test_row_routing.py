"""Rows with one owner each: who asks gets the right rows, and the owner gets all gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.row_routing import RowRoute
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
    # Keys for others, counts for others, rows that others asked for, gradients for others.
    assert sent[0] == 8 * 3 + 2 * 8 + 0 * row + 3 * row
    assert sent[1] == 0 + 2 * 8 + 4 * row + 0
    assert sent[2] == 8 * 1 + 2 * 8 + 0 * row + 1 * row
