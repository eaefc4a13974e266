"""What a user gets from a relation store, and what is said and left when something is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.store import ArrayEntry, Manifest, RelationEntry, Store, write_store
from dgl_heta.store.reader import short_files
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE, PROMPT

ROOT = Path(__file__).resolve().parents[2]
LIKES = Relation("user", "likes", "item")
CITES = Relation("paper", "cites", "paper")
RELAXED = settings(max_examples=25, deadline=None,
                   suppress_health_check=[HealthCheck.function_scoped_fixture])


def one(src, dst, num_src: int = 10, num_dst: int = 10, **kwargs) -> GraphSource:
    return GraphSource("one", {"user": num_src, "item": num_dst},
                       {LIKES: EdgeArrays(np.asarray(src), np.asarray(dst))}, **kwargs)


def small(**arrays) -> GraphSource:
    """Three papers that cite each other, with the arrays given."""
    return GraphSource("small", {"paper": 3},
                       {CITES: EdgeArrays(np.array([0, 1, 2]), np.array([1, 2, 0]))},
                       {"paper": arrays} if arrays else {})


def labelled(**changes) -> GraphSource:
    arrays = {"label": np.array([0, 1, -1]), "train_mask": np.array([True, True, False])}
    arrays.update(changes)
    source = small(**{k: v for k, v in arrays.items() if v is not None})
    source.task = Task("paper", 2)
    return source


class Edges:
    """Edges in chunks of any make; `before(pass, chunk)` is called before each chunk."""

    def __init__(self, src, dst, before: Callable[[int, int], None] = lambda *_: None,
                 num_edges: int | None = None) -> None:
        self.src, self.dst, self.before, self.passes = src, dst, before, 0
        self.num_edges = len(src) if num_edges is None else num_edges

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.passes += 1
        for index, start in enumerate(range(0, len(self.src), size)):
            self.before(self.passes, index)
            yield self.src[start:start + size], self.dst[start:start + size]


def refused(out: Path, source: GraphSource, *words: str, kind: type = InputError,
            **options) -> str:
    """`write_store` fails with one line that has the words, and leaves the disk as it was."""
    before = contents(out.parent)
    with pytest.raises(kind) as caught:
        write_store(source, out, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(out.parent) == before
    return str(caught.value)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b""
            for p in sorted(directory.rglob("*"))}


def skewed(size: int, num_src: int, num_dst: int, seed: int = 0):
    """Ids with a third of all edges at one destination, and destinations without any."""
    rng = np.random.default_rng(seed)
    dst = (rng.random(size) ** 3 * num_dst).astype(np.int64)
    dst[rng.random(size) < 1 / 3] = num_dst // 2
    return rng.integers(0, num_src, size), dst


def check_csc(store: Store, relation: Relation, src: np.ndarray, dst: np.ndarray,
              num_dst: int) -> None:
    order = np.argsort(dst, kind="stable")
    csc = store.relation(relation)
    assert csc.indptr.dtype == np.int64
    np.testing.assert_array_equal(np.diff(csc.indptr), np.bincount(dst, minlength=num_dst))
    assert csc.indptr[0] == 0
    np.testing.assert_array_equal(csc.indices, src[order])
    np.testing.assert_array_equal(store.edge_ids(relation), order)


# Edges


@RELAXED
@given(data=st.data())
def test_in_edges_keep_the_order_of_the_input(tmp_path, data):
    num_src, num_dst = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, num_src - 1),
                                         st.integers(0, num_dst - 1)), min_size=1, max_size=40))
    dtype = data.draw(st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64, ">i4"]))
    src, dst = np.array(pairs).T
    out = Path(tempfile.mkdtemp(dir=tmp_path)) / "store"
    write_store(one(src.astype(dtype), dst.astype(dtype), num_src, num_dst), out, edge_ids=True)
    check_csc(Store(out), LIKES, src, dst, num_dst)


@settings(RELAXED, max_examples=10)
@given(size=st.integers(1025, 20_000), num_dst=st.integers(1, 3000), seed=st.integers(0, 99))
def test_a_relation_larger_than_memory_gives_the_same_store(tmp_path, size, num_dst, seed):
    src, dst = skewed(size, 500, num_dst, seed)
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    source = one(src, dst, 500, num_dst)
    large = write_store(source, place / "large", memory_mb=64, edge_ids=True)
    tiny = write_store(source, place / "tiny", memory_mb=0, edge_ids=True)
    assert tiny == large  # checksums of all files
    check_csc(Store(place / "tiny"), LIKES, src, dst, num_dst)
    without = write_store(source, place / "without", memory_mb=0)
    assert without.relations[0].indices == large.relations[0].indices
    assert not list(place.rglob("*buckets*"))


def test_a_destination_with_more_edges_than_memory_is_complete(tmp_path):
    src, dst = skewed(9000, 100, 50)
    assert np.bincount(dst).max() > 2 * 1024
    write_store(one(src, dst, 100, 50), tmp_path / "s", memory_mb=0, edge_ids=True)
    check_csc(Store(tmp_path / "s"), LIKES, src, dst, 50)


def test_parallel_edges_and_self_loops_are_kept(tmp_path):
    source = GraphSource("g", {"paper": 2}, {
        CITES: EdgeArrays(np.array([1, 1, 0, 1]), np.array([0, 0, 0, 1]))})
    write_store(source, tmp_path / "s")
    csc = Store(tmp_path / "s").relation(CITES)
    assert csc.indptr.tolist() == [0, 3, 4]
    assert csc.indices.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize(("nodes", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_large_source_types_get_64_bit_ids(tmp_path, nodes, dtype):
    src = np.array([nodes - 1, 0, nodes - 2] * 500)
    dst = np.arange(1500) % 3
    for memory_mb in (0, 64):
        out = tmp_path / str(memory_mb)
        write_store(one(src, dst, nodes, 3), out, memory_mb=memory_mb, edge_ids=True)
        assert Store(out).relation(LIKES).indices.dtype == dtype
        check_csc(Store(out), LIKES, src, dst, 3)


def test_a_store_without_edge_ids_says_so(tmp_path):
    write_store(small(), tmp_path / "s")
    with pytest.raises(InputError, match="keeps no edge ids"):
        Store(tmp_path / "s").edge_ids(CITES)


def test_edges_larger_than_memory_are_not_held_in_memory(tmp_path):
    edges, nodes = 30_000_000, 1_000_000
    rng = np.random.default_rng(0)
    np.save(tmp_path / "src.npy", rng.integers(0, nodes, edges, dtype=np.int32))
    np.save(tmp_path / "dst.npy", (rng.random(edges, np.float32) ** 2 * (nodes - 1)).astype("i4"))
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "big", "nodes": {"page": {"count": nodes}},
        "edges": [{"src": "page", "etype": "links", "dst": "page",
                   "files": [{"src_file": "src.npy", "dst_file": "dst.npy"}]}]}))
    code = """
        import sys
        import numpy as np
        from dgl_heta.graph.source import EdgeArrays, GraphSource
        from dgl_heta.graph.readers import read_edge_files
        from dgl_heta.store import write_store

        def peak():
            return next(int(line.split()[1]) for line in open("/proc/self/status")
                        if line.startswith("VmHWM")) // 1024

        where, few = sys.argv[1], np.arange(2000)  # first compile everything
        warm = GraphSource("warm", {"a": 2000}, {("a", "b", "a"): EdgeArrays(few, few)})
        write_store(warm, where + "/warm", memory_mb=0, edge_ids=True)
        before = peak()
        write_store(read_edge_files(where), where + "/out", memory_mb=64, edge_ids=True)
        print(peak() - before)
    """
    grown = int(python(code, tmp_path).stdout)
    assert Store(tmp_path / "out").relation(Relation("page", "links", "page")).indptr[-1] == edges
    assert grown < 300, f"{grown} MB"  # all edges with ids: 30 M × (4 + 8 + 8) = 600 MB


# Node arrays


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "?", "i1", "i2", "i4", "i8", "u1", "u8"])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2), (3, 0)])
def test_arrays_come_back_as_they_were(tmp_path, dtype, shape):
    array = (np.random.default_rng(0).standard_normal(shape) * 50).clip(0, 99).astype(dtype)
    write_store(small(x=array), tmp_path / "s")
    store = Store(tmp_path / "s")
    store.verify()
    back = store.array("paper", "x")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("make", [
    np.asfortranarray, lambda a: a.astype(">f4"), lambda a: np.repeat(a, 2, axis=1)[:, ::2]],
    ids=["by columns", "big-endian", "strided"])
def test_the_layout_of_an_input_array_does_not_matter(tmp_path, make):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_store(small(feat=make(array)), tmp_path / "s")
    back = Store(tmp_path / "s").array("paper", "feat")
    assert back.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(back, array)


def test_changes_in_a_copy_on_write_map_are_written_and_stay(tmp_path):
    np.save(tmp_path / "feat.npy", np.zeros((3, 4)))
    array = np.load(tmp_path / "feat.npy", mmap_mode="c")
    array[:] = 7
    write_store(small(feat=array, again=array), tmp_path / "s")
    assert (Store(tmp_path / "s").array("paper", "again") == 7).all()
    assert (array == 7).all()


@RELAXED
@given(names=st.lists(st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300),
    min_size=2, max_size=4, unique=True))
def test_any_names_can_be_stored(tmp_path, names):
    out = Path(tempfile.mkdtemp(dir=tmp_path)) / "store"
    arrays = {name: np.full(2, i) for i, name in enumerate(names)}
    relation = Relation(names[0], names[1], names[-1])
    write_store(GraphSource(names[0], dict.fromkeys({names[0], names[-1]}, 2),
                            {relation: EdgeArrays(np.array([1]), np.array([0]))},
                            {names[0]: arrays}), out)
    store = Store(out)
    for name, array in arrays.items():
        np.testing.assert_array_equal(store.array(names[0], name), array)
    assert store.relation(relation).indices.tolist() == [1]
    assert [p.name for p in out.parent.iterdir()] == ["store"]


def test_names_that_look_alike_on_disk_are_kept_apart(tmp_path):
    names = ["a/b", "a_b", "A_B", "..", "../../b", "x" * 200, "x" * 200 + "y"]
    write_store(small(**{n: np.full(3, i) for i, n in enumerate(names)}), tmp_path / "s")
    store = Store(tmp_path / "s")
    assert [store.array("paper", n)[0] for n in names] == list(range(len(names)))
    files = [entry.file.lower() for entry in store.manifest.entries()]
    assert len(set(files)) == len(files)


def test_numpy_numbers_and_plain_tuples_are_good_enough(tmp_path):
    source = labelled()
    source.edges = {tuple(CITES): source.edges[CITES]}
    source.task = Task("paper", np.int64(2))
    source.info = {"years": (1999, 2001), 10: "a", 9: "b"}
    write_store(source, tmp_path / "s")
    manifest = Store(tmp_path / "s").manifest
    assert manifest.task == Task("paper", 2)
    assert manifest.info == {"years": [1999, 2001], "10": "a", "9": "b"}


def test_the_store_knows_the_graph_it_was_written_from(tmp_path):
    source = academic()
    written = write_store(source, tmp_path / "deep" / "er" / "store")
    store = Store(str(tmp_path / "deep" / "er" / "store"))
    store.verify()
    assert store.manifest == written
    assert store.schema == source.schema()
    assert store.schema.relations == source.schema().relations
    assert (store.manifest.name, store.manifest.task, store.manifest.info) == (
        source.name, source.task, source.info)
    assert store.has_array("paper", "feat")
    assert not store.has_array("author", "feat")
    assert store.manifest.bytes == sum(
        p.stat().st_size for p in store.directory.rglob("*.npy"))


def test_progress_rises_to_the_end(tmp_path):
    seen: list[float] = []
    write_store(academic(dense=40), tmp_path / "s", memory_mb=0,
                progress=lambda what, done: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    seen.clear()
    Store(tmp_path / "s").verify(progress=lambda what, done: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


# Bad input: one error, nothing left


@pytest.mark.parametrize("memory_mb", [0, 64])
@pytest.mark.parametrize(("side", "ntype", "limit"), [("source", "user", 50),
                                                      ("destination", "item", 9)])
@pytest.mark.parametrize("value", [-1, 50, 2**40])
def test_an_id_out_of_range_is_named(tmp_path, side, ntype, limit, value, memory_mb):
    src, dst = np.arange(5000) % 50, np.arange(5000) % 9
    (src if side == "source" else dst)[4321] = value
    message = refused(tmp_path / "s", one(src, dst, 50, 9), "'user likes item'", "edge 4321",
                      f"{side} id {value}", f"'{ntype}' has {limit} nodes", memory_mb=memory_mb)
    assert f"0 … {limit - 1}" in message


def test_an_unsigned_id_beyond_64_bits_signed_is_named_as_it_is(tmp_path):
    src = np.array([0, 2**63 + 5], np.uint64)
    refused(tmp_path / "s", one(src, np.array([0, 1])), f"edge 1 has source id {2**63 + 5}")


@pytest.mark.parametrize(("edges", "words"), [
    (Edges(np.array([0.0, 1.0]), np.array([0, 1])), ("source ids are float64",)),
    (Edges(np.array([0, 1]), np.array([True, False])), ("destination ids are bool",)),
    (Edges(np.array([[0], [1]]), np.array([0, 1])), ("one dimension",)),
    (Edges(np.array([0, 1, 2]), np.array([0, 1])), ("3 source ids but 2 destination ids",)),
    (Edges(np.array([0, 1]), np.array([0, 1]), num_edges=3), ("3 edges announced, 2 read",)),
    (Edges(np.array([0, 1]), np.array([0, 1]), num_edges=1), ("1 edges announced, 2 read",)),
    (Edges(np.array([], int), np.array([], int)), ("0 edges", "at least 1")),
    (Edges(np.array([], int), np.array([], int), num_edges=2), ("2 edges announced, 0 read",)),
])
def test_edges_that_are_no_edges_are_refused(tmp_path, edges, words):
    source = GraphSource("g", {"user": 10, "item": 10}, {LIKES: edges})
    refused(tmp_path / "s", source, "'user likes item'", *words)


def test_edge_lists_of_different_lengths_are_refused():
    with pytest.raises(InputError, match=r"shape \(3,\).*\(2,\)"):
        EdgeArrays(np.arange(3), np.arange(2))


@pytest.mark.parametrize("memory_mb", [0, 64])
@pytest.mark.parametrize("change", ["more", "fewer", "other destinations", "out of range"])
def test_edges_that_change_while_they_are_read_are_noticed(tmp_path, memory_mb, change):
    src, dst = np.arange(5000) % 50, np.arange(5000) % 9

    def before(number: int, chunk: int) -> None:
        if number == 2 and chunk == 0:
            if change == "more":
                edges.src, edges.dst = np.tile(src, 2), np.tile(dst, 2)
            elif change == "fewer":
                edges.src, edges.dst = src[:-1], dst[:-1]
            elif change == "other destinations":
                edges.dst = np.zeros_like(dst)
            else:
                edges.dst = dst + 10**9

    edges = Edges(src, dst, before)
    refused(tmp_path / "s", GraphSource("g", {"user": 50, "item": 9}, {LIKES: edges}),
            "'user likes item' changed while they were read", kind=HetaError, memory_mb=memory_mb)


@pytest.mark.parametrize(("arrays", "words"), [
    ({"feat": np.zeros((2, 4))}, ("'feat'", "'paper'", "2 rows", "have 3")),
    ({"x": np.float32(1)[()] * np.ones(())}, ("'x'", "no rows", "have 3")),
    ({"feat": np.zeros(3)}, ("'feat'", "'paper'", "(3,)")),
    ({"feat": np.zeros((3, 4), int)}, ("'feat'", "int64", "floating point")),
    ({"feat": np.zeros((3, 0))}, ("'feat'", "(3, 0)")),
    ({"x": np.array(["a", "b", "c"])}, ("'x'", "<U1", "numbers")),
    ({"x": np.array([{}, {}, {}])}, ("'x'", "object", "numbers")),
    ({"x": np.zeros(3, complex)}, ("'x'", "complex128", "numbers")),
    ({"x": np.zeros(3, np.longdouble)}, ("'x'", "64 bits")),
    ({"feat": np.array([[1.0], [np.nan], [np.nan]])}, ("'feat'", "'paper'", "row 1")),
    ({"x": np.array([[1, 2], [1, 2], [1, np.inf]], np.float16)}, ("'x'", "'paper'", "row 2")),
])
def test_arrays_that_cannot_be_used_are_refused(tmp_path, arrays, words):
    refused(tmp_path / "s", small(**arrays), *words)


def test_a_bad_value_far_into_a_large_array_is_found(tmp_path):
    feat = np.zeros((200_000, 64), np.float32)  # more than one piece
    feat[190_001, 3] = -np.inf
    source = one([0], [0], 200_000, 1, node_arrays={"user": {"feat": feat}})
    refused(tmp_path / "s", source, "'feat'", "'user'", "row 190001")


@pytest.mark.parametrize(("source", "words"), [
    (labelled(label=None), ("'paper' has no array 'label'", "train_mask")),
    (labelled(train_mask=None), ("'paper' has no array 'train_mask'", "label")),
    (labelled(label=np.array([0.0, 1, 0])), ("'label'", "float64", "integers")),
    (labelled(label=np.zeros((3, 1), int)), ("'label'", "(3, 1)")),
    (labelled(label=np.array([0, 2, 0])), ("node 1", "train_mask", "label 2", "0 to 1")),
    (labelled(val_mask=np.array([0, 0, 1], bool)), ("node 2", "val_mask", "label -1")),
    (labelled(train_mask=np.ones(3)), ("'train_mask'", "float64", "boolean")),
    (labelled(test_mask=np.ones((3, 1), bool)), ("'test_mask'", "(3, 1)")),
    (replace(labelled(), task=Task("papr", 2)), ("'papr' is not in the graph", "paper")),
    (replace(small(), node_counts={"paper": 3, "lonely": 4}), ("'lonely' has no edges",)),
    (replace(small(), node_counts={"author": 3}), ("'paper', which is not in", "author")),
    (replace(small(), node_counts={"paper": 0}), ("'paper' has 0 nodes",)),
    (replace(small(), node_arrays={"papr": {}}), ("'papr', which is not in", "paper")),
    (replace(small(), edges={}), ("no relations",)),
    (replace(small(), info={"made": Path("x")}), ("info", "JSON")),
])
def test_a_graph_that_cannot_be_trained_is_refused(tmp_path, source, words):
    refused(tmp_path / "s", source, *words)


# Failures while writing


def failing(error: BaseException, **options) -> GraphSource:
    def before(number: int, chunk: int) -> None:
        if (number, chunk) == (2, 3):
            raise error

    source = one([0], [0], 50, 9, **options)
    source.edges[LIKES] = Edges(np.arange(9000) % 50, np.arange(9000) % 9, before)
    return source


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), InputError("why")])
def test_a_source_that_fails_leaves_nothing(tmp_path, error):
    (tmp_path / "mine").write_text("kept")
    refused(tmp_path / "new" / "parents" / "s", failing(error), kind=type(error), memory_mb=0)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    error = PermissionError(13, "Permission denied", "/data/edges.bin")
    refused(tmp_path / "s", failing(error), "cannot read /data/edges.bin: Permission denied",
            kind=HetaError, memory_mb=0)


@pytest.fixture
def little_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount command")
def test_a_disk_that_fills_up_meanwhile_is_left_as_it_was(little_disk):
    def before(number: int, chunk: int) -> None:
        if (number, chunk) == (2, 0):
            filler.write_bytes(b"x" * (os.statvfs(little_disk).f_bavail * 4096 - 8192))

    filler = little_disk / "filler"
    source = GraphSource("g", {"user": 50, "item": 9}, {
        LIKES: Edges(np.arange(20_000) % 50, np.arange(20_000) % 9, before)})
    with pytest.raises(HetaError, match=r"no space left on the disk while writing .*/s; nothing"):
        write_store(source, little_disk / "s", memory_mb=0)
    assert os.listdir(little_disk) == ["filler"]
    filler.unlink()
    source.edges[LIKES] = EdgeArrays(np.arange(20_000) % 50, np.arange(20_000) % 9)
    write_store(source, little_disk / "s", memory_mb=0)


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount command")
def test_a_disk_that_is_too_small_is_told_before_writing(little_disk):
    source = one([0], [0], node_arrays={"user": {"x": np.zeros((10, 20_000))}})
    refused(little_disk / "s", source, "needs 1,600,0", "free", kind=HetaError)


def test_a_file_size_limit_is_reported_and_leaves_nothing(tmp_path):
    code = """
        import resource, sys
        import numpy as np
        from dgl_heta.errors import HetaError
        from dgl_heta.graph.source import EdgeArrays, GraphSource
        from dgl_heta.store import write_store
        ids = np.arange(200_000)
        source = GraphSource("g", {"a": 200_000}, {("a", "b", "a"): EdgeArrays(ids, ids)})
        write_store(source, sys.argv[1] + "/fits")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            write_store(source, sys.argv[1] + "/s")
        except HetaError as error:
            print(error)
    """
    done = python(code, tmp_path)
    assert re.fullmatch(r"writing .*/s failed: File too large; nothing was kept\n", done.stdout)
    assert done.stderr == ""
    assert os.listdir(tmp_path) == ["fits"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_is_stopped_leaves_nothing(tmp_path, number):
    code = """
        import sys, time
        import numpy as np
        from dgl_heta.graph.source import GraphSource
        from dgl_heta.store import write_store

        class Slow:
            num_edges = 2000
            def chunks(self, size):
                yield np.arange(1000), np.arange(1000)
                print("writing", flush=True)
                time.sleep(600)

        write_store(GraphSource("g", {"a": 1000}, {("a", "b", "a"): Slow()}), sys.argv[1] + "/s")
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
                              cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"writing\n"
    assert len(os.listdir(tmp_path)) == 1
    writer.send_signal(number)
    assert writer.wait(PROMPT) != 0
    writer.stdout.close()
    assert os.listdir(tmp_path) == []


