"""Bytes that a worker counts as sent: those that leave it, at the size that they travel in."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dgl_heta.comm.collectives import Comm, Traffic


class Arrived:
    """What was begun, and has nothing to wait for."""

    def wait(self) -> None:
        pass


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives of a worker whose others are not there; what arrives is not looked at."""
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 1)
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "gloo")
    for name in ("all_to_all_single", "all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda *args, **options: Arrived())


def sent(cause: str, dtype: torch.dtype, wire: torch.dtype | None = None) -> dict[str, int]:
    """Bytes of each collective, of two numbers a row."""
    found = {}

    def rows(count: int) -> Tensor:
        return torch.zeros((count, 2), dtype=dtype)

    for name, call in {
            "to all": lambda comm: comm.all_to_all_rows(rows(9), [4, 3, 2], [1, 3, 5], cause),
            "gather": lambda comm: comm.all_gather_rows(rows(4), [3, 4, 5], cause),
            "scatter": lambda comm: comm.reduce_scatter_rows(rows(9), [4, 3, 2], cause),
            "reduce": lambda comm: comm.all_reduce(rows(6), cause=cause)}.items():
        traffic = Traffic()
        call(Comm(traffic, range(3), wire=wire))
        assert set(traffic.bytes) == {cause}
        found[name] = traffic.bytes[cause]
    return found


@pytest.mark.usefixtures("second_of_three")
@pytest.mark.parametrize(("cause", "dtype", "wire", "size"), [
    ("partials", torch.float32, None, 4), ("partials", torch.float64, None, 8),
    ("partials", torch.float32, torch.bfloat16, 2), ("learnable", torch.float32, torch.bfloat16, 2),
    ("gradients", torch.float32, torch.bfloat16, 4), ("control", torch.float32, torch.bfloat16, 4),
    ("partials", torch.float64, torch.bfloat16, 8)])
def test_what_stays_is_not_counted_and_the_rest_as_it_travels(
        cause: str, dtype: torch.dtype, wire: torch.dtype | None, size: int) -> None:
    row = 2 * size
    # Of 12 numbers an all-reduce sends, rounded, two pieces of four, and the sums of its own four
    # twice; whole, the two thirds that are another's, once to be summed and once as sums.
    assert sent(cause, dtype, wire) == {
        "to all": (4 + 2) * row, "gather": 2 * 4 * row, "scatter": (4 + 2) * row,
        "reduce": 16 * size}


@pytest.mark.usefixtures("second_of_three")
def test_only_the_first_worker_sends_a_broadcast() -> None:
    traffic = Traffic()
    Comm(traffic, range(3)).broadcast(torch.zeros(5), "control")
    assert traffic.bytes["control"] == 0


def test_one_worker_sends_nothing() -> None:
    traffic = Traffic()
    comm = Comm(traffic)
    rows = torch.ones((3, 2))
    assert comm.all_to_all_rows(rows, [3], [3], "partials") is rows
    assert comm.all_reduce(rows) is rows
    assert not traffic.bytes
