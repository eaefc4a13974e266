"""Times in a store: of rows, and of edges, by which a node's in-edges ascend."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.graph.changes import with_reverse
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS, EdgeArrays, GraphSource
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.planning.making import plan_without_replication
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from tests.support.cuts import cut_by_array, deal_pieces
from tests.support.graphs import academic, with_times

OWN, ROWS = Relation("u", "own", "v"), Relation("v", "rows", "u")
NONE = Relation("u", "none", "v")


def graph(edges: int = 60_000) -> GraphSource:
    """Relations with times of their own, of their sources and without; one node has half of the
    in-edges."""
    rng = np.random.default_rng(0)
    counts = {"u": 50, "v": 40}
    ends = {r: EdgeArrays(rng.integers(0, counts[r.src], edges), np.where(
        rng.random(edges) < 0.5, 7, rng.integers(0, counts[r.dst], edges)))
        for r in (OWN, ROWS, NONE)}
    times = {OWN: rng.integers(0, 1000, edges), "v": rng.integers(0, 1000, 40)}
    times["v"][3] = ALWAYS
    return GraphSource("timed", counts, ends, times=times)


@pytest.mark.parametrize("memory_mb", [1, 512])
def test_in_edges_ascend_by_time_and_those_of_one_time_stay_in_order(
        tmp_path: Path, memory_mb: int) -> None:
    """Also where a node's are more than is sorted in memory at a time."""
    source = graph()
    write_store(source, tmp_path / "store", memory_mb=memory_mb, edge_ids=True)
    store = Store(tmp_path / "store")
    store.verify()
    np.testing.assert_array_equal(store.row_times("v"), source.times["v"])
    assert store.row_times("u") is None
    assert store.times(NONE) is None
    for relation, at in ((OWN, source.times[OWN]),
                         (ROWS, source.times["v"][source.edges[ROWS].src])):
        src, dst = source.edges[relation].src, source.edges[relation].dst
        order = np.lexsort((at, dst))
        np.testing.assert_array_equal(store.edge_ids(relation), order)
        np.testing.assert_array_equal(store.relation(relation).indices, src[order])
        np.testing.assert_array_equal(store.times(relation), at[order])
    assert store.first_time() == source.times["v"][source.times["v"] != ALWAYS].min()


def test_memory_does_not_grow_with_rows_and_edges(tmp_path: Path) -> None:
    """Nor with the in-edges of one node; what is mapped from files does not count."""
    def rows_of(count: int) -> GraphSource:
        rng = np.random.default_rng(0)
        ids, relation = rng.integers(0, count, (3, count)), Relation("u", "to", "u")
        ids[1, ::2] = 7
        np.save(tmp_path / f"{count}.npy", ids)
        src, dst, times = np.load(tmp_path / f"{count}.npy", mmap_mode="r")
        return with_reverse(GraphSource("rows", {"u": count}, {relation: EdgeArrays(src, dst)},
                                        times={relation: times}))

    write_store(rows_of(40_000), tmp_path / "first", memory_mb=1)  # compiles
    peaks = []
    for count in (60_000, 240_000):
        source = rows_of(count)
        tracemalloc.start()
        write_store(source, tmp_path / str(count), memory_mb=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_an_edge_is_there_once_its_source_row_is(tmp_path: Path) -> None:
    source = graph(500)
    source.times["u"] = np.arange(50) * 20
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    late = np.maximum(source.times[OWN], source.times["u"][source.edges[OWN].src])
    np.testing.assert_array_equal(np.sort(store.times(OWN)), np.sort(late))


def test_a_store_that_is_read_again_and_reverses_keep_times(tmp_path: Path) -> None:
    write_store(graph(500), tmp_path / "store")
    write_store(Store(tmp_path / "store").source(), tmp_path / "again")
    for file in (tmp_path / "store").rglob("*.npy"):
        again = tmp_path / "again" / file.relative_to(tmp_path / "store")
        assert again.read_bytes() == file.read_bytes()
    both = with_reverse(graph(500))
    np.testing.assert_array_equal(both.times[Relation("v", "rev-own", "u")], both.times[OWN])


@pytest.mark.parametrize(("times", "message"), [
    ({"v": np.arange(39)}, r"times of 'v' are int64\[39\]; they must be int64\[40\]"),
    ({"v": np.arange(40.0)}, r"times of 'v' are float64\[40\]"),
    ({"v": np.zeros(40, "M8[s]")}, r"times of 'v' are datetime64"),
    ({"v": np.arange(40) * 10**11}, r"time 3 of 'v' is at 300000000000, which is after the y"),
    ({OWN: np.full(100, 10**12)}, "time 0 of 'u own v' is at .*, so divide milliseconds by 1,000"),
    ({OWN: np.arange(3)}, r"times of 'u own v' are int64\[3\]"),
    ({"w": np.arange(3)}, "times are given for 'w', which is not in the graph")])
def test_times_are_one_whole_number_each(tmp_path: Path, times: dict, message: str) -> None:
    source = graph(100)
    source.times = times
    with pytest.raises(InputError, match=message):
        write_store(source, tmp_path / "store")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["ranges", "permuted", "hubs"])
def test_a_staged_part_samples_what_the_whole_store_does(tmp_path: Path, how: str) -> None:
    """Of a node whose in-edges are cut, times of all of them say which are there."""
    write_store(with_times(academic(papers=300, dense=20)), tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = plan_without_replication(store.schema, ["paper"], 2, 2, deal_pieces(True), "test")
    if how != "ranges":
        plan = cut_by_array(plan, store, how, tmp_path / "plan")
    write_partition(store, plan, tmp_path / "parts")
    rng = np.random.default_rng(0)
    seeds = np.stack([rng.permutation(300)[:64], rng.integers(50, 100, 64)], 1)
    for part in range(2):
        staged = tmp_path / f"part-{part}"
        with opened_partition(str(tmp_path / "parts")) as whole:
            Staging.of(whole, [part]).write(staged)
        found = []
        for opened in (store, open_partition(staged)[0]):
            sampler = NeighborSampler(opened, SamplingScope.of(plan, part), [3, -1],
                                      agree=lambda own: {t: [np.sort(ids)] for t, ids
                                                         in own.items()})
            found.append(sampler.sample({"paper": seeds}))
        for one, other in zip(*(batch.tensors() for batch in found)):
            assert torch.equal(one, other)
        for ntype, nodes in found[0].input_nodes.items():
            np.testing.assert_array_equal(nodes, found[1].input_nodes[ntype])
