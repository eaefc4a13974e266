"""Which device each worker gets: all workers choose together."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dgl_heta.training.device import SHARED, Seen, deal
from tests.support import warm
from tests.support.pretended import MEMORY
from tests.support.pretended_worker import LOST, trained


def chosen(out: Path, device: str, *visible: str) -> list[str]:
    """The devices of workers that each see some GPUs, or the error of each."""
    found = trained(out, {len(visible): {"rgcn": {}}}, devices=[device], visible=visible)
    return [worker["rgcn"].get("error") or worker["rgcn"]["device"]
            for worker in found[device, len(visible)]]


def test_workers_that_nobody_has_numbered_take_different_gpus() -> None:
    """As those that a script forks: by their ranks on each machine."""
    def seen(machine: str, gpus: int) -> Seen:
        return Seen(machine, None, None, [str(index) for index in range(gpus)])

    every = [seen("a", 2), seen("b", 4), seen("a", 2), seen("b", 4)]
    assert deal(every) == [0, 0, 1, 1]
    assert deal([*every, seen("a", 2)]) == [0, 0, None, 1, None]
    assert deal([*every, seen("a", 2)], shared=True) == [0, 0, 1, 1, 0]
    assert deal([*every, seen("c", 0)], shared=True) == [0, 0, 1, 1, None]


@pytest.mark.skipif("HETA_TESTS_GPU" in os.environ, reason="GPUs are asked for")
def test_tests_see_no_gpu() -> None:
    """Whatever the machine has: processes that they start compute on CPUs."""
    command = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    shown = subprocess.run([warm.python(), "-c", command],
                           capture_output=True, text=True, check=True)
    assert shown.stdout == "\n"


@pytest.mark.needs("pretended")
def test_a_worker_that_is_shown_one_gpu_takes_it(tmp_path: Path) -> None:
    """As SLURM shows each task its own."""
    assert chosen(tmp_path, "cuda", "2", "5") == ["cuda:0", "cuda:0"]


@pytest.mark.needs("pretended")
def test_where_one_worker_has_no_gpu_none_computes_on_one(tmp_path: Path) -> None:
    assert chosen(tmp_path, "auto", "0,1", "") == ["cpu", "cpu"]


@pytest.mark.needs("pretended")
def test_two_workers_are_refused_one_gpu_on_all_workers_alike(tmp_path: Path) -> None:
    first, second = chosen(tmp_path, "cuda", "3", "3")
    assert first == second
    assert "worker 1 has no GPU of its own" in first
    assert "shows it 1 CUDA device for 2 workers; use train.device=cpu, cuda-shared or" in first


@pytest.mark.needs("pretended")
def test_workers_that_share_a_gpu_compute_what_they_do_on_cpus(tmp_path: Path) -> None:
    """Nothing goes by NCCL, which takes one worker per GPU; a cache has its part of the GPU."""
    case = {"model.name": "hgt", "cache.policy": "miss_penalty", "cache.gate": False}
    found = trained(tmp_path, {2: {"shared": case}}, devices=["cpu", SHARED], visible=["0", "0"])
    for want, got in zip(found["cpu", 2], found[SHARED, 2]):
        want, got = want["shared"], got["shared"]
        assert got["device"] == "cuda:0"
        assert not got["problems"]
        assert not got["counts"].get("collectives")
        assert got["losses"] == pytest.approx(want["losses"], rel=1e-9)
        assert got["capacity"] == MEMORY // 4  # half of what is free, for two
    assert found[SHARED, 2][0]["shared"]["counts"]["kernels"]


@pytest.mark.needs("pretended")
def test_a_gpu_that_is_not_there_cannot_be_shared(tmp_path: Path) -> None:
    first, second = chosen(tmp_path, SHARED, "3", "")
    assert first == second
    assert "worker 1 has no GPU of its own" in first
    assert "0 CUDA devices for 2 workers; use train.device=cpu or fewer workers" in first


@pytest.mark.needs("pretended")
def test_a_lost_worker_ends_the_others_with_an_error(tmp_path: Path) -> None:
    """And not PyTorch, which aborts the process that waits for NCCL."""
    case = {"train.learnable": "replica"}  # whose rows are not exchanged in memory before
    (left,) = trained(tmp_path, {2: {LOST: case}}, devices=["cuda"])["cuda", 2]
    assert left[LOST]["status"] == 3
    assert "worker 1 lost another worker" in left[LOST]["error"]
    assert "while exchanging partials" in left[LOST]["error"]
