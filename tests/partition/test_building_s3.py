"""A partition that is written to object storage, a real S3 server that the test starts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.source import EdgeArrays
from dgl_heta.partition.directory import write_partition
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.partition.uploading import WRITING
from dgl_heta.planning.making import make_plan
from tests.support import warm
from tests.support.building import ended, start, write_graph
from tests.support.graphs import academic
from tests.support.storage import end_credentials, server, storage_port, upload
from tests.support.waiting import PATIENCE

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    return storage_port(monkeypatch)


def objects(url: str) -> dict[str, bytes]:
    import s3fs

    files, path = s3fs.S3FileSystem(use_listings_cache=False), url.removeprefix("s3://")
    return {name.removeprefix(path): files.cat_file(name) for name in files.find(path)}


def test_two_workers_with_disks_of_their_own_write_what_one_writes_here(
        port: int, tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    with server(port):
        given = upload(write_graph(tmp_path / "graph"), "bucket/graph")
        words = ["-m", "dgl_heta", "partition", given, "--target", "paper", "--parts", "2",
                 "--json", "--out"]
        alone = subprocess.run([warm.python(), *words, str(tmp_path / "one")],
                               capture_output=True, text=True, timeout=PATIENCE)
        assert alone.returncode == 0, alone.stderr
        disks = [tmp_path / f"disk-{rank}" for rank in (0, 1)]
        for disk in disks:
            disk.mkdir()
        workers = [start(rank, 2, tmp_path / "meeting", [*words, "s3://bucket/parts"],
                         TMPDIR=str(disks[rank])) for rank in (0, 1)]
        assert [status for status, _ in ended(workers)] == [0, 0]
        assert not any(list(disk.iterdir()) for disk in disks)
        put = objects("s3://bucket/parts/")
        assert put == {file.relative_to(tmp_path / "one").as_posix(): file.read_bytes()
                       for file in (tmp_path / "one").rglob("*") if file.is_file()}
        with opened_partition("s3://bucket/parts") as opened:
            assert Staging.of(opened, [1]).write(tmp_path / "staged")
        again = subprocess.run([warm.python(), *words, "s3://bucket/parts"], capture_output=True,
                               text=True, timeout=PATIENCE)
        assert again.returncode == 2
        assert "s3://bucket/parts exists; choose another" in again.stderr
        assert json.loads(alone.stdout)["bytes"] == sum(map(len, put.values()))


def test_what_fails_on_its_way_is_removed(port: int, monkeypatch: pytest.MonkeyPatch,
                                          tmp_path: Path) -> None:
    from dgl_heta.system.remote_files import RemotePath

    source = academic(papers=60)
    plan = make_plan(source.schema(), "paper", 2, 2)
    put, names = RemotePath.put, []

    def failing(self: RemotePath, file: Path) -> None:
        names.append(self.name)
        if len(names) == 6:
            raise HetaError("the network is gone")
        put(self, file)

    with server(port):
        upload(tmp_path, "bucket/empty")
        monkeypatch.setattr(RemotePath, "put", failing)
        with pytest.raises(HetaError, match="the network is gone"):
            write_partition(source, plan, "s3://bucket/failed")
        assert len(names) == 6
        assert not objects("s3://bucket/failed/")
        monkeypatch.undo()


def test_what_is_not_ours_at_a_url_stays(port: int, tmp_path: Path) -> None:
    """Whether it was there before or came while the partition was written, and however it is
    called."""
    source = academic(papers=60)
    plan = make_plan(source.schema(), "paper", 2, 2)
    theirs = tmp_path / "theirs"
    (theirs / "store" / "nodes").mkdir(parents=True)
    for name in ("plan.json", "state.json", "store/nodes/mine.npy"):
        (theirs / name).write_text("{}")

    class Late(EdgeArrays):
        def chunks(self, size):
            files.pipe("bucket/late/thesis.txt", b"years of work")
            return super().chunks(size)

    with server(port):
        import s3fs

        files = s3fs.S3FileSystem(use_listings_cache=False)
        upload(theirs, "bucket/theirs")
        with pytest.raises(InputError, match="theirs is no partition that dgl-heta wrote: it holds "
                           "plan.json"):
            write_partition(source, plan, "s3://bucket/theirs", overwrite=True)
        assert len(objects("s3://bucket/theirs/")) == 3
        late = academic(papers=60)
        relation, edges = next(iter(late.edges.items()))
        late.edges[relation] = Late(edges.src, edges.dst)
        with pytest.raises(InputError, match="late/thesis.txt came while the partition was"):
            write_partition(late, plan, "s3://bucket/late")
        assert objects("s3://bucket/late/") == {"thesis.txt": b"years of work"}


def test_a_partition_is_overwritten_and_so_is_what_a_killed_command_left(port: int, tmp_path: Path
                                                                         ) -> None:
    source, smaller = academic(papers=60), academic(papers=50)
    plans = [make_plan(graph.schema(), "paper", parts, 2)
             for graph, parts in ((source, 2), (smaller, 1))]
    with server(port):
        upload(tmp_path, "bucket/other")
        write_partition(source, plans[0], "s3://bucket/other")
        before = objects("s3://bucket/other/")
        write_partition(smaller, plans[1], "s3://bucket/other", overwrite=True)
        after = objects("s3://bucket/other/")
        assert before.keys() == after.keys()
        assert before["plan.json"] != after["plan.json"]
        import s3fs

        files = s3fs.S3FileSystem(use_listings_cache=False)
        files.rm_file("bucket/other/plan.json")
        files.pipe(f"bucket/other/{WRITING}", b"")
        with pytest.raises(InputError, match="was killed; wait for it, .*--overwrite"):
            write_partition(source, plans[0], "s3://bucket/other")
        write_partition(source, plans[0], "s3://bucket/other", overwrite=True)
        assert objects("s3://bucket/other/") == before


def test_the_mark_of_a_killed_command_makes_no_file_of_others_ours() -> None:
    import fsspec

    source, files = academic(papers=60), fsspec.filesystem("memory")
    plan = make_plan(source.schema(), "paper", 2, 2)
    write_partition(source, plan, "memory://bucket/mag")
    files.rm_file("/bucket/mag/plan.json")
    files.pipe(f"/bucket/mag/{WRITING}", b"")
    for name in ("experiments.json", "store/nodes/mine/embeddings.npy"):
        files.pipe(f"/bucket/mag/{name}", b"years of work")
        with pytest.raises(InputError, match=f"no partition that dgl-heta wrote: it holds {name}"):
            write_partition(source, plan, "memory://bucket/mag", overwrite=True)
        files.rm_file(f"/bucket/mag/{name}")
    files.rm_file("/bucket/mag/store/manifest.json")
    write_partition(source, plan, "memory://bucket/mag", overwrite=True)
    assert f"/bucket/mag/{WRITING}" not in files.find("/bucket/mag")
    files.rm("/bucket", recursive=True)


def test_a_bucket_that_is_not_there_is_known_before_the_graph_is_read(port: int) -> None:
    class Unread(EdgeArrays):
        def chunks(self, size):
            raise AssertionError("it is read")

    source = academic(papers=60)
    source.edges.update({r: Unread(e.src, e.dst) for r, e in source.edges.items()})
    with server(port), pytest.raises(HetaError, match="s3://nowhere/parts"):
        write_partition(source, make_plan(source.schema(), "paper", 2, 2), "s3://nowhere/parts")


def test_keys_that_may_not_write_are_named(port: int, monkeypatch: pytest.MonkeyPatch,
                                           tmp_path: Path) -> None:
    source = academic(papers=60)
    (tmp_path / "file").write_text("")
    with server(port):
        upload(tmp_path, "bucket/empty")
        end_credentials(monkeypatch)
        with pytest.raises(InputError, match="s3://bucket/parts.* may not be "):
            write_partition(source, make_plan(source.schema(), "paper", 2, 2), "s3://bucket/parts")


def test_a_password_in_a_url_comes_into_no_store(tmp_path: Path) -> None:
    source = academic(papers=60)
    with pytest.raises(InputError, match="a URL has a password in it") as said:
        write_partition(source, make_plan(source.schema(), "paper", 2, 2), "s3://me:secret@b/parts")
    assert "secret" not in str(said.value)
