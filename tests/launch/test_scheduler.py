"""The variables of torchrun and SLURM: which worker a process is, and what contradicts that."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.launch.scheduler import adopt, hosts
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE

TASK = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "gpu[01-03,7]"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def test_a_task_of_slurm_is_a_worker_that_knows_all_of_torch_distributeds_variables() -> None:
    env = dict(TASK)
    adopt(env)
    assert [env[name] for name in NAMES] == ["5", "7", "1", "2", "gpu01"]
    other = {**TASK, "SLURM_JOB_ID": "1235"}
    adopt(other)
    assert 20000 <= int(env["MASTER_PORT"]) < int(other["MASTER_PORT"]) < 30000
    last = {**TASK, "SLURM_PROCID": "6", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
    adopt(last)
    assert last["LOCAL_WORLD_SIZE"] == "1"


@pytest.mark.parametrize("env", [
    {**TASK, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}],  # of sbatch, without srun
    ids=["one task", "script"])
def test_a_process_that_is_alone_stays_a_launcher(env: dict[str, str]) -> None:
    adopt(env)
    assert "RANK" not in env


def test_torchruns_variables_count_within_a_task_of_slurm() -> None:
    env = {**TASK, "TORCHELASTIC_RUN_ID": "none", "RANK": "11", "WORLD_SIZE": "14"}
    adopt(env)
    assert env["RANK"] == "11"
    assert "LOCAL_RANK" not in env


def test_a_master_that_the_user_chose_stays() -> None:
    """As the address of another interface of that host."""
    env = {**TASK, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"}
    adopt(env)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "5000")


@pytest.mark.parametrize(("nodelist", "expected"), [
    ("n1", ["n1"]), ("a,b-2", ["a", "b-2"]), ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("n[1,3-4]-ib,m.org", ["n1-ib", "n3-ib", "n4-ib", "m.org"]),
    ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"])])
def test_lists_of_hosts_are_read(nodelist: str, expected: list[str]) -> None:
    assert hosts(nodelist) == expected


WORKER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(("env", "says"), [
    ({**TASK, "RANK": "3"}, "RANK is '3', but SLURM_PROCID is 5; unset RANK"),
    ({**TASK, "WORLD_SIZE": "8"}, "WORLD_SIZE is '8', but SLURM_STEP_NUM_TASKS is 7"),
    ({**TASK, "MASTER_ADDR": "gpu03"}, "MASTER_ADDR is gpu03, but task 0 is on gpu01"),
    ({**TASK, "SLURM_STEP_NODELIST": "gpu[1-"}, "is no list of hosts as n[01-04]; set MASTER_ADDR"),
    ({**TASK, "SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is ''"),
    ({**TASK, "SLURM_LOCALID": "x"}, "SLURM_LOCALID is 'x'; it must be a whole number"),
    ({**TASK, "SLURM_STEP_TASKS_PER_NODE": "2(3)"}, "TASKS_PER_NODE is '2(3)', which does not say"),
    ({**TASK, "SLURM_NODEID": "4"}, "how many tasks node 4 (SLURM_NODEID) has, as 2(x3),1"),
    ({"RANK": "0"}, "RANK is set, but RANK and WORLD_SIZE make a process a worker only together"),
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK and WORLD_SIZE"),
    ({**WORKER, "RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2: the workers are 0 to 1"),
    ({**WORKER, "RANK": "-1"}, "RANK is '-1'; it must be a whole number"),
    ({**WORKER, "MASTER_ADDR": ""}, "MASTER_ADDR is not set, so the 2 workers cannot meet"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set")])
def test_what_contradicts_itself_is_named(env: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        adopt(dict(env))


def test_a_command_for_one_process_says_so(tmp_path: Path) -> None:
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "predict", str(tmp_path), "--out",
                           str(tmp_path / "p")], capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, **TASK})
    assert done.returncode == 2
    assert "`dgl-heta predict` is for one process, but a scheduler has started 7" in done.stderr


def test_workers_that_do_not_fit_the_plan_are_one_line_before_training(tmp_path: Path) -> None:
    write_store(academic(), tmp_path / "store")
    store, parts = Store(tmp_path / "store"), tmp_path / "parts"
    write_partition(store, make_plan(store.schema, "paper", 2, 2), parts)
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "train", str(parts), "--run-dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, **TASK, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert done.returncode == 2
    assert done.stderr == ("error: 7 workers of a scheduler (WORLD_SIZE) for 2 partitions with "
                           "1 trainer each; start 2\n")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in two partitions, `new`, and what it was before its labels were mended, `old`."""
    place = tmp_path_factory.mktemp("partitions")
    for name in ("new", "old"):
        graph = academic()
        if name == "old":
            graph.node_arrays["paper"]["label"] = graph.node_arrays["paper"]["label"][::-1].copy()
        write_store(graph, place / f"{name}-store")
        store = Store(place / f"{name}-store")
        write_partition(store, make_plan(store.schema, "paper", 2, 2), place / name)
    return place


@pytest.mark.parametrize(("first", "other", "says"), [
    ([], ["new", "--set", "train.lr=0.5"], "has train.lr = 0.5 and not 0.01, as worker 0 (on "),
    ([], ["new", "--set", "run.prove=off"], 'has run.prove = "off" and not "auto", as worker 0'),
    ([], ["old"], "has another graph, as worker 0"),
    (["--set", "train.threads=1"], ["new", "--set", "train.sampling_threads=1"], "")],
    ids=["setting", "proof", "graph", "of a machine"])
def test_workers_that_would_train_something_else_than_the_first_are_refused(
        partitions: Path, tmp_path: Path, first: list[str], other: list[str], says: str) -> None:
    """An old copy of the partition on one machine, or another heta.toml, gave a mixed model."""
    words = [["new", *first], other]
    workers = [subprocess.Popen(
        [warm.python(), "-m", "dgl_heta", "train", str(partitions / graph), "--run-dir",
         str(tmp_path / "run"), "--set", "train.epochs=1", *more], text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": "2", "DGL_HETA_RENDEZVOUS": str(tmp_path / "meeting")})
        for rank, (graph, *more) in enumerate(words)]
    said = [worker.communicate(timeout=PATIENCE)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == ([2, 2] if says else [0, 0]), said
    for text in said if says else ():
        assert "error: worker 1 (on " in text
        assert says in text
    assert (tmp_path / "run" / "model.json").exists() == (not says)
