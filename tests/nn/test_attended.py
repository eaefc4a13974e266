"""Scores and weighted sums of feature rows that wait are those of the rows, with all gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dgl_heta.errors import HetaError, InputError
from dgl_heta.features import chunks
from dgl_heta.features.deferred import LazyRows
from dgl_heta.nn import FusedKernel, TorchKernel, use_kernel
from dgl_heta.nn.aggregate import segment_reduce
from dgl_heta.nn.attended import Reads, edge_dots, weighted_sums
from dgl_heta.nn.segments import segment_softmax
from dgl_heta.sampling.blocks import InEdges
from tests.support.feature_rows import WIDTH as FEATURES
from tests.support.feature_rows import rows

HEADS, WIDTH = 2, 3
SHORTER, LONGER = Reads(0, 0, 0), Reads(1, 10 ** 9, 10 ** 9)
"""Few edges and destinations beside the source rows; and many."""


@pytest.fixture(autouse=True, scope="module")
def small():
    """Few rows are read in several pieces."""
    before, chunks.CHUNK = chunks.CHUNK, 5 * FEATURES * 8
    yield
    chunks.CHUNK = before


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@st.composite
def relations(draw: st.DrawFn) -> InEdges:
    degrees = draw(st.lists(st.sampled_from([0, 1, 2, 3, 9]), min_size=1, max_size=9))
    indices = draw(st.lists(st.integers(0, 29), min_size=sum(degrees), max_size=sum(degrees)))
    return InEdges(torch.tensor([0, *np.cumsum(degrees).tolist()]),
                   torch.tensor(indices, dtype=torch.int32))


def linear(x: Tensor, size: int, biased: bool, parameters: list[Tensor]) -> Tensor:
    seed = len(parameters)
    parameters.append(random(size, x.shape[1], seed=seed))
    if biased:
        parameters.append(random(size, seed=seed + 1))
    return F.linear(x, *parameters[seed:])


@settings(max_examples=40, deadline=None)
@given(relations(), st.lists(st.booleans(), min_size=1, max_size=2), st.booleans(), st.booleans(),
       st.sampled_from([np.float16, np.float32, np.float64]))
def test_attention_is_exact(edges: InEdges, biased: list[bool], own: bool, seen: bool, dtype: type
                            ) -> None:
    """Keys and values are one or two products of features, each with a bias or without; rows
    without in-edges, states of destinations, and rows that are looked at afterwards."""
    results = []
    for x in rows(dtype):
        parameters: list[Tensor] = []
        states = x.double()
        for each in biased[:-1]:
            states = linear(states, 5, each, parameters)
        key, value = (linear(states, HEADS * WIDTH, biased[-1], parameters) for _ in range(2))
        query = random(len(edges.indptr) - 1, HEADS, WIDTH, seed=9)
        scores = edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)
        weights = segment_softmax(edges.indptr, scores)
        out = weighted_sums(edges, value.view(-1, HEADS, WIDTH), weights, SHORTER)
        for made in (key, value, states):
            assert not isinstance(made, LazyRows) or made.waits
        loss = (out ** 2).sum() + (scores ** 3).sum()
        if own:
            loss = loss + (states[:7].tanh() ** 2).sum() + (key[:4] ** 2).sum()
        if seen:
            loss = loss + (value.relu() ** 2).sum()
        found = torch.autograd.grad(loss, [query, *parameters])
        results.append([scores.detach(), out.detach(), *found])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)


def heads_of(x: Tensor) -> tuple[InEdges, list[Tensor], Tensor]:
    """Edges, a product of feature rows and one of that, and queries."""
    edges = InEdges(torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 4], dtype=torch.int32))
    parameters: list[Tensor] = []
    states = linear(x, 5, True, parameters)
    return edges, [states, linear(states, HEADS * WIDTH, True, parameters)], random(3, HEADS, WIDTH)


def test_rows_are_computed_where_that_is_shorter_or_their_kernel_wants_them() -> None:
    edges, (states, key), query = heads_of(rows()[0])
    edge_dots(edges, key.view(-1, HEADS, WIDTH), query, LONGER)
    assert not key.waits
    assert not states.waits
    _, (states, key), _ = heads_of(rows()[0])
    try:
        use_kernel(TorchKernel())
        edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)
        assert not key.waits
    finally:
        use_kernel(FusedKernel())
    _, (states, key), _ = heads_of(rows()[0])
    states + 0  # now a product of them is short
    edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)
    assert not key.waits


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("how", ["retain_grad", "register_hook"])
def test_a_gradient_that_is_looked_at_is_right(which: int, how: str) -> None:
    """Of the first product, of the second, and of its view per head; they are used besides."""
    seen: list[Tensor] = []
    for x in rows():
        edges, made, query = heads_of(x)
        made.append(made[1].view(-1, HEADS, WIDTH))
        if how == "retain_grad":
            made[which].retain_grad()
        else:
            made[which].register_hook(seen.append)
        loss = (edge_dots(edges, made[2], query, SHORTER) ** 2).sum()
        (loss + sum(x.tanh().sum() for x in made)).backward()
        if how == "retain_grad":
            seen.append(made[which].grad)
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("ask", [
    Tensor.retain_grad, lambda x: x.register_hook(print),
    lambda x: torch.autograd.grad(x.tanh().sum(), x)])
def test_a_gradient_that_is_asked_for_too_late_is_refused(which: int, ask) -> None:
    edges, made, query = heads_of(rows()[0])
    made.append(made[1].view(-1, HEADS, WIDTH))
    edge_dots(edges, made[2], query, SHORTER)
    with pytest.raises(HetaError, match="gradient of feature rows cannot be had"):
        ask(made[which])


def test_a_leaf_has_its_gradient() -> None:
    """Products without one that become leaves: the first, or the second."""
    edges = heads_of(rows()[0])[0]
    results = []
    for x in rows():
        for which in range(2):
            first, second = random(FEATURES, 5), random(5, HEADS * WIDTH, seed=1)
            states = x @ first.detach()
            states = states.requires_grad_() if which == 0 else states
            key = states @ (second if which == 0 else second.detach())
            leaf = states if which == 0 else key.requires_grad_()
            query = random(3, HEADS, WIDTH, seed=2)
            out = edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)
            ((out ** 2).sum() + leaf.tanh().sum()).backward()
            results.append(leaf.grad)
    torch.testing.assert_close(results[:2], results[2:])


def test_products_without_a_gradient() -> None:
    """A frozen first layer, a frozen second one, and neither with one."""
    edges = heads_of(rows()[0])[0]
    results = []
    for x in rows():
        found = []
        for frozen in ("first", "second", "both"):
            first, second = random(FEATURES, 5), random(5, HEADS * WIDTH, seed=1)
            with torch.set_grad_enabled(frozen == "second"):
                states = x @ first
            with torch.set_grad_enabled(frozen == "first"):
                key = states @ second
            query = random(3, HEADS, WIDTH, seed=2)
            out = edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)
            grads = torch.autograd.grad((out ** 2).sum(), (query, first, second), allow_unused=True)
            found.append([out.detach(), *grads])
        results.append(found)
    for found, expected in zip(*results, strict=True):
        assert [x is None for x in found] == [x is None for x in expected]
        for one, other in zip(found, expected):
            if one is not None:
                torch.testing.assert_close(one, other)
    assert [x is not None for x in results[0][0]] == [True, True, False, True]


def test_what_would_be_wrong_is_refused() -> None:
    edges, (_, key), query = heads_of(rows()[0])
    heads = key.view(-1, HEADS, WIDTH)
    for wrong in (query[:2], query[:, :1], random(3, HEADS, WIDTH + 1)):
        with pytest.raises(InputError, match="the destination rows have the shape"):
            edge_dots(edges, heads, wrong, SHORTER)
    with pytest.raises(InputError, match="the weights of edges have the shape"):
        weighted_sums(edges, heads, random(2, HEADS), SHORTER)
    beyond = InEdges(edges.indptr, edges.indices + 26)
    with pytest.raises(InputError, match="there are 30 source rows, but an edge starts at row 30"):
        edge_dots(beyond, heads, query, SHORTER)
    out = edge_dots(edges, heads, query, SHORTER)
    with pytest.raises(HetaError, match="cannot be differentiated again"):
        torch.autograd.grad((out ** 2).sum(), query, create_graph=True)


def test_a_weight_that_changes_between_product_and_use_is_refused() -> None:
    edges = heads_of(rows()[0])[0]
    first, second = (torch.ones(size, dtype=torch.float64) for size in ((FEATURES, 5), (5, 6)))
    for changed in (first, second):
        key = rows()[0] @ first @ second
        changed.add_(1)
        with pytest.raises(HetaError, match="a weight was changed in place"):
            edge_dots(edges, key.view(-1, HEADS, WIDTH), random(3, HEADS, WIDTH), SHORTER)


@pytest.mark.parametrize("what", ["attention", "attention by a key from outside", "mean"])
def test_activation_checkpointing_of_what_reads_rows_that_others_need_later(what: str
                                                                            ) -> None:
    """When it is computed again, the rows have values."""
    results = []
    for x in rows():
        edges, (states, _), query = heads_of(x)
        second = random(HEADS * WIDTH, 5, seed=5)

        def run(states: Tensor, edges: InEdges = edges, query: Tensor = query,
                second: Tensor = second) -> Tensor:
            if what == "mean":
                return segment_reduce(*edges, states, "mean")
            key = F.linear(states, second) if what == "attention" else states
            return edge_dots(edges, key.view(-1, HEADS, WIDTH), query, SHORTER)

        given = F.linear(states, second) if what == "attention by a key from outside" else states
        out = checkpoint(run, given, use_reentrant=False)
        loss = (out ** 2).sum() + states.tanh().sum()
        loss.backward()
        results.append([out.detach(), second.grad, query.grad])
    torch.testing.assert_close(*results)
