"""What a user gets from a relation store, and what is said and left when something is wrong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.stores import CITES, LIKES, RELAXED, labelled, one, python, small


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