def test_signals_are_handled_as_before_afterwards(tmp_path):
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    write_store(small(), tmp_path / "s")
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers


# Output directories


def test_an_existing_directory_is_refused(tmp_path):
    (tmp_path / "s").mkdir()
    refused(tmp_path / "s", small(), "exists", "--overwrite")
    refused(tmp_path / "s", small(), "not written by dgl-heta", overwrite=True)


def test_overwriting_replaces_a_store_completely(tmp_path):
    write_store(academic(), tmp_path / "s")
    write_store(small(), f"{tmp_path}/s/", overwrite=True)
    assert Store(tmp_path / "s").manifest.name == "small"
    assert os.listdir(tmp_path) == ["s"]
    assert not list((tmp_path / "s").rglob("*author*"))


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "Input/output error")])
def test_the_old_store_stays_when_overwriting_fails(tmp_path, error):
    write_store(academic(), tmp_path / "s")
    refused(tmp_path / "s", failing(error), overwrite=True, memory_mb=0,
            kind=HetaError if isinstance(error, OSError) else type(error))
    Store(tmp_path / "s").verify()


@pytest.mark.parametrize("files", [
    {"thesis.tex": "years of work"}, {"manifest.json": '{"name": "a web page"}'},
    {"manifest.json": "not JSON"}, {"manifest.json": "[]"}, {"plan.json": "{}"}])
