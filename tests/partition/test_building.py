"""A partition that several processes write together is the one that a process writes alone."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, JoinedEdges
from dgl_heta.launch.worker_builders import WorkerBuilders
from dgl_heta.store import write_store
from dgl_heta.store.writer import fill_store
from tests.support import warm
from tests.support.building import command, ended, start, write_graph
from tests.support.stores import RELAXED
from tests.support.threads import together
from tests.support.waiting import PATIENCE, until

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")


def edges(size: int, num_src: int, num_dst: int, cuts: list[int], seed: int) -> JoinedEdges:
    """Edges in as many pieces as there are cuts and one; many of them go to one destination."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, num_src, size)
    dst = (rng.random(size) ** 3 * num_dst).astype(np.int64)
    dst[rng.random(size) < 0.2] = num_dst // 2
    bounds = [0, *sorted(cut % (size + 1) for cut in cuts), size]
    return JoinedEdges([EdgeArrays(src[low:high], dst[low:high])
                        for low, high in itertools.pairwise(bounds)])


@settings(RELAXED, max_examples=25)
@given(size=st.integers(2, 20_000), num_dst=st.integers(1, 3000), workers=st.integers(2, 4),
       cuts=st.lists(st.integers(0, 20_000), max_size=6), one_disk=st.booleans(),
       edge_ids=st.booleans(), seed=st.integers(0, 99))
