"""A sampler with `mask=` or `prob=` draws from the edges that have it, as often as it says."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch

from dgl_heta import InputError
from dgl_heta.distdgl.store.masked_store import masked_store
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.directory import open_partition
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from tests.support.link_reference import edge_graph, parts

FANOUT = 2
NODES, WEIGHTS = 8000, [1.0, 0.0, 0.25, 4.0, 2.5]
CHI = 36  # chi-square with 5 degrees of freedom is above it once in a million
CITES = Relation("paper", "cites", "paper")


def test_neighbours_are_drawn_of_the_edges_with_a_mask(tmp_path: Path) -> None:
    """Where relations have the mask; of the others all edges count."""
    graph = edge_graph()
    kept = {e: graph.edges[e].data["train_mask"] for e in graph.canonical_etypes}
    for etype in graph.canonical_etypes[::2]:
        del graph.edges[etype].data["train_mask"]
        kept[etype] = torch.ones(graph.num_edges(etype), dtype=torch.bool)
    store, plan = open_partition(parts(graph, 1, tmp_path / "parts").parent)
    sampler = NeighborSampler(masked_store(store, "train_mask"), SamplingScope.of(plan, 0, 1),
                              [FANOUT])
    seeds = {t: np.arange(graph.num_nodes(t)) for t in plan.targets}
    batch = sampler.sample(seeds)
    (block,) = batch.blocks
    drawn = {edges.relation: edges for edges in block.edges}
    for etype in graph.canonical_etypes:
        if etype[2] not in plan.targets:
            continue
        edges = drawn[Relation(*etype)]
        sources, destinations = graph.edges(etype=etype)
        there = {*zip(sources[kept[etype]].tolist(), destinations[kept[etype]].tolist(),
                      strict=True)}
        counts = edges.indptr.diff()
        own = torch.repeat_interleave(torch.arange(len(counts)), counts)
        inputs = torch.from_numpy(batch.input_nodes[etype[0]])[edges.indices.long()]
        assert {*zip(inputs.tolist(), own.tolist(), strict=True)} <= there
        degrees = torch.bincount(destinations[kept[etype]], minlength=len(counts))
        assert torch.equal(counts, degrees.clamp(max=FANOUT))


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
def test_what_is_no_weight_is_refused(value: float, tmp_path: Path) -> None:
    graph = edge_graph()
    graph.edges["cites"].data["weight"] = torch.full((graph.num_edges("cites"),), 0.5)
    graph.edges["cites"].data["weight"][7] = value
    graph.edges["cites"].data["wide"] = torch.ones(graph.num_edges("cites"), 2)
    store, _ = open_partition(parts(graph, 1, tmp_path / "parts").parent)
    with pytest.raises(InputError, match=f"'weight' of 'paper cites paper' are {value} for edge 7"):
        masked_store(store, "weight").relation(CITES)
    with pytest.raises(InputError, match="'wide' of 'paper cites paper' have shape"):
        masked_store(store, "wide").relation(CITES)
    every = masked_store(store, "nothing").relation(CITES)
    assert np.array_equal(every.indices, store.relation(CITES).indices)


def test_a_neighbour_is_drawn_as_often_as_dgl_draws_it(tmp_path: Path) -> None:
    """Each pair of four neighbours, over many nodes with the same weights: the same chances by
    which DGL draws. All of its edges are what a node with as few has."""
    graph = dgl.heterograph({
        ("word", "in", "text"): (torch.arange(5).repeat(NODES), torch.arange(NODES)
                                 .repeat_interleave(5)),
        ("text", "has", "word"): (torch.arange(5), torch.arange(5))})
    graph.edges["in"].data["w"] = torch.tensor(WEIGHTS).repeat(NODES)
    parts(graph, 1, tmp_path / "parts", target_ntype="text")
    store, plan = open_partition(tmp_path / "parts")
    masked = masked_store(store, "w")
    scope = SamplingScope.of(plan, 0, 1)
    texts = {"text": np.arange(NODES)}
    batch = NeighborSampler(masked, scope, [2]).sample(texts)
    (edges,) = batch.blocks[0].edges
    words = torch.from_numpy(batch.input_nodes["word"])[edges.indices.long()]
    dgl.seed(1)
    theirs = dgl.sampling.sample_neighbors(graph, {"text": torch.arange(NODES)}, 2, prob="w")
    order = theirs.edges(etype="in")[1].argsort(stable=True)
    for drawn in (words, theirs.edges(etype="in")[0][order]):
        pairs = Counter(map(tuple, drawn.view(NODES, 2).sort(1).values.tolist()))
        assert sum(pairs.values()) == NODES
        off = sum((pairs.pop(pair, 0) - NODES * p) ** 2 / (NODES * p)
                  for pair, p in chances().items())
        assert not pairs  # none with the edge whose weight is 0
        assert off < CHI
    for fanout in (4, -1):
        (edges,) = NeighborSampler(masked, scope, [fanout]).sample(
            texts).blocks[0].edges
        assert edges.indptr.diff().unique().tolist() == [4]


def chances() -> dict[tuple[int, int], float]:
    """Of each pair, drawn one after the other without replacement."""
    total, found = sum(WEIGHTS), {}
    for one, other in itertools.permutations(np.flatnonzero(WEIGHTS).tolist(), 2):
        pair = (min(one, other), max(one, other))
        found[pair] = found.get(pair, 0.0) + (
            WEIGHTS[one] / total * WEIGHTS[other] / (total - WEIGHTS[one]))
    assert sum(found.values()) == pytest.approx(1)
    return found
