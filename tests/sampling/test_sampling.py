"""Neighbour sampling by plan."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import join_seeds
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic

Edge = tuple[int, Relation, int, int]  # layer, relation, destination id, source id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_store(academic(), tmp_path / "store")
    return Store(tmp_path / "store")


def drawn(batch: MiniBatch) -> Counter[Edge]:
    """The edges of a batch in terms of node ids."""
    found: Counter[Edge] = Counter()
    for block in batch.blocks:
        for edges in block.edges:
            src, dst = (batch.input_nodes[edges.relation.src],
                        batch.input_nodes[edges.relation.dst])
            for row in range(edges.num_rows):
                for k in range(edges.indptr[row], edges.indptr[row + 1]):
                    found[block.layer, edges.relation, int(dst[edges.start + row]),
                          int(src[edges.indices[k]])] += 1
    return found


def sample(store: Store, parts: int, part: int, fanouts: list[int], seeds: np.ndarray,
           step: int = 0) -> MiniBatch:
    plan = make_plan(store.schema, "paper", len(fanouts), parts)
    sampler = NeighborSampler(store, SamplingScope.of(plan, part), fanouts, seed=3)
    return sampler.sample({"paper": seeds}, step=step)


def test_full_fanout_takes_every_in_edge(store: Store) -> None:
    seeds = np.array([5, 0, 17])
    batch = sample(store, 1, 0, [-1], seeds)
    want: Counter[Edge] = Counter()
    for relation in store.schema.into["paper"]:
        csc = store.relation(relation)
        for v in seeds:
            for u in csc.indices[csc.indptr[v]:csc.indptr[v + 1]]:
                want[1, relation, int(v), int(u)] += 1
    assert drawn(batch) == want
    np.testing.assert_array_equal(batch.input_nodes["paper"][:3], seeds)


def test_fanout_draws_without_replacement_real_edges(store: Store) -> None:
    batch = sample(store, 1, 0, [3, 2], np.arange(20))
    for block in batch.blocks:
        for edges in block.edges:
            csc = store.relation(edges.relation)
            ids = batch.input_nodes[edges.relation.dst]
            for row in range(edges.num_rows):
                v = ids[edges.start + row]
                every = csc.indices[csc.indptr[v]:csc.indptr[v + 1]]
                got = batch.input_nodes[edges.relation.src][
                    edges.indices[edges.indptr[row]:edges.indptr[row + 1]].numpy()]
                assert len(got) == min(len(every), [3, 2][block.layer - 1])
                assert not Counter(got.tolist()) - Counter(every.tolist())


@pytest.mark.parametrize("parts", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 3], [1, 2, 2]])
def test_partitions_together_draw_the_edges_of_one_process(
        store: Store, parts: int, fanouts: list[int]) -> None:
    """The root relations of the seeds are dealt out; a partition's other edges are a subset."""
    plan = make_plan(store.schema, "paper", len(fanouts), parts)
    seeds = np.random.default_rng(1).permutation(60)[:21]
    whole = drawn(sample(store, 1, 0, fanouts, seeds))
    chosen = set(seeds.tolist())
    for group in plan.groups:
        on_seeds: Counter[Edge] = Counter()
        for part in group:
            mine = drawn(sample(store, parts, part, fanouts, seeds))
            assert not mine - whole
            on_seeds += Counter({e: n for e, n in mine.items()
                                 if e[1].dst == "paper" and e[2] in chosen})
        assert on_seeds == Counter({e: n for e, n in whole.items()
                                    if e[1].dst == "paper" and e[2] in chosen})


