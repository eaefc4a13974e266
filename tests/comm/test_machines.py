"""Rows that several workers of a machine read cross between machines once, and so do gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.comm.machines import VARIABLE, join_machine, machine_name
from dgl_heta.comm.row_routing import RowRoute

WORKERS, ROWS, WIDTH, READ = 4, 4000, 16, 1500
ROW = 4 * WIDTH
ONES = 2 * WORKERS * (WORKERS - 1) * 8  # how many bytes of keys come, for two routes
Found = list[dict]


@dataclass(frozen=True)
class Case:
    """Machines of the workers, by rank; with `alike` two that are neighbours read the same rows."""

    machines: str
    alike: bool = True
    wire: torch.dtype | None = None

    def ids(self, rank: int) -> np.ndarray:
        """What a worker reads."""
        seed = rank // 2 if self.alike else rank
        return np.random.default_rng(seed).permutation(ROWS)[:READ]

    def to_others(self, rank: int, machines: str) -> int:
        """How many of them are owned outside a worker's machine."""
        return int((np.asarray(list(machines))[owner(self.ids(rank))] != machines[rank]).sum())


CASES = [*(Case(machines, alike) for machines in ("aaaa", "abcd", "aabb", "abba", "aaab")
           for alike in (True, False)), Case("aabb", wire=torch.bfloat16)]


def owner(ids: np.ndarray) -> np.ndarray:
    return ids * WORKERS // ROWS


def table() -> torch.Tensor:
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH).remainder(251)


def work(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=WORKERS)
    torch.save([run(case, rank) for case in CASES], f"{directory}/{rank}.pt")
    dist.barrier()
    os._exit(0)


def run(case: Case, rank: int) -> dict:
    """What a worker reads and is brought, and what it sent for that."""
    os.environ[VARIABLE] = case.machines[rank]
    traffic, ids = Traffic(), case.ids(rank)
    world = Comm(traffic, range(WORKERS), None, case.wire)
    join_machine(world, world.all_gather_json(machine_name(), "control"), 60)
    route = RowRoute(world, owner(ids), np.stack([ids, np.full(READ, 1 << rank)], 1))
    asked = torch.from_numpy(np.ascontiguousarray(route.asked))
    assert (owner(route.asked[:, 0]) == rank).all()
    rows = route.answer(table()[asked[:, 0]])
    gradients = route.deliver(rows * (1 + rank))
    one_column = RowRoute(world, owner(ids), ids).asked
    np.testing.assert_array_equal(np.sort(one_column), np.sort(route.asked[:, 0]))
    return {"rows": rows, "asked": asked, "gradients": gradients, "sent": dict(traffic.bytes),
            "machine": world.machine and world.machine.ranks}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Found]:
    """What the workers, which are processes, found in each case."""
    directory = tmp_path_factory.mktemp("machines")
    mp.spawn(work, (str(directory),), WORKERS)
    workers = [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(WORKERS)]
    return {case: list(of) for case, of in zip(CASES, zip(*workers))}


def summed(workers: Found) -> tuple[torch.Tensor, torch.Tensor]:
    """What all owners have of each row: the sum of its gradients, and the union of its bits."""
    total, bits = torch.zeros(ROWS, WIDTH), np.zeros(ROWS, np.int64)
    for one in workers:
        ids, own = one["asked"].T
        total.index_add_(0, ids, one["gradients"])
        np.bitwise_or.at(bits, ids.numpy(), own.numpy())
    return total, torch.from_numpy(bits)


def sent(workers: Found) -> int:
    return sum(one["sent"]["learnable"] for one in workers) - ONES


@pytest.mark.parametrize("case", CASES[:-1], ids=str)
def test_rows_and_sums_are_the_same_by_way_of_machines(
        found: dict[Case, Found], case: Case) -> None:
    total, bits = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)
    for rank, one in enumerate(found[case]):
        ids = torch.from_numpy(case.ids(rank))
        torch.testing.assert_close(one["rows"], table()[ids], rtol=0, atol=0)
        total.index_add_(0, ids, table()[ids] * (1 + rank))
        bits[ids] |= 1 << rank
    got, union = summed(found[case])
    torch.testing.assert_close(got, total, rtol=0, atol=0)  # whole numbers, so sums are exact
    torch.testing.assert_close(union, bits)


@pytest.mark.parametrize("machines", ["aabb", "abba", "aaab"])
@pytest.mark.parametrize("alike", [True, False])
def test_what_several_workers_of_a_machine_read_crosses_once(
        found: dict[Case, Found], machines: str, alike: bool) -> None:
    case = Case(machines, alike)
    places = np.asarray(list(machines))
    once = 0
    for machine in sorted(set(machines)):
        read = np.unique(np.concatenate([case.ids(r) for r in np.flatnonzero(places == machine)]))
        once += int((places[owner(read)] != machine).sum())
    # Its row and its gradient; its id twice, in one route with bits, which may be no runs.
    assert 2 * (ROW + 1) * once < sent(found[case]) < 2 * (ROW + 2) * once
    before = sum(case.to_others(rank, machines) for rank in range(WORKERS))
    assert before == 2 * once if (machines, alike) == ("aabb", True) else before > once
    for rank, one in enumerate(found[case]):
        assert one["machine"] == tuple(np.flatnonzero(places == machines[rank]).tolist())
        assert (one["sent"].get("machine", 0) > 0) == (len(one["machine"]) > 1)


def test_gradients_are_summed_before_they_are_rounded(found: dict[Case, Found]) -> None:
    """All get a row rounded once; the sum of a machine is rounded when it leaves it."""
    case, short = CASES[-1], table().bfloat16().float()
    wanted = torch.zeros(ROWS, WIDTH)
    for rank, one in enumerate(found[case]):
        torch.testing.assert_close(one["rows"], short[torch.from_numpy(case.ids(rank))], rtol=0,
                                   atol=0)
    for first in (0, 2):
        ids = torch.from_numpy(case.ids(first))
        both = short[ids] * (1 + first) + short[ids] * (2 + first)
        away = (ids * WORKERS // ROWS // 2 != first // 2)[:, None]
        wanted.index_add_(0, ids, torch.where(away, both.bfloat16().float(), both))
    torch.testing.assert_close(summed(found[case])[0], wanted, rtol=0, atol=0)


@pytest.mark.parametrize("machines", ["aaaa", "abcd"])
@pytest.mark.parametrize("alike", [True, False])
def test_one_machine_and_one_worker_a_machine_go_the_plain_way(
        found: dict[Case, Found], machines: str, alike: bool) -> None:
    case = Case(machines, alike)
    away = sum(case.to_others(rank, "abcd") for rank in range(WORKERS))
    assert all(one["machine"] is None and "machine" not in one["sent"] for one in found[case])
    assert 2 * (ROW + 1) * away < sent(found[case]) < 2 * (ROW + 1.1) * away


def test_a_machine_has_a_name_that_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    own = machine_name()
    assert own == machine_name() != ""
    monkeypatch.setenv(VARIABLE, "third")
    assert machine_name() == "third"
