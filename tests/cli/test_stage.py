"""`dgl-heta stage`, and commands that are given what it wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.jobs.training import TrainingJob
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store, write_store
from tests.support.command_line import refused
from tests.support.graphs import academic


@pytest.fixture
def partition(heta, store: Path, tmp_path: Path) -> Path:
    assert heta("partition", store, "--out", tmp_path / "partition").status == 0
    return tmp_path / "partition"


def test_what_is_written_is_what_was_forecast(heta, partition: Path, tmp_path: Path) -> None:
    done = heta("stage", partition, "--to", tmp_path / "out", "--dry-run", "--json")
    assert not (tmp_path / "out").exists()
    planned = heta("plan", partition, "--json").json["prediction"]["partitions"]
    forecast = [each["bytes"] for each in done.json["stagings"]]
    written = heta("stage", partition, "--to", tmp_path / "out", "--json").json["stagings"]
    assert [each["bytes"] for each in written] == forecast
    for each in written:
        files = [*Path(each["directory"]).rglob("*.npy")]
        assert each["bytes"] == sum(f.stat().st_size for f in files)
    # A plan knows no headers of files, which are most of it in so small a graph.
    for cost, each in zip(planned, written, strict=True):
        headers = 128 * len([*Path(each["directory"]).rglob("*.npy")])
        assert each["bytes"] - headers <= cost["disk_bytes"] <= each["bytes"]
    assert min(forecast) < 0.9 * Store(Path(written[0]["directory"]) / "store").manifest.bytes
    again = heta("stage", partition, "--to", tmp_path / "out")
    assert again.out.count("there already") == 2


def test_a_partition_can_be_staged_as_it_is_written(heta, store: Path, tmp_path: Path) -> None:
    words = ("partition", store, "--out", tmp_path / "parts", "--stage", tmp_path / "staged")
    assert heta(*words).status == 0
    again = heta("stage", tmp_path / "parts", "--to", tmp_path / "staged")
    assert again.out.count("there already") == 2
    other = heta("partition", store, "--out", tmp_path / "other", "--method", "metis", "--stage",
                 tmp_path / "metis")
    assert (other.status, "--stage has no effect on --method metis" in other.err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_a_url_where_a_directory_is_written_is_refused(
        heta, store: Path, partition: Path, tmp_path: Path, monkeypatch) -> None:
    """A directory `s3:` was written here, and the command said that all was well."""
    monkeypatch.chdir(tmp_path)
    before, url = sorted(tmp_path.iterdir()), "s3://bucket/graph"
    for words, what in ((("stage", partition, "--to", url), "--to"),
                        (("partition", store, "--out", "out", "--stage", url), "--stage"),
                        (("train", store, "--run-dir", url), "the run directory")):
        refused(heta(*words), f"{what} is {url}, a URL; this is written on a disk")
    with pytest.raises(InputError, match=f"the directory to write is {url}, a URL"):
        write_store(academic(), url)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_not_there_is_named_before_anything_is_done(heta, partition: Path, tmp_path: Path
                                                            ) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    assert heta("stage", partition, "--to", out, "--part", "0").status == 0
    alone = heta("train", out, "--run-dir", run)
    assert (alone.status, alone.err) == (2, (
        f"error: {out}/store is staged for partition 0 of 2, but this machine is to run partition "
        "1; stage it here with --part 1\n"))
    for words in (("partition", out, "--out", tmp_path / "p4", "--parts", "4"),
                  ("train", out / "store", "--run-dir", run)):
        done = heta(*words)
        assert done.status == 2
        assert "is staged for partition 0 of 2, and holds no whole graph" in done.err
    twice = heta("stage", out, "--to", tmp_path / "again")
    assert "is staged for partition 0 of 2 already" in twice.err
    assert not run.exists()
    assert heta("inspect", out).status == 0


@pytest.mark.parametrize(("words", "told"), [
    (["--part", "2"], "--part is 2; .* has partitions 0 to 1"),
    (["--also", "paper"], ""),
    (["--also", "papers"], "--also is 'papers', which is neither a relation nor a node type")])
def test_what_to_stage_is_checked(heta, partition: Path, tmp_path: Path, words: list[str],
                                  told: str) -> None:
    done = heta("stage", partition, "--to", tmp_path / "out", "--dry-run", *words)
    assert done.status == (2 if told else 0)
    assert re.search(told, done.err)


@pytest.mark.parametrize("setting", ["partition.shared=rows", "train.learnable=replica"])
def test_what_others_were_to_run_is_not_run_by_a_staged_part(
        heta, lopsided, tmp_path, monkeypatch, setting):
    heta("partition", lopsided, "--out", tmp_path / "p", "--stage", tmp_path / "staged")
    plan = Plan.load(tmp_path / "p/plan.json")
    (asking,) = [p.index for p in plan.partitions if p.asks]
    for name, value in (("RANK", asking), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(name, str(value))
    part = str(tmp_path / f"staged/part-{asking}")
    TrainingJob.prepare(part, None, [], plugins())
    words = f"was to run relation 't3 e3 t1', but {setting.replace('=', ' = ')}"
    with pytest.raises(InputError, match=words):
        TrainingJob.prepare(part, None, [setting], plugins())


def test_two_addresses_of_this_machine_are_refused_and_ports_are_not_of_ssh(
        heta, partition: Path, tmp_path: Path) -> None:
    """--overwrite left the partition of the last line alone."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    words = ("stage", partition, "--hosts", hosts, "--to", tmp_path / "out", "--dry-run")
    refused(heta(*words), r"host0 \(127.0.0.1\) and host1 \(127.0.0.2\) are this machine")
    hosts.write_text("192.0.2.1 2222\n192.0.2.2\n")
    assert "are for DistDGL; ssh goes by --ssh-port" in heta(*words).err


def test_inspect_says_how_large_a_staged_partition_is_as_plan_does(heta, partition: Path) -> None:
    """With labels, masks and the like."""
    said = [re.search(r"staged, a partition is (.*?) at most", " ".join(heta(
        command, partition).out.split())) for command in ("plan", "inspect")]
    assert None not in said
    assert said[0][1] == said[1][1]
