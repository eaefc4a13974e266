"""Edge streams: the same edges from every kind of source, in chunks; bad ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from dgl_heta_catgnn import EdgeStream

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, Store, write_store
from tests.support.graphs import academic

EDGES = np.array([[0, 5, 2, 2, 7], [1, 0, 2, 6, 3]])


def edges(stream: EdgeStream, size: int = 2) -> np.ndarray:
    chunks = list(stream.chunks(size))
    assert all(0 < len(chunk.src) <= size for chunk in chunks)
    assert [chunk.first for chunk in chunks] == [
        sum(len(c.src) for c in chunks[:i]) for i in range(len(chunks))]
    return np.concatenate([np.stack(chunk[:3]) for chunk in chunks], axis=1)


def test_files_one_after_the_other(tmp_path):
    np.save(tmp_path / "a.npy", EDGES[:, :2])
    (tmp_path / "b.csv").write_text("".join(f"{u},{v}\n" for u, v in EDGES.T[2:]))
    stream = EdgeStream.open(tmp_path / "a.npy", tmp_path / "b.csv")
    assert (stream.num_edges, stream.num_nodes) == (5, 8)
    for _ in range(3):
        np.testing.assert_array_equal(edges(stream)[:2], EDGES)


def test_any_iterable_of_chunks_and_an_iterator_that_can_be_read_once():
    pieces = [(EDGES[0, :4], EDGES[1, :4]), (EDGES[0, 4:], EDGES[1, 4:])]
    for chunks in (pieces, iter(pieces), (piece for piece in pieces)):
        stream = EdgeStream.of_chunks(chunks)
        assert (stream.num_edges, stream.num_nodes) == (5, 8)
        for _ in range(2):
            np.testing.assert_array_equal(edges(stream, 3)[:2], EDGES)


def test_two_passes_at_once_do_not_disturb_each_other():
    stream = EdgeStream.of_chunks(iter([(EDGES[0], EDGES[1])]))
    for one, other in zip(stream.chunks(2), stream.chunks(2)):
        np.testing.assert_array_equal(one.src, other.src)


def test_a_heterogeneous_graph_is_one_id_space_with_relations(tmp_path):
    source = academic()
    stream = EdgeStream.of_graph(source)
    first = dict(zip(source.node_counts, np.cumsum([0, *source.node_counts.values()])))
    wanted = np.concatenate([
        np.stack([src + first[r.src], dst + first[r.dst], np.full(len(src), i)])
        for i, (r, edge) in enumerate(source.edges.items())
        for src, dst in edge.chunks(1000)], axis=1)
    np.testing.assert_array_equal(edges(stream, 77), wanted)
    assert stream.relations == tuple(source.edges)
    assert stream.node_counts == source.node_counts
    write_store(source, tmp_path / "store")
    for stored in (EdgeStream.open(tmp_path / "store"),
                   EdgeStream.of_graph(Store(tmp_path / "store"))):
        assert stored.node_counts == dict(source.node_counts)
        assert sorted(map(tuple, edges(stored, 77).T)) == sorted(map(tuple, wanted.T))


def test_relations_may_come_with_the_chunks():
    relations = (Relation("n", "a", "n"), Relation("n", "b", "n"))
    stream = EdgeStream.of_chunks([(EDGES[0], EDGES[1], [0, 1, 1, 0, 1])], 8, relations=relations)
    np.testing.assert_array_equal(edges(stream)[2], [0, 1, 1, 0, 1])
    with pytest.raises(InputError, match=r"edge 2 \(2, 2\) has relation 2; there are 2"):
        edges(EdgeStream.of_chunks([(EDGES[0], EDGES[1], [0, 1, 2, 0, 1])], relations=relations))


def test_an_empty_stream_has_no_nodes_unless_they_are_given():
    assert EdgeStream.of_chunks([]).num_nodes == 0
    assert list(EdgeStream.of_chunks([(EDGES[0, :0], EDGES[1, :0])], 3).chunks()) == []


class Promising:
    """Edges that say they are more, or fewer, than they are."""

    def __init__(self, promised: int) -> None:
        self.num_edges = promised

    def chunks(self, size):
        yield EDGES[0], EDGES[1]


@pytest.mark.parametrize(("promised", "message"), [
    (6, "ends after 5 edges, but said that it has 6"), (4, "has more than the 4 edges")])
def test_a_stream_that_ends_early_or_late(promised, message):
    source = GraphSource("g", {"n": 8}, {Relation("n", "r", "n"): Promising(promised)})
    with pytest.raises(InputError, match=message):
        edges(EdgeStream.of_graph(source), 8)


@pytest.mark.parametrize(("piece", "message"), [
    ((EDGES[0] - 1, EDGES[1]), r"edge 0 \(-1, 1\) has a negative id"),
    ((EDGES[0], EDGES[1] * 2), r"edge 3 \(2, 12\) has an id that is not below .* 8"),
    ((EDGES[0], EDGES[1, :3]), r"arrays of a chunk have shapes \(5,\), \(3,\)"),
    ((EDGES, EDGES), "one-dimensional"),
    ((EDGES[0] / 2, EDGES[1]), "float64, int64 values; ids must be integers"),
    (EDGES, "must be a tuple"),
    ((EDGES[0], EDGES[1].astype(np.uint64) + np.uint64(2**63)), f"id {2**63}; .* from 0 to"),
    ((EDGES[0], EDGES[1], EDGES[0] + 2**32), f"relation {2**32}; it must be from 0 to"),
])
def test_chunks_that_are_not_edges_are_refused(piece, message):
    for chunks in ([piece], iter([piece])):
        with pytest.raises(InputError, match=message):
            edges(EdgeStream.of_chunks(chunks, 8))


def test_a_huge_id_is_named_beside_the_number_of_edges():
    stream = EdgeStream.of_chunks([(EDGES[0], EDGES[1] + 2**40)])
    with pytest.raises(InputError, match=f"has 5 edges, but its largest id is {2**40 + 6}"):
        _ = stream.num_nodes


def test_ids_beyond_their_type_are_named_with_the_relation():
    relation = Relation("a", "r", "b")
    source = GraphSource("g", {"a": 3, "b": 9},
                         {relation: EdgeArrays(np.array([0, 3]), np.array([1, 1]))})
    with pytest.raises(InputError, match="relation 'a r b' has ids from 0 to 3; .* 3 nodes"):
        edges(EdgeStream.of_graph(source))


class Changing:
    """Edges of which one differs from pass to pass."""

    def __init__(self, passes: list[np.ndarray]) -> None:
        self.passes = iter(passes)

    def chunks(self, size):
        src, dst = next(self.passes)
        yield src, dst


@pytest.mark.parametrize(("second", "message"), [
    (EDGES[:, :4], "5 edges in the first pass and 4 now"),
    (EDGES[:, ::-1], "the same number of other edges"),
    (EDGES[::-1], "the same number of other edges"),
])
def test_a_stream_that_changes_between_passes(second, message):
    stream = EdgeStream(Changing([EDGES, EDGES, second]), 8)
    edges(stream, 8)
    edges(stream, 8)
    with pytest.raises(InputError, match=message):
        edges(stream, 8)


def test_the_size_of_a_chunk_is_at_least_one():
    with pytest.raises(InputError, match="size of a chunk is 0"):
        list(EdgeStream.of_chunks([]).chunks(0))
