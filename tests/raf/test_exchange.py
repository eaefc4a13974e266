"""The exchanges of a group: what they compute, their gradients, and the order of their adjoints."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dgl_heta.graph.schema import Relation
from dgl_heta.nn.row_parts import NOBODY, extreme_parts
from dgl_heta.raf.chain import Chain, LinkId, Watch
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.sampling.blocks import Block, RelationBlock, RemoteDestinations
from dgl_heta.sampling.seeds import SeedReads, SeedShares
from tests.support.threads import ThreadComm, together

SIZES, WIDTH = (2, 3, 1), 4
SEEDS = sum(SIZES)


def block_of(rank: int, last: bool, inner: int = 0, types: tuple[str, ...] = ("paper",)) -> Block:
    shares = {t: SeedShares(SIZES, rank) for t in types}
    return Block(1, {}, {t: SEEDS + inner for t in types}, [], shares, last, {}, {})


def values(rank: int, rows: int, salt: int = 0, width: int = WIDTH) -> Tensor:
    """Whole numbers, so that sums do not depend on their order."""
    generator = torch.Generator().manual_seed(17 * rank + salt)
    return torch.randint(-9, 9, (rows, width), generator=generator).double()


def dense(partials: list[Tensor]) -> Tensor:
    """All workers' rows in one order: (workers, seeds, width), canonical."""
    return torch.stack([SeedShares(SIZES, rank).canonical(x[:SEEDS])
                        for rank, x in enumerate(partials)])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("inner", [0, 2])
def test_sums_and_their_gradients_are_those_of_one_process(last: bool, inner: int) -> None:
    if last and inner:
        return  # the last layer has no other rows than seeds

    def work(comm: ThreadComm) -> tuple[Tensor, Tensor, Tensor]:
        exchange, block = GroupExchange(comm), block_of(comm.rank, last, inner)
        exchange.begin()
        x = values(comm.rank, SEEDS + inner).requires_grad_()
        y = exchange.reduce_sum(x, block, "paper")
        grad = values(comm.rank, len(y), 1)
        exchange.anchor(y).backward(grad)
        assert x.grad is not None
        return y.detach(), grad, x.grad

    results = together(len(SIZES), work)
    partials = [values(rank, SEEDS + inner) for rank in range(len(SIZES))]
    whole = dense(partials).sum(0)
    if last:
        to_partial = torch.cat([grad for _, grad, _ in results])
    else:
        to_partial = dense([grad for _, grad, _ in results]).sum(0)
    for rank, (y, grad, back) in enumerate(results):
        shares = SeedShares(SIZES, rank)
        torch.testing.assert_close(y[:len(y) - inner],
                                   shares.local(whole)[:shares.own if last else None])
        torch.testing.assert_close(back[:SEEDS], shares.local(to_partial))
        torch.testing.assert_close(y[len(y) - inner:], partials[rank][SEEDS:])
        torch.testing.assert_close(back[SEEDS:], grad[len(grad) - inner:])


