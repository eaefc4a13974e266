"""SIGTERM in the middle of an epoch: all workers save, end, and go on to the same result."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import InputError
from dgl_heta.launch.supervisor import Events, _signals_as_events
from dgl_heta.store import write_store
from dgl_heta.training.checkpoint_files import check_checkpoints
from dgl_heta.training.preemption import Preemption
from tests.support import warm
from tests.support.graphs import academic
from tests.support.runs import ENDED_IN_STEP_3, assert_same_training
from tests.support.waiting import PATIENCE

SETTINGS = ["partition.parts=2", "model.hidden=8", "model.dropout=0.5", "train.fanouts=3,3",
            "train.batch_size=2", "train.threads=1", "train.epochs=2"]


def train(graph: Path, run_dir: Path, *more: str, **env: str) -> str:
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "train", graph, "--run-dir", run_dir,
         *(word for setting in SETTINGS for word in ("--set", setting)), *more],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_run_goes_on_within_the_epoch_in_which_sigterm_ended_it(tmp_path: Path) -> None:
    """With dropout, learnable features and their Adam, to the last bit."""
    store, whole, run = tmp_path / "store", tmp_path / "whole", tmp_path / "run"
    write_store(academic(papers=120), store)
    train(store, whole, "--auto-resume")
    stopped = subprocess.run([warm.python(), "-c", ENDED_IN_STEP_3, store, run, *SETTINGS],
                             capture_output=True, text=True, timeout=PATIENCE)
    (folder,) = run.glob("checkpoints/epoch-00001-step-*")
    steps = int(folder.name.rpartition("-")[2])
    assert 3 <= steps < 18
    assert (stopped.returncode, stopped.stderr) == (
        143, f"interrupted; epoch 1 and {steps} steps of epoch 2 are saved: go on by the same "
        f"command with --resume --run-dir {run}\n")
    fewer = shutil.copytree(run, tmp_path / "fewer")
    damaged = shutil.copytree(run, tmp_path / "damaged")
    shard = damaged / "checkpoints" / folder.name / "rank-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"that of epoch 1 is complete: remove .*{folder.name}"):
        check_checkpoints(damaged)
    assert f"epoch 2 goes on after {steps} of its 18 steps" in train(store, run, "--auto-resume")
    assert_same_training(run, whole)
    assert not list(run.glob("checkpoints/*-step-*"))

    # Steps of an epoch that the run is not to have any more do not count.
    one, last = tmp_path / "one", ("--set", "train.epochs=1")
    train(store, one, *last)
    train(store, fewer, *last, SLURM_RESTART_COUNT="1")  # a launcher that was requeued
    assert_same_training(fewer, one)

    # A run that goes on has not ended any longer, with the figures of fewer epochs.
    assert (one / "summary.json").exists()
    again = ENDED_IN_STEP_3.replace("settings=settings", "settings=settings, resume=True")
    stopped = subprocess.run([warm.python(), "-c", again, store, one, *SETTINGS],
                             capture_output=True, text=True, timeout=PATIENCE)
    assert stopped.returncode == 143, stopped.stderr
    assert not (one / "summary.json").exists()


@pytest.mark.parametrize("noted", [lambda: Preemption(Comm(Traffic())),
                                   lambda: _signals_as_events(Events())])
def test_sigterm_ends_a_process_that_code_in_a_training_forks(
        noted: Callable[[], AbstractContextManager[object]]) -> None:
    """As multiprocessing.Pool ends its own, for whose end it waits."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pytest-xdist's workers have a handler
    try:
        with noted():
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(5,))
            child.start()
            child.terminate()
            child.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert child.exitcode == -signal.SIGTERM


def test_auto_resume_needs_a_directory_that_it_would_find_again(tmp_path: Path) -> None:
    write_store(academic(), tmp_path / "store")
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "train", tmp_path / "store",
                           "--auto-resume"], capture_output=True, text=True, timeout=PATIENCE,
                          cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, "error: --auto-resume needs --run-dir, the directory of the run to begin or continue\n")
