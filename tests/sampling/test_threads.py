"""Sampling on several threads: the same blocks, bit for bit, as on one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling import relation_samples
from dgl_heta.sampling.held_out import HeldOut, SameLinks
from dgl_heta.sampling.relation_samples import Threads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store, write_store
from tests.support.drawn_graphs import TYPES, bits, graphs
from tests.support.waiting import PATIENCE


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """Every layer is worth threads, and relations come in pieces of a few rows."""
    with mock.patch.multiple(relation_samples, PIECE=5, FEW=0):
        yield


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.data())
def test_blocks_are_the_same_bit_for_bit(graph: GraphSource, data) -> None:
    target = data.draw(st.sampled_from(sorted({r.dst for r in graph.edges})))
    parts = data.draw(st.integers(1, 2)) if len({r for r in graph.edges if r.dst == target}) > 1 \
        else 1
    number = st.sampled_from([-1, 1, 2, 7])
    fanouts = [data.draw(st.one_of(number, st.dictionaries(st.sampled_from(list(graph.edges)),
                                                           number))) for _ in range(2)]
    seeds = np.array(data.draw(st.lists(st.integers(0, graph.node_counts[target] - 1),
                                        unique=True, max_size=12)), np.int64)
    relation = data.draw(st.sampled_from(list(graph.edges)))
    same = SameLinks((relation, *(r for r in graph.edges if r != relation and {r.src, r.dst} == {
        relation.src, relation.dst})), graph.node_counts[relation.dst],
        relation.src == relation.dst and data.draw(st.booleans()))
    held_out = data.draw(st.sampled_from([None, HeldOut([same], 0.3)]))
    without = {relation: np.unique(data.draw(st.lists(st.integers(
        0, graph.node_counts[relation.src] * same.tails - 1), max_size=30))).astype(np.int64)}
    excluded = {relation: np.array(sorted(data.draw(st.sets(st.integers(0, 40)))), np.int64)
                for relation in data.draw(st.sets(st.sampled_from(list(graph.edges))))}
    with TemporaryDirectory() as directory:
        write_store(graph, Path(directory) / "store")
        store = Store(Path(directory) / "store")
        scope = SamplingScope.of(make_plan(store.schema, target, 2, parts), 0)
        found = []
        for threads in (1, 2, 3):
            made = NeighborSampler(store, scope, fanouts, 5, held_out=held_out, threads=threads)
            found.append([bits(made.sample({target: seeds}, None, step, without,
                                           excluded=excluded))
                          for step in (0, 1)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("fanout", [-1, 5, 100])
@pytest.mark.parametrize("part", [0, 1])
def test_rows_whose_in_edges_are_cut_are_the_same(tmp_path: Path, fanout: int, part: int) -> None:
    """A plan without replication: destinations by owner, a hub in pieces, rows that are agreed."""
    from dgl_heta.partition.cutters import EvenEdges
    from tests.partition.test_cutters import skewed, written

    plan = written(skewed(0.7), tmp_path / "out", EvenEdges())
    store = Store(tmp_path / "out/store")
    seeds = np.array([150, 3, 199, *range(20, 60)])
    found = []
    for threads in (1, 2, 3):
        made = NeighborSampler(
            store, SamplingScope.of(plan, part), [fanout], seed=7, threads=threads,
            agree=lambda own: {t: [ids[::-1].copy()] for t, ids in own.items()})
        found.append(bits(made.sample({"item": seeds}, {"item": SeedShares((43,))}, step=2)))
    assert found[0] == found[1] == found[2]
    assert any(entry[-1] is not None for entry in found[0] if len(entry) == 8)  # order: a hub


def test_callers_may_share_a_sampler(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges: dict[Relation, Any] = {
        Relation(a, f"{a}{b}", b): EdgeArrays(*rng.integers(0, 500, (2, 4000)))
        for a in TYPES for b in TYPES}
    write_store(GraphSource("drawn", dict.fromkeys(TYPES, 500), edges, {}), tmp_path / "store")
    store = Store(tmp_path / "store")
    scope = SamplingScope.of(make_plan(store.schema, "p", 2, 1), 0)
    one, several = (NeighborSampler(store, scope, [4, 4], threads=n) for n in (1, 3))
    seeds = {"p": np.arange(100)}
    with ThreadPoolExecutor(4) as callers:
        batches = list(callers.map(lambda step: several.sample(seeds, None, step), range(24)))
    for step, batch in enumerate(batches):
        assert bits(batch) == bits(one.sample(seeds, None, step))


def test_callers_count_among_the_threads() -> None:
    threads, busy, most = Threads(3), [], []

    def task() -> None:
        busy.append(None)
        most.append(len(busy))
        time.sleep(0.002)
        busy.pop()

    meeting = Barrier(3)
    tasks = [lambda: meeting.wait(PATIENCE), *[task] * 40]
    with ThreadPoolExecutor(3) as callers:
        for caller in [callers.submit(threads.run, tasks) for _ in range(3)]:
            caller.result()
    assert max(most[-60:]) <= 3  # those who helped the first caller have left
    threads.run([lambda: meeting.wait(PATIENCE)] * 3)  # callers that are gone do not count


def test_an_error_is_raised_when_nothing_runs_any_more() -> None:
    threads, done = Threads(2), []

    def wrong() -> None:
        raise ValueError("task 3")

    for _ in range(50):
        done.clear()
        with pytest.raises(ValueError, match="task 3"):
            threads.run([*(lambda i=i: done.append(i) for i in range(3)), wrong])  # type: ignore[misc]
        assert sorted(done) == [0, 1, 2]
    threads.run([lambda: done.append(9)])
    assert done[-1] == 9


def test_a_process_that_is_forked_has_threads_of_its_own() -> None:
    threads = Threads(3)
    context = torch.multiprocessing.get_context("fork")
    for _ in range(10):
        threads.run([lambda: None] * 5)
        process = context.Process(target=threads.run, args=([lambda: None] * 5,))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 0