def test_a_directory_of_something_else_is_never_overwritten(tmp_path, files):
    (tmp_path / "d").mkdir()
    for name, text in files.items():
        (tmp_path / "d" / name).write_text(text)
    refused(tmp_path / "d", small(), "not written by dgl-heta", overwrite=True)


def test_files_and_links_are_never_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    write_store(small(), tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "link", "dangling"):
        refused(tmp_path / name, small(), "exists", name)
    refused(tmp_path / "file", small(), "not written by dgl-heta", overwrite=True)
    for name in ("link", "dangling"):
        refused(tmp_path / name, small(), "symbolic link", overwrite=True)
        assert (tmp_path / name).is_symlink()


def test_the_current_directory_is_not_pulled_away(tmp_path, monkeypatch):
    write_store(small(), tmp_path / "s")
    (tmp_path / "s" / "nodes").mkdir(exist_ok=True)
    for where, name in (("s", "."), ("s", ""), ("s/nodes", ".."), ("s/nodes", tmp_path / "s")):
        monkeypatch.chdir(tmp_path / where)
        with pytest.raises(InputError, match="exists"):
            write_store(small(), name)
        with pytest.raises(InputError, match="current directory"):
            write_store(small(), name, overwrite=True)
    monkeypatch.chdir(tmp_path)
    assert os.listdir(tmp_path) == ["s"]
    write_store(small(), "t/")
    Store("t").verify()


