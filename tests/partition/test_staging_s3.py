"""Staging from object storage, a real S3 server that the test starts."""

from __future__ import annotations

import contextlib
import filecmp
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.partition.staged_directory import working_directory
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.partition.test_staging import cut_by_array
from tests.support.graphs import academic
from tests.support.storage import end_credentials, server, storage_port
from tests.support.storage import upload as upload_directory

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    return storage_port(monkeypatch)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """With a relation that is cut, and a store beside it."""
    graph = academic(papers=600, dense=20)
    write_store(graph, tmp_path / "graph" / "store", edge_ids=True)
    opened = Store(tmp_path / "graph" / "store")
    write_partition(opened, cut_by_array(make_plan(opened.schema, "paper", 2, 2)),
                    tmp_path / "graph" / "parts")
    return tmp_path / "graph" / "parts"


def upload(partition: Path) -> str:
    return upload_directory(partition.parent, "bucket/graph") + "/parts"


def test_what_is_staged_is_what_the_directory_gives(port: int, partition: Path, tmp_path: Path
                                                    ) -> None:
    with server(port):
        url = upload(partition)
        for source, out in ((url, "there"), (str(partition), "here")):
            with opened_partition(source) as opened:
                assert Staging.of(opened, [1]).write(tmp_path / out)
                assert not Staging.of(opened, [1]).write(tmp_path / out)
    same = filecmp.dircmp(tmp_path / "here", tmp_path / "there")
    files = [f for f in (tmp_path / "here").rglob("*") if f.is_file()]
    assert not same.left_only
    assert not same.right_only
    assert [f.relative_to(tmp_path / "here") for f in files if f.read_bytes() != (
        tmp_path / "there" / f.relative_to(tmp_path / "here")).read_bytes()] == []


def test_storage_that_goes_away_in_the_middle_costs_what_was_on_its_way(
        port: int, partition: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", []
    with contextlib.ExitStack() as running, opened_at(port, partition, running) as staging:
        def progress(what: str, done: float) -> None:
            said.append(what)
            if len(said) == 4:
                running.close()

        with pytest.raises(HetaError, match=r"cannot read s3://bucket/graph/store/.*\.npy: "):
            staging.write(out, progress=progress)
    there = {f: f.stat().st_mtime_ns for f in working_directory(out).rglob("*.npy")}
    assert len(there) == 3
    assert not out.exists()
    with server(port), opened_partition("s3://bucket/graph/parts") as opened:
        assert Staging.of(opened, [0]).write(out)
    assert [f.stat().st_mtime_ns for f in sorted(out.rglob("*.npy"))
            if working_directory(out) / f.relative_to(out) in there] == [
                there[f] for f in sorted(there)]
    open_partition(out)[0].verify()


@contextlib.contextmanager
def opened_at(port: int, partition: Path, running: contextlib.ExitStack) -> Iterator[Staging]:
    running.enter_context(server(port))
    with opened_partition(upload(partition)) as opened:
        yield Staging.of(opened, [0])


def test_what_is_not_there_is_named(port: int, partition: Path) -> None:
    with server(port):
        upload(partition)
        for url, told in (("s3://nowhere/parts", "there is no s3://nowhere/parts "),
                          ("s3://bucket/graph/store", "is no partition: it holds no plan.json"),
                          ("s3://bucket/graf", "there is no s3://bucket/graf "),
                          ("gopher://bucket/parts", "cannot read gopher://bucket/parts: ")):
            with pytest.raises(InputError, match=told), opened_partition(url):
                pass
    with pytest.raises(HetaError, match="cannot read s3://bucket/graph/parts: .*endpoint"), \
            opened_partition("s3://bucket/graph/parts"):
        pass


def test_credentials_that_end_are_named(port: int, partition: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    with server(port):
        upload(partition)
        end_credentials(monkeypatch)
        with pytest.raises(InputError, match="s3://bucket/graph/parts may not be read: .*look at "
                           "the credentials"), opened_partition("s3://bucket/graph/parts"):
            pass
