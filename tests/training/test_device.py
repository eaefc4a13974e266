"""Which device each worker gets: all workers choose together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pretended_worker import LOST, trained


def chosen(out: Path, device: str, *visible: str) -> list[str]:
    """The devices of workers that each see some GPUs, or the error of each."""
    found = trained(out, {len(visible): {"rgcn": {}}}, devices=[device], visible=visible)
    return [worker["rgcn"].get("error") or worker["rgcn"]["device"]
            for worker in found[device, len(visible)]]


@pytest.mark.needs("pretended")
def test_a_worker_that_is_shown_one_gpu_takes_it(tmp_path: Path) -> None:
    """As SLURM shows each task its own."""
    assert chosen(tmp_path, "cuda", "2", "5") == ["cuda:0", "cuda:0"]


@pytest.mark.needs("pretended")
def test_where_one_worker_has_no_gpu_none_computes_on_one(tmp_path: Path) -> None:
    assert chosen(tmp_path, "auto", "0", "") == ["cpu", "cpu"]


@pytest.mark.needs("pretended")
def test_two_workers_are_refused_one_gpu_on_all_workers_alike(tmp_path: Path) -> None:
    first, second = chosen(tmp_path, "cuda", "3", "3")
    assert first == second
    assert "worker 1 has no GPU of its own" in first
    assert "shows it 1 CUDA device for 2 workers; use train.device=cpu or fewer" in first


@pytest.mark.needs("pretended")
def test_a_lost_worker_ends_the_others_with_an_error(tmp_path: Path) -> None:
    """And not PyTorch, which aborts the process."""
    (left,) = trained(tmp_path, {2: {LOST: {}}}, devices=["cuda"])["cuda", 2]
    assert left[LOST]["status"] == 3
    assert "worker 1 lost another worker" in left[LOST]["error"]
