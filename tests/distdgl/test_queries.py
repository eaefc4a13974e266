"""Questions about a meta-partitioned graph have the answers of the whole graph, on any machine."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch

from dgl_heta.distdgl.graph.queries import Queries, answer
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.readers import read_dgl_graph
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store
from tests.support import dist_queries, warm
from tests.support.dist_reference import parts, whole_graph
from tests.support.waiting import PATIENCE, PROMPT

ACCESS = "_distributed_access"


@pytest.fixture(scope="module")
def graph() -> Any:
    return whole_graph()


@pytest.fixture(scope="module", params=[1, 3])
def asked(graph, request, tmp_path_factory) -> Queries:
    """As the last machine of so many asks."""
    config = parts(graph, request.param, tmp_path_factory.mktemp("parts") / "p")
    store, _ = open_partition(Path(config).parent)
    book = dgl.distributed.load_partition_book(str(config), request.param - 1)[0]
    return Queries(store, EdgeEnds(store), book, set(store.schema.relations))


def everybody(queries: Queries, graph: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """DistDGL's ids of all nodes in a random order, and per type the places of its nodes."""
    homo = torch.cat([queries.book.map_to_homo_nid(graph.nodes(t), t) for t in graph.ntypes])
    order = torch.randperm(len(homo), generator=torch.Generator().manual_seed(1))
    places = torch.argsort(order)
    return homo[order], dict(zip(graph.ntypes, places.split([
        graph.num_nodes(t) for t in graph.ntypes])))


def test_degrees(asked, graph):
    nodes, places = everybody(asked, graph)
    ins, outs = asked.in_degrees(nodes), asked.out_degrees(nodes)
    for ntype in graph.ntypes:
        for found, side, degrees in ((ins, 2, graph.in_degrees), (outs, 0, graph.out_degrees)):
            wanted = sum(degrees(etype=e) for e in graph.canonical_etypes if e[side] == ntype)
            assert torch.equal(found[places[ntype]], torch.as_tensor(wanted))


def test_ends_of_edges(asked, graph):
    book = asked.book
    for src, etype, dst in graph.canonical_etypes:
        ids = torch.randperm(graph.num_edges((src, etype, dst)))[:50]
        found = asked.find_edges(book.map_to_homo_eid(ids, (src, etype, dst)))
        wanted = graph.find_edges(ids, etype=(src, etype, dst))
        for side, ntype, ends in ((0, src, wanted[0]), (1, dst, wanted[1])):
            assert torch.equal(found[side], book.map_to_homo_nid(ends, ntype))


def edges_of(queries: Queries, found: Any) -> Counter[tuple[str, int, int, int]]:
    """Relation, ends and id of each edge."""
    src, dst = found.edges()
    kinds, ids = queries.book.map_to_per_etype(found.edata[dgl.EID])
    ends = [queries.book.map_to_per_ntype(side)[1].tolist() for side in (src, dst)]
    names = [queries.store.schema.relations[k].etype for k in kinds.tolist()]
    return Counter(zip(names, *ends, ids.tolist()))


def wanted_edges(graph: Any, ntype: str, nodes: torch.Tensor) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for etype in graph.canonical_etypes:
        if etype[2] == ntype:
            src, dst, ids = graph.in_edges(nodes, form="all", etype=etype)
            found.update(zip([etype[1]] * len(src), src.tolist(), dst.tolist(), ids.tolist()))
    return found


@pytest.mark.parametrize("fanout", [-1, 0, 2])
def test_neighbourhoods(asked, graph, fanout):
    services = dgl.distributed.graph_services
    seeds = torch.tensor([7, 3, 30, 11])
    homo = asked.book.map_to_homo_nid(seeds, "paper")
    every = wanted_edges(graph, "paper", seeds)
    assert edges_of(asked, answer(asked, ACCESS, homo, services.InSubgraphRequest)) == every
    for kind in (services.SamplingRequest, services.SamplingRequestEtype):
        for replace in (False, True):
            found = edges_of(asked, answer(asked, ACCESS, homo, lambda ids, kind=kind, r=replace: (
                kind(ids, fanout, replace=r))))
            if fanout == -1:
                assert found == every
                continue
            assert set(found) <= set(every)
            groups = Counter({key: 0 for key in every})
            groups.update(found)
            for key in {(name, d) if kind is services.SamplingRequestEtype else (None, d)
                        for name, _, d, _ in every}:
                drawn, there = (sum(n for (name, _, d, _), n in edges.items()
                                    if d == key[1] and key[0] in (None, name))
                                for edges in (found, every))
                assert drawn == (fanout if replace else min(fanout, there))


