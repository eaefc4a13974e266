"""SPRING as the cutter of a relation that is too large for a partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_catgnn import SpringCutter
from dgl_heta_catgnn.cutting import deal_edges, edge_limits

from dgl_heta import EdgeArrays, GraphSource, Relation, write_store
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.cutters import EvenEdges, in_degrees
from dgl_heta.partition.directory import open_partition
from dgl_heta.partition.request import make_request
from dgl_heta.planning.workload import Workload
from tests.support.exactness import LIMIT, differences, job, run
from tests.support.graphs import academic, with_tasks

READS, CITES = Relation("user", "reads", "item"), Relation("item", "cites", "item")


def communities(relation: Relation, size: int = 2000, edges: int = 30_000) -> GraphSource:
    """In-degrees by a power law; sources are of the destination's community of 100."""
    rng = np.random.default_rng(0)
    weight = np.minimum(rng.pareto(1.3, size) + 0.1, 30).cumsum()
    dst = np.searchsorted(weight, rng.random(edges) * weight[-1])
    src = dst // 100 * 100 + rng.integers(0, 100, edges)
    ids = rng.permutation(size)
    counts = {relation.src: size, relation.dst: size + 7}  # the last have no edges
    return GraphSource("made", counts, {relation: EdgeArrays(ids[src], ids[dst])})


def boundary(source: GraphSource, relation: Relation, pieces: np.ndarray) -> int:
    """Sources that each piece reads, of all pieces."""
    ((src, dst),) = source.edges[relation].chunks(10**6)
    return len(np.unique(src * 100 + pieces[dst]))


@pytest.mark.parametrize("relation", [READS, CITES])
@pytest.mark.parametrize("parts", [[1, 1, 1, 1], [4, 2, 1], [5]])
def test_pieces_have_their_share_of_the_edges_and_fewer_sources(relation, parts) -> None:
    source = communities(relation)
    cutter = SpringCutter()
    pieces = cutter.cut(source, relation, parts)
    assert pieces.shape == (source.node_counts[relation.dst],)
    edges = np.bincount(pieces, in_degrees(source, relation), len(parts))
    shares = np.array(parts) / sum(parts) * edges.sum()
    assert (edges <= 1.05 * shares + 1).all()
    even = EvenEdges().cut(source, relation, parts)
    assert even is not None
    least = boundary(source, relation, even)
    assert boundary(source, relation, pieces) <= (0.9 if len(parts) == 4 else 1) * least
    np.testing.assert_array_equal(cutter.cut(source, relation, parts), pieces)


def test_a_node_heavier_than_a_piece_goes_somewhere_and_idle_ones_are_shared() -> None:
    of, root = np.array([0, 0, 1, -1, -1, -1, -1]), np.array([0, 1])
    weight = np.array([50, 1, 1, 0, 0, 0, 0])
    pieces = deal_edges(of, root, weight, edge_limits(52, [1, 1], 1.05))
    assert pieces[0] in (0, 1)
    assert sorted(pieces[3:].tolist()) == [0, 0, 1, 1]


def test_a_hub_is_balanced_after_all(tmp_path: Path) -> None:
    source = communities(CITES)
    ((src, dst),) = source.edges[CITES].chunks(10**6)
    source.edges[CITES] = EdgeArrays(src, np.where(np.arange(len(dst)) % 2, dst, 11))
    request = replace(make_request(
        Meta(), source.schema(), 3, ["item"], hops=1, replication="none", memory_mb=0.08,
        cutter=SpringCutter()), workload=Workload(hidden=1))
    Meta().partition(source, request, tmp_path / "out")
    own = open_partition(tmp_path / "out")[1].ownership[CITES]
    assert [hub.node for hub in own.hubs] == [11]
    assert max(own.edges) <= 1.05 * 30_000 / 3 + 1


@pytest.mark.parametrize("parts", [2, 3])
def test_training_with_spring_cuts_is_that_of_one_process(tmp_path: Path, parts: int) -> None:
    """The in-edges of nodes that have many are cut, too; fp64."""
    write_store(with_tasks(academic()), tmp_path / "store")
    names = ["sum-self_loop", "sampled", "rgat-self_loop", "hgt-self_loop"]
    alone = run(job(tmp_path / "store", tmp_path, 1, names), tmp_path)
    cut = run(job(tmp_path / "store", tmp_path, parts, names, cut="dgl_heta_catgnn:SpringCutter"),
              tmp_path)
    for name, workers in cut.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)