def test_hops_have_the_edges_of_a_batch_into_their_own_rows(store: Store) -> None:
    """One after the other, each with the rows of the hop above alone."""
    seeds, plan = np.array([5, 0, 17]), make_plan(store.schema, "paper", 2, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [3, 2], seed=3)
    shares, batch = join_seeds([{"paper": seeds}])[1], sampler.sample({"paper": seeds}, step=4)
    rows: dict[str, np.ndarray] = {"paper": seeds}
    for layer in (2, 1):
        edges, below = sampler.hop(layer, rows, shares if layer == 2 else {}, 4,
                                   sampler.moments(rows)[0])
        found: Counter[Edge] = Counter()
        for one in edges:
            dst, src = rows[one.relation.dst], below[one.relation.src]
            for v, u in zip(one.rows_at(one.in_edges.rows()), one.indices):
                found[layer, one.relation, int(dst[v]), int(src[u])] += 1
        assert found == Counter({edge: n for edge, n in drawn(batch).items() if edge[0] == layer
                                 and edge[2] in rows.get(edge[1].dst, ())})
        rows = below


def test_steps_draw_different_neighbours_and_repeat_exactly(store: Store) -> None:
    seeds = np.arange(30)
    first = drawn(sample(store, 1, 0, [1, 1], seeds, step=0))
    assert first == drawn(sample(store, 1, 0, [1, 1], seeds, step=0))
    assert first != drawn(sample(store, 1, 0, [1, 1], seeds, step=1))


def test_every_neighbour_is_drawn_equally_often(store: Store) -> None:
    """A node with d in-edges and fanout 1: each edge in 1/d of 4,000 draws, within 5 sigma."""
    relation = Relation("author", "writes", "paper")
    csc = store.relation(relation)
    node = int(np.argmax(np.diff(csc.indptr)))
    degree = int(csc.indptr[node + 1] - csc.indptr[node])
    plan = make_plan(store.schema, "paper", 1, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [2], seed=0)
    counts = np.zeros(store.schema.node_counts["author"])
    draws = 4000
    for step in range(draws):
        batch = sampler.sample({"paper": np.array([node])}, step=step)
        (edges,) = [e for e in batch.blocks[0].edges if e.relation == relation]
        np.add.at(counts, batch.input_nodes["author"][edges.indices], 1)
    every = np.bincount(csc.indices[csc.indptr[node]:csc.indptr[node + 1]],
                        minlength=len(counts))
    expected = draws * 2 * every / degree
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


def test_sampler_leaves_no_trace_after_an_error(store: Store) -> None:
    plan = make_plan(store.schema, "paper", 1, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [-1])
    with pytest.raises(IndexError):
        sampler.sample({"paper": np.array([3, 10**6])})
    batch = sampler.sample({"paper": np.array([4, 3])})
    np.testing.assert_array_equal(batch.input_nodes["paper"][:2], [4, 3])


@pytest.mark.parametrize(("fanouts", "says"), [
    ([5], "fanouts has 1 number, but the plan has 2 hops"),
    ([5, 0], "fanouts has 0; a fanout is 1 or more"),
    ([5, -2], "fanouts has -2; a fanout is 1 or more")])
def test_wrong_fanouts_are_refused(store: Store, fanouts: list[int], says: str) -> None:
    plan = make_plan(store.schema, "paper", 2, 1)
    with pytest.raises(InputError, match=says):
        NeighborSampler(store, SamplingScope.of(plan, 0), fanouts)


def test_batch_that_reaches_no_node_of_a_type_still_names_the_type(store: Store) -> None:
    """Models look types up by name, however small the batch; every single seed trains."""
    from dgl_heta.models import HGNN, ModelSpec, RGCNLayer

    dims = dict.fromkeys(store.schema.node_types, 4)
    model = HGNN(ModelSpec(store.schema, dims, frozenset(), {"paper": 4}, 2, hidden=4), RGCNLayer)
    for fanouts in ([1, 1], [-1, -1]):
        for seed in range(store.schema.node_counts["paper"]):
            batch = sample(store, 1, 0, fanouts, np.array([seed]))
            assert set(batch.input_nodes) == set(store.schema.node_types)
            inputs = {t: torch.zeros(len(ids), 4) for t, ids in batch.input_nodes.items()}
            assert model(batch, inputs)["paper"].shape == (1, 4)


