"""Staged directories: what a machine's partitions read, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.partition.staged_directory import finish, working_directory
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.planning.making import make_plan, plan_without_replication, with_ownership
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic
from tests.support.launching import free_port
from tests.support.waiting import PATIENCE, until

CITES = Relation("paper", "cites", "paper")
SETTINGS = ["train.epochs=2", "model.hidden=8", "train.batch_size=64", "train.fanouts=4,4",
            "train.threads=1", "train.device=cpu"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=600, dense=20), path, edge_ids=True)
    return path


@pytest.fixture
def partition(store: Path, tmp_path: Path) -> Path:
    return partitioned(store, tmp_path / "partition", lambda plan: plan)


def partitioned(store: Path, directory: Path, changed: Callable[[Plan], Plan]) -> Path:
    opened = Store(store)
    write_partition(opened, changed(make_plan(opened.schema, "paper", 2, 2)), directory)
    return directory


def trained(graphs: list[Path], run_dir: Path, *more: str) -> bytes:
    """The parameters after a training in which each rank opens a directory of its own."""
    port = str(free_port("127.0.0.1"))
    words = [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]
    ranks = [subprocess.Popen(
        [warm.python(), "-m", "dgl_heta", "train", str(graph), "--run-dir", str(run_dir), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(graphs)), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank, graph in enumerate(graphs)]
    said = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return (run_dir / "model.safetensors").read_bytes()


def staging_of(partition: Path | str, *words, **options) -> Staging:
    with opened_partition(str(partition)) as opened:
        return Staging.of(opened, *words, **options)


def staged(partition: Path, to: Path, **options) -> list[Path]:
    """A staged directory for each partition; the partition itself is gone then."""
    directories = []
    for part in range(open_partition(partition)[1].num_parts):
        directories.append(to / str(part))
        staging = staging_of(partition, [part], **options)
        assert staging.write(directories[-1])
    return directories


def cut(plan: Plan) -> Plan:
    """Without replication: one relation cut in two ranges, one by an array, and a hub."""
    def deal(schema, relations, parts):
        count = schema.node_counts["paper"]
        halves = [(CITES, 0, count // 3), (CITES, count // 3, count)]
        others = [(r, 0, schema.node_counts[r.dst]) for r in relations if r != CITES]
        return [[halves[0], *others[::2]], [halves[1], *others[1::2]]]

    return plan_without_replication(plan.schema, plan.targets, plan.hops, 2, deal, "by hand")


def cut_by_array(plan: Plan) -> Plan:
    """The same by an array at random, with a hub whose in-edges are on both partitions."""
    generator, schema = np.random.default_rng(0), plan.schema
    chosen = generator.integers(0, 2, schema.node_counts["paper"])
    degrees = degrees_of_cites()
    hub = int(degrees.argmax())
    pieces = {hub: [(0, 0, 3), (1, 3, int(degrees[hub]))]}
    own = Ownership.of(chosen, CITES, schema, [0, 1], 2, "by hand", degrees, pieces)
    return with_ownership(cut(plan), {CITES: own})


def degrees_of_cites() -> np.ndarray:
    source = academic(papers=600, dense=20)
    ((_, destinations),) = source.edges[CITES].chunks(2**30)
    return np.bincount(destinations, minlength=600)


ROWS = "partition.shared=rows"  # else the whole store lets a training choose anew
PLANS = {
    "an aggregation for others": (lambda plan: plan.with_owners({"author": 0}), [], ()),
    "a relation cut by ranges": (cut, [ROWS], ()),
    "a relation cut by an array": (cut_by_array, [ROWS], ()),
    "trainers": (lambda plan: plan, [ROWS, "train.trainers=2"], ()),
    "links": (lambda plan: plan, [ROWS, "task.kind=link", "task.relation=paper:cites:paper"],
              ("paper:cites:paper", "paper:rev-cites:paper")),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_training_equals_that_from_the_whole_store(store: Path, tmp_path: Path, kind: str
                                                     ) -> None:
    changed, settings, also = PLANS[kind]
    whole = partitioned(store, tmp_path / "whole", changed)
    graph = shutil.copytree(store, tmp_path / "store")
    away = partitioned(graph, tmp_path / "away", changed)
    machines = staged(away, tmp_path / "machines", also=also)
    shutil.rmtree(graph)
    shutil.rmtree(away)
    each = 1 + ("train.trainers=2" in settings)
    assert trained([m for m in machines for _ in range(each)], tmp_path / "run", *settings
                   ) == trained([whole] * 2 * each, tmp_path / "reference", *settings)


def test_a_second_staging_copies_nothing(partition: Path, tmp_path: Path) -> None:
    staging, out = staging_of(partition, [0]), tmp_path / "out"
    assert staging.write(out)
    before = {f: f.stat().st_mtime_ns for f in out.rglob("*")}
    assert not staging.write(out)
    assert before == {f: f.stat().st_mtime_ns for f in out.rglob("*")}
    damage(next((out / "store").rglob("indices.npy")))
    assert staging.write(out, overwrite=True)
    assert not staging.write(out, overwrite=True)
    with pytest.raises(InputError, match="exists and is another staging"):
        staging_of(partition, [1]).write(out)
    assert staging_of(partition, [1]).write(out, overwrite=True)
    assert open_partition(out)[0].staged.parts == (1,)


def test_a_staging_that_was_killed_goes_on(store: Path, tmp_path: Path) -> None:
    """Whole files stay as they are, half of one is made whole; what is damaged in between is named,
    removed, and copied by the next run."""
    away = partitioned(store, tmp_path / "partition", lambda plan: plan)
    staging, out = staging_of(away, [0]), tmp_path / "out"
    work = working_directory(out)
    first, second, third = (entry.file for entry in staging.entries[:3])
    for file in (first, second, third):
        (work / "store" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store / file, work / "store" / file)
    os.utime(work / "store" / first, ns=(1, 1))
    half = (store / second).read_bytes()[:200]
    (work / "store" / second).unlink()
    (work / "store" / (second + ".part")).write_bytes(half)
    damage(work / "store" / third)
    with pytest.raises(InputError, match=f"{Path(third).name} .*run the same command again"):
        staging.write(out)
    assert not out.exists()
    assert staging.write(out)
    assert (out / "store" / first).stat().st_mtime_ns == 1
    open_partition(out)[0].verify()
    assert not work.exists()


def test_holes_are_read_by_nobody_but_the_partition_of_which_they_are(store: Path, tmp_path: Path
                                                                     ) -> None:
    away = partitioned(store, tmp_path / "partition", cut)
    staging_of(away, [0]).write(tmp_path / "out")
    staging_of(away, [0], also=["paper:cites:paper"]).write(tmp_path / "whole")
    opened, plan = open_partition(tmp_path / "out")
    for read in (opened.relation, opened.edge_ids):
        with pytest.raises(InputError, match="only pieces of .*cites.* --also"):
            read(CITES)
    high = plan.partitions[0].ranges[CITES][1]
    indptr, indices = opened.relation(CITES, pieces=True)
    whole = open_partition(tmp_path / "whole")[0].relation(CITES).indices
    assert np.array_equal(indices[:indptr[high]], whole[:indptr[high]])
    assert not np.array_equal(indices, whole)


def test_what_is_not_a_staging_is_never_overwritten(partition: Path, tmp_path: Path) -> None:
    """Not the partition that is staged from, nor what a user keeps in a directory of ours or where
    files are gathered; and before anything is copied."""
    staging = staging_of(partition, [0])
    out, kept, link = tmp_path / "out", tmp_path / "kept", tmp_path / "link"
    staging.write(kept)
    (kept / "notes.txt").write_text("mine")
    staging.write(tmp_path / "behind")
    link.symlink_to(tmp_path / "behind")
    (tmp_path / "file").write_text("mine")
    other = staging_of(partition, [1])
    for to, told in ((partition, "is a partition that was not staged"),
                     (kept, "holds notes.txt, which dgl-heta did not write"),
                     (link, "is a symbolic link"), (tmp_path / "file", "was not written by"),
                     (tmp_path, "was not written by dgl-heta"), (Path("/"), "name a directory")):
        with pytest.raises(InputError, match=told):
            other.write(to, overwrite=True)
        assert to == Path("/") or not working_directory(to).exists()
    working_directory(out).symlink_to(kept)
    with pytest.raises(InputError, match="out.staging is a link to .*kept"):
        other.write(out)
    assert (kept / "notes.txt").exists()
    assert open_partition(partition)[0].staged is None


def test_what_was_gathered_of_another_graph_is_replaced_at_once(partition: Path, tmp_path: Path
                                                                ) -> None:
    staging, out = staging_of(partition, [0]), tmp_path / "out"
    work = working_directory(out) / "store"
    (work / "other").mkdir(parents=True)
    for entry in staging.entries[:2]:
        (work / entry.file).parent.mkdir(parents=True, exist_ok=True)
        (work / entry.file).write_bytes(bytes(entry.bytes))
    third = work / (staging.entries[2].file + ".part")
    third.parent.mkdir(parents=True, exist_ok=True)
    third.write_bytes(bytes(staging.entries[2].bytes + 1))
    (work / "other" / ".indices.npy.x3Fq1A").write_bytes(b"as rsync leaves it")
    with pytest.raises(InputError, match="and 1 file more .*run the same command again"):
        staging.write(out)
    assert staging.write(out)
    open_partition(out)[0].verify()
    assert not [f for f in (out / "store").rglob("*.*") if f.name.startswith(".")]


def test_a_killed_command_leaves_a_directory_to_go_on_with(partition: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dgl_heta", "stage", str(partition), "--to",
             str(tmp_path / "out"), "--part", "0"]
    command = subprocess.Popen(words)
    until(lambda: any(tmp_path.glob(".out.staging/store/**/*.npy")) or command.poll() is not None)
    command.send_signal(signal.SIGKILL)
    command.wait()
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    open_partition(tmp_path / "out")[0].verify()


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["plan", "manifest", "list", "missing", "short", "damaged"])
def test_a_staged_directory_that_is_not_whole_is_named(store: Path, tmp_path: Path, kind: str
                                                       ) -> None:
    out = tmp_path / "out"
    away = partitioned(store, tmp_path / "partition", lambda plan: plan)
    staging_of(away, [0]).write(out)
    file = next(out.rglob("indices.npy"))
    if kind == "plan":
        moved = partitioned(store, tmp_path / "moved", lambda plan: plan.with_owners({"author": 0}))
        shutil.copyfile(moved / "plan.json", out / "plan.json")
        config = json.loads((moved / "academic.json").read_text())
        for part in ("part-0", "part-1"):
            config[part]["dgl_heta_store"] = "store"
        (out / "academic.json").write_text(json.dumps(config))
    elif kind == "manifest":
        write_store(academic(papers=600, dense=20), tmp_path / "another")  # without ids of edges
        shutil.copyfile(tmp_path / "another" / "manifest.json", out / "store" / "manifest.json")
    elif kind == "list":
        content = json.loads((out / "store" / "staged.json").read_text())
        content["files"].popitem()
        (out / "store" / "staged.json").write_text(json.dumps(content))
    elif kind == "missing":
        file.unlink()
    elif kind == "short":
        os.truncate(file, 100)
    else:
        damage(file)
    told = {"plan": "staged by another plan", "manifest": "of another store",
            "list": "checksum does not agree", "missing": "is missing", "short": "has 100 bytes",
            "damaged": "edited or damaged"}[kind]
    with pytest.raises(InputError, match=told):
        open_partition(out)[0].verify()


def test_a_source_that_is_damaged_is_not_staged(store: Path, tmp_path: Path) -> None:
    graph = shutil.copytree(store, tmp_path / "store")
    away = partitioned(graph, tmp_path / "partition", lambda plan: plan)
    damage(graph / staging_of(away, [0]).entries[0].file)
    with pytest.raises(InputError, match="edited or damaged.*or that is damaged"):
        staging_of(away, [0]).write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_stagings_into_one_directory_are_kept_apart(partition: Path, tmp_path: Path) -> None:
    work = working_directory(tmp_path / "out")
    work.mkdir()
    with (work / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another command stages into .*out"):
            staging_of(partition, [0]).write(tmp_path / "out")
    staging_of(partition, [0]).write(tmp_path / "first")
    (tmp_path / "first").rename(work.with_name("gathered"))
    with pytest.raises(InputError, match="another command has staged into .*out"):
        finish(work.with_name("gathered"), tmp_path / "out", False,
               staging_of(partition, [1]).staged)


@pytest.mark.needs("hosts")  # whose namespaces can mount, too
def test_a_full_disk_is_told_before_and_leaves_a_way_on(partition: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"', str(disk), sys.executable,
             "-m", "dgl_heta", "stage", str(partition), "--to", str(disk / "out"), "--part", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    assert re.search(r"error: .*disk has room for [\d,]+ bytes, but partition 0 of 2 of .* need "
                     r"[\d,]+ more; nothing was copied", done.stderr)