def test_a_directory_made_by_something_else_meanwhile_is_left(tmp_path):
    out = tmp_path / "s"
    source = one([0], [0])

    def before(number: int, chunk: int) -> None:
        if number == 2:
            write_store(academic(), out)

    source.edges[LIKES] = Edges(np.array([0]), np.array([0]), before)
    with pytest.raises(HetaError, match="meanwhile|meantime"):
        write_store(source, out)
    assert Store(out).manifest.name == "academic"
    assert os.listdir(tmp_path) == ["s"]


def test_places_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name in ("s", "t/s"):
        refused(tmp_path / "file" / name, small(), f"cannot write {tmp_path}/file/{name}: "
                f"{tmp_path}/file is not a directory")
    refused(tmp_path / ("x" * 300), small(), "cannot write", "name too long")
    refused(tmp_path / "nul\0", small(), "cannot write", "null")
    write_store(small(), tmp_path / ("é" * 127))  # 254 bytes
    with pytest.raises(InputError, match="cannot write /proc/self/s: "):
        write_store(small(), "/proc/self/s")
    with pytest.raises(InputError, match="cannot write /sys/kernel/new/s: "):
        write_store(small(), "/sys/kernel/new/s")


# Damaged stores


@pytest.fixture
def store(tmp_path) -> Store:
    write_store(labelled(feat=np.arange(12, dtype=np.float32).reshape(3, 4)), tmp_path / "s",
                edge_ids=True)
    return Store(tmp_path / "s")


