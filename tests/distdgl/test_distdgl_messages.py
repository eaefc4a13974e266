"""Message passing on the relations of RAF blocks: our kernels against DGL's own, and GATConv."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.function as fn
import numpy as np
import pytest
import torch
from dgl.nn import GATConv
from dgl.nn.functional import edge_softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dgl_heta.distdgl.activate import every_patch
from dgl_heta.distdgl.blocks.relation_graph import RelationEdges, RelationGraph
from dgl_heta.distdgl.modules import gat_conv
from dgl_heta.distdgl.modules.relation_call import RelationCall
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.manager import Plugins
from dgl_heta.nn.aggregate import reduce_each, segment_reduce
from dgl_heta.nn.attended import Reads
from dgl_heta.nn.messages import edge_add, edge_dot, weighted_sum
from dgl_heta.sampling.blocks import InEdges, RelationBlock
from dgl_heta.system import patching

HEADS, WIDTH = 3, 5
OURS = ("_Pair", "_Add", "_Softmax", "_FusedSums")


@pytest.fixture(autouse=True, scope="module")
def patched() -> Iterator[None]:
    before = patching.applied()
    patching.apply(every_patch(Plugins(guests=False)))
    yield
    if not before:
        patching.remove()


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    degrees = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    sources = draw(st.integers(1, 5))
    indices = draw(st.lists(st.integers(0, sources - 1), min_size=sum(degrees),
                            max_size=sum(degrees)))
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return torch.from_numpy(indptr), torch.tensor(indices, dtype=torch.int64), sources


def relation_graph(indptr: Tensor, indices: Tensor, sources: int, marked: bool
                   ) -> dgl.DGLGraph:
    made = dgl.create_block({("a", "r", "b"): ("csc", (indptr, indices,
                                                       torch.arange(len(indices))))},
                            {"a": sources}, {"b": len(indptr) - 1})
    if marked:
        made._graph.heta_edges = RelationEdges(
            indptr, indices, sources, True, Reads(1, len(indices), len(indptr) - 1))
    return RelationGraph(made._graph, (made.srctypes, made.dsttypes), made.etypes)


def attention(graph: dgl.DGLGraph, key: Tensor, value: Tensor, query: Tensor) -> list[Tensor]:
    """What hand-written attention does, with every function that we replace."""
    with graph.local_scope():
        graph.srcdata["k"], graph.srcdata["v"], graph.dstdata["q"] = key, value, query
        graph.apply_edges(fn.u_dot_v("k", "q", "s"))
        graph.srcdata["l"], graph.dstdata["r"] = key.sum(2), query.sum(2)
        graph.apply_edges(fn.u_add_v("l", "r", "t"))
        graph.edata["a"] = edge_softmax(graph, graph.edata["s"] + graph.edata["t"].unsqueeze(2))
        graph.update_all(fn.u_mul_e("v", "a", "m"), fn.sum("m", "out"))
        graph.update_all(fn.copy_u("v", "m"), fn.mean("m", "mean"))
        return [graph.edata["s"], graph.edata["t"], graph.edata["a"], graph.dstdata["out"],
                graph.dstdata["mean"]]


def random(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


@settings(max_examples=10, deadline=None)
@given(graphs())
def test_results_and_gradients_are_those_of_dgl(graph: tuple[Tensor, Tensor, int]) -> None:
    indptr, indices, sources = graph
    generator = torch.Generator().manual_seed(len(indices))
    rows = len(indptr) - 1
    inputs = [random(generator, n, HEADS, WIDTH) for n in (sources, sources, rows)]
    found, grads = [], []
    for marked in (True, False):
        outputs = attention(relation_graph(indptr, indices, sources, marked), *inputs)
        assert ("_Pair" in names_of(outputs[0])) == marked
        found.append(outputs)
        grads.append(torch.autograd.grad(sum((o * o.detach().cos()).sum() for o in outputs),
                                         inputs))
    for mine, theirs in zip([*found[0], *grads[0]], [*found[1], *grads[1]]):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def names_of(value: Tensor) -> str:
    """The functions that made a value."""
    seen, todo = set(), [value.grad_fn]
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.add(one)
            todo += [before for before, _ in one.next_functions]
    return " ".join(type(one).__name__ for one in seen)


def test_our_kernels_run_where_they_fit_and_dgls_where_not() -> None:
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    generator = torch.Generator().manual_seed(0)
    graph = relation_graph(indptr, indices, 2, True)
    inputs = [random(generator, 2, HEADS, WIDTH) for _ in range(3)]
    made = " ".join(names_of(o) for o in attention(graph, *inputs))
    assert all(name in made for name in OURS)
    assert not any(name in made for name in ("GSpMM", "GSDDMM", "EdgeSoftmax"))
    graph.srcdata["v"] = inputs[0]
    graph.update_all(fn.copy_u("v", "m"), fn.max("m", "top"))
    assert "GSpMM" in names_of(graph.dstdata["top"])
    graph.edata["w"] = random(generator, 3, HEADS, WIDTH)  # a weight for every number
    graph.update_all(fn.u_mul_e("v", "w", "m"), fn.sum("m", "out"))
    assert "GSpMM" in names_of(graph.dstdata["out"])
    graph.dstdata["q"] = random(generator, 2, HEADS, 1)  # broadcast
    graph.apply_edges(fn.u_add_v("v", "q", "s"))
    assert "GSDDMM" in names_of(graph.edata["s"])
    graph.apply_edges(fn.v_sub_u("q", "v", "s"))
    assert "GSDDMM" in names_of(graph.edata["s"])
    lone = relation_graph(indptr, indices, 2, False)
    lone.srcdata["v"] = random(generator, 2, WIDTH)
    lone.update_all(fn.copy_u("v", "m"), fn.sum("m", "out"))
    assert "GSpMM" in names_of(lone.dstdata["out"])


@settings(max_examples=10, deadline=None)
@given(graphs(), st.booleans(), st.booleans(), st.booleans())
def test_gat_conv_is_dgls(graph: tuple[Tensor, Tensor, int], both: bool, bias: bool,
                          activation: bool) -> None:
    indptr, indices, sources = graph
    generator = torch.Generator().manual_seed(len(indices))
    torch.manual_seed(1)
    module = GATConv((4, 6) if both else 4, WIDTH, HEADS, allow_zero_in_degree=True, bias=bias,
                     activation=torch.tanh if activation else None).double()
    if bias:
        torch.nn.init.normal_(module.bias)
    source = random(generator, sources, 4)
    destination = random(generator, len(indptr) - 1, 6 if both else 4)
    edges = RelationBlock(Relation("a", "r", "b"), 0, indptr, indices)
    wanted = module(relation_graph(indptr, indices, sources, False), (source, destination))
    inputs = [source, destination, *module.parameters()]
    grads = torch.autograd.grad((wanted * wanted.detach().cos()).sum(), inputs)
    for before, summed in itertools.product((True, False), repeat=2):
        call = RelationCall(module, edges, source, destination, summed=summed)
        assert gat_conv.fits(call)
        with pytest.MonkeyPatch.context() as patch:  # weights before and after sums
            patch.setattr(gat_conv, "attended_before", lambda *_, is_so=before: is_so)
            ((part, rows),) = gat_conv.run_together([call])
        found = torch.zeros_like(wanted).index_add(  # rows without edges may be left out
            0, torch.arange(len(wanted))[part.index], rows)
        mine = torch.autograd.grad((found * wanted.detach().cos()).sum(), inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("options", "why"), [
    ({"allow_zero_in_degree": False}, "it may have to refuse the graph"),
    ({"allow_zero_in_degree": True, "residual": True}, "residual"),
    ({"allow_zero_in_degree": True, "negative_slope": 0.1}, "a slope that kernels do not have"),
    ({"allow_zero_in_degree": True, "attn_drop": 0.5}, "dropout")])
def test_gat_conv_runs_itself_otherwise(options: dict[str, object], why: str) -> None:
    module, rows = GATConv(4, 2, 2, **options), torch.zeros(3, 4)
    edges = RelationBlock(Relation("a", "r", "b"), 0, torch.tensor([0, 0, 0, 0]), torch.zeros(0))
    assert not gat_conv.fits(RelationCall(module, edges, rows, rows)), why
    if "attn_drop" in options:
        assert gat_conv.fits(RelationCall(module.eval(), edges, rows, rows))
    assert not gat_conv.fits(RelationCall(module, edges, rows, rows,
                                          kwargs={"get_attention": True}))


class AlwaysDropped(nn.Dropout):
    """As of Monte Carlo dropout: in evaluation, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.p)