def test_metapath_seed_has_the_same_neighbourhood_in_any_batch(store: Store) -> None:
    paths = parse_metapaths([["rev-writes", "writes"], ["cites"], ["writes", "rev-cites"]],
                            store.schema)
    plan = make_plan(store.schema, "paper", 2, 1, paths)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [-1, -1])
    everyone = np.arange(store.schema.node_counts["paper"])
    batch = sampler.sample({"paper": everyone})
    first, last = batch.blocks
    for edges in last.edges:
        if edges.relation.src == "paper":
            assert (edges.indices >= len(everyone)).all(), "a neighbour has a row of its own"
    on_seeds = {e.relation for e in first.edges if e.relation.dst == "paper" and e.start == 0}
    assert on_seeds == {Relation("author", "writes", "paper"),
                        Relation("paper", "cites", "paper"),
                        Relation("paper", "rev-cites", "paper")}


def test_two_threads_sample_what_one_would(store: Store) -> None:
    """A loader may prefetch: batches that are sampled at once must not see each other's rows."""
    plan = make_plan(store.schema, "paper", 2, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [3, 3], seed=3)
    steps = [(step, {"paper": np.random.default_rng(step).permutation(30)[:20]})
             for step in range(40)]
    alone = [sampler.sample(seeds, step=step) for step, seeds in steps]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda given: sampler.sample(given[1], step=given[0]), steps))
    for one, other in zip(alone, together):
        assert drawn(one) == drawn(other)
        for ntype, ids in one.input_nodes.items():
            np.testing.assert_array_equal(ids, other.input_nodes[ntype])


def test_a_sampler_is_usable_after_a_sample_that_failed(store: Store) -> None:
    plan = make_plan(store.schema, "paper", 1, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), [-1])
    before = sampler.sample({"paper": np.array([5, 0, 17])})
    with pytest.raises(IndexError):
        sampler.sample({"paper": np.array([3, 10**6])})
    assert drawn(sampler.sample({"paper": np.array([5, 0, 17])})) == drawn(before)


def test_seeds_of_a_group_are_in_rank_order_and_local_order_begins_with_the_own() -> None:
    parts = [{"paper": np.array([4, 2]), "author": np.array([9])},
             {"paper": np.array([7]), "author": np.empty(0, np.int64)}]
    seeds, shares = join_seeds(parts, 1)
    assert seeds["paper"].tolist() == [4, 2, 7]
    assert shares["paper"].sizes == (2, 1)
    assert shares["paper"].local(torch.from_numpy(seeds["paper"])).tolist() == [7, 4, 2]
    assert shares["author"].own == 0


def test_weighted_draws_are_the_same_on_all_workers_and_threads(
        store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever draws them, in one pass or on threads; their positions are found again."""
    class Weighted(Store):
        def weights(self, relation: Relation) -> np.ndarray | None:
            return weights.get(relation)

    weights = {r: np.random.default_rng(i).exponential(size=n) + 1e-300 * (i % 2)
               for i, (r, n) in enumerate(store.schema.edge_counts.items()) if i != 1}
    seeds, fanouts = np.arange(0, 40, 3), [2, 3]

    def sampled(parts: int, part: int, threads: int = 1) -> MiniBatch:
        plan = make_plan(store.schema, "paper", 2, parts)
        return NeighborSampler(Weighted(store.directory), SamplingScope.of(plan, part), fanouts,
                               seed=3, threads=threads).sample({"paper": seeds})

    batch = sampled(1, 0)
    whole = drawn(batch)
    with monkeypatch.context() as patched:
        patched.setattr("dgl_heta.sampling.relation_samples.PIECE", 5)
        patched.setattr("dgl_heta.sampling.relation_samples.FEW", 0)
        assert drawn(sampled(1, 0, threads=2)) == whole
    assert whole != drawn(sample(store, 1, 0, fanouts, seeds))
    together = sum((drawn(sampled(2, part)) for part in range(2)), Counter())
    assert together.keys() == whole.keys()
    for edges in (edges for block in batch.blocks for edges in block.edges):
        assert edges.sample is not None
        nodes = batch.input_nodes[edges.relation.dst][edges.index]
        found = edges.sample.positions(nodes, len(edges.indices))
        np.testing.assert_array_equal(
            store.relation(edges.relation).indices[found],
            batch.input_nodes[edges.relation.src][edges.indices.numpy()])