def file_of(store: Store, name: str) -> Path:
    arrays = store.manifest.arrays["paper"]
    entry = store.manifest.relations[0]
    return store.directory / (arrays[name] if name in arrays else getattr(entry, name)).file


def open_all(store: Store) -> None:
    store = Store(store.directory)
    for name in store.manifest.arrays["paper"]:
        store.array("paper", name)
    store.relation(CITES)
    store.edge_ids(CITES)


def test_a_file_that_is_cut_while_it_is_mapped_is_named(store):
    path, other = file_of(store, "feat"), file_of(store, "label")
    store.array("paper", "feat")
    os.truncate(other, 10)
    store.check_sizes()  # nobody has mapped it
    os.truncate(path, 10)
    with pytest.raises(InputError, match=f"{re.escape(str(path))} has 10 bytes, but the manifest"):
        store.check_sizes()
    assert {file.partition(" (10 of ")[0] for file in short_files(store.directory)} == {
        str(path), str(other)}


def test_a_file_that_another_took_the_place_of_is_read_on(store):
    path, rows = file_of(store, "feat"), store.array("paper", "feat")
    known = rows.copy()
    (path.parent / "new").write_bytes(b"short")
    (path.parent / "new").replace(path)
    store.check_sizes()
    path.unlink()
    store.check_sizes()
    np.testing.assert_array_equal(rows, known)