def test_whatever_the_pieces_the_bytes_are_those_of_one_process(
        tmp_path, size, num_dst, workers, cuts, one_disk, edge_ids, seed):
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    source = GraphSource(
        "g", {"author": 500, "paper": num_dst},
        {WRITES: edges(size, 500, num_dst, cuts, seed),
         CITES: edges(max(size // 9, 1), num_dst, num_dst, cuts[:1], seed)},
        {"paper": {"feat": np.ones((num_dst, 3), np.float32), "year": np.arange(num_dst)}})
    alone = write_store(source, place / "alone", memory_mb=0, edge_ids=edge_ids)

    def write(comm):
        builders = WorkerBuilders(comm)
        builders.one_disk = one_disk
        out = place / ("store" if one_disk else f"store-{comm.rank}")
        out.mkdir(exist_ok=True)
        return fill_store(source, out, memory_mb=0, edge_ids=edge_ids, builders=builders)

    assert together(workers, write) == [alone] * workers
    files = {path.relative_to(root).as_posix(): path.read_bytes()
             for root in place.glob("store*") for path in root.rglob("*") if path.is_file()}
    assert files == {path.relative_to(place / "alone").as_posix(): path.read_bytes()
                     for path in (place / "alone").rglob("*") if path.is_file()}
    assert not list(place.rglob("*buckets*"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph"))


def test_workers_of_torchrun_write_one_partition(graph: Path, tmp_path: Path) -> None:
    alone = subprocess.run([warm.python(), *command(graph, tmp_path / "one", "--stage",
                                                    str(tmp_path / "staged-one"))],
                           capture_output=True, text=True, timeout=PATIENCE)
    assert alone.returncode == 0, alone.stderr
    done = subprocess.run(
        [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3",
         *command(graph, tmp_path / "three", "--json", "--stage", str(tmp_path / "staged-three"))],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workers"] == 3  # one of them speaks
    for one, three in (("one", "three"), ("staged-one", "staged-three")):
        same = subprocess.run(["diff", "-r", tmp_path / one, tmp_path / three],
                              capture_output=True, text=True)
        assert same.returncode == 0, same.stdout


def test_an_edge_that_is_wrong_is_named_by_all_and_nothing_is_left(graph: Path, tmp_path: Path
                                                                   ) -> None:
    files = tmp_path / "graph"
    files.mkdir()
    for file in graph.iterdir():
        (files / file.name).write_bytes(file.read_bytes())
    last = np.load(files / "cites-3.npy")
    last[1, -1] = 300
    np.save(files / "cites-3.npy", last)
    out = tmp_path / "out"
    (first, _), (other, err) = ended([start(rank, 2, tmp_path / "meeting", command(files, out))
                                      for rank in (0, 1)])
    assert "edge 19999 has destination id 300, but node type 'paper' has 300 nodes" in err
    assert (first, other) == (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "meeting"]


def test_a_partition_that_is_damaged_on_one_machine_is_named_by_all(graph: Path, tmp_path: Path
                                                                    ) -> None:
    whole, damaged, out = tmp_path / "whole", tmp_path / "damaged", tmp_path / "out"
    assert subprocess.run([warm.python(), *command(graph, whole)], timeout=PATIENCE,
                          capture_output=True).returncode == 0
    shutil.copytree(whole, damaged)
    (damaged / "plan.json").write_text("{")
    (first, of_first), (other, of_other) = ended([
        start(rank, 2, tmp_path / "meeting", command(given, out))
        for rank, given in enumerate((whole, damaged))])
    assert "worker 1 failed: plan " in of_first
    assert "damaged/plan.json is not JSON" in of_other
    assert (first, other) == (1, 2)


def test_a_worker_that_is_killed_ends_the_others_who_leave_nothing(tmp_path: Path) -> None:
    files, out = tmp_path / "graph", tmp_path / "out"
    files.mkdir()
    rng = np.random.default_rng(0)
    for part in range(4):  # which take seconds to sort
        np.save(files / f"cites-{part}.npy", rng.integers(0, 10**6, (2, 4 * 10**6), np.int32))
    (files / "metadata.json").write_text(json.dumps({
        "name": "large", "nodes": {"paper": {"count": 10**6}, "author": {"count": 1}},
        "edges": [{"src": "paper", "etype": "cites", "dst": "paper", "files": ["cites-*.npy"]},
                  {"src": "author", "etype": "writes", "dst": "paper", "files": ["writes.npy"]}]}))
    np.save(files / "writes.npy", np.zeros((2, 9), np.int64))
    workers = [start(rank, 3, tmp_path / "meeting", command(files, out), cold=True)
               for rank in range(3)]
    try:
        assert until(lambda: any(worker.poll() is not None for worker in workers) or list(
            tmp_path.glob(".out.partial*/store/relations/*-buckets")), PATIENCE)
        workers[2].send_signal(signal.SIGKILL)
        ends = ended(workers)
    finally:
        for process in workers:
            process.kill()
    assert [status for status, _ in ends] == [3, 3, -signal.SIGKILL], ends
    assert all("lost another worker" in err for _, err in ends[:2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "meeting"]


def test_workers_that_read_other_graphs_or_options_are_told_apart(graph: Path, tmp_path: Path
                                                                  ) -> None:
    """Before anything is written: a mixture of two graphs would open."""
    other = tmp_path / "graph"
    other.mkdir()
    for file in graph.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    np.save(other / "cites-2.npy", np.load(graph / "cites-2.npy")[:, ::-1])
    out = tmp_path / "out"
    for number, (words, told) in enumerate([
            (command(other, out), "relation 'paper cites paper'"),
            (command(graph, out, "--reverse"), "choice of options"),
            (command(graph, out, "--dry-run"), "--dry-run")]):
        meeting = tmp_path / f"meeting-{number}"
        ends = ended([start(0, 2, meeting, command(graph, out)), start(1, 2, meeting, words)])
        assert [status for status, _ in ends] == [2, 2]
        assert all(f"worker 1 has another {told} than worker 0; all workers must be started "
                   "alike, on the same graph" in err for _, err in ends), ends
        assert not out.exists()


@pytest.mark.needs("hosts")  # as emulated ones, file systems of its own
def test_a_directory_that_machines_do_not_share_is_refused(graph: Path, tmp_path: Path) -> None:
    """The second worker has a file system of its own where the partition is to be written."""
    shared = tmp_path / "data"
    shared.mkdir()
    words = command(graph, shared / "out")
    first = start(0, 2, tmp_path / "meeting", words)
    other = start(1, 2, tmp_path / "meeting", words, "unshare", "--mount", "sh", "-c",
                  f'mount -t tmpfs none {shared} && exec "$0" "$@"')
    (_, of_first), (status, err) = ended([first, other])
    assert status == 2
    assert re.search(r"data/out is not one directory for all workers: \S+ does not see what worker "
                     "0 writes there; give a directory that all machines share", err)
    assert "worker 1 failed" in of_first
    assert not list(shared.iterdir())


def test_methods_of_dgl_are_for_one_process(graph: Path, tmp_path: Path) -> None:
    words = command(graph, tmp_path / "out", "--method", "random")
    for status, err in ended([start(rank, 2, tmp_path / "meeting", words) for rank in (0, 1)]):
        assert status == 2
        assert ("--method random is for one process, but a scheduler has started 2; start it "
                "without torchrun") in err
