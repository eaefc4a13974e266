"""Ctrl-C is one line that says how it goes on; the end of torchrun is the end of its ranks, who
save the step that they are in where SIGTERM ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE, PROMPT, until

SETTINGS = ["model.hidden=8", "train.fanouts=3,3", "train.batch_size=8", "train.threads=1",
            "train.epochs=100000"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=120), path)
    return path


def train(graph: Path, run_dir: Path, *more: str) -> list[str]:
    return ["-m", "dgl_heta", "train", str(graph), "--run-dir", str(run_dir), *more,
            *(word for setting in SETTINGS for word in ("--set", setting))]


@pytest.mark.parametrize("module", ["typer", "rich.console", "annotated_types", "numpy",
                                    "torch", "dgl_heta.launch.local"])
def test_an_early_ctrl_c_is_one_line(store: Path, tmp_path: Path, module: str) -> None:
    """However early: as soon as a module is there, while the next ones are imported. (Before the
    first of ours it is Python's own to answer.)"""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *train(store, tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("import time:") and line.split("|")[-1].strip() == module:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.communicate(timeout=PROMPT)
    said = [line for line in rest.splitlines() if not line.startswith("import time:")]
    assert process.returncode == 130, rest[-2000:]
    assert said == ["error: interrupted"]


def test_ctrl_c_says_what_is_saved_and_how_it_goes_on(store: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, *train(store, run_dir, "--parts", "2", "--json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert until(lambda: list(run_dir.glob("checkpoints/epoch-*2/complete-1.json")), PATIENCE)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PROMPT)
    assert process.returncode == 130
    (line,) = err.splitlines()
    saved = sorted(run_dir.glob("checkpoints/epoch-*"))[-1].name.removeprefix("epoch-").lstrip("0")
    assert line in [
        f"error: interrupted; epochs 1 to {epoch} are saved: go on by the same command with "
        f"--resume --run-dir {run_dir}" for epoch in (int(saved), int(saved) - 1)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_when_torchrun_is_ended_its_ranks_end(store: Path, tmp_path: Path, number: int) -> None:
    opened = Store(store)
    write_partition(opened, make_plan(opened.schema, "paper", 2, 2), tmp_path / "parts")
    run_dir = tmp_path / "run"
    with subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             "2", *train(tmp_path / "parts", run_dir)], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=os.environ) as torchrun:
        assert until(lambda: (run_dir / "metrics.jsonl").exists(), PATIENCE)
        ranks = psutil.Process(torchrun.pid).children(recursive=True)
        assert len(ranks) >= 2
        torchrun.send_signal(number)
        _, err = torchrun.communicate(timeout=PROMPT)
    assert until(lambda: not any(
        p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ranks), 10)
    if number == signal.SIGTERM:
        said = re.findall(r"^error: ended by SIGTERM; .* saved: go on by the same", err, re.M)
        assert len(said) == 2, err