@pytest.mark.parametrize("name", ["feat", "label", "indptr", "indices", "edge_ids"])
def test_a_truncated_missing_or_edited_file_is_named(store, name):
    path = file_of(store, name)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(InputError, match=f"{re.escape(str(path))} has {len(data) - 1} bytes.*"
                                         f"manifest says {len(data)}"):
        Store(store.directory)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{re.escape(str(path))} was edited"):
        Store(store.directory).verify()
    path.unlink()
    with pytest.raises(InputError, match=f"{re.escape(str(path))}"):
        store.verify()
    with pytest.raises(InputError, match=f"{re.escape(str(path))} is missing"):
        Store(store.directory)


def test_only_what_is_asked_for_is_verified(store):
    path = file_of(store, "feat")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    store.verify(ntypes=[])
    store.verify(ntypes=[], relations=[CITES])
    with pytest.raises(InputError, match="edited"):
        store.verify(ntypes=["paper"], relations=[])
    with pytest.raises(InputError, match=r"'papr' is not in the graph.*did you mean 'paper'"):
        store.verify(ntypes=["papr"])
    with pytest.raises(InputError, match="'a b c' is not in store"):
        store.verify(relations=[Relation("a", "b", "c")])


@pytest.mark.parametrize("old_new", [
    (b"'fortran_order': False", b"'fortran_order': True "), (b"<f4", b"<i4"), (b"<f4", b"|O4"),
    (b"(3, 4)", b"(4, 3)"), (b"(3, 4)", b"(3, 1)"), (b"(3, 4)", b"(3,99"), (b"descr", b"discr"),
    (b"\x93NUMPY", b"\x93NUMPX"), (b"\x93NUMPY\x01", b"\x93NUMPY\x09"),
    (b"\x93NUMP", b"PK\x03\x04\x00"), (b"\x93NUMPY\x01\x00\x76", b"\x93NUMPY\x01\x00\x75"),
], ids=str)
def test_a_header_that_disagrees_is_noticed(store, old_new):
    path = file_of(store, "feat")
    data = path.read_bytes()
    path.write_bytes(data.replace(*old_new, 1))
    assert path.read_bytes() != data
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        Store(store.directory).array("paper", "feat")
    assert "\n" not in str(caught.value)


