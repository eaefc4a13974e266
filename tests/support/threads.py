"""A group of workers that are threads of one process, for tests of what workers exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm, Traffic

Result = TypeVar("Result")
_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    # gloo loses some NaN; here all are lost.
    "sum": lambda x: x.sum(0), "max": lambda x: x.where(x == x, -torch.inf).amax(0)
    if x.is_floating_point() else x.amax(0), "min": lambda x: x.where(x == x, torch.inf).amin(0)
    if x.is_floating_point() else x.amin(0)}


class ThreadComm(Comm):
    """One of several threads. A collective that not all of them call fails after seconds.

    `calls` are the collectives that were made: name and shape, in order.
    """

    def __init__(self, rank: int, size: int, table: dict[int, Any], barrier: threading.Barrier
                 ) -> None:
        super().__init__(Traffic())
        self.rank, self.size, self.ranks = rank, size, tuple(range(size))
        self._table, self._barrier = table, barrier
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def meet(self, given: Any) -> list[Any]:
        """What every thread gives, by rank."""
        self._table[self.rank] = given
        self._barrier.wait(10)
        everyone = [self._table[rank] for rank in range(self.size)]
        self._barrier.wait(10)
        return everyone

    def all_reduce(self, tensor: Tensor, op: str = "sum", cause: str = "partials") -> Tensor:
        self.calls.append(("all_reduce", tuple(tensor.shape)))
        self.traffic.bytes[cause] += 2 * tensor.nbytes * (self.size - 1) // self.size
        return _OPS[op](torch.stack(self.meet(tensor.detach().clone())))

    def begin_all_to_all_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int],
                              cause: str) -> Callable[[], Tensor]:
        self.calls.append(("all_to_all", tuple(rows.shape)))
        sent = (sum(send) - send[self.rank]) * rows.element_size()
        self.traffic.bytes[cause] += sent * (rows[:1].numel() if len(rows) else 0)
        pieces = self.meet(rows.detach().clone().split(list(send)))
        arrived = [piece[self.rank] for piece in pieces]
        assert [len(piece) for piece in arrived] == list(receive)
        out = torch.cat(arrived)
        return lambda: out


def together(size: int, work: Callable[[ThreadComm], Result]) -> list[Result]:
    """What `work` returns on each of `size` workers; an error of one is raised."""
    table: dict[int, Any] = {}
    barrier = threading.Barrier(size)

    def run(rank: int) -> Result:
        try:
            return work(ThreadComm(rank, size, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(run, rank) for rank in range(size)]
        errors = [job.exception() for job in jobs]
        for error in sorted((e for e in errors if e), key=lambda e: isinstance(
                e, threading.BrokenBarrierError)):
            raise error
        return [job.result() for job in jobs]