class Told(Watch):
    """Adjoints tell each other who has a gradient; links of which nobody has one."""

    flags = True

    def __init__(self) -> None:
        self.nobody = 0

    def unused(self, link: LinkId) -> None:
        self.nobody += 1


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True), (False, False)])
def test_rows_that_leave_early_come_to_the_same(used: tuple[bool, bool]) -> None:
    own, asked = 4, (2, 1)  # own rows, and how many last ones of them the other aggregates

    def run(comm: ThreadComm, early: bool) -> tuple[Any, ...]:
        rank, watch = comm.rank, Told()
        chain = Chain(1, watch)
        exchange = GroupExchange(comm, lambda block: chain)
        given, taken = [0, 0], [0, 0]
        given[1 - rank], taken[1 - rank] = asked[rank], asked[1 - rank]
        block = Block(1, {}, {"paper": own + asked[1 - rank]}, [], {}, False, {}, {}, offloads=True,
                      remote={"paper": RemoteDestinations(
                          tuple(taken), tuple(given), np.empty(0, np.int64))})
        rows, remote = (values(rank, n, salt).requires_grad_()
                        for salt, n in enumerate((own, asked[1 - rank])))
        if early:
            begun = exchange.begin_sum(remote * 2, block, "paper")
            comm.all_reduce(torch.zeros(1))  # others meet meanwhile
            y = exchange.reduce_sum(rows * 2, block, "paper", begun)
        else:
            comm.all_reduce(torch.zeros(1))
            y = exchange.reduce_sum(torch.cat([rows * 2, remote * 2]), block, "paper")
        loss = (y * values(rank, own, 2)).sum() if used[rank] else torch.zeros(
            (), requires_grad=True) * 1
        chain.anchor(loss).backward()
        assert watch.nobody == (0 if any(used) else 1 + early)
        return y.detach(), rows.grad, remote.grad

    for whole, early in together(2, lambda comm: (run(comm, False), run(comm, True))):
        assert (whole[1] is None) == (not any(used))
        for expected, found in zip(whole, early):
            assert (expected is None) == (found is None)
            if expected is not None:
                assert torch.equal(expected, found)


def test_only_rows_that_are_read_are_completed_and_only_they_have_gradients() -> None:
    read = {0: [3], 1: [3, 5], 2: []}  # local rows of the others

    def work(comm: ThreadComm) -> tuple[Tensor, Tensor, Tensor]:
        block = block_of(comm.rank, False)
        rows = torch.tensor(read[comm.rank], dtype=torch.int64)
        block.reads["paper"] = SeedReads(rows, block.seeds["paper"])
        exchange = GroupExchange(comm)
        exchange.begin()
        x = values(comm.rank, SEEDS).requires_grad_()
        y = exchange.reduce_sum(x, block, "paper")
        used = torch.cat([torch.arange(SIZES[comm.rank]), rows])
        grad = torch.zeros_like(y).index_copy(0, used, values(comm.rank, len(used), 1))
        exchange.anchor(y).backward(grad)
        assert x.grad is not None
        return y.detach()[used], grad, x.grad

    results = together(len(SIZES), work)
    whole = dense([values(rank, SEEDS) for rank in range(len(SIZES))]).sum(0)
    back = dense([grad for _, grad, _ in results]).sum(0)
    for rank, (y, _, to_partial) in enumerate(results):
        shares = SeedShares(SIZES, rank)
        used = [*range(SIZES[rank]), *read[rank]]
        torch.testing.assert_close(y, shares.local(whole)[used])
        torch.testing.assert_close(to_partial, shares.local(back))


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("last", [True, False])
def test_extremes_go_to_the_first_relation_that_attained_them(op: str, last: bool) -> None:
    relations = [Relation("author", name, "paper") for name in "abc"]

    def part(place: int) -> RelationBlock:
        return RelationBlock(relations[place], 0, torch.zeros(SEEDS, dtype=torch.int64),
                             torch.empty(0, dtype=torch.int32), place)  # all rows but the last

    def work(comm: ThreadComm) -> tuple[Tensor, Tensor, Tensor]:
        exchange, block = GroupExchange(comm), block_of(comm.rank, last)
        exchange.begin()
        x = values(comm.rank, SEEDS - 1).clamp(-2, 2).requires_grad_()  # often equal
        partial, place = extreme_parts(op, [(part(comm.rank), x)], SEEDS, WIDTH, x)
        assert place.dtype == torch.int32
        assert (place[-1] == NOBODY).all()
        y = exchange.reduce_extreme(partial, place, op, block, "paper")
        exchange.anchor(y).backward(values(comm.rank, len(y), 1))
        assert x.grad is not None
        return y.detach(), values(comm.rank, len(y), 1), x.grad

    results = together(len(SIZES), work)
    low = float("-inf") if op == "max" else float("inf")
    leaves = [torch.cat([values(rank, SEEDS - 1).clamp(-2, 2), torch.full((1, WIDTH), low).double()]
                        ).requires_grad_() for rank in range(len(SIZES))]
    stacked = dense(leaves)
    whole = (stacked.max(0) if op == "max" else stacked.min(0)).values
    grads = [grad for _, grad, _ in results]
    whole.backward(torch.cat(grads) if last else dense(grads).sum(0))
    for rank, (y, _, back) in enumerate(results):
        shares = SeedShares(SIZES, rank)
        expected = shares.local(torch.where(torch.isinf(whole), 0, whole).detach())
        torch.testing.assert_close(y, expected[:shares.own if last else None])
        leaf = leaves[rank].grad
        assert leaf is not None
        torch.testing.assert_close(back, leaf[:SEEDS - 1])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("layout", [[[0, 1], [2], [3, 4, 5]], [[4, 0], [], [5, 1, 3, 2]]])
