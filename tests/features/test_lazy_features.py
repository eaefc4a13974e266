"""Feature rows that wait are, to everything that PyTorch does with a tensor, the gathered rows."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import dlpack

from dgl_heta.errors import HetaError
from dgl_heta.features import chunks
from dgl_heta.features.deferred import LazyRows, lazy_rows
from dgl_heta.nn import FusedKernel, TorchKernel, use_kernel
from dgl_heta.nn.aggregate import reduce_each
from dgl_heta.sampling.blocks import InEdges
from tests.support.feature_rows import WIDTH, line, rows


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Few rows are read in several pieces."""
    before, chunks.CHUNK = chunks.CHUNK, 7 * WIDTH * 8
    yield
    chunks.CHUNK = before


def saved(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    found: Tensor = torch.load(file, weights_only=True)
    return found


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "whole slice": lambda x: x[:], "slice": lambda x: x[2:9] * 1,
    "slice of slice": lambda x: x[2:19][3:5] + 0, "columns": lambda x: x[:, 2:4] + 0,
    "every second": lambda x: x[::2] + 0, "row": lambda x: x[3] + 0,
    "negative": lambda x: x[-3:] * 2, "empty": lambda x: x[5:2] + 0,
    "mask": lambda x: x[torch.arange(len(x)) % 3 == 0],
    "index": lambda x: x[torch.tensor([1, 0, 5, 5])], "cat": lambda x: torch.cat([x, x[:4]]),
    "own product": lambda x: x @ x.t(), "transposed": lambda x: x.t() + 0,
    "twice transposed": lambda x: x.t().t() * 1, "sum": lambda x: x.sum(0),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]), "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach() + 1, "view": lambda x: x.view(-1, 2, x.shape[1] // 2) + 0,
    "flatten": lambda x: x.flatten(1) + 0, "reshape": lambda x: x.reshape(len(x), -1) + 0,
    "single": lambda x: x.float(), "double": lambda x: x.double() + 0,
    "half": lambda x: x.half(), "to": lambda x: x.to("cpu", torch.float64) + 0,
    "numpy": lambda x: torch.from_numpy(x.detach().numpy().copy()),
    "array": lambda x: torch.from_numpy(np.asarray(x.detach())),
    "list": lambda x: torch.tensor(x.tolist(), dtype=x.dtype),
    "dlpack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x.detach().contiguous())),
    "new": lambda x: x.new_zeros(3, 2), "like": lambda x: torch.ones_like(x),
    "deep copy": lambda x: copy.deepcopy(x.detach()) + 0, "data": lambda x: x.data + 0,
    "pickle": lambda x: pickle.loads(pickle.dumps(x.detach())),  # noqa: S301
    "save": lambda x: saved(x.detach()),
    "contiguous": lambda x: x.contiguous(), "chunk": lambda x: x.chunk(3)[1] + 0,
    "unsqueeze": lambda x: x.unsqueeze(1) + 0, "where": lambda x: torch.where(x > 0, x, -x),
    "embedding": lambda x: F.embedding(torch.tensor([3, 1]), x),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) + 0,
    "item": lambda x: torch.tensor(x[2, 3].item()), "text": lambda x: torch.tensor(len(repr(x))),
    "iteration": lambda x: torch.stack(list(x[:3])), "equal": lambda x: torch.tensor(bool(
        torch.equal(x, x.clone()))),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("products", [0, 1, 2, 3])
def test_an_operation_sees_the_rows(name: str, products: int) -> None:
    results = []
    for x in rows():
        for _ in range(products):
            x = x @ line(6, x.shape[1])
        results.append(OPERATIONS[name](x))
    found, expected = results
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose((found + 0).numpy(), (expected + 0).numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("products", [1, 2])
def test_a_gradient_reaches_the_weights_through_an_operation(name: str, products: int) -> None:
    gradients = []
    for x in rows():
        parameters = []
        for _ in range(products):
            parameters += [line(x.shape[1], 6).requires_grad_(), line(6, 1)[:, 0].requires_grad_()]
            x = F.linear(x, *parameters[-2:])
        out = OPERATIONS[name](x)
        if not out.requires_grad:
            gradients.append([])
            continue
        gradients.append(list(torch.autograd.grad((out ** 2).sum(), parameters)))
    for found, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(-1, 1, 3), (1, -1, 6), (2, 15, 6), (30, 2, 3), (-1, 6), (180,),
                                   (30, -1, 3), (30, 6, 1), (5, 6, 2, 3)])
