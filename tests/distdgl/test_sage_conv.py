"""SAGEConv of several relations in one call of the kernel, beside DGL's own."""

from __future__ import annotations

import logging

import dgl
import pytest
import torch
from dgl.nn.pytorch import GraphConv, SAGEConv
from torch import nn

from dgl_heta.distdgl.modules import relation_modules, sage_conv
from dgl_heta.distdgl.modules.relation_call import RelationCall
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock

DOUBLE = torch.float64


@pytest.mark.parametrize(("width", "out"), [(6, 4), (4, 6)])
def test_relations_together_compute_what_dgl_does(width: int, out: int) -> None:
    torch.manual_seed(0)
    modules = [SAGEConv((width, 5), out, "mean", activation=torch.relu),
               SAGEConv((width, 5), out, "mean", bias=False), SAGEConv((3, 5), out, "mean")]
    calls, wanted, leaves = [], [], []
    for place, module in enumerate(modules):
        module.to(DOUBLE)
        graph = dgl.rand_graph(9, 12)
        indptr, indices, _ = graph.adj_tensors("csc")
        block = dgl.create_block(("csc", (indptr, indices, [])), num_src_nodes=9, num_dst_nodes=9)
        states = [torch.randn(9, n, dtype=DOUBLE, requires_grad=True)
                  for n in (module._in_src_feats, 5)]
        edges = RelationBlock(Relation("a", f"r{place}", "b"), 0, indptr,
                              indices.to(torch.int32), place)
        calls.append(RelationCall(module, edges, *states))
        assert sage_conv.fits(calls[-1])
        wanted.append(module(block, tuple(states)))
        leaves += [*states, *module.parameters()]
    found = [rows for _, rows in sage_conv.run_together(calls)]
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    weight = torch.randn(9, out, dtype=DOUBLE)
    grads = [torch.autograd.grad(sum((x * weight).sum() for x in values), leaves)
             for values in (found, wanted)]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_asks_for_its_own_forward_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    rows = torch.randn(3, 4)
    edges = RelationBlock(Relation("a", "r", "b"), 0, torch.tensor([0, 0, 0, 0]), torch.zeros(0))
    for module in (SAGEConv(4, 2, "pool"), SAGEConv(4, 2, "gcn"), SAGEConv(4, 2, "mean", 0.5),
                   SAGEConv(4, 2, "mean").double(), GraphConv(4, 2), nn.Linear(4, 2)):
        assert not sage_conv.fits(RelationCall(module, edges, rows, rows))
    hooked = SAGEConv(4, 2, "mean")
    hooked.register_forward_hook(lambda *_: None)
    assert not sage_conv.fits(RelationCall(hooked, edges, rows, rows))

    class Mine(nn.Module):
        pass

    with caplog.at_level(logging.INFO, "dgl_heta"):
        for _ in range(3):
            relation_modules.runs_alone(Relation("a", "r", "b"), Mine())
    assert [record.getMessage() for record in caplog.records] == [
        "Mine of relation a r b runs relation by relation: it is none of DGL's GraphConv, GATConv "
        "and SAGEConv, of which all relations are computed together"]
