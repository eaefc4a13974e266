"""`dgl-heta train` under a real SLURM of two nodes: srun, sbatch, preemption and requeue."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import slurm, warm
from tests.support.building import write_graph
from tests.support.graphs import academic
from tests.support.runs import assert_same_training
from tests.support.waiting import PROMPT, until

pytestmark = pytest.mark.needs("slurm")
SETTINGS = [word for setting in (
    "model.hidden=8", "model.dropout=0.5", "train.fanouts=3,3", "train.batch_size=4",
    "train.threads=1", "train.epochs=12", "run.timeout_s=120") for word in ("--set", setting)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("graph")
    write_store(academic(papers=120), here / "store")
    store = Store(here / "store")
    write_partition(store, make_plan(store.schema, "paper", 2, 2), here / "parts")
    return here / "parts"


@pytest.fixture(scope="module")
def whole(parts: Path) -> Path:
    """The run of two local workers."""
    run = parts.with_name("whole")
    subprocess.run([warm.python(), "-m", "dgl_heta", "train", parts, "--run-dir", run, *SETTINGS],
                   check=True, capture_output=True, timeout=PROMPT)
    return run


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    with slurm.started() as running:
        yield running


def environment(tmp_path: Path) -> dict[str, str]:
    """In which `dgl-heta` is this one."""
    program = tmp_path / "dgl-heta"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dgl_heta "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.thorough  # in a job: below; in directories of their own: test_stage_hosts.py
def test_tasks_of_srun_train_what_local_workers_do(
        cluster: slurm.Slurm, parts: Path, whole: Path, tmp_path: Path) -> None:
    """Each in a run directory of its own, as on machines that share none."""
    command = shlex.join(["dgl-heta", "train", str(parts), *SETTINGS, "--run-dir"])
    done = cluster.run("srun", "-N", 2, "--ntasks-per-node", 1, "sh", "-c",
                       f"exec {command} {tmp_path}/run-$SLURM_PROCID", env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Report: ") == 1
    assert_same_training(tmp_path / "run-0", whole)
    assert not (tmp_path / "run-1" / "model.safetensors").exists()


@pytest.mark.thorough  # workers of torchrun: tests/partition/test_building.py
def test_tasks_of_srun_write_the_partition_of_one_process(cluster: slurm.Slurm, tmp_path: Path
                                                          ) -> None:
    graph = write_graph(tmp_path)
    command = ["dgl-heta", "partition", graph, "--target", "paper", "--parts", "2", "--out"]
    alone = subprocess.run([sys.executable, "-m", "dgl_heta", *command[1:], tmp_path / "one"],
                           capture_output=True, timeout=PROMPT)
    done = cluster.run("srun", "-N", 2, "--ntasks-per-node", 1, *command, tmp_path / "two",
                       env=environment(tmp_path))
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    same = subprocess.run(["diff", "-r", tmp_path / "one", tmp_path / "two"], capture_output=True)
    assert same.returncode == 0, same.stdout


def test_a_job_that_is_preempted_is_requeued_and_comes_to_the_same(
        cluster: slurm.Slurm, parts: Path, whole: Path, tmp_path: Path) -> None:
    """With the script that `dgl-heta manifest slurm` prints. Its tasks get SIGTERM twice: before a
    time limit, where the script itself asks for another turn, and with `scontrol requeue`."""
    run, env = tmp_path / "run", environment(tmp_path)
    script = subprocess.run([warm.python(), "-m", "dgl_heta", "manifest", "slurm", parts,
                             "--run-dir", run, *SETTINGS], check=True, capture_output=True,
                            timeout=PROMPT).stdout
    (tmp_path / "job.sh").write_bytes(script)
    job = cluster.run("sbatch", "--parsable", "job.sh", cwd=tmp_path, env=env).stdout.strip()
    log, output = run / "metrics.jsonl", tmp_path / f"slurm-{job}.out"

    def wait(condition: Callable[[dict[str, str]], object]) -> None:
        assert until(lambda: condition(cluster.state(job)), PROMPT), (
            f"{cluster.state(job)}\n{output.read_text()}")

    def begun(state: dict[str, str]) -> bool:
        """Whether it runs. SLURM would wait two minutes, for the script that was ended to be gone:
        its end would be taken for that of the next."""
        if state["JobState"] == "PENDING":
            time.sleep(2)
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return state["JobState"] == "RUNNING"

    for restarts, preempt in enumerate([["scancel", "--signal=TERM", job],
                                        ["scontrol", "requeue", job]], 1):
        wait(lambda _, lines=2 * restarts: log.exists() and
             len(log.read_text().splitlines()) > lines)
        assert cluster.run(*preempt).returncode == 0
        wait(lambda state, count=str(restarts): begun(state) and state["Restarts"] == count)
    wait(lambda state: state["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
    assert cluster.state(job)["JobState"] == "COMPLETED", output.read_text()
    # Each of two workers, twice.
    assert output.read_text().count("error: ended by SIGTERM; epoch") == 4, output.read_text()
    assert output.read_text().count("Report: ") == 1
    assert_same_training(run, whole)
