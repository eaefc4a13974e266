"""Averaging gradients: the same as one all-reduce of everything, for less traffic."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.comm.gradient_average import GradientAverage, average_rows
from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import WrapContext
from dgl_heta.raf.wrapper import GradientSync
from tests.support.threads import ThreadComm, together

WORKERS, SIZES = 3, (5, 1, 4, 3, 2, 6)
# Which workers have a gradient of each parameter, step by step: parameter 0 is everybody's,
# 1 nobody's, 2 worker 2's, 3 worker 0's and once worker 1's instead, 4 worker 1's from the third
# step on, 5 worker 0's and then worker 2's too.
STEPS = [
    ((0, 1, 2), (), (2,), (0,), (), (0,)),
    ((0, 1, 2), (), (2,), (0,), (), (0,)),
    ((0, 1), (), (), (1,), (1,), (0,)),
    ((0, 1, 2), (), (2,), (0,), (1,), (0, 2)),
    ((0, 1, 2), (), (2,), (0,), (1,), (2,)),
    ((), (), (2,), (0,), (1,), ()),
]


EVERYONE = tuple(range(WORKERS))
RUNS = {"some": STEPS,
        "all": [tuple(EVERYONE for _ in SIZES)] * 3,
        "one": [tuple((place % WORKERS,) for place in range(len(SIZES)))] * 3}
"""Steps of a model each."""


def work(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=WORKERS)
    traffic, found = Traffic(), {}
    world = Comm(traffic, range(WORKERS), None)
    for name, steps in RUNS.items():
        average = GradientAverage()
        params = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in SIZES]
        record = []
        for number, users in enumerate(steps):
            before = traffic.bytes["gradients"]
            for place, (param, used) in enumerate(zip(params, users)):
                param.grad = gradient(number, place, rank) if rank in used else None
            average(params, world)
            record.append(([p.grad for p in params], traffic.bytes["gradients"] - before))
        params[0].grad = torch.ones(SIZES[0], dtype=torch.float64).to_sparse()
        with pytest.raises(InputError, match="sparse gradient"):
            average(params, world)
        found[name] = record
    torch.save(found, f"{directory}/{rank}.pt")
    dist.barrier()
    os._exit(0)


def gradient(step: int, place: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * place + rank)
    return torch.randn(SIZES[place], dtype=torch.float64, generator=generator)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list]]:
    """What each worker had: name of a run → gradients and bytes of each step."""
    directory = tmp_path_factory.mktemp("gradients")
    mp.spawn(work, (str(directory),), WORKERS)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(WORKERS)]


def test_averages_are_those_of_all_gradients_whoever_has_them(runs: list[dict[str, list]]) -> None:
    for found in runs:
        for step, (users, (grads, _)) in enumerate(zip(STEPS, found["some"])):
            for place, (used, grad) in enumerate(zip(users, grads)):
                if not used:
                    assert grad is None, (step, place)
                    continue
                wanted = sum(gradient(step, place, rank) for rank in used) / WORKERS
                torch.testing.assert_close(grad, wanted, rtol=1e-14, atol=1e-15)


def test_summands_that_autograd_gives_one_gradient_have_averages_of_their_own() -> None:
    def work(comm: ThreadComm) -> list[torch.Tensor]:
        pair = nn.ParameterList(nn.Parameter(torch.zeros(2)) for _ in range(2))
        sync = GradientSync(pair, WrapContext(comm, comm, lambda: 1, in_place=True))
        total = pair[0].view(-1) + pair[1].view(-1) if comm.rank == 0 else pair[0] * 10
        (total * torch.ones(2)).sum().backward()  # whose gradient is one of its own, not expanded
        sync.after_backward()
        return [parameter.grad for parameter in pair]

    for first, second in together(2, work):
        assert first.tolist() == [5.5, 5.5]
        assert second.tolist() == [0.5, 0.5]


def test_parameters_that_are_frozen_at_first_are_averaged_once_they_are_not() -> None:
    def work(comm: ThreadComm) -> torch.Tensor:
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.requires_grad_(False)
        sync = GradientSync(layer, WrapContext(comm, comm, lambda: 1))
        layer.weight.requires_grad_(True)
        layer.weight.grad = torch.full((1, 1), float(comm.rank))
        sync.after_backward()
        return layer.weight.grad

    assert [float(grad) for grad in together(3, work)] == [1, 1, 1]


def test_one_worker_keeps_its_gradients_sparse_ones_too() -> None:
    param = nn.Parameter(torch.zeros(3))
    param.grad = torch.ones(3).to_sparse()
    GradientAverage()([param], Comm(Traffic()))
    assert param.grad.is_sparse


def test_a_gradient_of_one_worker_costs_half(runs: list[dict[str, list]]) -> None:
    total, flags = 8 * sum(SIZES), 8 * len(SIZES)
    sent = {name: sum(run[name][-1][1] for run in runs) for name in RUNS}
    assert sent["all"] == pytest.approx(2 * (WORKERS - 1) * (total + flags), abs=8 * WORKERS)
    assert sent["one"] == (WORKERS - 1) * (total + WORKERS * flags)


def test_gradients_stay_where_a_script_has_views_of_them() -> None:
    """By all-gathers, all-reduces and rows; those of one worker, too."""
    def work(comm: ThreadComm) -> None:
        whole = torch.zeros(6)
        *dense, table = (nn.Parameter(torch.zeros(2, 1)) for _ in range(3))
        average = GradientAverage(in_place=True)
        for _ in range(2):  # in the second step it is known who alone has a gradient
            for param, piece in zip((*dense, table), whole.split(2)):
                param.grad = piece.view(2, 1)
            dense[0].grad = dense[0].grad if comm.rank == 1 else None
            whole.fill_(comm.rank)
            average(dense, comm)
            average_rows(table, comm, in_place=True)
            alone = 1 / 3 if comm.rank == 1 else float(comm.rank)
            torch.testing.assert_close(whole, torch.tensor([alone, alone, 1, 1, 1, 1]))

    together(3, work)