@RELAXED
@given(position=st.integers(0, 127), value=st.integers(0, 255))
def test_no_change_of_a_header_gives_other_numbers(tmp_path, position, value):
    out = tmp_path / "s"
    if not out.exists():
        write_store(small(feat=np.arange(12, dtype=np.float32).reshape(3, 4)), out)
    path = file_of(Store(out), "feat")
    data = path.read_bytes()
    try:
        path.write_bytes(data[:position] + bytes([value]) + data[position + 1:])
        array = Store(out).array("paper", "feat")
    except InputError:
        pass
    else:
        np.testing.assert_array_equal(array, np.arange(12).reshape(3, 4))
    finally:
        path.write_bytes(data)


def test_a_pickle_is_never_loaded(store, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "bang"), "w")

    bomb = np.array([Bomb(), Bomb(), Bomb()])
    for save in (lambda p: np.save(p, bomb, allow_pickle=True), bomb.dump):
        path = file_of(store, "label")
        with path.open("wb") as file:
            save(file)
        edited(store, lambda data: data["node_types"]["paper"]["arrays"]["label"].update(
            bytes=file_of(store, "label").stat().st_size))
        with pytest.raises(InputError, match=re.escape(str(path))):
            Store(store.directory).array("paper", "label")
    edited(store, lambda data: data["node_types"]["paper"]["arrays"]["label"].update(dtype="|O"))
    with pytest.raises(InputError, match="not numbers"):
        Store(store.directory)
    assert not (tmp_path / "bang").exists()


def edited(store: Store, edit: Callable[[dict], object], sign: bool = True) -> None:
    path = store.directory / "manifest.json"
    data = json.loads(path.read_text())
    edit(data)
    if sign:  # as somebody who knows the format would
        data.pop("sha256")
        data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("edit", [
    lambda d: d["node_types"]["paper"].update(count=4), lambda d: d.update(name="other"),
    lambda d: d["relations"].clear(), lambda d: d.pop("sha256"), lambda d: d.update(new=1)])
