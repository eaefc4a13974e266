"""`dgl-heta plan --compare`: its figures are those of training, and it says when RAF would lose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.partition.comparison import compare
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.needs import lacking
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(), path)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dgl_heta", *arguments], capture_output=True,
                          text=True, timeout=PATIENCE)


@pytest.mark.parametrize("replication", ["full", "none"])
def test_bytes_are_those_that_training_sends(
        store: Path, tmp_path: Path, replication: str) -> None:
    """One step an epoch with all training nodes and neighbours: nothing is left to chance.

    So figures are equal, byte for byte, but for what :mod:`dgl_heta.planning.traffic` leaves out:
    the counts that workers send each other before rows. (With sampled neighbours, comparison and
    training draw other steps, and how far they are apart says how much steps differ.)
    """
    work = Workload(batch_size=12, hidden=8, fanouts=(-1, -1))
    comparison = compare(Store(store), PartitionRequest(3, ("paper",), 2), work)
    name = "meta" if replication == "full" else "meta, replication none"
    (method,) = [m for m in comparison.methods if m.name == name]
    assert comparison.steps_per_epoch == 1
    sets = ["model.hidden=8", "train.batch_size=12", "train.fanouts=-1,-1", "train.epochs=1",
            f"partition.replication={replication}", "partition.parts=3", "train.threads=1"]
    done = run("train", str(store), "--run-dir", str(tmp_path / "run"), "--json",
               *(part for text in sets for part in ("--set", text)))
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout.splitlines()[-1])["bytes"]
    assert method.bytes_per_epoch["partials"] == sent["partials"]
    every_other = 3 * 2 * 8  # an 8-byte count from each of 3 workers to each other one
    assert method.bytes_per_epoch["learnable"] + every_other == sent["learnable"]
    if replication == "none":  # a count per layer and node type
        assert method.bytes_per_epoch["sampling"] + 2 * 4 * every_other == sent["sampling"]


def test_every_method_has_its_row_and_one_partition_sends_nothing(store: Path) -> None:
    work = Workload(batch_size=12, hidden=8)
    comparison = compare(Store(store), PartitionRequest(1, ("paper",), 2), work)
    assert [m.name for m in comparison.methods] == [
        "meta", "meta, replication none", "relation-random", "DistDGL random", "DistDGL METIS"]
    missing = {method.name: method.missing for method in comparison.methods if method.missing}
    assert missing == ({"DistDGL METIS": "DGL is not installed"} if lacking("dgl") else {})
    for method in comparison.methods:
        if method.name in missing:
            continue
        assert method.total == 0
        assert method.replication_factor == 1
        assert method.memory_balance == method.edge_balance == 1


def test_it_warns_where_features_are_cheaper_to_move_than_partials(store: Path) -> None:
    wide = compare(Store(store), PartitionRequest(4, ("paper",), 2),
                   Workload(batch_size=8, hidden=4096, fanouts=(1, 1)))
    assert any("would send less than meta" in w and "hidden size 4096" in w for w in wide.warnings)
    shown = run("plan", str(store), "--compare", "--parts", "4", "--hidden", "4096",
                "--fanouts", "1,1", "--batch-size", "8")
    assert shown.returncode == 0, shown.stderr
    assert "warning: DistDGL" in shown.stdout
    told = run("plan", str(store), "--compare", "--json")
    data = json.loads(told.stdout)  # and nothing beside it
    assert {m["name"] for m in data["methods"]} >= {"meta", "relation-random", "DistDGL METIS"}


def test_a_schema_alone_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(academic().schema().to_json()))
    done = run("plan", str(tmp_path / "schema.json"), "--target", "paper", "--compare")
    assert done.returncode == 2
    assert "has no edges; give a store" in " ".join(done.stderr.split())


@pytest.mark.parametrize(("options", "message"), [
    (["--compare", "--method", "meta"], "--method has no effect on --compare"),
    (["--fanouts", "0,3"], "a fanout is 1 or more"),
    (["--memory-mb", "inf"], "must be a number above 0"),
])
def test_options_of_plan_that_cannot_be_meant(options: list[str], message: str) -> None:
    from typer.testing import CliRunner

    from dgl_heta.cli import app

    done = CliRunner().invoke(app, ["plan", "debian", *options])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
