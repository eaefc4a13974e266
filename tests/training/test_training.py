"""`dgl-heta train`: results, checkpoints, and what happens when a worker fails.

Faults come from a plugin that the tests write, a distribution with an entry point.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from dgl_heta import load_model
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.settings import Settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.resumed_identity import Identity
from tests.support import warm
from tests.support.graphs import academic
from tests.support.waiting import FACTOR, PATIENCE, PROMPT, until

SETTINGS = ["model.hidden=8", "train.fanouts=3,3", "train.batch_size=8", "train.threads=1",
            "train.epochs=2"]

FAULTY = """
import os, signal, time
from dgl_heta import hookimpl

@hookimpl
def dgl_heta_epoch_ended(run_dir, rank, metrics):
    if str(rank) != os.environ.get("FAULT_RANK") or metrics["epoch"] != 1:
        return
    fault = os.environ["FAULT"]
    if fault == "raise":
        raise ValueError("the fault of this test")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=120), path)
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution whose plugin fails where FAULT and FAULT_RANK say."""
    site = tmp_path_factory.mktemp("site")
    (site / "faulty_plugin.py").write_text(FAULTY)
    info = site / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dgl_heta]\nfaulty = faulty_plugin\n")
    return site


def command(graph: Path, run_dir: Path, *extra: str, settings: list[str] = SETTINGS) -> list[str]:
    sets = [part for text in settings for part in ("--set", text)]
    return [warm.python(), "-m", "dgl_heta", "train", str(graph), "--run-dir", str(run_dir),
            "--json", *sets, *extra]


def train(graph: Path, run_dir: Path, *extra: str) -> dict:
    done = subprocess.run(command(graph, run_dir, *extra), capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def workers_of(run_dir: Path) -> list[psutil.Process]:
    """Worker processes of a run that are still alive."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if any(str(run_dir) in part for part in line) and process.info["status"] != "zombie":
            found.append(process)
    return found