def test_a_view_has_the_shape_that_was_asked_for(shape: tuple[int, ...]) -> None:
    results = []
    for x in rows():
        weight = line(WIDTH, 6).requires_grad_()
        view = F.linear(x, weight).view(shape)
        assert view.shape == view.contiguous().shape
        (view ** 2).sum().backward()
        results.append([view.detach() + 0, weight.grad])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="shape '.*' is invalid"):
        (rows()[0] @ line(6, WIDTH)).view(30, 3, 4)


def test_a_gradient_of_what_was_aggregated_past_it_is_refused() -> None:
    edges = InEdges(torch.tensor([0, 2]), torch.tensor([0, 1]))
    states = F.linear(rows()[0], line(WIDTH, 5).requires_grad_())
    loss = reduce_each([edges], [states], "mean")[0].sum() + states.tanh().sum()
    with pytest.raises(HetaError, match="gradient of feature rows cannot be had"):
        torch.autograd.grad(loss, states)
    with pytest.raises(HetaError, match="gradient of feature rows cannot be had"):
        states.retain_grad()


def test_rows_that_want_a_gradient_themselves_get_it() -> None:
    """Features in other precision are no leaves."""
    edges = InEdges(torch.tensor([0, 2]), torch.tensor([0, 1]))
    results = []
    for x in rows(np.float32):
        x.requires_grad_()
        (mean,) = reduce_each([edges], [x.double()], "mean")
        (mean ** 2).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_a_weight_counts_as_it_was_when_it_was_multiplied() -> None:
    """One that wants a gradient only later gets none; another one in its place is seen."""
    edges = InEdges(torch.tensor([0, 2]), torch.tensor([0, 1]))
    first, second = line(WIDTH, 5).requires_grad_(), line(5, 6)
    states = F.linear(rows()[0], first) @ second.t()
    second.requires_grad_()
    reduce_each([edges], [states], "mean")[0].sum().backward()
    assert first.grad is not None
    assert second.grad is None
    weight = line(5, WIDTH)
    states = rows()[0] @ weight
    weight.data = weight.data * 0
    with pytest.raises(HetaError, match="a weight was changed"):
        states + 0


