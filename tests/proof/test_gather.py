"""What a worker would have had the plain way, from the edges of all."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.planning.making import make_plan
from dgl_heta.proof.gather import Places, edges_of, levels, merged, plain_layers, row_keys
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import join_seeds
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic


def sampler(store: Store, parts: int, part: int) -> NeighborSampler:
    plan = make_plan(store.schema, "paper", 2, parts)
    return NeighborSampler(store, SamplingScope.of(plan, part), [3, 4], seed=3)


@pytest.mark.parametrize("parts", [2, 3])
def test_own_seeds_have_the_blocks_of_a_worker_by_itself(tmp_path: Path, parts: int) -> None:
    write_store(academic(), tmp_path / "store")
    store = Store(tmp_path / "store")
    schema = store.schema
    own = [{"paper": np.arange(5) + 7 * part} for part in range(parts)]
    every = []
    for part in range(parts):
        batch = sampler(store, parts, part).sample(*join_seeds(own, part), step=4)
        ids = levels(batch, schema.node_types)
        every.append([edges_of(block, ids[place], row_keys(batch), schema.relations)
                      for place, block in enumerate(batch.blocks)])
        assert ids[-1]["paper"].tolist() == own[part]["paper"].tolist()
    edges = [[merged([np.stack(of[layer][r], 1) for of in every])
              for r in range(len(schema.relations))] for layer in range(2)]
    for part in range(parts):
        layers, ids = plain_layers(schema.relations, schema.node_types, edges, own[part])
        alone = sampler(store, 1, 0).sample(own[part], step=4)
        wanted = levels(alone, schema.node_types)
        for level, want in zip(ids, wanted):
            assert {t: sorted(i) for t, i in level.items()} == {
                t: sorted(i) for t, i in want.items()}
        for place, (layer, block) in enumerate(zip(layers, alone.blocks)):
            of_one = edges_of(block, wanted[place], row_keys(alone), schema.relations)
            for relation, (indptr, indices), (dst, src) in zip(schema.relations, layer,
                                                               of_one):
                heads = np.repeat(ids[place + 1][relation.dst], np.diff(indptr))
                tails = ids[place][relation.src][indices]
                assert Counter(zip(heads, tails)) == Counter(zip(dst, src))
        for below, above in itertools.pairwise(ids):
            assert all((below[t][:len(above[t])] == above[t]).all() for t in above)


def test_parallel_edges_stay_and_those_of_several_workers_are_taken_once() -> None:
    first = np.array([[3, 1], [3, 1], [5, 2]])
    second = np.array([[3, 1], [3, 1], [4, 9]])
    dst, src = merged([first, second])
    assert dst.tolist() == [3, 3, 4, 5]
    assert src.tolist() == [1, 1, 9, 2]


def test_places() -> None:
    places = Places(np.array([7, 3, 9]))
    assert places.of(np.array([9, 4, 7, 3])).tolist() == [2, -1, 0, 1]
    assert Places(np.array([], np.int64)).of(np.array([1])).tolist() == [-1]
