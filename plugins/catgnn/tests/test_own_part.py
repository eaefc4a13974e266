"""What a trainer that stays within its part samples of it, without other machines."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import pytest

from tests.support.needs import lacking

pytestmark = pytest.mark.needs("dgl")
if not lacking("dgl"):
    import dgl
    import dgl.distributed
    import torch
    from dgl.distributed.graph_services import _in_subgraph
    from dgl_heta_catgnn.local_partition import OwnPart

NODES = 40


def opened(out, hops):
    """The first of two parts of a ring by METIS: a graph as trainers have it, and the part."""
    ring = torch.arange(NODES)
    both = torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])
    with contextlib.redirect_stdout(io.StringIO()):
        dgl.distributed.partition_graph(dgl.graph(both), "ring", 2, str(out), num_hops=hops,
                                        part_method="metis")
    local, _, _, book, *_ = dgl.distributed.load_partition(str(out / "ring.json"), 0)
    graph = SimpleNamespace(
        local_partition=local, get_partition_book=lambda: book, ntypes=["_N"], _ndata_store={},
        canonical_etypes=[("_N", "_E", "_N")], num_nodes=lambda: NODES)
    return graph, OwnPart(graph)


def asked(graph, part, nodes):
    return part.access(graph, nodes, lambda ids: SimpleNamespace(ids=ids), _in_subgraph)


@pytest.mark.parametrize("hops", [1, 2])
def test_of_halo_nodes_beside_own_ones_all_in_edges_are_sampled_or_none(hops, tmp_path):
    """METIS's parts of one hop have some of them."""
    graph, part = opened(tmp_path, hops)
    local = graph.local_partition
    inner = local.ndata["inner_node"].bool()
    beside = torch.zeros_like(inner)
    beside[local.in_edges(inner.nonzero().flatten())[0]] = True
    beside &= ~inner
    assert beside.any()
    ids = local.ndata[dgl.NID]
    answer = asked(graph, part, ids[inner | beside])
    assert (answer.in_degrees(ids[inner]) == 2).all()
    assert (answer.in_degrees(ids[beside]) == (0 if hops == 1 else 2)).all()


def test_a_query_for_other_nodes_goes_to_the_whole_graph_which_is_said_once(tmp_path, caplog):
    graph, part = opened(tmp_path, 1)
    own = graph.local_partition.ndata[dgl.NID]
    assert asked(graph, part, own) is not None
    assert not caplog.records
    for _ in range(2):
        assert asked(graph, part, torch.arange(NODES)) is None
    (said,) = caplog.records
    assert "such queries go over the network" in said.message
