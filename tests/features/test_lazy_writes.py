"""Feature rows that wait and are written in place are those of plain tensors, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dgl_heta.errors import HetaError
from dgl_heta.features import chunks
from dgl_heta.features.deferred import LazyRows
from tests.support.feature_rows import WIDTH, line, rows


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Few rows are read in several pieces."""
    before, chunks.CHUNK = chunks.CHUNK, 7 * WIDTH * 8
    yield
    chunks.CHUNK = before


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("product", [False, True])
def test_writing_in_place_is_seen_by_all_views(dtype: type, product: bool) -> None:
    results = []
    for x in rows(dtype):
        x = x.double()
        x = x @ torch.eye(WIDTH, 4, dtype=torch.float64) if product else x
        early, other = x[4:8], x[6:]
        before = other + 0
        early.add_(1)
        x[0] = 7
        x.t()[2, 3] = 9
        torch.mul(x, 2, out=x)
        assert early.mul_(3) is early
        results.append([before, x + 0, early + 0, other + 0, x[3:7] + 0])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


WRITES: dict[str, Callable[[Tensor], object]] = {
    "columns of a slice": lambda x: x[:5, -3:].zero_(),
    "row of a copy without gradient": lambda x: x.detach()[2].fill_(7),
    "column of everything": lambda x: x[:][:, 1].mul_(2),
    "every second of a slice": lambda x: x[2:9][::2].add_(1),
    "transposed": lambda x: x.t()[1:3].add_(1),
    "single": lambda x: x[3][2].fill_(5),
    "view": lambda x: x.view(len(x), 2, -1)[:, 1].neg_(),
    "diagonal": lambda x: x.diagonal().zero_(),
    "rows of contiguous": lambda x: x.contiguous()[:2].zero_(),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("product", [False, True])
def test_writing_through_a_view_is_seen(name: str, product: bool) -> None:
    results = []
    for x in rows():
        x = x @ torch.eye(WIDTH, 4, dtype=torch.float64) if product else x
        WRITES[name](x)
        results.append(x + 0)
    assert torch.equal(*results)


def test_gradients_of_rows_written_in_place_are_right_or_refused() -> None:
    results = []
    for x in rows():
        weight = torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.float64).view(4, WIDTH)
        weight.requires_grad_()
        states = F.linear(x, weight)
        F.relu(states, inplace=True)
        with torch.no_grad():
            weight.grad = None
        (states[:7] ** 2).sum().backward()
        results.append(weight.grad)
    torch.testing.assert_close(*results)
    writes: list[Callable[[Tensor, Tensor], object]] = [
        lambda y, _: y[:3].add_(1), lambda y, _: y.relu_(), lambda _, part: part.mul_(2)]
    for write in writes:
        states = F.linear(rows()[0], weight)
        part = states[:7]
        with pytest.raises(HetaError, match="cannot be written in place"):
            write(states, part)


def nothing(states: Tensor, some: Tensor) -> None:
    """What is never refused."""


@pytest.mark.parametrize("use", ["slice", "all rows", "column of all", "column of slice", "both"])
@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("write", [
    nothing, lambda s, a: a[:, 0].fill_(7), lambda s, a: a[0].fill_(7),
    lambda s, a: a.mul_(2), lambda s, a: s[:, 0].fill_(7), lambda s, a: s.relu_(),
    lambda s, a: a.t()[0].fill_(7), lambda s, a: a.__setitem__(0, 3.0)])
def test_gradients_of_some_rows_of_a_product_are_right_or_refused(
        write: Callable[[Tensor, Tensor], object], graded: bool, use: str) -> None:
    """Some rows are written to, or all, or a column of these."""
    results = []
    for x in rows():
        weight, bias = line(WIDTH, 5).requires_grad_(), line(5, 1)[:, 0].requires_grad_()
        states = F.linear(x, weight, bias)
        some = states[:4]
        columns = states[:, 1], some[:, 1]
        try:
            with torch.set_grad_enabled(graded):
                write(states, some)
            used = {"slice": [some], "all rows": [states], "column of all": columns[:1],
                    "column of slice": columns[1:], "both": [some, states]}[use]
            sum((y ** 3).sum() for y in used).backward()
        except (HetaError, RuntimeError):
            assert isinstance(states, LazyRows)
            assert write is not nothing
            return
        results.append([weight.grad, bias.grad, some + 0, states + 0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("use", [lambda s: s, lambda s: s[:4], lambda s: s[:4][1:3],
                                 lambda s: s[-3:], lambda s: s[:20]])
def test_gradients_of_rows_and_of_gradients(use: Callable[[Tensor], Tensor]) -> None:
    """Of the rows themselves, by a hook and by two passes; of weights, and of these again."""
    results = []
    for x in rows():
        weight, bias = line(WIDTH, 5).requires_grad_(), line(5, 1)[:, 0].requires_grad_()
        states = F.linear(x, weight, bias)
        used = use(states)
        seen: list[Tensor] = []
        used.register_hook(seen.append)
        loss = (used ** 3).sum()
        (own,) = torch.autograd.grad(loss, used, retain_graph=True)
        first = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        second = torch.autograd.grad(sum((y ** 2).sum() for y in first), (weight, bias))
        results.append([own, *seen, *(y.detach() for y in first), *second])
    torch.testing.assert_close(*results)


def test_rows_that_are_read_are_not_written() -> None:
    results = []
    for x in rows():
        weight = line(WIDTH, 5).requires_grad_()
        states = F.linear(x, weight)
        out = torch.zeros(30, 5, dtype=torch.float64)
        out[:9] = states[:9]
        out += states
        out[20:].copy_(states[20:])
        (out ** 2).sum().backward()
        results.append([out.detach(), weight.grad, states[:9] + 0])
    torch.testing.assert_close(*results)


def test_some_rows_of_a_product_give_no_gradient_to_all() -> None:
    """Which would be zeros for most."""
    states = F.linear(rows()[0], line(WIDTH, 5).requires_grad_())
    assert type(states[:15].grad_fn).__name__ == "_FewRowsBackward"
    assert type(states[:16].grad_fn).__name__ == "SliceBackward0"
    with pytest.raises(HetaError, match="cannot be written in place"):
        states[:4].add_(1)


IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "all": lambda x: x.relu_(), "columns": lambda x: x[:, 1:3].zero_(),
    "a row": lambda x: x[1].fill_(7), "transposed": lambda x: x.t()[2].add_(1),
    "a view": lambda x: x.view(-1)[3:20].mul_(2), "data": lambda x: x.data.mul_(2),
    "rows apart": lambda x: [row.neg_() for row in x.unbind()[:5]],
    "dropout": lambda x: F.dropout(x, 0.9, True, inplace=True),
    "an array": lambda x: x.detach().numpy().__setitem__(slice(2, 5), 1.0)}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_product_is_of_rows_as_they_were(name: str) -> None:
    """Its factor, or a part's, is written to when the product waits already."""
    results = []
    with torch.no_grad():
        for x in rows():
            torch.manual_seed(0)
            states = x @ line(5, WIDTH)
            part = states[:4]
            early, late = states @ line(6, 5), states @ line(4, 5)
            kept = late + 0
            IN_PLACE[name](states)
            results.append([early + 0, kept, late + 0, states + 0, part + 0, early[2:4] * 1])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
