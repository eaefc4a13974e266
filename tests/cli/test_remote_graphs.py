"""Graphs in object storage, a real S3 server that the test starts, by their URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays
from dgl_heta.store import write_store
from tests.support.command_line import edge_files, refused
from tests.support.graphs import academic
from tests.support.storage import server, storage_port, upload

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    chosen = storage_port(monkeypatch)
    with server(chosen):
        yield chosen


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each request for a range that leave the storage."""
    import s3fs

    sizes: list[int] = []
    whole = s3fs.S3FileSystem._cat_file

    async def cat_file(*args, **kwargs):
        data = await whole(*args, **kwargs)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(s3fs.S3FileSystem, "_cat_file", cat_file)
    return sizes


def test_planning_reads_headers_and_partitioning_ranges(
        tmp_path: Path, heta: Callable, counted: list[int]) -> None:
    graph = academic(papers=20_000)
    graph.node_arrays["paper"]["feat"] = np.ones((20_000, 64), np.float32)
    graph.edges[Relation("paper", "cites", "paper")] = EdgeArrays(
        *np.random.default_rng(0).integers(0, 20_000, (2, 1_000_000)))
    here = edge_files(tmp_path / "graph", graph)
    ((src, dst),) = graph.edges[Relation("paper", "topic", "field")].chunks(2**30)
    pq.write_table(pa.table({"src": src, "dst": dst}), here / "topic.parquet")
    described = json.loads((here / "metadata.json").read_text())
    described["edges"][3]["files"] = ["topic.parquet"]
    (here / "metadata.json").write_text(json.dumps(described))
    url = upload(here, "bucket/graph")
    files = [*here.iterdir()]
    whole = sum((here / f"paper-{name}.npy").stat().st_size
                for name in graph.node_arrays["paper"] if name != "feat")
    for command in (("plan", url), ("partition", url, "--out", tmp_path / "out", "--dry-run")):
        counted.clear()
        result = heta(*command, "--parts", 2)
        assert result.status == 0, result.err
        assert 0 < sum(counted) < whole + len(files) * 2**16 < sum(
            file.stat().st_size for file in files) / 5
    assert not (tmp_path / "out").exists()
    for source, out in ((url, "out"), (here, "same")):
        result = heta("partition", source, "--out", tmp_path / out, "--parts", 2)
        assert result.status == 0, result.err
    assert max(counted) <= 2**22
    arrays = [p.relative_to(tmp_path / "same") for p in (tmp_path / "same").rglob("*.npy")]
    assert arrays
    assert [a for a in arrays if (tmp_path / "same" / a).read_bytes() != (
        tmp_path / "out" / a).read_bytes()] == []


def test_what_is_not_there_or_not_edge_files_is_named(tmp_path: Path, heta: Callable) -> None:
    url = upload(edge_files(tmp_path / "graph"), "bucket/graph")
    write_store(academic(), tmp_path / "store")
    upload(tmp_path / "store", "bucket/store")
    for given, told in (
            *((name, f"{name} is no graph: it is not there, or has no metadata.json")
              for name in ("s3://nowhere/graph", f"{url}/edges")),
            ("s3://bucket", "'s3://bucket', which holds none: .*from object storage edge files"),
            (f"{url}/metadata.json", f"{url}/metadata.json is in object storage, and this is read "
             "from a disk only"),
            ("s3://bucket/store", "s3://bucket/store is a partition or a store in object storage"),
            ("gopher://bucket/graph", "cannot read gopher://bucket/graph: Protocol not known")):
        refused(heta("plan", given, "--parts", 2), told)
        refused(heta("partition", given, "--out", tmp_path / "out", "--parts", 2), told)
        assert not (tmp_path / "out").exists()