def test_an_edited_manifest_is_refused(store, edit):
    edited(store, edit, sign=False)
    with pytest.raises(InputError, match="was edited or damaged"):
        Store(store.directory)


@pytest.mark.parametrize(("edit", "word"), [
    (lambda d: d.update(version=3), "format version 3; this dgl-heta reads versions 1 to 2"),
    (lambda d: d.update(format="zip"), "not the manifest of a relation store"),
    (lambda d: d["relations"][0]["indices"].update(file="../outside.npy"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="/etc/passwd"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="a/../../b"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file=""), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="a\0b"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file=5), "damaged"),
    (lambda d: d["relations"][0]["indices"].update(dtype="zz"), "damaged"),
    (lambda d: d["relations"][0]["indices"].update(shape=[9]), "other shapes"),
    (lambda d: d["relations"][0]["indptr"].update(shape=[3]), "other shapes"),
    (lambda d: d["relations"][0].update(edges=4), "other shapes"),
    (lambda d: d["relations"][0].update(dst="papr"), "damaged"),
    (lambda d: d["relations"][0].pop("indptr"), "indptr"),
    (lambda d: d["node_types"]["paper"].update(arrays=[]), "damaged"),
    (lambda d: d["node_types"]["paper"]["arrays"]["feat"].update(shape=[4, 3]), "'feat'"),
    (lambda d: d.update(node_types=None), "damaged"),
    (lambda d: d.update(task={"target": "paper"}), "damaged"),
    (lambda d: d.update(relations=[]), "no relations"),
    (lambda d: d["relations"][0].update(src=["paper"]), "damaged: .*src"),
    (lambda d: d["relations"][0].update(edges="5"), "damaged: .*edges"),
    (lambda d: d["relations"][0]["indices"].update(shape=[10**15]), "damaged: .*shape"),
    (lambda d: d["node_types"]["paper"].update(count=10**400), "damaged: .*count"),
    (lambda d: d["task"].update(num_classes=[3]), "damaged: .*num_classes"),
    (lambda d: d["task"].update(target="nobody"), "damaged: its task"),
    (lambda d: d["relations"][0]["indices"].update(dtype=","), "damaged: .*dtype"),
    (lambda d: d.update(info=[1]), "damaged: info"),
    (lambda d: d["node_types"].update({"\ud800": d["node_types"]["paper"]}), "cannot be the name"),
])
def test_a_manifest_that_makes_no_sense_is_refused(store, edit, word):
    edited(store, edit)
    with pytest.raises(InputError, match=word) as caught:
        Store(store.directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null",
                                  b"9" * 5000])
def test_a_manifest_that_is_not_json_is_refused(store, data):
    (store.directory / "manifest.json").write_bytes(data)
    with pytest.raises(InputError, match=r"manifest\.json"):
        Store(store.directory)


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file", "."):
        assert not Store.is_store(tmp_path / name)
        with pytest.raises(InputError, match="is not a relation store"):
            Store(tmp_path / name)


def test_what_a_store_lacks_is_said(store):
    with pytest.raises(InputError, match=r"'a b c' is not in store .*; relations: paper cites"):
        store.relation(Relation("a", "b", "c"))
    with pytest.raises(InputError, match=r"no array 'year'; it has: feat, label, train_mask"):
        store.array("paper", "year")
    with pytest.raises(InputError, match=r"'papr' is not in the graph"):
        store.array("papr", "feat")


def test_opening_a_huge_store_reads_pointers_alone(tmp_path):
    nodes, edges, width = 10_000_000, 500_000_000, 256

    def sparse(file: str, dtype: str, shape: tuple[int, ...]) -> ArrayEntry:
        array = np.lib.format.open_memmap(tmp_path / file, "w+", np.dtype(dtype), shape)
        return ArrayEntry(file, dtype, shape, array.offset + array.nbytes, "0" * 64)

    feat = sparse("feat.npy", "<f4", (nodes, width))
    entry = RelationEntry(CITES, edges, sparse("indptr.npy", "<i8", (nodes + 1,)),
                          sparse("indices.npy", "<i4", (edges,)))
    np.lib.format.open_memmap(tmp_path / "indptr.npy", "r+")[:] = np.arange(nodes + 1) * 50
    Manifest("huge", {"paper": nodes}, {"paper": {"feat": feat}}, (entry,)).save(tmp_path)
    assert feat.bytes > 10e9
    start = time.process_time()
    store = Store(tmp_path)
    array, csc = store.array("paper", "feat"), store.relation(CITES)
    seconds = time.process_time() - start
    assert array[-1].sum() == csc.indices[-1] == 0
    assert seconds < 0.5


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
                          cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done