def test_edges_to_exclude_are_left_out(asked, graph):
    homo = asked.book.map_to_homo_nid(torch.arange(20), "paper")
    request = dgl.distributed.graph_services.InSubgraphRequest
    every = answer(asked, ACCESS, homo, request)
    some = every.edata[dgl.EID][::3]
    left = edges_of(asked, answer(asked, ACCESS, homo, request, exclude_edges=some))
    assert left == edges_of(asked, every.edge_subgraph(
        ~torch.isin(every.edata[dgl.EID], some), relabel_nodes=False, store_ids=False))
    assert 0 < sum(left.values()) < every.num_edges()


def weighing(queries: Queries, weights: dict[str, torch.Tensor]) -> Queries:
    """The same with a key-value store that holds these edge data."""
    return Queries(queries.store, EdgeEnds(queries.store), queries.book, set(),
                   lambda key, ids: weights[key][ids])


@pytest.mark.parametrize("replace", [False, True])
def test_edges_are_drawn_by_weight(asked, graph, replace):
    """All whose weight is not 0; of two, the one that weighs all; others of a relation without."""
    request = dgl.distributed.graph_services.SamplingRequestEtype
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    heavy = torch.full((graph.num_edges(cites),), 1e-14, dtype=torch.float64)
    some = torch.arange(graph.num_edges(writes)) % 3
    papers = torch.arange(40)
    first = [int(ids[0]) for ids in (graph.in_edges(v, "eid", cites) for v in papers) if len(ids)]
    heavy[first] = 1.0
    keys = [{"cites": "h", "writes": "s"}.get(r.etype, "") for r in asked.store.schema.relations]
    weighed = weighing(asked, {"h": heavy, "s": some})
    homo = asked.book.map_to_homo_nid(papers, "paper")

    def drawn(fanout: int) -> Counter[Any]:
        return edges_of(asked, answer(weighed, ACCESS, homo, lambda ids: request(
            ids, fanout, prob=keys, replace=replace)))

    assert sorted(e for name, _, _, e in drawn(1) if name == "cites") == sorted(first)
    every = wanted_edges(graph, "paper", papers)
    left = {key for key in every if key[0] != "writes" or some[key[3]]}
    assert set(drawn(-1)) == left < set(every)
    assert set(drawn(1)) < left
    heavy[first[0]] = -1.0
    with pytest.raises(HetaError, match=f"'h' are -1.0 for edge {first[0]} of 'paper cites paper'"):
        drawn(1)


def test_fanouts_by_relation(asked, graph):
    request = dgl.distributed.graph_services.SamplingRequestEtype
    homo = asked.book.map_to_homo_nid(torch.arange(20), "paper")
    order = [r.etype for r in asked.store.schema.relations]
    for fanout in ({"cites": -1, ("author", "writes", "paper"): 1},
                   torch.tensor([-1 if e == "cites" else int(e == "writes") for e in order])):
        found = edges_of(asked, answer(asked, ACCESS, homo, lambda ids, f=fanout: request(ids, f)))
        every = wanted_edges(graph, "paper", torch.arange(20))
        assert {k: n for k, n in found.items() if k[0] == "cites"} == {
            k: n for k, n in every.items() if k[0] == "cites"}
        assert {k[0] for k in found} == {"cites", "writes"}
        assert max(Counter(d for e, _, d, _ in found if e == "writes").values()) == 1


@pytest.mark.parametrize("ids", [torch.tensor([-1]), torch.tensor([10**9]),
                                 torch.zeros(2, 2, dtype=torch.int64)])