def test_columns_come_together_and_gradients_go_back(last: bool, layout: list[list[int]]) -> None:
    count = sum(map(len, layout))

    def work(comm: ThreadComm) -> tuple[Tensor, Tensor, Tensor]:
        exchange, block = GroupExchange(comm), block_of(comm.rank, last)
        exchange.begin()
        own = len(layout[comm.rank])
        x = values(comm.rank, SEEDS, 2, own * WIDTH).view(SEEDS, own, WIDTH).requires_grad_()
        y = exchange.gather_columns(x, layout, block, "paper")
        grad = values(comm.rank, len(y), 3, count * WIDTH).view(-1, count, WIDTH)
        exchange.anchor(y).backward(grad)
        assert x.grad is not None
        return y.detach(), grad, x.grad

    results = together(len(SIZES), work)
    whole = torch.zeros(SEEDS, count, WIDTH).double()
    for rank, columns in enumerate(layout):
        x = values(rank, SEEDS, 2, len(columns) * WIDTH).view(SEEDS, len(columns), WIDTH)
        whole[:, columns] = SeedShares(SIZES, rank).canonical(x)
    grads = [grad for _, grad, _ in results]
    back = torch.cat(grads) if last else torch.stack(
        [SeedShares(SIZES, rank).canonical(grad) for rank, grad in enumerate(grads)]).sum(0)
    for rank, (y, _, to_columns) in enumerate(results):
        shares = SeedShares(SIZES, rank)
        torch.testing.assert_close(y, shares.local(whole)[:shares.own if last else None])
        torch.testing.assert_close(to_columns, shares.local(back)[:, layout[rank]])


def test_rows_of_all_seeds_are_gathered_and_gradients_summed_at_their_owners() -> None:
    def work(comm: ThreadComm) -> tuple[Tensor, Tensor]:
        exchange, block = GroupExchange(comm), block_of(comm.rank, True)
        exchange.begin()
        x = values(comm.rank, SIZES[comm.rank]).view(-1, 2, 2).requires_grad_()
        y = exchange.gather_rows(x, block, "paper")
        exchange.anchor(y).backward(values(comm.rank, SEEDS, 1).view(-1, 2, 2))
        assert x.grad is not None
        return y.detach(), x.grad

    results = together(len(SIZES), work)
    whole = torch.cat([values(rank, own) for rank, own in enumerate(SIZES)])
    back = dense([values(rank, SEEDS, 1) for rank in range(len(SIZES))]).sum(0)
    for rank, (y, grad) in enumerate(results):
        shares = SeedShares(SIZES, rank)
        torch.testing.assert_close(y.view(SEEDS, WIDTH), shares.local(whole))
        torch.testing.assert_close(grad.view(-1, WIDTH), shares.local(back)[:shares.own])