@pytest.mark.parametrize(("name", "part"), [
    ("fc", nn.Linear(4, 4)), ("attn_drop", AlwaysDropped()), ("feat_drop", nn.Identity()),
    ("feat_drop", nn.LayerNorm(4)), ("attn_l", nn.Parameter(torch.ones(1, 1, 2))),
    ("leaky_relu", nn.ELU()), ("activation", nn.BatchNorm1d(2)), ("res_fc", nn.Linear(4, 4))])
def test_gat_conv_with_another_part_runs_itself(name: str, part: nn.Module) -> None:
    module = GATConv(4, 2, 2, allow_zero_in_degree=True).eval()
    edges = RelationBlock(Relation("a", "r", "b"), 0, torch.tensor([0, 1]), torch.zeros(1))
    call = RelationCall(module, edges, torch.zeros(1, 4), torch.zeros(1, 4))
    assert gat_conv.fits(call)
    setattr(module, name, part)
    assert not gat_conv.fits(call)


@settings(max_examples=10, deadline=None)
@given(st.lists(graphs(), min_size=1, max_size=3), st.sampled_from(["sum", "mean", "max"]))
def test_relations_of_one_source_aggregate_together(parts: list[tuple[Tensor, Tensor, int]],
                                                    op: str) -> None:
    generator = torch.Generator().manual_seed(len(parts))
    states = random(generator, max(sources for *_, sources in parts), WIDTH)
    edges = [InEdges(indptr, indices) for indptr, indices, _ in parts]
    together = reduce_each(edges, [states] * len(edges), op)
    alone = [segment_reduce(*pair, states, op) for pair in edges]
    torch.testing.assert_close(together, alone)
    used = slice(0, 1) if len(parts) > 1 else slice(None)  # the others get no gradient
    mine, theirs = (torch.autograd.grad(sum((o * o.detach().cos()).sum() for o in outs[used]),
                                        states)[0] for outs in (together, alone))
    torch.testing.assert_close(mine, theirs)


def test_shapes_that_do_not_fit_are_errors_not_memory_of_something_else() -> None:
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 2])
    states, row = torch.zeros(2, 1, 3), torch.zeros(1, 1, 3)
    for call in (lambda: edge_dot(indptr, indices, states, row),
                 lambda: edge_add(indptr, indices, states[..., 0], row[..., 0]),
                 lambda: weighted_sum(indptr, indices, states, torch.zeros(2, 1))):
        with pytest.raises(InputError, match="2 source rows, but an edge starts at row 2"):
            call()
    enough = torch.zeros(3, 1, 3)
    with pytest.raises(InputError, match="destination rows"):
        edge_dot(indptr, indices, enough, torch.zeros(2, 1, 3))
    with pytest.raises(InputError, match="weights of edges"):
        weighted_sum(indptr, indices, enough, torch.zeros(3, 1))
