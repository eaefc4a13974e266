"""Partitioners of edges: the same parts as plain references, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dgl_heta_catgnn import (
    Dbh,
    EdgePartitioner,
    EdgeStream,
    Hdrf,
    NodePartitioner,
    TwoPhase,
    built_in,
)
from dgl_heta_catgnn.clustering import find_clusters
from dgl_heta_catgnn.partitioner import StreamPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta import InputError

EDGE_PARTITIONERS = [p for p in built_in() if isinstance(p, EdgePartitioner)]


def stream(edges, nodes: int) -> EdgeStream:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return EdgeStream.of_chunks([(src, dst)], nodes)


def parts_of(partitioner, edges, nodes: int, parts: int, chunk: int = 5) -> list[int]:
    """The part of each edge; fails unless each gets one once."""
    partitioner.settings = partitioner.settings.model_copy(update={"chunk": chunk})
    part_of = [-1] * len(edges)
    for piece, part in partitioner.edges(stream(edges, nodes), parts, 3):
        for i, p in enumerate(part.tolist()):
            if p >= 0:
                assert part_of[piece.first + i] == -1
                part_of[piece.first + i] = p
    assert -1 not in part_of
    return part_of


@st.composite
def graphs(draw):
    nodes = draw(st.integers(1, 20))
    ends = st.integers(0, nodes - 1)
    return (draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=70)), nodes,
            draw(st.integers(1, 11)))


def degrees(edges, nodes):
    return [sum((u == n) + (v == n) for u, v in edges if u != v) for n in range(nodes)]


def nowhere(nodes) -> list[set[int]]:
    """The parts that each node is on: none."""
    return [set() for _ in range(nodes)]


def most_of(edges, parts):
    return max(math.floor(1.05 * len(edges) / parts), math.ceil(len(edges) / parts), 1)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_hdrf_is_its_formula(graph):
    edges, nodes, parts = graph
    most, load = most_of(edges, parts), [0] * parts
    degree, on, wanted = [0] * nodes, nowhere(nodes), []
    for u, v in edges:
        degree[u] += 1
        degree[v] += 1
        theta = degree[u] / (degree[u] + degree[v])

        def score(p, u=u, v=v, theta=theta):
            balance = 1.1 * (max(load) - load[p]) / (1.0 + max(load) - min(load))
            if p in on[u]:
                balance += 1 + (1 - theta)
            return balance + (1 + theta if p in on[v] else 0)

        chosen = max((p for p in range(parts) if load[p] < most), key=lambda p: (score(p), -p))
        on[u].add(chosen)
        on[v].add(chosen)
        load[chosen] += 1
        wanted.append(chosen)
    assert parts_of(Hdrf(), edges, nodes, parts) == wanted


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_powergraph_is_its_four_rules(graph):
    edges, nodes, parts = graph
    most, load = most_of(edges, parts), [0] * parts
    left, on, wanted = degrees(edges, nodes), nowhere(nodes), []
    for u, v in edges:
        busy, other = (u, v) if left[u] >= left[v] else (v, u)
        free = {p for p in range(parts) if load[p] < most}
        candidates = next(s for s in (on[u] & on[v] & free, on[busy] & free, on[other] & free,
                                      free) if s)
        chosen = min(candidates, key=lambda p: (load[p], p))
        on[u].add(chosen)
        on[v].add(chosen)
        load[chosen] += 1
        wanted.append(chosen)
        if u != v:
            left[u] -= 1
            left[v] -= 1
    (partitioner,) = [p for p in EDGE_PARTITIONERS if p.name == "powergraph"]
    assert parts_of(partitioner, edges, nodes, parts) == wanted


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_dbh_hashes_the_end_of_lower_degree(graph):
    """All edges for which one node decides are in one part, in either direction."""
    edges, nodes, parts = graph
    degree = degrees(edges, nodes)
    decided: dict[int, set[int]] = {}
    for (u, v), part in zip(edges, parts_of(Dbh(), edges, nodes, parts)):
        decided.setdefault(min((u, v), key=lambda n: (degree[n], n)), set()).add(part)
    assert all(len(parts) == 1 for parts in decided.values())
    turned = parts_of(Dbh(), [(v, u) for u, v in edges], nodes, parts)
    assert turned == parts_of(Dbh(), edges, nodes, parts)


def test_dbh_cuts_the_hub_of_a_star_and_no_leaf():
    assigned = Dbh().assign(stream([(0, n) for n in range(1, 200)], 200), 8)
    on = assigned.replicas.bits[:, 0]
    assert on[0] == 255
    assert all(int(bits).bit_count() == 1 for bits in on[1:])


@pytest.mark.parametrize("partitioner", EDGE_PARTITIONERS, ids=lambda p: p.name)
@settings(max_examples=60, deadline=None)
@given(graph=graphs(), chunk=st.integers(1, 80))
def test_every_edge_has_one_part_whatever_the_chunks(partitioner, graph, chunk):
    edges, nodes, parts = graph
    part_of = parts_of(partitioner, edges, nodes, parts, chunk)
    assert part_of == parts_of(partitioner, edges, nodes, parts, 7)
    assert 0 <= min(part_of) <= max(part_of) < parts
    if partitioner.name != "dbh":
        assert np.bincount(part_of).max() <= most_of(edges, parts)
    assigned = partitioner.assign(stream(edges, nodes), parts, 3)
    np.testing.assert_array_equal(assigned.edges, np.bincount(part_of, minlength=parts))
    for n in range(nodes):
        there = {p for (u, v), p in zip(edges, part_of) if n in (u, v)}
        assert {p for p in range(parts) if assigned.replicas.nodes(p)[n]} == there
        assert assigned.owner[n] in (there or range(parts))
    np.testing.assert_array_equal(assigned.owner, partitioner.assign(stream(edges, nodes), parts,
                                                                 3).owner)


@pytest.mark.parametrize("partitioner", EDGE_PARTITIONERS, ids=lambda p: p.name)
@settings(max_examples=40, deadline=None)
@given(graph=graphs())
def test_the_second_stream_completes_neighbour_lists_and_takes_nothing_away(partitioner, graph):
    edges, nodes, parts = graph
    source = stream(edges, nodes)
    assigned = partitioner.assign(source, parts, 3)
    complete = assigned.complete(source)
    for p in range(parts):
        owned = set(np.flatnonzero(assigned.owner == p).tolist())
        near = {x for u, v in edges for x, y in ((u, v), (v, u)) if y in owned}
        before = set(np.flatnonzero(assigned.replicas.nodes(p)).tolist())
        assert set(np.flatnonzero(complete.nodes(p)).tolist()) == owned | near | before
    np.testing.assert_array_equal(complete.counts(), [complete.nodes(p).sum()
                                                      for p in range(parts)])


def hashed(node, seed, parts):
    """A node's part by splitmix64's finaliser of node + seed · 2⁶⁴ / φ."""
    mask = 2**64 - 1
    value = (node + seed * 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) % parts


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_two_phases_are_their_rules(graph):
    """Given the clusters, whose own reference is SPRING's."""
    edges, nodes, parts = graph
    degree, source = degrees(edges, nodes), stream(edges, nodes)
    clusters = find_clusters(source, np.array(degree, np.uint32), sum(degree) / parts, 100)
    of, volume = clusters.of.tolist(), clusters.volume.tolist()
    home, total = {}, [0] * parts
    for cluster in sorted(range(len(volume)), key=lambda c: (-volume[c], c)):
        home[cluster] = total.index(min(total))
        total[home[cluster]] += volume[cluster]
    load, on, wanted = [0] * parts, nowhere(nodes), [-1] * len(edges)
    for last in (False, True):
        for i, (u, v) in enumerate(edges):
            one, two = home[of[u]], home[of[v]]
            if (one == two) == last:
                continue
            chosen = one
            if last:
                share = degree[u] / (degree[u] + degree[v])
                weight = volume[of[u]] / (volume[of[u]] + volume[of[v]])
                first, second = (w + (2 - share if p in on[u] else 0)
                                 + (1 + share if p in on[v] else 0)
                                 for p, w in ((one, weight), (two, 1 - weight)))
                chosen = two if second > first else one
            if load[chosen] >= most_of(edges, parts):
                chosen = hashed(v if degree[v] > degree[u] else u, 3, parts)
            if load[chosen] >= most_of(edges, parts):
                chosen = load.index(min(load))
            on[u].add(chosen)
            on[v].add(chosen)
            load[chosen] += 1
            wanted[i] = chosen
    assert parts_of(TwoPhase(), edges, nodes, parts) == wanted