@pytest.fixture(scope="module")
def of_two(store: Path) -> Path:
    """The run of two workers."""
    train(store, store.with_name("of two"), "--parts", "2")
    return store.with_name("of two")


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def test_training_reports_what_it_did(of_two: Path) -> None:
    summary = summary_of(of_two)
    for key in ("test_acc", "val_acc", "epoch_seconds", "bytes_sent_per_epoch", "peak_rss_mb"):
        assert np.isfinite(summary[key]), key
    assert summary["bytes_sent_per_epoch"] == sum(summary["bytes"].values()) > 0
    assert 0.5 * summary["epoch_seconds"] < sum(summary["stages"].values()) <= 1.01 * summary[
        "epoch_seconds"]
    lines = [json.loads(line) for line in
             (of_two / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["epoch", "epoch", "summary"]
    assert "data:image/svg+xml" in (of_two / "report.html").read_text()


@pytest.mark.parametrize(("model", "reduce"), [
    ("rgcn", "sum"), ("hgt", "sum"), pytest.param("rgcn", "max", marks=pytest.mark.thorough)])
def test_prediction_of_bytes_is_what_training_counts(
        store: Path, tmp_path: Path, model: str, reduce: str) -> None:
    """The cost model against the engine's counters, batches that divide evenly."""
    from dgl_heta.planning.cost import predict
    from dgl_heta.planning.workload import Workload

    plan = make_plan(Store(store).schema, "paper", 2, 3)
    run = train(store, tmp_path / "run", "--parts", "3", "--set", "train.batch_size=24",
                "--set", "train.epochs=1", "--set", f"model.reduce={reduce}", "--model", model,
                "--set", "model.heads=2")
    assert int(Store(store).array("paper", "train_mask").sum()) == 72  # one step of 3 × 24
    work = Workload(24, 8, parameters=run["parameters"], reduce=reduce, model=model, heads=2)
    predicted = predict(plan, work)
    assert run["bytes"]["partials"] == sum(c.partial_bytes for c in predicted)
    flags = 2 * 4 * len(load_file(tmp_path / "run" / "model.safetensors")) * 2
    gradients = sum(c.gradient_bytes for c in predicted)
    # At most: gradients that one worker alone has cost half, those that nobody has nothing.
    assert gradients / 3 <= run["bytes"]["gradients"] <= gradients + 3 * flags


@pytest.mark.releases
def test_two_workers_reach_what_one_reaches(store: Path, tmp_path: Path) -> None:
    """No dropout, the same global batch: equal up to rounding, sampled neighbourhoods or not."""
    runs = [train(store, tmp_path / f"run{parts}", "--parts", str(parts),
                  "--set", f"train.batch_size={24 // parts}", "--set", "train.dtype=float64")
            for parts in (1, 2)]
    assert runs[0]["test_acc"] == runs[1]["test_acc"]
    assert runs[0]["val_acc"] == runs[1]["val_acc"]
    assert runs[0]["bytes_sent_per_epoch"] == 0
    one, two = (load_file(tmp_path / f"run{parts}" / "model.safetensors") for parts in (1, 2))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-7, atol=1e-9)


def test_consolidated_model_predicts_in_one_process_what_the_workers_predicted(
        store: Path, tmp_path: Path) -> None:
    summary = train(store, tmp_path / "run", "--parts", "2", "--set", "train.fanouts=-1,-1")
    plain = load_model(tmp_path / "run").eval()
    opened = Store(store)
    plan = make_plan(opened.schema, "paper", 2, 1)
    sampler = NeighborSampler(opened, SamplingScope.of(plan, 0), [-1, -1])
    seeds = np.flatnonzero(opened.array("paper", "test_mask"))
    batch = sampler.sample({"paper": seeds})
    inputs = {}
    for ntype, ids in batch.input_nodes.items():
        if opened.has_array(ntype, "feat"):
            inputs[ntype] = torch.from_numpy(opened.array(ntype, "feat")[ids]).float()
        else:
            inputs[ntype] = plain.features[f"of {ntype}"](torch.from_numpy(ids))
    with torch.no_grad():
        guess = plain.model(batch, inputs)["paper"].argmax(1).numpy()
    right = (guess == opened.array("paper", "label")[seeds]).mean()
    assert right == pytest.approx(summary["test_acc"], abs=1e-9)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_resumed_run_ends_where_an_uninterrupted_one_ends(
        workers: int, store: Path, faulty: Path, tmp_path: Path) -> None:
    """A worker is killed after the first epoch; --resume continues from its checkpoint. Sums of
    three are rounded by their order, which has to be the same."""
    extra = ["--parts", str(workers), "--set", "model.dropout=0.2", "--set", "train.epochs=3"]
    whole = train(store, tmp_path / "whole", *extra)
    broken = subprocess.run(
        command(store, tmp_path / "broken", *extra), capture_output=True, text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(faulty), "FAULT": "kill", "FAULT_RANK": "1"})
    assert broken.returncode == 1
    again = train(store, tmp_path / "broken", *extra, "--resume")
    assert again["test_acc"] == whole["test_acc"]
    assert again["epochs"] == whole["epochs"] == 3
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert one.keys() == two.keys()
    for key in one:
        assert torch.equal(one[key], two[key]), key
    lines = [json.loads(line) for line in
             (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    shorter = train(store, tmp_path / "broken", *extra[:-1], "train.epochs=1", "--resume")
    assert shorter["val_acc"] == pytest.approx(lines[shorter["best_epoch"] - 1]["val_acc"])
    assert shorter["test_acc"] == whole["test_acc"]
    job = (tmp_path / "broken" / "job.json").read_bytes()
    refused = subprocess.run(
        command(store, tmp_path / "broken", *extra, "--resume", "--set", "train.lr=0.5"),
        capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 2
    assert "made with other settings: train.lr = 0.01 (now 0.5);" in refused.stderr
    kept = (tmp_path / "broken" / "metrics.jsonl").read_bytes()
    for parts in ("1", "4"):  # other steps; the fourth has no checkpoint
        refused = subprocess.run(
            command(store, tmp_path / "broken", *extra, "--resume", "--parts", parts),
            capture_output=True, text=True, timeout=PATIENCE)
        assert refused.returncode == 2
        assert f"train.global_batch_size = 24 (now {8 * int(parts)}); resume with the same" in (
            refused.stderr)
    assert (tmp_path / "broken" / "metrics.jsonl").read_bytes() == kept
    assert (tmp_path / "broken" / "job.json").read_bytes() == job
    assert not (tmp_path / "broken" / "job.next.json").exists()


def test_a_checkpoint_goes_on_with_other_sources_of_batches_and_kernels() -> None:
    """They change no numbers."""
    schema = Schema({"a": 5, "b": 7}, {Relation("a", "r", "b"): 9, Relation("b", "s", "a"): 11})
    manifest = SimpleNamespace(checksum="abc")
    part: Any = SimpleNamespace(store=SimpleNamespace(manifest=manifest),
                                plan=make_plan(schema, "a", 2, 2))
    task: Any = SimpleNamespace(held_out=None)
    now = Identity.of(part, task, Settings())
    # By "auto" a machine with a GPU makes batches by the pipeline, another one does not.
    of_pipeline = Settings(plugins={"pipeline": {"depth": 2}})
    assert Identity.of(part, task, of_pipeline, ["pipeline"]) == now
    of_merged = Settings(plugins={"merged": {"few": 2}})
    assert Identity.of(part, task, of_merged, kernels=["merged"]) == now
    named = Settings.model_validate({"train": {"kernel": "torch", "lr": 0.5}})
    note = Identity.of(part, task, named).to_json()
    assert now.difference(note) == "other settings: train.lr = 0.5 (now 0.01)"


@pytest.mark.parametrize("fault", ["raise", "kill", "hang"])
def test_failing_worker_ends_the_run_with_its_own_words_first(
        store: Path, faulty: Path, tmp_path: Path, fault: str) -> None:
    limit = 10 * FACTOR if fault == "hang" else PATIENCE
    started = time.monotonic()
    done = subprocess.run(
        command(store, tmp_path / "run", "--parts", "3", "--set", f"run.timeout_s={limit}"),
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(faulty), "FAULT": fault, "FAULT_RANK": "1"})
    assert time.monotonic() - started < PROMPT
    assert done.returncode == 1
    assert not done.stdout.strip()
    if fault == "raise":
        assert done.stderr.startswith("Traceback")
        assert "\nValueError: the fault of this test\n" in done.stderr
        assert "worker 1 failed" in done.stderr
    elif fault == "kill":
        assert "worker 1 was killed by signal 9 (SIGKILL)" in done.stderr
    else:
        assert "lost another worker" in done.stderr
    assert not workers_of(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("number", [
    signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_no_worker_outlives_the_command(store: Path, tmp_path: Path, number: int) -> None:
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        command(store, run_dir, "--parts", "2", "--set", "train.epochs=100000"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (run_dir / "metrics.jsonl").exists() or process.poll() is not None, PATIENCE)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PROMPT) != 0
        assert until(lambda: not workers_of(run_dir))
    finally:
        process.kill()


@pytest.mark.releases
def test_torchrun_ranks_are_workers(store: Path, of_two: Path, tmp_path: Path) -> None:
    opened = Store(store)
    write_partition(opened, make_plan(opened.schema, "paper", 2, 2), tmp_path / "parts")
    plain = command(tmp_path / "parts", tmp_path / "run")
    done = subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         *plain[1:]], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["test_acc"] == summary_of(of_two)["test_acc"]
    assert (tmp_path / "run" / "report.html").exists()
    again = subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         *plain[1:]], capture_output=True, text=True, timeout=PATIENCE)
    assert again.returncode != 0
    assert "holds a run already" in again.stderr


def test_a_restart_of_torchrun_goes_on_from_the_last_checkpoint(
        store: Path, faulty: Path, of_two: Path, tmp_path: Path) -> None:
    """Rank 1 is killed after the first epoch; torchrun starts all ranks again, once."""
    opened = Store(store)
    write_partition(opened, make_plan(opened.schema, "paper", 2, 2), tmp_path / "parts")
    done = subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", *command(tmp_path / "parts", tmp_path / "run")[1:]],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(faulty), *filter(None, [os.environ.get("PYTHONPATH")])]),
             "FAULT": "kill", "FAULT_RANK": "1"})
    assert done.returncode == 0, done.stderr
    assert "exitcode" in done.stderr  # it had failed
    summary = json.loads(done.stdout.splitlines()[-1])
    same = summary_of(of_two)
    assert summary["test_acc"] == same["test_acc"]
    assert summary["epochs"] == same["epochs"] == 2
    one, two = (load_file(run / "model.safetensors") for run in (tmp_path / "run", of_two))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_torchrun_goes_on_with_a_machine_fewer(
        store: Path, faulty: Path, of_two: Path, tmp_path: Path) -> None:
    """Rank 2 is killed after the first epoch; the graph is partitioned and staged for two."""
    opened = Store(store)
    for count in (3, 2):
        write_partition(opened, make_plan(opened.schema, "paper", 2, count),
                        tmp_path / f"parts-{count}")
    subprocess.run([warm.python(), "-m", "dgl_heta", "stage", tmp_path / "parts-2", "--to",
                    tmp_path / "staged", "--part", "0", "--part", "1"], check=True,
                   timeout=PATIENCE, capture_output=True)
    log, first = tmp_path / "run" / "metrics.jsonl", ""
    for count, graph, status in (("3", "parts-3", 1), ("2", "staged", 0)):
        done = subprocess.run(
            [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             count, *command(tmp_path / graph, log.parent, "--auto-resume", settings=[
                 text.replace("train.batch_size=8", "train.global_batch_size=16")
                 for text in SETTINGS])[1:]],
            capture_output=True, text=True, timeout=PATIENCE, env={
                **os.environ, "PYTHONPATH": os.pathsep.join(
                    [str(faulty), *filter(None, [os.environ.get("PYTHONPATH")])]),
                "FAULT": "kill", "FAULT_RANK": "2"})
        assert done.returncode == status, done.stderr
        first = first or log.read_text()  # which is not trained again
    lines = log.read_text().splitlines()
    assert lines[0] == first.strip()
    whole = (of_two / "metrics.jsonl").read_text().splitlines()
    np.testing.assert_allclose(*([json.loads(line)["loss"] for line in of[:2]]
                                 for of in (lines, whole)), rtol=1e-5)


