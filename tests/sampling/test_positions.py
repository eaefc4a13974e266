"""Edges of a sample, drawn again: they are those of the sample, in its order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.kernels import BAD, draw_positions
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
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


def test_pieces_of_a_nodes_edges_have_its_positions_together() -> None:
    indptr, nodes, key = np.array([0, 4, 24]), np.array([1, 0]), np.uint64(77)
    for fanout in (-1, 6):
        pieces = []
        for low, high in ((np.array([0, 0]), np.array([7, 4])),
                          (np.array([7, 4]), np.array([20, 4]))):
            out = np.empty(24, np.int64)
            number = draw_positions(indptr, nodes, low, high, fanout, key, None, 24, out)
            pieces.append(out[:number])
        out = np.empty(24, np.int64)
        number = draw_positions(indptr, nodes, None, None, fanout, key, None, 24, out)
        assert number == (24 if fanout < 0 else 10)
        assert sorted(np.concatenate(pieces)) == sorted(out[:number])
    assert draw_positions(indptr, nodes, None, None, 6, key, None, 24, out[:3]) == BAD