def test_owners_are_drawn_evenly_and_by_the_seed():
    edges = [(0, n) for n in range(1, 400)]
    one, same, other = (Dbh().assign(stream(edges, 400), 4, seed).owner for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert np.bincount(one, minlength=4).min() > 60


class Wrong(EdgePartitioner):
    name = "wrong"

    def __init__(self, parts):
        self.parts = parts

    def edges(self, stream, parts, seed):
        for chunk in stream.chunks():
            yield chunk, self.parts


@pytest.mark.parametrize(("parts", "message"), [
    (np.array([0, 1, 2]), "edges to parts 0 to 2; there are parts 0 to 1"),
    (np.array([0, 1]), r"parts of shape \(2,\).* one whole number for each of 3 edges"),
    (np.array([0.0, 1, 1]), "type float64"),
    (np.array([0, -1, 1]), "has assigned 2 edges of 3"),
])
def test_a_partitioner_of_ones_own_that_is_wrong_is_named(parts, message):
    with pytest.raises(InputError, match=f"method 'wrong' .*{message}"):
        Wrong(parts).assign(stream([(0, 1), (1, 2), (2, 0)], 3), 2)


def test_a_partitioner_of_nodes_that_is_wrong_is_named():
    class Few(NodePartitioner):
        name = "few"

        def nodes(self, stream, parts, seed):
            return np.zeros(2, int)

    with pytest.raises(InputError, match="method 'few' gave parts .* for each of 3 nodes"):
        Few().assign(stream([(0, 1)], 3), 2)


def test_what_has_no_method_is_not_a_partitioner():
    with pytest.raises(TypeError, match="abstract"):
        StreamPartitioner()  # type: ignore[abstract]
