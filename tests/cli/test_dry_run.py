"""`train --dry-run` reads what training would read, and keeps nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.jobs.training import TrainingJob
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.system.checksums import write_signed
from dgl_heta.training.setup import build_engine
from tests.support.command_line import edge_files, refused, tree
from tests.support.signing import edit_json

SETTINGS = ("partition.parts=2", "model.hidden=8", "train.fanouts=3,3")


def check(graph: Path, run_dir: Path, *more: str, resume: bool = False) -> None:
    TrainingJob.prepare(str(graph), None, [*SETTINGS, *more], plugins()).check(
        run_dir, resume=resume)


def test_a_flip_in_any_file_that_training_reads_is_seen(store: Path, tmp_path: Path) -> None:
    draw = random.Random(1)
    files = [p for p in store.rglob("*") if p.is_file()]
    (unread,) = store.glob("relations/*author__at__institution")
    assert len(files) == 23
    check(store, tmp_path / "run")
    for file in files:
        before = file.read_bytes()
        if file.parent == unread or not before:
            continue
        data = bytearray(before)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        with pytest.raises(InputError, match=file.name):
            check(store, tmp_path / "run")
        file.write_bytes(before)
    assert not (tmp_path / "run").exists()


def test_a_graph_that_is_no_store_yet_is_read_as_a_whole(heta, tmp_path, monkeypatch) -> None:
    """An end of an edge that is no node is in no count: only who reads the edges finds it."""
    files = edge_files(tmp_path / "files")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ("train", files, "--dry-run", "--run-dir", "runs/new", "--set", "model.hidden=4")
    result = heta(*arguments)
    assert result.status == 0, result.err
    assert tree(tmp_path) == before
    ids = np.load(files / "writes-src.npy")
    ids[-1] = 999_999
    np.save(files / "writes-src.npy", ids)
    before = tree(tmp_path)
    refused(heta(*arguments), "999,?999")
    assert tree(tmp_path) == before


def test_a_run_that_goes_on_says_that_it_has_a_copy_of_the_graph(tmp_path, caplog) -> None:
    """Who mended the files' labels saw scores that are still of the labels before."""
    files, run = edge_files(tmp_path / "files"), tmp_path / "run"
    job = TrainingJob.prepare(str(files), None, SETTINGS, plugins())
    store = job.checked_store(run, False, False).directory
    assert "the copy of" not in caplog.text
    job.checked_store(run, True, False)
    assert f"goes on with the copy of {files} in {store}, made before" in caplog.text


def test_a_store_that_no_run_made_is_neither_replaced_nor_removed(heta, store: Path, tmp_path: Path
                                                                  ) -> None:
    """That of a partition, too, which no longer opened."""
    files, run = edge_files(tmp_path / "files"), tmp_path / "run"
    assert heta("partition", files, "--out", tmp_path / "parts").status == 0
    (tmp_path / "mine").mkdir()
    store.rename(tmp_path / "mine" / "store")
    before = tree(tmp_path)
    for more in ([], ["--dry-run"], ["--auto-resume"], ["--seeds", "2"]):
        train = ("train", files, "--set", "partition.parts=1", *more, "--run-dir")
        refused(heta(*train, tmp_path / "parts"), "parts is a partition, .* another run directory")
        refused(heta(*train, tmp_path / "mine"), "mine holds a store that no run made")
    assert tree(tmp_path) == before
    for _ in range(2):  # one that is killed before its first step begins again
        TrainingJob.prepare(str(files), None, SETTINGS, plugins()).checked_store(run, False, False)
    with pytest.raises(InputError, match="topic"):
        TrainingJob.prepare(str(files), None, [*SETTINGS, "task.label=topic"], plugins()
                            ).checked_store(run, False, False)
    assert not list(run.iterdir())


def test_what_a_directory_holds_is_checked_with_it(store: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match="there is no run to resume in"):
        check(store, run, resume=True)
    run.mkdir()  # one that is empty is no run either: a mistyped name began a new training
    with pytest.raises(InputError, match="there is no run to resume in"):
        check(store, run, resume=True)
    folder = run / "checkpoints/epoch-00001"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match="holds a run already"):
        check(store, run)
    (folder / "rank-0.safetensors").write_text("damaged")
    write_signed(folder / "complete-0.json", {
        "epoch": 1, "step": 0, "best": {}, "settings": {}, "workers": 1, "rows": [], "files": {
            "rank-0.safetensors": "another sum", "rows-0.safetensors": ""}})
    with pytest.raises(InputError, match=r"rank-0\.safetensors was edited or damaged"):
        check(store, run, resume=True)
    (run / ".lock").symlink_to("/nowhere")
    with pytest.raises(InputError, match=r"\.lock is a link to /nowhere"):
        check(store, run, resume=True)


def test_a_check_that_is_switched_off_is_not_made(store: Path, tmp_path: Path) -> None:
    edit_json(store / "manifest.json", lambda data: None)  # signed again
    assert json.loads((store / "manifest.json").read_text())["name"]
    (array,) = list(store.rglob("*feat*.npy"))[:1]
    data = bytearray(array.read_bytes())
    data[-1] ^= 1
    array.write_bytes(data)
    check(store, tmp_path / "run", "run.verify=false")
    with pytest.raises(InputError, match=array.name):
        check(store, tmp_path / "run")


def test_settings_that_the_model_does_not_read_are_named(
        store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor do they change what is predicted, and so who aggregates what."""
    asked = "model.name=hgt", "model.heads=2", "model.reduce=max", "model.aggregate=mean"
    job = TrainingJob.prepare(str(store), None, [*SETTINGS, *asked], plugins())
    for _ in range(2):  # a second training says it again
        caplog.clear()
        job.check(tmp_path / "run")
        assert [r.message for r in caplog.records if "has no effect" in r.message] == [
            "model.reduce = max has no effect: model 'hgt' does not read it"]  # mean is the default
    # Under a scheduler the same process then checks for its engine, too.
    caplog.clear()
    build_engine(Store(store), make_plan(Store(store).schema, "paper", 2, 1), job.settings,
                 job.registry)
    assert "has no effect" not in caplog.text
    assert Workload.of(load_settings(None, asked)).reduce == "sum"