def test_small_batches_and_a_last_batch_smaller_than_the_workers_train(tmp_path: Path) -> None:
    """One seed per worker, 73 training nodes: in the last step two workers have none.

    There is no validation split either: the last epoch is kept, and JSON says null.
    """
    source = academic(papers=120)
    mask = source.node_arrays["paper"]["train_mask"]
    mask[np.flatnonzero(~mask)[0]] = True
    del source.node_arrays["paper"]["val_mask"]
    write_store(source, tmp_path / "store")
    assert mask.sum() == 73
    for extra in (["--set", "train.wrapper=ddp"], ["--set", "model.reduce=max"]):
        summary = train(tmp_path / "store", tmp_path / f"run{extra[-1:]}", "--parts", "3", *extra,
                        "--set", "train.batch_size=1", "--set", "train.fanouts=1,1",
                        "--set", "train.epochs=1")
        assert np.isfinite(summary["test_loss"])
        assert summary["val_acc"] is None


@pytest.mark.parametrize(("extra", "says"), [
    (["--model", "rgcm"], "unknown model 'rgcm'"),
    (["--set", "train.wrapper=rav"], "unknown module wrapper 'rav'"),
    (["--parts", "0"], "partition.parts"),
    (["--set", "train.fanouts=1"], "one fanout per layer"),
    (["--set", "train.lrr=1"], "did you mean 'train.lr'?"),
    (["--resume"], "no run to resume"),
    (["--set", "partition.method=metis"], "no plan to show or to train with")])
