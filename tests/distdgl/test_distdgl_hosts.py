"""A DistDGL script with dgl-heta on emulated hosts computes what plain DGL does on the whole graph.

Outputs of every trainer's own seeds, gradients averaged over the trainers, embeddings in the
key-value store; and what happens where a trainer dies or a model cannot run under RAF. One launch
per number of hosts covers many cases, because starting DistDGL takes most of the time.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.partition.staging import Staging, opened_partition
from tests.support import warm
from tests.support.cuts import cut_partition
from tests.support.dist_reference import compare_all, parts, read, whole_graph
from tests.support.dist_script import cases, delegated_cases
from tests.support.waiting import PATIENCE, PROMPT

pytestmark = pytest.mark.needs("hosts")
SCRIPT = Path(__file__).parents[1] / "support/dist_script.py"
OWN = ["SparseAdagrad by hand", "SparseAdagrad negatives", "SparseAdagrad negatives by hand class"]
"""Samplers of the script's own; rows that trainers read for themselves; and both."""
OTHERS = ["SparseAdam", "SparseAdagrad", "SparseAdagrad ahead", "uneven", "drop last", "evaluate",
          *OWN]
ALL = [*cases(), *OTHERS]
SOME = ["graph-sum", "sage-max", "gat-mean", "multi-stack", "rgcn", "wide", "sparse table",
        "one layer", "SparseAdam", "SparseAdagrad", "SparseAdagrad ahead", "uneven", "drop last",
        "evaluate"]
SEVERAL_TRAINERS = ["gat-mean", "sparse table", "SparseAdam", "uneven", *OWN]
"""What two trainers on a host change: averages, what goes between them, seeds, own samplers."""
EXACT = ("--set", "train.learnable=exact")
DELEGATED = {"hops": 3, "shared": "delegate"}
SOME_DELEGATED = ["deep sage", "deep max", "deep udf", "few graph", "shallow", "SparseAdam deep",
                  "SparseAdagrad"]
SOME_UNREPLICATED = ["gat-stack", "multi-max", "udf", "sparse table", "SparseAdam", "evaluate"]


@dataclass
class Launched:
    status: int
    text: str
    ended: float

    @property
    def error(self) -> str:
        return [line for line in self.text.splitlines() if line.startswith("error: ")][-1]


ON_ITS_DISK = """
import os, runpy, subprocess, sys

host = os.environ.get("RANK") or os.environ["DGL_SERVER_ID"]
subprocess.run(["mount", "--bind", f"{sys.argv[1]}/part-{host}", sys.argv[2]], check=True)
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script on a host that has its staged part where the others have theirs."""


def launch(graph, directory: Path, hosts: int, names: Sequence[str], *options: str,
           staged: bool = False, cut: str | None = None, **partition: Any) -> Launched:
    """Run the cases; everything that is started has the directory in its command line."""
    config = parts(graph, hosts, directory / ("whole" if cut else "parts"), **partition)
    if cut:
        config = cut_partition(config, cut, directory / "parts")
    first = []
    if staged:
        first = [directory / "on_its_disk.py", directory / "staged", config.parent]
        first[0].write_text(ON_ITS_DISK)
        with opened_partition(str(config.parent)) as opened:
            for part in range(hosts):
                Staging.of(opened, [part]).write(directory / "staged" / f"part-{part}")
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", str(hosts), "--part-config",
               config, "--num-omp-threads", "1", "--stop-after", PATIENCE, *options, "--",
               warm.with_dgl(), *first, SCRIPT, "--ip-config", "{ip_config}", "--part-config",
               "{part_config}", "--out", directory, "--cases", ",".join(names)]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          timeout=PATIENCE + PROMPT, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    return Launched(done.returncode, done.stdout, time.time())


