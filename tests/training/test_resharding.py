"""A checkpoint of P workers goes on with P′, to what the run without a break comes to."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_heta.store import write_store
from tests.support import warm
from tests.support.graphs import academic
from tests.support.runs import ENDED_IN_STEP_3
from tests.support.waiting import PATIENCE

# Authors and institutions have learnable rows; of sampled neighbours, 12 steps an epoch.
SETTINGS = ["model.hidden=8", "train.fanouts=3,3", "train.global_batch_size=6", "train.threads=1",
            "train.dtype=float64", "train.epochs=3", "run.prove=off"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=120), path)
    return path


@pytest.fixture(scope="module")
def whole(store: Path) -> Path:
    """A run of two workers without a break."""
    run = store.with_name("whole")
    train(store, run, 2)
    return run


def command(graph: Path, run_dir: Path, parts: int, *more: str, resume: bool = False
            ) -> subprocess.CompletedProcess[str]:
    settings = [w for text in (*SETTINGS, f"partition.parts={parts}", *more)
                for w in ("--set", text)]
    return subprocess.run(
        [warm.python(), "-m", "dgl_heta", "train", graph, "--run-dir", run_dir, *settings,
         *["--resume"] * resume], capture_output=True, text=True, timeout=PATIENCE)


def train(graph: Path, run_dir: Path, parts: int, *more: str, resume: bool = False) -> str:
    done = command(graph, run_dir, parts, *more, resume=resume)
    assert done.returncode == 0, done.stderr
    return done.stderr


def epochs(run: Path) -> np.ndarray:
    """Loss and scores of each epoch."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return np.array([[line["loss"], line["train_acc"], line["val_acc"]] for line in lines
                     if line["event"] == "epoch"])


def state(run: Path, epoch: int) -> dict[str, np.ndarray]:
    """What a checkpoint has, whoever has it: parameters with their moments, rows with theirs."""
    folder = run / f"checkpoints/epoch-{epoch:05d}"
    found = {name: array for name, array in load_file(folder / "rank-0.safetensors").items()
             if name.startswith(("model.", "adam."))}
    for rank in range(json.loads((folder / "complete-0.json").read_text())["workers"]):
        rows = load_file(folder / f"rows-{rank}.safetensors")
        note = json.loads((folder / f"complete-{rank}.json").read_text())
        for table, ntype, low, high, start in note["rows"]:
            for part in ("value", "first", "second"):
                whole = found.setdefault(f"{ntype}.{part}", np.full((80, 8), np.nan))
                whole[low:high] = rows[f"{table}.{part}"][start:start + high - low]
    return found


def assert_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("before", "after", "within", "first", "then"), [
    (3, 2, True, (), ()),
    (2, 3, False, (), ()),
    (1, 2, False, (), ("partition.replication=none",)),
    (3, 2, False, ("train.wrapper=ddp",), ("train.wrapper=ddp",)),
    pytest.param(2, 1, True, (), (), marks=pytest.mark.thorough)])
def test_a_run_goes_on_with_other_workers(
        before: int, after: int, within: bool, first: tuple[str, ...], then: tuple[str, ...],
        store: Path, whole: Path, tmp_path: Path) -> None:
    """From the end of an epoch, or within one: losses, parameters, rows and moments are equal."""
    run = tmp_path / "run"
    if within:
        stopped = subprocess.run(
            [warm.python(), "-c", ENDED_IN_STEP_3, store, run, *SETTINGS,
             f"partition.parts={before}"],
            capture_output=True, text=True, timeout=PATIENCE)
        assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
        assert list(run.glob("checkpoints/epoch-00001-step-*"))
    else:
        train(store, run, before, "train.epochs=1", *first)
    assert f"from a checkpoint of {before}\n" in train(store, run, after, *then, resume=True)
    np.testing.assert_allclose(epochs(run), epochs(whole), rtol=1e-10, atol=1e-12)
    assert_equal(state(run, 3), state(whole, 3))
    # Of the best epoch, which others trained.
    assert_equal(*(load_file(path / "model.safetensors") for path in (run, whole)))
    assert json.loads((run / "summary.json").read_text())["best_epoch"] == 1


def test_of_rows_that_several_had_copies_of_the_mean_goes_on(store: Path, tmp_path: Path) -> None:
    """It is the model that the copies make, so that stays what it was."""
    run, settings = tmp_path / "run", ("train.learnable=replica", "train.epochs=1")
    train(store, run, 3, *settings)
    model = load_file(run / "model.safetensors")
    assert "a checkpoint of 3" in train(store, run, 2, *settings, resume=True)
    assert_equal(load_file(run / "model.safetensors"), model)


def test_what_others_cannot_go_on_from_is_refused_and_stays(store: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(store, run, 2, "train.epochs=1")
    folder = run / "checkpoints/epoch-00001"

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*.json*")}

    def refused(*settings: str) -> str:
        before = files()
        said = command(store, run, 3, *settings, "train.epochs=1", resume=True)
        assert (said.returncode, files()) == (2, before)
        return said.stderr

    assert "train.global_batch_size = 6 (now 9); resume with the same" in refused(
        "train.global_batch_size=9")
    assert "train.seed = 0 (now 1)" in refused("train.seed=1")
    shard = folder / "rows-0.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "rows-0.safetensors was edited or damaged" in refused()
    shard.unlink()
    told = f"{folder} has not the shards of all 2 workers that saved it"
    assert told in refused()
    shard.write_bytes(content)
    (folder / "complete-1.json").rename(tmp_path / "note")  # of a machine with a disk of its own
    assert told in refused()
    shutil.copy(tmp_path / "note", folder / "complete-1.json")
    assert "a checkpoint of 2" in train(store, run, 3, "train.epochs=1", resume=True)
