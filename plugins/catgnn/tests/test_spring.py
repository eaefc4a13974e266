"""SPRING: by hand on tiny graphs, by a plain reference on random ones, and what always holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dgl_heta_catgnn import EdgeStream, Replicas, Spring, built_in
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


def printed(**values) -> Spring:
    """Algorithm 1 alone, with the volume limit of 2PS-L."""
    return spring(**{"volume": 1.0, "refine": 0, **values})


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
    clusters = [sorted(m) for _, m in sorted(members.items()) if m]
    cluster = {n: i for i, m in enumerate(clusters) for n in m}

    def top(names):
        return max((n for n in names if n in richest), key=lambda n: (rich(n), -n), default=None)

    merged = {i: [i] for i in range(len(clusters))}
    speaks = {i: top(m) for i, m in enumerate(clusters)}
    count = {i: len(m) for i, m in enumerate(clusters)}
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
    return clusters, merged


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
    expected, merged = reference(edges, nodes, parts)
    source = stream(edges, nodes)
    degree = degrees(source, 7)
    clusters = find_clusters(source, degree, int(degree.sum()) / parts, 7)
    assert [np.flatnonzero(clusters.of == i).tolist()
            for i in range(len(clusters.size))] == expected
    most = max(math.floor(1.05 * nodes / parts), math.ceil(nodes / parts), 1)
    root, size = merge(clusters, degree, most)
    assert {r: sorted(np.flatnonzero(root == r).tolist()) for r in set(root.tolist())} == {
        r: sorted(own) for r, own in merged.items()}
    assert size.tolist() == [sum(len(expected[c]) for c in merged[i]) if i in merged else 0
                             for i in range(len(expected))]


@settings(max_examples=100, deadline=None)
@given(graphs(), st.sampled_from([1.0, 1.05, 1.5]), st.integers(1, 60), st.integers(0, 3))
def test_every_node_has_one_owner_within_the_balance_factor(graph, balance, chunk, refine):
    edges, nodes, parts = graph
    partitioner = spring(balance=balance, chunk=chunk, refine=refine)
    assigned = partitioner.assign(stream(edges, nodes), parts)
    assert assigned.owner.shape == (nodes,)
    assert assigned.owned().sum() == nodes
    assert assigned.owned().max() <= max(math.floor(balance * nodes / parts), -(-nodes // parts))
    again = spring(balance=balance, chunk=13, refine=refine).assign(stream(edges, nodes), parts)
    np.testing.assert_array_equal(assigned.owner, again.owner)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_after_the_second_stream_every_edge_is_where_both_ends_are_owned(graph):
    edges, nodes, parts = graph
    source = stream(edges, nodes)
    assigned = spring().assign(source, parts)
    complete = assigned.complete(source)
    there = [set(np.flatnonzero(complete.nodes(p))) for p in range(parts)]
    for u, v in edges:
        assert {u, v} <= there[assigned.owner[u]] & there[assigned.owner[v]]
    wanted = [{n for n in range(nodes) if assigned.owner[n] == p}
              | {x for u, v in edges for x, y in ((u, v), (v, u)) if assigned.owner[y] == p}
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
    assigned = printed(volume=0.45).assign(source, 4)  # a whole clique is over the limit: closed
    for clique in assigned.owner.reshape(8, 6):
        assert len(set(clique.tolist())) == 1
    assert assigned.owned().tolist() == [12, 12, 12, 12]
    assert assigned.complete(source).factor() <= 1 + 2 * 8 / 48


TRIANGLES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]  # with a bridge


def test_two_triangles_by_hand():
    """Each has volume 7. With the limit below, the bridge moves nothing: a part for each."""
    assigned = printed(volume=0.9).assign(stream(TRIANGLES, 6), 2)
    assert assigned.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert assigned.figures == {"clusters": 2, "clusters_merged": 2}
    complete = assigned.complete(stream(TRIANGLES, 6))
    assert np.flatnonzero(complete.nodes(0)).tolist() == [0, 1, 2, 3]
    assert complete.factor() == 8 / 6


def test_the_bridge_moves_a_node_while_both_volumes_are_within_the_limit_by_hand():
    """With the limit at 7 the bridge, last, moves 2 to the other triangle. {2, 3, 4, 5} is too
    large for a part: {0, 1} is dealt first, then 2, 3, 4 to the other part, 5 to what is left."""
    assigned = printed().assign(stream(TRIANGLES, 6), 2)
    assert assigned.owner.tolist() == [0, 0, 1, 1, 1, 0]


def test_a_node_that_cannot_move_still_has_a_richest_neighbour():
    """Lines 18 to 21 run for every edge: with the volume limit near 0 no node moves, and clusters
    of one node each are merged by richest neighbours alone."""
    edges = [(0, n) for n in range(1, 5)] + [(5, n) for n in range(6, 10)]
    assigned = printed(volume=1e-9).assign(stream(edges, 10), 2)
    assert assigned.figures == {"clusters": 10, "clusters_merged": 2}
    assert assigned.owner.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def moved(edges, owner, parts, most, passes):
    """Nodes that follow their neighbours, with lists; counts of all parts have a column each."""
    owner = list(owner)
    count = [[int(p == own) for p in range(parts)] for own in owner]
    load = [owner.count(p) for p in range(parts)]
    for number in range(passes):
        if number:
            count = [[c // 4 for c in row] for row in count]
        for u, v in edges:
            if u == v:
                continue
            for node, other in ((u, v), (v, u)):
                count[node][owner[other]] += 1
                if count[node][owner[other]] == 255:
                    count[node] = [c // 2 for c in count[node]]
            gains = [(count[n][owner[o]] - count[n][owner[n]], n, o) for n, o in ((u, v), (v, u))]
            for gain, node, other in sorted(gains, key=lambda g: -g[0]):
                there = owner[other]
                if there != owner[node] and gain > 0 and load[there] < most:
                    load[owner[node]] -= 1
                    load[there] += 1
                    owner[node] = there
                    break
    return owner


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(1, 3), st.integers(1, 5))
def test_refining_is_a_plain_reference_where_that_has_no_more_replicas(graph, passes, times):
    edges, nodes, parts = graph
    edges = edges * (60 if times == 5 else times)  # also counts beyond a byte
    source = stream(edges, nodes)
    before = printed().assign(source, parts)
    after = printed(refine=passes).assign(source, parts)
    most = max(math.floor(1.05 * nodes / parts), math.ceil(nodes / parts), 1)
    wanted = moved(edges, before.owner.tolist(), parts, most, passes)
    assert after.owner.tolist() in (before.owner.tolist(), wanted)
    factor = after.complete(source).factor()
    assert factor <= before.complete(source).factor()
    if after.owner.tolist() != wanted:
        near = Replicas.of_owners(np.array(wanted, np.int16), parts)
        assert near.with_neighbours(source.chunks()).factor() >= factor


def planted(communities, size, mixed, seed=0):
    """Communities with so many edges a node inside, and a share of edges that go anywhere."""
    rng, nodes = np.random.default_rng(seed), communities * size
    src = rng.integers(0, nodes, nodes * 8)
    inside = src // size * size + rng.integers(0, size, len(src))
    dst = np.where(rng.random(len(src)) < mixed, rng.integers(0, nodes, len(src)), inside)
    return np.stack([src, dst], axis=1), nodes


@pytest.mark.parametrize("parts", [4, 8, 16])
def test_in_communities_half_the_replicas_of_the_other_four(parts):
    edges, nodes = planted(100, 50, 0.1)
    source = stream(edges, nodes)
    extra = {p.name: p.assign(source, parts).complete(source).factor() - 1 for p in built_in()}
    own = extra.pop("spring")
    assert own <= np.mean(list(extra.values())) / 2
    assert own < min(extra.values())


def test_refining_brings_neighbours_together_on_many_parts_too():
    """Of more than 32 parts, some share a count."""
    edges, nodes = planted(100, 20, 0.1)
    source = stream(edges, nodes)
    before, after = (spring(refine=passes).assign(source, 50) for passes in (0, 2))
    assert after.owned().max() <= 1.05 * nodes / 50
    assert (after.complete(source).factor() - 1
            < 0.8 * (before.complete(source).factor() - 1))


def test_hubs_that_all_are_neighbours_of_stay_together():
    """Every node has edges to some of a few hubs, and to nobody else: where hubs are on one part,
    a node is on its own part and that one. Most neighbours together would spread the hubs."""
    rng, hubs, nodes = np.random.default_rng(0), 40, 4000
    ends = [(h, n) for n in range(hubs, nodes) for h in rng.choice(hubs, 6, replace=False)]
    rng.shuffle(ends)
    source = stream(ends, nodes)
    before, after = (spring(refine=passes).assign(source, 4) for passes in (0, 1))
    assert after.complete(source).factor() <= before.complete(source).factor()


def test_a_cluster_larger_than_a_part_is_divided():
    star = [(0, n) for n in range(1, 20)]
    assigned = spring(balance=1).assign(stream(star, 20), 4)
    assert assigned.owned().tolist() == [5, 5, 5, 5]


def test_isolated_nodes_fill_up_the_parts():
    assigned = spring().assign(stream([(0, 1), (1, 2), (2, 0)], 12), 3)
    assert len(set(assigned.owner[:3].tolist())) == 1
    assert assigned.owned().tolist() == [4, 4, 4]


@pytest.mark.parametrize(("parts", "nodes"), [(1, 5), (7, 3), (5, 0), (4, 4)])
def test_one_part_and_more_parts_than_nodes(parts, nodes):
    edges = [(n, (n + 1) % nodes) for n in range(nodes)]
    assigned = spring().assign(stream(edges, nodes), parts)
    assert assigned.owned().sum() == nodes
    assert assigned.owned().max() <= -(-nodes // parts)


def test_without_full_neighbours_and_with_several_hops():
    path = [(n, n + 1) for n in range(9)]
    source = stream(path, 10)
    assigned = spring().assign(source, 2)
    assert assigned.complete(source, hops=0).factor() == 1
    factors = [assigned.complete(source, hops=hops).factor() for hops in (1, 2, 3)]
    assert factors == sorted(set(factors))
    training = np.arange(10) == 0
    one = assigned.complete(source, hops=1, training=training)
    assert one.counts().sum() == 10 + (assigned.owner[0] != assigned.owner[1])


@pytest.mark.parametrize("parts", [0, -1, 2**15])
def test_numbers_of_parts_that_cannot_be(parts):
    with pytest.raises(InputError, match=f"number of partitions is {parts}"):
        spring().assign(stream([(0, 1)], 2), parts)


def test_a_balance_factor_below_one():
    with pytest.raises(InputError, match=r"balance factor is 0\.9"):
        spring(balance=0.9).assign(stream([(0, 1)], 2), 2)