def living(directory: Path) -> list[str]:
    """Command lines of processes that belong to a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if entry.name.isdigit() and str(directory) in line:
            found.append(line)
    return found


def test_two_hosts_compute_what_one_process_does(tmp_path):
    """Each from its staged part; samplers of the script's own, which read all relations, are below,
    from the whole store. All kinds of layers: `test_run_proof.py`."""
    graph, names = whole_graph(), SOME
    result = launch(graph, tmp_path, 2, names, "--set", "train.learnable=exact", staged=True)
    assert result.status == 0, result.text
    assert compare_all(graph, names, tmp_path, 2) == []
    assert "sent/machine" not in read(tmp_path, "SparseAdam", 0)
    assert read(tmp_path, "SparseAdam", 0)["sent/learnable"] > 0
    assert living(tmp_path) == []


@pytest.mark.thorough
def test_three_hosts_compute_what_one_process_does(tmp_path):
    graph, names = whole_graph(), ALL
    result = launch(graph, tmp_path, 3, names, "--set", "train.learnable=exact")
    assert result.status == 0, result.text
    assert compare_all(graph, names, tmp_path, 3) == []


def test_two_trainers_per_host_compute_what_one_process_does_until_one_is_killed(tmp_path):
    graph = whole_graph()
    result = launch(graph, tmp_path, 2, [*SEVERAL_TRAINERS, "killed"], "--num-trainers", "2",
                    *EXACT)
    assert result.status == 1, result.text
    assert result.error == ("error: trainer 3 on host1 (10.99.0.2) (rank 3) was killed by signal 9 "
                            "(SIGKILL); all processes were ended")
    assert result.ended - float((tmp_path / "killed at").read_text()) < PROMPT
    assert living(tmp_path) == []
    assert compare_all(graph, SEVERAL_TRAINERS, tmp_path, 4) == []
    sent = [read(tmp_path, "SparseAdam", rank) for rank in range(4)]
    assert all(found["sent/machine"] > 0 for found in sent), "gradients went between hosts directly"


@pytest.mark.parametrize("names", [SOME_DELEGATED, pytest.param(
    [*delegated_cases(), *SOME_DELEGATED], marks=pytest.mark.thorough)], ids=["some", "all"])
def test_hosts_that_aggregate_for_each_other_compute_what_one_process_does(tmp_path, names):
    graph, names = whole_graph(), [*dict.fromkeys(names)]
    result = launch(graph, tmp_path, 3, names, *EXACT, staged=True, **DELEGATED)
    assert result.status == 0, result.text
    assert compare_all(graph, names, tmp_path, 3) == []


@pytest.mark.parametrize(("hosts", "cut", "names"), [
    (3, "whole", SOME_UNREPLICATED),
    pytest.param(2, "ranges", SOME_UNREPLICATED, marks=pytest.mark.thorough),
    pytest.param(3, "permuted", ALL, marks=pytest.mark.thorough)])
def test_hosts_without_replication_compute_what_one_process_does(tmp_path, hosts, cut, names):
    """Some of three hosts have no file of a type that the two others have in common."""
    graph, staged = whole_graph(), cut != "permuted"
    result = launch(graph, tmp_path, hosts, names, *EXACT, staged=staged, cut=cut)
    assert result.status == 0, result.text
    assert compare_all(graph, names, tmp_path, hosts) == []
    if staged:
        kept = [{file.name for file in (tmp_path / f"staged/part-{part}/store/nodes").iterdir()}
                for part in range(hosts)]
        assert (cut == "whole") == (kept[-1] < kept[0])


@pytest.mark.thorough
def test_two_trainers_per_host_aggregate_for_each_other(tmp_path):
    graph, names = whole_graph(), ["deep sage", "few graph", "SparseAdam deep"]
    result = launch(graph, tmp_path, 2, names, "--num-trainers", "2", *EXACT, **DELEGATED)
    assert result.status == 0, result.text
    assert compare_all(graph, names, tmp_path, 4) == []


@pytest.mark.thorough
def test_a_partition_without_delegation_says_that_it_has_none(tmp_path):
    result = launch(whole_graph(), tmp_path, 2, ["graph-sum"], "--set",
                    "partition.shared=delegate")
    assert result.status == 2
    assert "made without it; partition the graph with this setting" in result.text


@pytest.mark.thorough
def test_replicas_compute_the_same_until_embeddings_part_ways(tmp_path):
    """With copies of shared types, dense training is exact; rows of one user's types too.

    Here with features read at once, and all seeds' states complete everywhere.
    """
    graph = whole_graph()
    names = ["graph-sum", "gat-max", "evaluate", "SparseAdagrad"]
    result = launch(graph, tmp_path, 2, names, "--set", "train.learnable=replica", "--set",
                    "train.lazy_features=false", "--set", "train.complete_states=true")
    assert result.status == 0, result.text
    found = [read(tmp_path, "SparseAdagrad", rank) for rank in range(2)]
    assert all(np.isfinite(array).all() for each in found for array in each.values())
    assert compare_all(graph, ["evaluate"], tmp_path, 2) == []
    wrong = compare_all(graph, ["graph-sum", "gat-max"], tmp_path, 2)
    assert [text for text in wrong if "grad/tables" not in text] == []
    wrong = compare_all(graph, ["SparseAdagrad"], tmp_path, 2)
    assert [text for text in wrong if "step 0" in text] == []