def backward_in_order(comm: ThreadComm, chained: bool, needed: int = 0
                      ) -> list[tuple[str, tuple[int, ...]]]:
    """Two exchanges of different widths; worker 0 uses their results in the other order, worker 1
    has a loss that depends on one of them alone, the first or the second."""
    block = block_of(comm.rank, False, types=("author", "paper"))
    exchange = GroupExchange(comm)
    exchange.begin()
    wide, narrow = (values(comm.rank, SEEDS, i, w).requires_grad_() for i, w in ((0, 8), (1, 2)))
    first = exchange.reduce_sum(wide, block, "author")
    if not chained:
        exchange.chain = Chain()  # what an exchange outside it would be
    second = exchange.reduce_sum(narrow, block, "paper")
    used: dict[int, Any] = {0: lambda: second.sum() * 2 + first.sum(),
                            1: lambda: (first, second)[needed].sum(),
                            2: lambda: first.sum() + second.sum()}
    loss = used[comm.rank]()[None]
    comm.calls.clear()
    (exchange.anchor(loss) if chained else loss).sum().backward()
    return comm.calls


@pytest.mark.parametrize("needed", [0, 1])
def test_all_workers_run_all_adjoints_in_the_same_order(needed: int) -> None:
    first, *others = together(len(SIZES), lambda comm: backward_in_order(comm, True, needed))
    assert first == [("all_reduce", (SEEDS, 2)), ("all_reduce", (SEEDS, 8))]
    assert all(calls == first for calls in others)


def test_without_the_chain_workers_meet_in_different_collectives() -> None:
    """What the token is for: worker 1 has no need of one adjoint, and the others wait for it."""
    with pytest.raises((RuntimeError, threading.BrokenBarrierError)):
        together(len(SIZES), lambda comm: backward_in_order(comm, False))


@pytest.mark.parametrize("last", [True, False])
def test_bytes_of_a_sum_are_those_that_the_formulas_say(last: bool) -> None:
    def work(comm: ThreadComm) -> tuple[int, int]:
        exchange, block = GroupExchange(comm), block_of(comm.rank, last)
        exchange.begin()
        y = exchange.reduce_sum(values(comm.rank, SEEDS).requires_grad_(), block, "paper")
        forward = comm.traffic.bytes["partials"]
        y.sum().backward()
        return forward, comm.traffic.bytes["partials"] - forward

    n, row = len(SIZES), 8 * WIDTH
    for rank, (forward, back) in enumerate(together(n, work)):
        own = SIZES[rank]
        assert forward == ((SEEDS - own) * row if last else 2 * SEEDS * row * (n - 1) // n)
        assert back == (own * row * (n - 1) if last else 2 * SEEDS * row * (n - 1) // n)


def test_a_type_without_seeds_is_not_exchanged() -> None:
    def work(comm: ThreadComm) -> int:
        shares = SeedShares((0, 0, 0), comm.rank)
        block = replace(block_of(comm.rank, False), seeds={"paper": shares})
        exchange = GroupExchange(comm)
        rows = values(comm.rank, 5)
        assert exchange.reduce_sum(rows, block, "paper") is rows
        assert exchange.reduce_sum(rows, block, "author") is rows
        return len(comm.calls)

    assert together(len(SIZES), work) == [0, 0, 0]


@pytest.mark.parametrize("op", ["max", "min"])
def test_what_is_no_number_stays_so_in_extremes(op: str) -> None:
    """Though the collective loses it; other rows are as they are without."""
    def work(comm: ThreadComm) -> Tensor:
        exchange, block = GroupExchange(comm), block_of(comm.rank, True)
        exchange.begin()
        x, first = values(comm.rank, SEEDS), torch.zeros(SEEDS, WIDTH, dtype=torch.int32)
        x[SeedShares(SIZES, comm.rank).local(torch.arange(SEEDS)) == 3, comm.rank] = torch.nan
        return exchange.reduce_extreme(x, first, op, block, "paper")

    whole = dense([values(rank, SEEDS) for rank in range(len(SIZES))])
    whole = whole.amax(0) if op == "max" else whole.amin(0)
    whole[3, :len(SIZES)] = torch.nan
    torch.testing.assert_close(torch.cat(together(len(SIZES), work)), whole, equal_nan=True)
