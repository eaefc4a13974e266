"""Edge files in object storage, a real S3 server that the test starts."""

from __future__ import annotations

import functools
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.readers import open_source, read_edge_files
from dgl_heta.graph.schema import Relation
from dgl_heta.store import Store, write_store
from dgl_heta.system.checksums import KEY
from dgl_heta.system.remote_files import file_path
from tests.support.command_line import edge_files
from tests.support.graphs import academic
from tests.support.reading import check_mag, write_edge_files
from tests.support.storage import end_credentials, server, storage_port, upload

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """Storage, until somebody closes it."""
    with ExitStack() as running:
        running.enter_context(server(storage_port(monkeypatch)))
        yield running


def written(source: str | Path, out: Path) -> dict[str, bytes]:
    """The files of the store that edge files become, but for what says where they were."""
    write_store(read_edge_files(source), out)
    files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*.npy")}
    manifest = Store(out).manifest.to_json()
    del manifest["info"]["path"], manifest[KEY]
    return {**files, "manifest": json.dumps(manifest, sort_keys=True).encode()}


def tables(directory: Path) -> Path:
    """Nodes with ids of their own in CSV, Arrow and Parquet files; types in names of directories,
    compressed and dictionary-encoded columns; edges in a Parquet file beside arrays."""
    for year in (2020, 2021):
        (directory / f"papers/year={year}/lang=de%20CH").mkdir(parents=True)
        pq.write_table(pa.table({"id": [f"p{year}{i}" for i in range(4)], "words": ["a", "b"] * 2}),
                       directory / f"papers/year={year}/lang=de%20CH/part-0.parquet",
                       compression="zstd")
    for name in ("cites", "extends"):
        (directory / f"edges/type={name}").mkdir(parents=True)
        ids = pa.array(["p20200", "p20211", "p20203"]).dictionary_encode()
        pq.write_table(pa.table({"src": ids, "dst": ids}),
                       directory / f"edges/type={name}/x.parquet")
    feather.write_feather(pa.table({"id": [7, 8], "label": ["x", "y"]}), directory / "who.arrow",
                          compression="lz4")
    (directory / "wrote.csv").write_text("who;what\n7;p20200\n8;p20213\n")
    np.save(directory / "feat.npy", np.arange(16, dtype=np.float32).reshape(8, 2))
    np.save(directory / "columns.npy", np.asfortranarray(np.arange(16.0).reshape(8, 2)))
    np.save(directory / "swapped.npy", np.arange(16).reshape(8, 2).astype(">f4"))
    np.save(directory / "at.npy", np.array([[0, 3, 1], [1, 1, 0]]).astype(">i4"))
    np.save(directory / "at-again.npy", np.asfortranarray([[2, 2, 2], [0, 1, 0]]))
    for name, ids in (("plain", [4, 5]), ("coded", pa.array([6, 7]).dictionary_encode())):
        pq.write_table(pa.table({"src": ids, "dst": [0, 1]}), directory / f"at-{name}.parquet")
    (directory / "metadata.json").write_text(json.dumps({
        "name": "tables",
        "nodes": {"paper": {"table": "papers", "arrays": {"feat": "feat.npy", "c": "columns.npy",
                                                          "s": "swapped.npy"}},
                  "author": {"table": "who.arrow", "features": {"label": "category"}},
                  "reader": {"count": 8, "arrays": {"x": "feat.npy"}}, "place": {"count": 2}},
        "edges": [{"src": "paper", "etype": {"column": "type"}, "dst": "paper",
                   "files": ["edges"]},
                  {"src": "author", "etype": "wrote", "dst": "paper", "files": ["*.csv"],
                   "columns": ["who", "what"]},
                  {"src": "reader", "etype": "at", "dst": "place",
                   "files": ["at.npy", "at-again.npy", "at-*.parquet"]}],
        "task": {"target": "paper", "label": "year",
                 "split": {"ratios": [0.5, 0.25, 0.25]}}}))
    return directory


def test_edge_files_of_every_kind_give_the_graph_from_s3(
        running: ExitStack, tmp_path: Path) -> None:
    check_mag(open_source(upload(write_edge_files(tmp_path), "bucket/mag")))


def test_a_store_from_a_url_is_the_one_from_the_directory(
        running: ExitStack, tmp_path: Path) -> None:
    here = tables(tmp_path / "tables")
    url = upload(here, "bucket/tables")
    known = written(here, tmp_path / "here")
    assert written(url, tmp_path / "there") == known
    source = read_edge_files(url)
    assert [*source.edges][:2] == [Relation("paper", "cites", "paper"),
                                   Relation("paper", "extends", "paper")]
    assert source.info["classes"] == ["2020", "2021"]
    assert source.info["columns that are not used"]["paper"] == ["words", "lang"]
    assert source.edges[Relation("reader", "at", "place")].num_edges == 10