def test_products_that_cannot_wait_are_computed() -> None:
    """Sparse weights, a bias for all columns; a wrong width is PyTorch's error at once."""
    x, plain = rows()
    sparse = line(6, WIDTH).relu().to_sparse_csr()
    torch.testing.assert_close((x @ sparse).view(-1, 2, 3) + 0, (plain @ sparse).view(-1, 2, 3))
    one = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(F.linear(x, line(WIDTH, 6), one).view(-1, 2, 3) + 0,
                               F.linear(plain, line(WIDTH, 6), one).view(-1, 2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        F.linear(F.linear(x, line(WIDTH, 6)), line(5, 6))


def test_a_gradient_of_few_rows_reads_these() -> None:
    results = []
    for x in rows(np.float16):
        weight = torch.zeros(WIDTH, 5, dtype=torch.float16).requires_grad_()
        ((x @ weight)[3:5].float() + 1).pow(2).sum().backward()
        results.append(weight.grad)
    torch.testing.assert_close(*results)


def test_ids_that_change_later_and_inference_mode() -> None:
    array = np.arange(12.0).reshape(4, 3)
    ids = np.array([1, 0])
    waiting = lazy_rows(array, ids)
    assert waiting is not None
    ids += 1
    assert torch.equal(waiting + 0, torch.from_numpy(array[[1, 0]]))
    with torch.inference_mode():
        found = lazy_rows(array, np.array([1, 0]))
        assert found is not None
        product = found @ (torch.ones(3, 2, dtype=torch.float64) * 2)
        (mean,) = reduce_each([InEdges(torch.tensor([0, 2]), torch.tensor([0, 1]))], [product],
                              "mean")
        assert torch.equal(mean, torch.full((1, 2), 15.0, dtype=torch.float64))


@st.composite
def relations(draw: st.DrawFn) -> list[tuple[Tensor, Tensor]]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        degrees = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
        indices = draw(st.lists(st.integers(0, 29), min_size=sum(degrees), max_size=sum(degrees)))
        indptr = torch.tensor([0, *np.cumsum(degrees).tolist()])
        found.append((indptr, torch.tensor(indices, dtype=torch.int64)))
    return found


@settings(max_examples=40, deadline=None)
@given(relations(), st.sampled_from(["sum", "mean"]), st.booleans(), st.booleans(),
       st.sampled_from([np.float16, np.float32, np.float64]))
def test_aggregating_before_the_product_is_exact(
        edges: list[tuple[Tensor, Tensor]], op: str, biased: bool, own: bool, dtype: type) -> None:
    """Rows without in-edges, and the destinations' own rows, included."""
    results = []
    for x in rows(dtype):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(5, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
        bias = torch.randn(5, dtype=torch.float64, generator=generator).requires_grad_()
        states = F.linear(x.double(), weight, bias if biased else None)
        found = reduce_each(edges, [states] * len(edges), op)
        assert not isinstance(states, LazyRows) or states.waits
        loss = sum(((1 + place) * y ** 2).sum() for place, y in enumerate(found))
        loss = loss + (states[:4].relu() ** 3).sum() if own else loss
        wanted = (weight, bias) if biased else (weight,)
        results.append([*found, *torch.autograd.grad(loss, wanted, allow_unused=True)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-9,
                                   atol=1e-11)


def test_rows_are_computed_where_that_is_shorter() -> None:
    """Many edges, few rows; or a kernel that wants all rows."""
    waiting, _ = rows()
    weight = torch.ones(WIDTH, 2, dtype=torch.float64)
    many = [InEdges(torch.tensor([0, 4000]), torch.zeros(4000, dtype=torch.int64))]
    few = [InEdges(torch.tensor([0, 2]), torch.zeros(2, dtype=torch.int64))]
    states = waiting @ weight
    reduce_each(many, [states], "sum")
    assert not states.waits
    try:
        use_kernel(TorchKernel())
        states = waiting @ weight
        reduce_each(few, [states], "sum")
        assert not states.waits
    finally:
        use_kernel(FusedKernel())


def test_a_gradient_that_is_looked_at_is_there() -> None:
    """Rows that require one, a hook, retain_grad; and none where the product was made without."""
    edges = [(torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 4]))]
    results = []
    for x in rows():
        weight = torch.linspace(-1, 1, 5 * WIDTH, dtype=torch.float64).view(5, WIDTH)
        weight.requires_grad_()
        seen: list[Tensor] = []
        hooked, retained = F.linear(x, weight), F.linear(x, weight)
        hooked.register_hook(seen.append)
        retained.retain_grad()
        with torch.no_grad():
            frozen = F.linear(x, weight)
        for states in (hooked, retained, frozen):
            (found,) = reduce_each(edges, [states], "mean")
            assert found.requires_grad is (states is not frozen)
            if found.requires_grad:
                (found ** 2).sum().backward()
        saliency = F.linear(x, weight.detach()).requires_grad_()
        (found,) = reduce_each(edges, [saliency], "mean")
        (found ** 2).sum().backward()
        x.requires_grad_()
        (found,) = reduce_each(edges, [F.linear(x, weight)], "sum")
        (direct,) = reduce_each(edges, [x], "mean")
        ((found ** 2).sum() + (direct ** 3).sum()).backward()
        results.append([seen[0], retained.grad, saliency.grad, x.grad, weight.grad])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


def test_what_would_be_wrong_is_refused() -> None:
    waiting, plain = rows()
    weight = torch.ones(WIDTH, 2, dtype=torch.float64)
    states = waiting @ weight
    weight.add_(1)
    with pytest.raises(HetaError, match="changed in place"):
        states + 0
    with pytest.raises(HetaError, match="cannot be replaced"):
        waiting.data = plain
    assert lazy_rows(np.zeros((3, 2), np.int64), np.array([0])) is None
    assert lazy_rows(np.zeros((3, 2, 2)), np.array([0])) is None