def test_wrong_arguments_are_one_line_and_status_2(
        store: Path, tmp_path: Path, extra: list[str], says: str) -> None:
    done = subprocess.run(command(store, tmp_path / "run", *extra), capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_damaged_store_is_found_before_training(store: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    file = next(copy.glob("relations/*writes*/indices.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = subprocess.run(command(copy, tmp_path / "run", "--parts", "2"), capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert file.name in done.stderr
    assert "checksum" in done.stderr




def test_delegation_trains_the_same_with_fewer_bytes(store: Path, tmp_path: Path) -> None:
    """The same losses in fp64, whoever aggregates; a run goes on, and predicts, as others do."""
    runs = {}
    for shared in ("rows", "delegate"):
        runs[shared] = train(store, tmp_path / shared, "--set", f"partition.shared={shared}",
                             "--set", "train.dtype=float64")
        assert runs[shared]["test_loss"] == pytest.approx(runs["rows"]["test_loss"], rel=1e-9)
    plans = {shared: json.loads((tmp_path / shared / "job.json").read_text())["plan"]
             for shared in runs}
    assert "delegates" in plans["delegate"]
    assert "delegates" not in plans["rows"]
    assert runs["delegate"]["bytes"]["learnable"] < runs["rows"]["bytes"]["learnable"]
    resumed = train(store, tmp_path / "delegate", "--set", "partition.shared=delegate", "--resume",
                    "--set", "train.dtype=float64", "--set", "train.epochs=3")
    assert resumed["epochs"] == 3
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "predict", str(tmp_path / "delegate"),
                           "--out", str(tmp_path / "classes.npy")],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "classes.npy").shape == (120,)