def test_a_directory_that_cannot_be_listed_is_named_and_not_left_out(
        running: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    url = upload(tables(tmp_path / "tables"), "bucket/tables")
    listed, asked = s3fs.S3FileSystem._lsdir, list[str]()

    async def list_directory(self, path, *args, **kwargs):
        asked.append(path)
        if "/lang=" in path:
            end_credentials(monkeypatch)
        return await listed(self, path, *args, **kwargs)

    monkeypatch.setattr(s3fs.S3FileSystem, "_lsdir", list_directory)
    with pytest.raises(InputError, match=r"tables/papers/year=202./lang=de%20CH may not be read: "):
        read_edge_files(url)
    assert "bucket/tables/papers" in asked


def stopped_in_the_middle(url: str, out: Path, stop) -> str:
    """What a store being written says when something happens after its first array."""
    calls: list[str] = []

    def progress(what: str, done: float) -> None:
        calls.append(what)
        if len(calls) == 1:
            stop()

    with pytest.raises(HetaError) as told:
        write_store(read_edge_files(url), out, progress=progress)
    assert calls
    assert [*out.parent.glob(f"*{out.name}*")] == []
    return str(told.value)


def test_storage_that_ends_in_the_middle_leaves_nothing(
        running: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = upload(edge_files(tmp_path / "graph"), "bucket/graph")
    said = stopped_in_the_middle(url, tmp_path / "out", lambda: end_credentials(monkeypatch))
    assert said.startswith(f"{url}/")
    assert ".npy may not be read: " in said
    assert "look at the credentials and their end" in said
    with pytest.raises(InputError, match="s3://bucket/graph/metadata.json may not be read"):
        open_source(url)


def test_storage_that_goes_away_in_the_middle_leaves_nothing(
        running: ExitStack, tmp_path: Path) -> None:
    url = upload(edge_files(tmp_path / "graph"), "bucket/graph")
    said = stopped_in_the_middle(url, tmp_path / "out", running.close)
    assert said.startswith(f"cannot read {url}/")
    assert "endpoint" in said
    with pytest.raises(HetaError, match="cannot read s3://bucket/graph/metadata.json: .*endpoint"):
        open_source(url)


def test_a_file_that_is_replaced_by_a_shorter_one_is_named(
        running: ExitStack, tmp_path: Path) -> None:
    import s3fs

    url = upload(edge_files(tmp_path / "graph"), "bucket/graph")
    said = stopped_in_the_middle(url, tmp_path / "out", lambda: s3fs.S3FileSystem().pipe(
        "bucket/graph/writes-src.npy", b"short"))
    assert "cannot read s3://bucket/graph/writes-src.npy: " in said


def test_a_name_of_object_storage_is_no_name_on_the_disk(
        running: ExitStack, tmp_path: Path) -> None:
    path = file_path(upload(write_edge_files(tmp_path / "graph"), "bucket/graph")) / "metadata.json"
    for wrong in (lambda: np.load(path), lambda: path.write_text("x"), path.rmdir):
        with pytest.raises(InputError, match="metadata.json is in object storage, "):
            wrong()
    assert json.loads(path.read_bytes())["name"] == "tiny"


class OneAnswer(http.server.SimpleHTTPRequestHandler):
    """Files whole, whatever part of them is asked for."""

    def log_message(self, *_: object) -> None:
        pass


def test_http_is_read_by_ranges_or_not_at_all(running: ExitStack, tmp_path: Path) -> None:
    import s3fs

    here = edge_files(tmp_path / "graph", academic(papers=2000))
    upload(here, "bucket/graph")
    known = written(here, tmp_path / "here")
    url = os.environ["AWS_ENDPOINT_URL"] + "/bucket/graph"
    with pytest.raises(HetaError, match=rf"cannot read {url}/metadata.json: 403, "):
        open_source(url)
    s3fs.S3FileSystem().chmod("bucket/graph", "public-read", recursive=True)
    assert written(url, tmp_path / "there") == known
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(
            OneAnswer, directory=here)) as simple:
        thread = threading.Thread(target=simple.serve_forever)
        thread.start()
        try:
            with pytest.raises(HetaError, match=r"cannot read http://.*/paper-feat.npy: .* it must "
                               "answer requests for a range"):
                written(f"http://127.0.0.1:{simple.server_port}", tmp_path / "never")
        finally:
            simple.shutdown()
            thread.join()
    with pytest.raises(HetaError, match="cannot read http://127.0.0.1:.*: .*onnect"):
        open_source(f"http://127.0.0.1:{simple.server_port}")
    assert not (tmp_path / "never").exists()
