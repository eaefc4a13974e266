"""Edges of a sample, drawn again: they are those of the sample, in its order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_kernels import BAD, draw_positions
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import CSC, Store, write_store
from tests.support.graphs import academic


@pytest.mark.parametrize(("parts", "fanouts"), [(1, [-1, 2]), (3, [2, 3])])
def test_positions_are_those_of_the_edges_of_a_batch(parts: int, fanouts: list[int],
                                                     tmp_path: Path) -> None:
    write_store(academic(), tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = make_plan(store.schema, "paper", 2, parts)
    seen = 0
    for part in range(parts):
        batch = NeighborSampler(store, SamplingScope.of(plan, part), fanouts, seed=3).sample(
            {"paper": np.array([5, 0, 17, 44])}, step=2)
        for edges in (edges for block in batch.blocks for edges in block.edges):
            assert edges.drawn is not None
            nodes = batch.input_nodes[edges.relation.dst][edges.index]
            found = edges.drawn.positions(nodes, len(edges.indices))
            csc = store.relation(edges.relation)
            np.testing.assert_array_equal(
                csc.indices[found], batch.input_nodes[edges.relation.src][edges.indices.numpy()])
            np.testing.assert_array_equal(
                np.searchsorted(csc.indptr, found, side="right") - 1, nodes[edges.in_edges.rows()])
            assert len({*found.tolist()}) == len(found)
            seen += len(found)
            wrong = replace(edges.drawn, csc=CSC(csc.indptr[:1], csc.indices))
            if len(nodes):
                with pytest.raises(InputError, match="lead out of the graph"):
                    wrong.positions(nodes, len(edges.indices))
    assert seen > 50


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 3]])
def test_edges_that_are_excluded_are_drawn_and_dropped(fanouts: list[int], threads: int,
                                                       tmp_path: Path) -> None:
    write_store(academic(), tmp_path / "store")
    store = Store(tmp_path / "store")
    sampler = NeighborSampler(store, SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0),
                              fanouts, seed=3, threads=threads)
    rng, seeds = np.random.default_rng(1), {"paper": np.arange(40)}
    excluded = {r: np.flatnonzero(rng.random(count) < 0.3)
                for r, count in store.schema.edge_counts.items()}
    whole, less = sampler.sample(seeds), sampler.sample(seeds, excluded=excluded)
    dropped = 0
    for every, left in zip(_edges(whole, store)[1:], _edges(less, store)[1:]):  # the last layer
        for relation, positions in every.items():
            kept = [p for p in positions if p not in {*excluded[relation].tolist()}]
            assert left.get(relation, []) == kept
            dropped += len(positions) - len(kept)
    assert dropped > 20
    for block in _edges(less, store):
        for relation, positions in block.items():
            assert not {*positions} & {*excluded[relation].tolist()}
    reached = {t: {*less.input_nodes[t].tolist()} for t in less.input_nodes}
    assert sum(map(len, reached.values())) < sum(map(len, whole.input_nodes.values()))


def _edges(batch: MiniBatch, store: Store) -> list[dict[Relation, list[int]]]:
    """Per layer the positions of each relation's edges, checked against their ends."""
    layers: list[dict[Relation, list[int]]] = []
    for block in batch.blocks:
        layers.append({})
        for edges in block.edges:
            assert edges.drawn is not None
            nodes = batch.input_nodes[edges.relation.dst][edges.index]
            found = edges.drawn.positions(nodes, len(edges.indices))
            np.testing.assert_array_equal(
                store.relation(edges.relation).indices[found],
                batch.input_nodes[edges.relation.src][edges.indices.numpy()])
            layers[-1].setdefault(edges.relation, []).extend(found.tolist())
    return layers


def test_pieces_of_a_nodes_edges_have_its_positions_together() -> None:
    indptr, nodes, key = np.array([0, 4, 24]), np.array([1, 0]), np.uint64(77)
    for fanout in (-1, 6):
        pieces = []
        for low, high in ((np.array([0, 0]), np.array([7, 4])),
                          (np.array([7, 4]), np.array([20, 4]))):
            out = np.empty(24, np.int64)
            number = draw_positions(indptr, nodes, low, high, fanout, key, None, 24, out, None)
            pieces.append(out[:number])
        out = np.empty(24, np.int64)
        number = draw_positions(indptr, nodes, None, None, fanout, key, None, 24, out, None)
        assert number == (24 if fanout < 0 else 10)
        assert sorted(np.concatenate(pieces)) == sorted(out[:number])
    assert draw_positions(indptr, nodes, None, None, 6, key, None, 24, out[:3], None) == BAD
