"""Jobs for schedulers, as `dgl-heta manifest` prints them; tests/launch/test_slurm.py runs one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from dgl_heta import cli
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic

SETTINGS = ("--set", "train.lr=0.01", "--set", "run.directory=a \"b' $c")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("graph")
    write_store(academic(), here / "store")
    store = Store(here / "store")
    write_partition(store, make_plan(store.schema, "paper", 2, 4), here / "My Graph")
    return here / "My Graph"


def printed(capsys: Any, monkeypatch: Any, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["dgl-heta", "manifest", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0), *capsys.readouterr()


def test_a_job_of_slurm_has_a_task_for_each_trainer_and_the_words_as_they_were_given(
        parts: Path, capsys, monkeypatch) -> None:
    _, text, _ = printed(capsys, monkeypatch, "slurm", parts, "--run-dir", "/runs/a b",
                         "--nodes", 2, *SETTINGS, "--set", "train.trainers=3")
    assert "#SBATCH --job-name=heta-my-graph\n" in text
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=6\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert shlex.split(line) == [
        "srun", "dgl-heta", "train", str(parts), "--run-dir", "/runs/a b", "--auto-resume",
        *SETTINGS, "--set", "train.trainers=3"]


def test_settings_of_the_environment_are_in_the_job(parts: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DGL_HETA_TRAIN__LR", "0.5")
    _, text, _ = printed(capsys, monkeypatch, "slurm", parts, "--run-dir", "/r", *SETTINGS)
    assert " --set train.lr=0.5 " in text


def test_a_job_of_kubernetes_is_a_trainjob(parts: Path, capsys, monkeypatch) -> None:
    """By the models that Kubeflow Trainer makes from the schema of its API: what they do not know,
    they drop."""
    _, text, _ = printed(capsys, monkeypatch, "kubernetes", parts, "--run-dir", "/runs/a: b",
                         "--image", "registry/heta:1", *SETTINGS)
    job = yaml.safe_load(text)
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 1)
    assert trainer["command"] == [
        "torchrun", "-m", "dgl_heta", "train", str(parts), "--run-dir", "/runs/a: b",
        "--auto-resume", *SETTINGS]
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == [str(parts), "/runs/a: b"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == [
        str(parts), "/runs/a: b"]


@pytest.mark.parametrize(("words", "says"), [
    (["slurm"], "a job for slurm needs PARTITION and --run-dir"),
    (["slurm", "/nowhere", "--run-dir", "/r"], "/nowhere is no partition on this machine; give "
                                               "--parts"),
    (["slurm", "{parts}", "--run-dir", "/r", "--parts", "3"], "but {parts} has 4 partitions"),
    (["slurm", "{parts}", "--run-dir", "/r", "--nodes", "3"], "does not divide the 4 workers"),
    (["slurm", "{parts}", "--run-dir", "/r", "--nodes", "0"], "--nodes is 0; it must be 1 or more"),
    (["slurm", "{parts}", "--run-dir", "/r", "--image", "a"], "--image has no effect on a job of"),
    (["slurm", "{parts}", "--run-dir", "/r", "--set", "train.lrr=1"], "did you mean 'train.lr'?"),
    (["kubernetes", "{parts}", "--run-dir", "/r"], "needs --image"),
    (["kubernetes", "/a", "--parts", "2", "--run-dir", "r", "--image", "a"],
     "r is mounted in pods, so it must be an absolute path"),
    (["dockerfile", "{parts}"], "PARTITION has no effect on a Dockerfile")])
def test_what_makes_no_job_is_one_line(parts: Path, capsys, monkeypatch, words: list[str],
                                       says: str) -> None:
    status, out, err = printed(capsys, monkeypatch, *(word.format(parts=parts) for word in words))
    assert (status, out) == (2, "")
    assert says.format(parts=parts) in err
    assert len(err.splitlines()) == 1
