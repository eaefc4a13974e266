"""Sampling in graphs with times: a seed sees what is there at its own time, on every layer."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS, EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling import relation_samples
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.moments import TimeDraws
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
TYPES = ("a", "b", "c")
RELATIONS = (Relation("b", "own", "a"), Relation("c", "rows", "a"), Relation("a", "back", "b"),
             Relation("c", "always", "b"), Relation("a", "self", "a"), Relation("a", "all", "c"))


def drawn_graph(seed: int, latest: int = 12) -> GraphSource:
    """Types a (with times, some without), b (without), c (with times); edges with their own times,
    with those of their sources, and with none."""
    rng = np.random.default_rng(seed)
    counts = dict(zip(TYPES, rng.integers(3, 9, 3).tolist()))
    edges, times = {}, {}
    for relation in RELATIONS:
        size = int(rng.integers(1, 40))
        edges[relation] = EdgeArrays(rng.integers(0, counts[relation.src], size),
                                     (rng.random(size) ** 2 * counts[relation.dst]).astype(int))
        if relation.etype in ("own", "self"):
            times[relation] = rng.integers(0, latest, size)
    for ntype in "ac":
        times[ntype] = rng.integers(0, latest, counts[ntype])
        times[ntype][rng.random(counts[ntype]) < 0.2] = ALWAYS
    return GraphSource("drawn", counts, edges, times=times)


def mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def key_of(*numbers: int) -> int:
    key = GOLDEN
    for number in numbers:
        key = (key ^ (number & MASK)) * 0xBF58476D1CE4E5B9 & MASK
        key = (key ^ (key >> 31)) * 0x94D049BB133111EB & MASK
        key ^= key >> 29
    return key


class Plainly:
    """What a seed sees, drawn edge by edge from the lists of a graph: a tree of nodes."""

    def __init__(self, source: GraphSource, fanouts: list[int], how: TimeDraws) -> None:
        self.source, self.fanouts, self.how = source, fanouts, how
        self.seen: list[int] = []  # times of all edges and rows

    def in_edges(self, relation: Relation, node: int, time: int) -> list[int]:
        edges, times = self.source.edges[relation], self.source.times
        found = []
        for i in np.flatnonzero(edges.dst == node).tolist():
            source = int(edges.src[i])
            at = max(int(times[relation][i]) if relation in times else ALWAYS,
                     int(times[relation.src][source]) if relation.src in times else ALWAYS)
            if at < time or (at == time and not self.how.strict):
                found.append((at, i, source))
        found.sort()
        return [source for _, _, source in found]

    def timed(self, relation: Relation) -> bool:
        return relation in self.source.times or relation.src in self.source.times

    def tree(self, ntype: str, node: int, time: int, layer: int, step: int = 0):
        below = []
        for number, relation in enumerate(RELATIONS):
            if relation.dst != ntype or not layer:
                continue
            sources = self.in_edges(relation, node, time)
            degree, fanout = len(sources), self.fanouts[layer - 1]
            if 0 <= fanout < degree:
                key = key_of(5, step, layer, number)
                if self.timed(relation):
                    key = mix(key ^ (time * GOLDEN & MASK))
                if self.timed(relation) and self.how.latest:
                    places = range(degree - fanout, degree)
                else:
                    places = self.floyd(key, node, fanout, degree)
                sources = [sources[i] for i in places]
            below.append((relation.etype, sorted(
                self.tree(relation.src, source, time, layer - 1, step) for source in sources)))
        return node, below

    @staticmethod
    def floyd(key: int, node: int, drawn: int, degree: int) -> list[int]:
        state, positions = mix(key ^ (node * GOLDEN & MASK)), []
        for k in range(drawn):
            top = degree - drawn + k
            state = state + GOLDEN & MASK
            position = mix(state) % (top + 1)
            positions.append(top if position in positions else position)
        return positions


def tree(batch: MiniBatch, ntype: str, row: int, layer: int):
    """The same of a row of a batch."""
    node = int(batch.input_nodes[ntype][batch.places[ntype][row]])
    below = []
    for relation in RELATIONS:
        if relation.dst != ntype or not layer:
            continue
        block, sources = batch.blocks[layer - 1], []
        for edges in block.edges:
            if edges.relation == relation:
                rows = (np.arange(edges.start, edges.stop) if edges.rows is None
                        else edges.rows.numpy())
                for at in np.flatnonzero(rows == row).tolist():
                    sources += edges.indices[edges.indptr[at]:edges.indptr[at + 1]].tolist()
        below.append((relation.etype, sorted(
            tree(batch, relation.src, source, layer - 1) for source in sources)))
    return node, below


def seeds_of(source: GraphSource, rng: np.random.Generator, latest: int = 12) -> np.ndarray:
    nodes = rng.integers(0, source.node_counts["a"], 12)
    pairs = np.unique(np.stack([nodes, rng.integers(0, latest + 1, 12)], 1), axis=0)
    return rng.permutation(pairs)


@pytest.mark.parametrize("threads", [1, 3])
@given(seed=st.integers(0, 1 << 20), fanouts=st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1,
                                                      max_size=3),
       latest=st.booleans(), strict=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_seed_sees_what_is_there_at_its_time_and_nothing_later(
        tmp_path_factory, threads: int, seed: int, fanouts: list[int], latest: bool, strict: bool
) -> None:
    """Every row of a batch, down to the last layer, is as drawn from lists, at its seed's time."""
    source, how = drawn_graph(seed), TimeDraws(latest, strict)
    directory = tmp_path_factory.mktemp("store")
    write_store(source, directory / "store")
    store = Store(directory / "store")
    plan = make_plan(store.schema, "a", len(fanouts), 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), fanouts, seed=5, threads=threads,
                              time=how)
    seeds = seeds_of(source, np.random.default_rng(seed))
    with mock.patch.multiple(relation_samples, FEW=0, PIECE=3):  # as threads share much work
        batch = sampler.sample({"a": seeds}, step=3)
    np.testing.assert_array_equal(batch.own_seeds["a"], seeds)
    for nodes in batch.input_nodes.values():
        assert len(np.unique(nodes)) == len(nodes)
    plainly = Plainly(source, fanouts, how)
    for row, (node, time) in enumerate(seeds.tolist()):
        assert tree(batch, "a", row, len(fanouts)) == plainly.tree(
            "a", node, time, len(fanouts), 3)


def test_seeds_have_times_where_the_graph_has_and_only_there(tmp_path) -> None:
    write_store(drawn_graph(1), tmp_path / "store")
    store = Store(tmp_path / "store")
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, "a", 1, 1), 0), [2])
    with pytest.raises(InputError, match="seeds of 'a' have no times, but the graph has some"):
        sampler.sample({"a": np.arange(3)})
    with pytest.raises(InputError, match=r"train\.batches samples in a way that does not go by"):
        sampler.on(None)
