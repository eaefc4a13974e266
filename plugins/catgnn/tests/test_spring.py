"""SPRING: by hand on tiny graphs, by a plain reference on random ones, and what always holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dgl_heta_catgnn import EdgeStream, Spring
from dgl_heta_catgnn.clustering import degrees, find_clusters
from dgl_heta_catgnn.spring import merge
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta import InputError


def stream(edges, nodes: int) -> EdgeStream:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return EdgeStream.of_chunks([(src, dst)], nodes)


def spring(**values) -> Spring:
    partitioner = Spring()
    partitioner.settings = partitioner.settings.model_copy(update=values)
    return partitioner


def reference(edges, nodes, parts, balance=1.05):
    """Algorithm 1 with dictionaries and lists, written from the paper; the clusters at each end."""
    degree = [sum((u == n) + (v == n) for u, v in edges if u != v) for n in range(nodes)]
    limit = sum(degree) / parts
    most = max(math.floor(balance * nodes / parts), math.ceil(nodes / parts), 1)
    cluster: dict[int, int] = {}
    richest: dict[int, int] = {}
    members: dict[int, set[int]] = {}

    def volume(number):
        return sum(degree[n] for n in members[number])

    def rich(n):
        return degree[richest[n]] if n in richest else -1

    for u, v in edges:
        for node in (u, v):
            if node not in cluster:
                cluster[node] = len(members)
                members[cluster[node]] = {node}
        if u == v:
            continue
        a, b = cluster[u], cluster[v]
        if a != b and volume(a) <= limit and volume(b) <= limit:
            node, giving, taking = (u, a, b) if volume(a) <= volume(b) else (v, b, a)
            members[giving].remove(node)
            members[taking].add(node)
            cluster[node] = taking
        for node, other in ((u, v), (v, u)):
            if rich(node) < degree[other]:
                richest[node] = other
    found = [sorted(m) for _, m in sorted(members.items()) if m]
    cluster = {n: i for i, m in enumerate(found) for n in m}

    def top(names):
        return max((n for n in names if n in richest), key=lambda n: (rich(n), -n), default=None)

    merged = {i: [i] for i in range(len(found))}
    speaks = {i: top(m) for i, m in enumerate(found)}
    count = {i: len(m) for i, m in enumerate(found)}
    waiting = set(merged)
    while waiting:
        i = min(waiting, key=lambda i: (count[i], i))
        waiting.remove(i)
        if speaks[i] is None:
            continue
        t = next(r for r, own in merged.items() if cluster[richest[speaks[i]]] in own)
        if t == i or count[i] + count[t] > most:
            continue
        merged[t] += merged.pop(i)
        count[t] += count.pop(i)
        if speaks[t] is None or rich(speaks[t]) < rich(speaks[i]):
            speaks[t] = speaks[i]
        waiting.add(t)
    return found, merged


@st.composite
def graphs(draw):
    """Edges with self-loops, duplicates and isolated nodes, and a number of parts."""
    nodes = draw(st.integers(1, 25))
    ends = st.integers(0, nodes - 1)
    return draw(st.lists(st.tuples(ends, ends), max_size=80)), nodes, draw(st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_clusters_and_mergers_are_those_of_a_plain_reference(graph):
    edges, nodes, parts = graph
    found, merged = reference(edges, nodes, parts)
    source = stream(edges, nodes)
    degree = degrees(source, 7)
    clusters = find_clusters(source, degree, int(degree.sum()) / parts, 7)
    assert [np.flatnonzero(clusters.of == i).tolist() for i in range(len(clusters.size))] == found
    most = max(math.floor(1.05 * nodes / parts), math.ceil(nodes / parts), 1)
    root, size = merge(clusters, degree, most)
    assert {r: sorted(np.flatnonzero(root == r).tolist()) for r in set(root.tolist())} == {
        r: sorted(own) for r, own in merged.items()}
    assert size.tolist() == [sum(len(found[c]) for c in merged[i]) if i in merged else 0
                             for i in range(len(found))]


@settings(max_examples=100, deadline=None)
@given(graphs(), st.sampled_from([1.0, 1.05, 1.5]), st.integers(1, 60))
def test_every_node_has_one_owner_within_the_balance_factor(graph, balance, chunk):
    edges, nodes, parts = graph
    partitioner = spring(balance=balance, chunk=chunk)
    made = partitioner.assign(stream(edges, nodes), parts)
    assert made.owner.shape == (nodes,)
    assert made.owned().sum() == nodes
    assert made.owned().max() <= max(math.floor(balance * nodes / parts), -(-nodes // parts))
    again = spring(balance=balance, chunk=13).assign(stream(edges, nodes), parts)
    np.testing.assert_array_equal(made.owner, again.owner)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_after_the_second_stream_every_edge_is_where_both_ends_are_owned(graph):
    edges, nodes, parts = graph
    source = stream(edges, nodes)
    made = spring().assign(source, parts)
    complete = made.complete(source)
    there = [set(np.flatnonzero(complete.nodes(p))) for p in range(parts)]
    for u, v in edges:
        assert {u, v} <= there[made.owner[u]] & there[made.owner[v]]
    wanted = [{n for n in range(nodes) if made.owner[n] == p}
              | {x for u, v in edges for x, y in ((u, v), (v, u)) if made.owner[y] == p}
              for p in range(parts)]
    assert there == wanted
    assert complete.factor() == sum(map(len, wanted)) / nodes


def cliques(count: int, size: int) -> list[tuple[int, int]]:
    """Cliques in a ring, joined by an edge each."""
    inside = [(c * size + i, c * size + j) for c in range(count) for i in range(size)
              for j in range(i)]
    return inside + [(c * size, (c + 1) % count * size + 1) for c in range(count)]


def test_cliques_stay_whole():
    source = stream(cliques(8, 6), 48)
    made = spring(volume=0.45).assign(source, 4)  # a whole clique is over the limit: closed
    for clique in made.owner.reshape(8, 6):
        assert len(set(clique.tolist())) == 1
    assert made.owned().tolist() == [12, 12, 12, 12]
    assert made.complete(source).factor() <= 1 + 2 * 8 / 48


TRIANGLES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]  # with a bridge


def test_two_triangles_by_hand():
    """Each has volume 7. With the limit below, the bridge moves nothing: a part for each."""
    made = spring(volume=0.9).assign(stream(TRIANGLES, 6), 2)
    assert made.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert made.figures == {"clusters": 2, "clusters_merged": 2}
    complete = made.complete(stream(TRIANGLES, 6))
    assert np.flatnonzero(complete.nodes(0)).tolist() == [0, 1, 2, 3]
    assert complete.factor() == 8 / 6


def test_the_bridge_moves_a_node_while_both_volumes_are_within_the_limit_by_hand():
    """With the limit at 7 the bridge, last, moves 2 to the other triangle. {2, 3, 4, 5} is too
    large for a part: {0, 1} is dealt first, then 2, 3, 4 to the other part, 5 to what is left."""
    made = spring().assign(stream(TRIANGLES, 6), 2)
    assert made.owner.tolist() == [0, 0, 1, 1, 1, 0]


def test_a_node_that_cannot_move_still_has_a_richest_neighbour():
    """Lines 18 to 21 run for every edge: with the volume limit near 0 no node moves, and clusters
    of one node each are merged by richest neighbours alone."""
    edges = [(0, n) for n in range(1, 5)] + [(5, n) for n in range(6, 10)]
    made = spring(volume=1e-9).assign(stream(edges, 10), 2)
    assert made.figures == {"clusters": 10, "clusters_merged": 2}
    assert made.owner.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_a_cluster_larger_than_a_part_is_divided():
    star = [(0, n) for n in range(1, 20)]
    made = spring(balance=1).assign(stream(star, 20), 4)
    assert made.owned().tolist() == [5, 5, 5, 5]


def test_isolated_nodes_fill_up_the_parts():
    made = spring().assign(stream([(0, 1), (1, 2), (2, 0)], 12), 3)
    assert len(set(made.owner[:3].tolist())) == 1
    assert made.owned().tolist() == [4, 4, 4]


@pytest.mark.parametrize(("parts", "nodes"), [(1, 5), (7, 3), (5, 0), (4, 4)])
def test_one_part_and_more_parts_than_nodes(parts, nodes):
    edges = [(n, (n + 1) % nodes) for n in range(nodes)]
    made = spring().assign(stream(edges, nodes), parts)
    assert made.owned().sum() == nodes
    assert made.owned().max() <= -(-nodes // parts)


def test_without_full_neighbours_and_with_several_hops():
    path = [(n, n + 1) for n in range(9)]
    source = stream(path, 10)
    made = spring().assign(source, 2)
    assert made.complete(source, hops=0).factor() == 1
    factors = [made.complete(source, hops=hops).factor() for hops in (1, 2, 3)]
    assert factors == sorted(set(factors))
    training = np.arange(10) == 0
    one = made.complete(source, hops=1, training=training)
    assert one.counts().sum() == 10 + (made.owner[0] != made.owner[1])


@pytest.mark.parametrize("parts", [0, -1, 2**15])
def test_numbers_of_parts_that_cannot_be(parts):
    with pytest.raises(InputError, match=f"number of partitions is {parts}"):
        spring().assign(stream([(0, 1)], 2), parts)


def test_a_balance_factor_below_one():
    with pytest.raises(InputError, match=r"balance factor is 0\.9"):
        spring(balance=0.9).assign(stream([(0, 1)], 2), 2)