def test_ids_that_are_none_are_refused(asked, ids):
    for ask in (asked.in_degrees, asked.out_degrees, asked.find_edges):
        with pytest.raises(HetaError, match="ids must be a vector of numbers within 0"):
            ask(ids)


@pytest.mark.needs("hosts")
def test_every_trainer_of_two_hosts_has_the_answers(graph, tmp_path):
    asked = dist_queries.ASKED
    graph.edges[asked].data["chance"] = torch.arange(graph.num_edges(asked)) % 3 / 2
    config = parts(graph, 2, tmp_path / "p")
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", 2, "--part-config", config,
               "--num-omp-threads", 1, "--stop-after", PATIENCE, "--set", "train.wrapper=raf",
               "--", warm.with_dgl(), dist_queries.__file__, "--ip-config", "{ip_config}",
               "--part-config", "{part_config}", "--out", tmp_path]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                          timeout=PATIENCE + PROMPT, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    seeds = torch.arange(20)
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        for ntype in graph.ntypes:
            for way, side, degrees in (("in", 2, graph.in_degrees), ("out", 0, graph.out_degrees)):
                wanted = sum(degrees(etype=e) for e in graph.canonical_etypes if e[side] == ntype)
                np.testing.assert_array_equal(found[f"{way}/{ntype}"], wanted)
        np.testing.assert_array_equal(found["ends"], torch.stack(
            graph.edges(etype=asked, order="eid")))
        wanted = torch.stack(graph.in_edges(seeds, form="all", etype=asked))
        for name in ("neighbours", "neighbours by the function"):
            assert sorted(found[name].T.tolist()) == sorted(wanted.T.tolist())
        assert sorted(found["by chance"]) == sorted(
            e for e in graph.in_edges(seeds, "eid", asked).tolist() if e % 3)
        assert sorted(found["by what is written"]) == sorted(
            e for e in graph.in_edges(seeds, "eid", asked).tolist() if e % 3 == 1)
        assert found["numbers"].tolist() == [graph.num_edges(), graph.num_edges(asked),
                                             graph.num_edges(), graph.num_edges(), 20]
        np.testing.assert_array_equal(found["few"], np.minimum(
            graph.in_degrees(seeds, etype=asked), 1))


def test_a_store_without_edge_ids_says_so(graph, tmp_path):
    """As the command writes it; degrees need none."""
    write_partition(read_dgl_graph(graph, "g", "paper"), make_plan(
        read_dgl_graph(graph, "g", "paper").schema(), "paper", 2, 1), tmp_path / "p")
    store, _ = open_partition(tmp_path / "p")
    queries = Queries(store, EdgeEnds(store), dgl.distributed.load_partition_book(
        str(tmp_path / "p/g.json"), 0)[0], set())
    nodes = torch.arange(graph.num_nodes())
    assert int(queries.in_degrees(nodes).sum()) == graph.num_edges()
    for ask in (lambda: queries.find_edges(nodes[:3]), lambda: answer(
            queries, ACCESS, nodes, dgl.distributed.graph_services.InSubgraphRequest)):
        with pytest.raises(HetaError, match="keeps no edge ids, .*; partition the graph by par"):
            ask()


def test_a_damaged_relation_of_others_is_found_when_it_is_asked_for(graph, tmp_path):
    config = parts(graph, 1, tmp_path / "p")
    store: Store = open_partition(Path(config).parent)[0]
    file = store.directory / store.manifest.relations[0].indices.file
    rows = np.load(file)
    rows[0], rows[-1] = rows[-1], rows[0] + (rows[0] == rows[-1])
    np.save(file, rows)
    book = dgl.distributed.load_partition_book(str(config), 0)[0]
    queries = Queries(store, EdgeEnds(store), book, {store.manifest.relations[0].relation})
    ntype = store.manifest.relations[0].relation.dst
    with pytest.raises(InputError, match="checksum|differs"):
        queries.in_degrees(book.map_to_homo_nid(torch.arange(3), ntype))
