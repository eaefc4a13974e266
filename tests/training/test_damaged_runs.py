"""A run of which a byte has changed is not continued, and says which file and what can be done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from dgl_heta import load_model
from dgl_heta.errors import InputError
from dgl_heta.launch.jobs.reporting import plan_picture, verify_run
from dgl_heta.report.reading import read_run
from dgl_heta.report.started import started_rows
from dgl_heta.store import Store, write_store
from dgl_heta.training.checkpoint_files import has_more_than_begun
from tests.support import warm
from tests.support.graphs import academic
from tests.support.signing import edit_json
from tests.support.waiting import PATIENCE, PROMPT, until

SETTINGS = ["partition.parts=1", "model.hidden=8", "train.batch_size=32", "train.fanouts=3,3"]


def train(graph: Path, run_dir: Path, epochs: int, *more: str, status: int = 0) -> str:
    """Train; returns what was said on standard error."""
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "train", str(graph), "--run-dir", str(run_dir), *more,
         *(word for s in (*SETTINGS, f"train.epochs={epochs}") for word in ("--set", s))],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and a run of two epochs, of which none is validated: the last is the best."""
    place = tmp_path_factory.mktemp("damaged")
    write_store(academic(), place / "store")
    train(place / "store", place / "run", 1)
    first = shutil.copytree(place / "run/checkpoints/epoch-00001", place / "first")
    train(place / "store", place / "run", 2, "--resume")
    if not (place / "run/checkpoints/epoch-00001").exists():  # the second was better
        shutil.copytree(first, place / "run/checkpoints/epoch-00001")
    return place


@pytest.mark.parametrize("name", ["rank-0.safetensors", "rows-0.safetensors", "complete-0.json"])
def test_a_damaged_checkpoint_is_named_with_the_one_before(
        place: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    last = run / "checkpoints/epoch-00002"
    flip(last / name, -40)
    said = train(place / "store", run, 3, "--resume", status=2)
    assert f"{last}/{name}" in said
    assert f"that of epoch 1 is complete: remove {last}" in " ".join(said.split())
    if name == "rows-0.safetensors":
        shutil.rmtree(last)
        train(place / "store", run, 3, "--resume")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [1, 2, 3]


def test_the_only_checkpoint_cannot_be_replaced(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    shutil.rmtree(run / "checkpoints/epoch-00001")
    flip(run / "checkpoints/epoch-00002/rank-0.safetensors", 300)
    said = train(place / "store", run, 3, "--resume", status=2)
    assert "train in a new run directory" in said


def test_a_run_whose_checkpoints_are_gone_is_not_overwritten(place: Path, tmp_path: Path) -> None:
    """Unless it may begin again, and then it says so; a single line of the log is of a run that was
    killed before its first checkpoint was whole."""
    run = shutil.copytree(place / "run", tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    kept = {name: (run / name).read_bytes()
            for name in ("metrics.jsonl", "summary.json", "model.safetensors")}
    for dry_run in (["--dry-run"], []):
        said = train(place / "store", run, 3, "--resume", *dry_run, status=2)
        assert "no checkpoint of it that is whole on all workers; bring" in " ".join(said.split())
    assert kept == {name: (run / name).read_bytes() for name in kept}
    assert not (run / "checkpoints").exists()
    (run / "summary.json").unlink()
    assert has_more_than_begun(run)
    (run / "metrics.jsonl").write_bytes(kept["metrics.jsonl"].splitlines(keepends=True)[0])
    assert not has_more_than_begun(run)
    (run / "summary.json").write_bytes(kept["summary.json"])
    said = train(place / "store", run, 1, "--auto-resume")
    assert "whole on all workers: training begins again" in " ".join(said.split())


def test_a_damaged_line_of_the_log_is_named_and_left_out_by_reports(
        place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    assert not read_run(run).damaged
    flip(run / "metrics.jsonl", (run / "metrics.jsonl").read_bytes().index(b'"loss": ') + 9)
    flip(run / "summary.json", 20)
    found = read_run(run)
    assert found.damaged == ["metrics.jsonl line 1", "summary.json"]
    assert [epoch["epoch"] for epoch in found.epochs] == [2]
    said = train(place / "store", run, 3, "--resume", status=2)
    assert f"{run}/metrics.jsonl, line 1, is damaged" in " ".join(said.split())


def test_a_run_says_how_it_was_started_and_a_look_finds_what_is_damaged(
        place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    rows = dict(started_rows(read_run(run).started))
    assert "train" in rows["command"]
    assert rows["graph"].startswith("academic: 119 nodes of 4 types, ")
    assert "<svg" in (plan_picture(run) or "")
    assert not verify_run(run)
    for name in ("model.safetensors", "checkpoints/epoch-00002/rows-0.safetensors"):
        flip(run / name, 300)
        found, = verify_run(run)
        assert name in found
        flip(run / name, 300)
    (run / "model.json").unlink()
    assert "<svg" in (plan_picture(run) or "")  # by the store


def test_the_plan_of_a_run_with_several_trainers_is_drawn(place: Path, tmp_path: Path) -> None:
    """With one partition's bytes, though it is trained by two workers."""
    asked = ("--parts", "2", "--set", "partition.shared=delegate", "--set", "train.trainers=2")
    train(place / "store", tmp_path / "run", 1, *asked)
    plan = read_run(tmp_path / "run").summary["plan"]
    assert (plan["parts"], len(plan["partitions"])) == (2, 2)
    assert plan["delegates"]
    drawn = plan_picture(tmp_path / "run")
    assert drawn
    page = (tmp_path / "run/report.html").read_text()  # as training itself drew it
    assert b64encode(drawn.encode()).decode() in page


def test_a_store_that_is_cut_while_a_run_reads_it_is_named(place: Path, tmp_path: Path) -> None:
    store, run = shutil.copytree(place / "store", tmp_path / "store"), tmp_path / "run"
    feat = store / Store(store).manifest.arrays["paper"]["feat"].file
    with subprocess.Popen(
            [warm.python(), "-m", "dgl_heta", "train", str(store), "--run-dir", str(run), *(
                word for s in (*SETTINGS, "train.epochs=100000") for word in ("--set", s))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert until(lambda: (run / "metrics.jsonl").exists() or process.poll() is not None,
                     PATIENCE)
        os.truncate(feat, 0)
        _, said = process.communicate(timeout=PROMPT)
    words = " ".join(said.split())
    if process.returncode == 1:  # in an epoch
        assert f"killed by signal 7 (SIGBUS), for files that it had open were cut: {feat}" in words
    else:  # between two
        assert process.returncode == 2
        assert f"store file {feat} has 0 bytes, but the manifest says" in words


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_damaged_model_is_not_loaded(place: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    assert load_model(run) is not None
    flip(run / name, -60)
    with pytest.raises(InputError, match=rf"{name} (was edited or|is) damaged"):
        load_model(run)


def test_a_model_of_another_run_is_noticed(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    edit_json(run / "model.json", lambda note: note["files"].update({"model.safetensors": "0"}))
    with pytest.raises(InputError, match="does not agree with model.json; resume the run"):
        load_model(run)
