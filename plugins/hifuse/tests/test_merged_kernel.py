"""The kernel `merged` beside the reference, operator by operator."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from dgl_heta_hifuse import kernel as merged_kernel
from dgl_heta_hifuse.kernel import MergedKernel, MergedSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta import InputError
from dgl_heta.nn import BaseKernel, FusedKernel, Joined, TorchKernel, use_kernel
from dgl_heta.tools import InEdges

HEADS, WIDTH, OUT = 2, 3, 4
MERGED, TORCH = MergedKernel(), TorchKernel()
MERGED.settings = MergedSettings(few=0)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
Lists = list[Sequence[Tensor]]


class Case:
    """In-edges of several relations, some of them of the same source rows, and what operators are
    given: fresh leaves of the same values at each call."""

    def __init__(self, degrees: Sequence[Sequence[int]], sources: Sequence[int],
                 of: Sequence[int], dtype: torch.dtype = torch.float64) -> None:
        generator = np.random.default_rng(len(degrees))
        self.edges, self.of, self.sources, self.dtype = [], list(of), list(sources), dtype
        for each, at in zip(degrees, of):
            indptr = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
            indices = generator.integers(0, sources[at], int(indptr[-1])).astype(np.int32)
            self.edges.append(InEdges(torch.from_numpy(indptr), torch.from_numpy(indices)))
        self.rows = [len(csc.indptr) - 1 for csc in self.edges]
        self.counts = [len(csc.indices) for csc in self.edges]

    def lists(self, joined: bool, *shapes: tuple[str, tuple[int, ...]]
              ) -> tuple[Lists, list[Tensor]]:
        """Lists of tensors, and the leaves whose gradients are looked at. `joined` gives lists of
        rows or edges as one tensor."""
        generator, lists, leaves = torch.Generator().manual_seed(7), Lists(), list[Tensor]()

        def leaf(*shape: int) -> Tensor:
            leaves.append(torch.randn(*shape, dtype=self.dtype, generator=generator
                                      ).requires_grad_())
            return leaves[-1]

        for kind, shape in shapes:
            if kind == "source":
                states = [leaf(rows, *shape) for rows in self.sources]
                lists.append([states[at] for at in self.of])
                continue
            if kind == "weight":
                lists.append(leaf(len(self.of), *shape) if joined else  # type: ignore[arg-type]
                             [leaf(*shape) for _ in self.of])
                continue
            sizes = {"row": self.rows, "edge": self.counts}[kind]
            lists.append(Joined(leaf(sum(sizes), *shape), sizes) if joined else
                         [leaf(size, *shape) for size in sizes])
        return lists, leaves

    def chosen(self) -> list[Tensor | slice]:
        """Some rows of each relation's source states."""
        rows: list[Tensor | slice] = []
        for i, at in enumerate(self.of):
            count = self.sources[at]
            rows.append(slice(count // 3, count) if i % 2 else
                         torch.randperm(count, generator=torch.Generator().manual_seed(i))[::2])
        return rows


S, R, E = "source", "row", "edge"
OPERATORS: dict[str, tuple[Callable[[BaseKernel, Case, Lists], Sequence[Tensor]], Any]] = {
    "sum": (lambda k, c, x: k.reduce(c.edges, x[0], "sum"), [(S, (WIDTH,))]),
    "mean": (lambda k, c, x: k.reduce(c.edges, x[0], "mean"), [(S, (WIDTH,))]),
    "max": (lambda k, c, x: k.reduce(c.edges, x[0], "max"), [(S, (WIDTH,))]),
    "min": (lambda k, c, x: k.reduce(c.edges, x[0], "min"), [(S, (WIDTH,))]),
    "dot": (lambda k, c, x: k.u_dot_v(c.edges, x[0], x[1]), [(S, (WIDTH,)), (R, (HEADS, WIDTH))]),
    "dot, per head": (lambda k, c, x: k.u_dot_v(c.edges, x[0], x[1]),
                      [(S, (HEADS, WIDTH)), (R, (HEADS, WIDTH))]),
    "products of edges": (lambda k, c, x: k.u_mm(c.edges, x[0], x[1]),
                          [(S, (WIDTH,)), ("weight", (WIDTH, HEADS))]),
    "add": (lambda k, c, x: k.u_add_v(c.edges, x[0], x[1]), [(S, (HEADS,)), (R, (HEADS,))]),
    "spread": (lambda k, c, x: k.copy_v(c.edges, x[0]), [(R, (HEADS,))]),
    "softmax": (lambda k, c, x: k.edge_softmax(c.edges, x[0]), [(E, (HEADS,))]),
    "maxima": (lambda k, c, x: k.e_max(c.edges, x[0]), [(E, (HEADS,))]),
    "totals": (lambda k, c, x: k.e_sum(c.edges, x[0]), [(E, (HEADS,))]),
    "weighted": (lambda k, c, x: k.u_mul_e_sum(c.edges, x[0], x[1]),
                 [(S, (WIDTH,)), (E, (HEADS,))]),
    "weighted, per head": (lambda k, c, x: k.u_mul_e_sum(c.edges, x[0], x[1]),
                           [(S, (HEADS, WIDTH)), (E, (HEADS,))]),
    "gather": (lambda k, c, x: k.gather(x[0], c.chosen()), [(S, (HEADS, WIDTH))]),
    "products": (lambda k, c, x: k.matmul(x[0], x[1]), [(R, (WIDTH,)), ("weight", (WIDTH, OUT))]),
    "products, per head": (lambda k, c, x: k.matmul(x[0], x[1]),
                           [(R, (HEADS, WIDTH)), ("weight", (HEADS, WIDTH, OUT))]),
}


@st.composite
def some_cases(draw: st.DrawFn) -> Case:
    sources = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    relations = draw(st.integers(1, 5))
    degrees = draw(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=relations,
                            max_size=relations))
    of = draw(st.lists(st.integers(0, len(sources) - 1), min_size=relations, max_size=relations))
    return Case(degrees, sources, of, draw(st.sampled_from(list(TOLERANCES))))


def outcome(kernel: BaseKernel, case: Case, name: str, joined: bool) -> list[Tensor]:
    """Return an operator's result for each relation, and the gradients of its arguments."""
    function, shapes = OPERATORS[name]
    lists, leaves = case.lists(joined, *shapes)
    results = [*function(kernel, case, lists)]
    if all(x.requires_grad for x in results):
        generator = torch.Generator().manual_seed(1)
        sum((x * torch.randn(x.shape, dtype=x.dtype, generator=generator)).sum()
            for x in results).backward()  # type: ignore[union-attr]
    return [*(x.detach() for x in results),
            *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


def check(case: Case, name: str, joined: bool) -> None:
    limit = TOLERANCES[case.dtype]
    for got, want in zip(outcome(MERGED, case, name, joined), outcome(TORCH, case, name, joined),
                         strict=True):
        torch.testing.assert_close(got, want, rtol=limit, atol=limit)


@pytest.fixture(autouse=True)
def _elsewhere_than_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU the kernel is `fused` where kernels can be compiled."""
    monkeypatch.setattr(merged_kernel, "COMPILES", False)


@pytest.fixture
def leave_kernel() -> Iterator[None]:
    yield
    use_kernel(FusedKernel())


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("max", "min")])
@settings(max_examples=30, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=some_cases(), joined=st.booleans())
def test_operators_agree_with_the_reference(name: str, case: Case, joined: bool) -> None:
    check(case, name, joined)


@pytest.mark.parametrize("name", OPERATORS)
def test_two_hundred_relations_many_of_them_empty(name: str) -> None:
    generator = np.random.default_rng(0)
    degrees = [(generator.integers(0, 3, generator.integers(0, 9)) * (i % 3 > 0)).tolist()
               for i in range(200)]
    # One source row for each edge, so that maxima do not tie.
    case = Case(degrees, [50, 1, 7], generator.integers(0, 3, 200).tolist())
    check(case, name, joined=False)
    check(case, name, joined=True)


def test_gradients_of_all_operators_on_one_tensor_are_added() -> None:
    case = Case([[2, 0, 3], [1, 1]], [5], [0, 0])

    def gradient(kernel: BaseKernel) -> Tensor:
        states = torch.arange(15, dtype=torch.float64).view(5, 3).div(7).requires_grad_()
        hidden = torch.tanh(states)
        both = [hidden, hidden]
        scores = kernel.u_dot_v(case.edges, both, [
            x.unsqueeze(1) for x in kernel.gather(both, [slice(0, 3), slice(1, 3)])])
        out = kernel.u_mul_e_sum(case.edges, both, kernel.edge_softmax(case.edges, scores))
        sums = kernel.reduce(case.edges, both, "mean")
        total = kernel.scatter_sum([*(x.flatten(1) for x in out), *sums],
                                   [slice(0, 3), slice(2, 4), torch.tensor([3, 1, 0]), slice(0, 2)],
                                   torch.zeros(4, 3, dtype=torch.float64))
        ((total ** 2).sum() + (hidden[1:] ** 3).sum()).backward()
        assert states.grad is not None
        return states.grad

    torch.testing.assert_close(gradient(MERGED), gradient(TORCH))


def test_a_graph_can_be_gone_through_twice_and_in_parts() -> None:
    """A pass does not see the gradients that the one before has added."""
    case = Case([[2, 1], [3]], [4], [0, 0])
    states = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    other = torch.ones(1, dtype=torch.float64, requires_grad=True)
    out = torch.cat([*MERGED.reduce(case.edges, [states, states], "sum")]) * other
    (first,) = torch.autograd.grad(out.sum(), states, retain_graph=True)
    torch.autograd.grad(out.sum(), other, retain_graph=True)
    (second,) = torch.autograd.grad(out.sum(), states, retain_graph=True)
    torch.testing.assert_close(first, second)
    again = torch.cat([*MERGED.reduce(case.edges, [states, states], "sum")])
    (third,) = torch.autograd.grad(again.sum() + out.sum(), states)
    torch.testing.assert_close(third, 2 * first)


def test_a_tensor_changed_in_place_is_read_anew_or_refused() -> None:
    case = Case([[2, 1]], [4], [0])
    states = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    hidden = states * 2
    one = MERGED.reduce(case.edges, [hidden], "sum")[0]
    hidden.mul_(3)
    two = MERGED.reduce(case.edges, [hidden], "sum")[0]
    (grad,) = torch.autograd.grad((one + two).sum(), states)
    reference = torch.zeros(4, 3, dtype=torch.float64)
    reference.index_add_(0, case.edges[0].indices.long(), torch.ones(3, 3, dtype=torch.float64))
    torch.testing.assert_close(grad, reference * (2 + 6))


def test_nothing_is_kept_of_a_batch_whose_graph_is_gone() -> None:
    case = Case([[2, 1]], [4], [0])
    for changed in (False, True):  # a leaf, and what was made of one
        leaf = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        states = leaf * 2 if changed else leaf
        MERGED.reduce(case.edges, [states], "sum")[0].sum().backward()
        gone = weakref.ref(states)
        del states, leaf
        gc.collect()
        assert gone() is None


def test_products_that_do_not_fit_name_relation_and_dimension() -> None:
    words = (r"relation 1 of 2: rows of shape \(4, 3\) cannot .* weight of shape \(2, 5\); it "
             r"should be \(3, 5\)")
    with pytest.raises(InputError, match=words):
        MERGED.matmul([torch.zeros(4, 3)] * 2, [torch.zeros(3, 5), torch.zeros(2, 5)])


def test_few_relations_are_summed_as_by_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MERGED, "settings", MergedSettings(few=3))
    states = torch.randn(4, 3)
    for relations in (2, 3):
        case = Case([[2, 0], [1, 2], [1]][:relations], [4], [0, 0, 0][:relations])
        sums = MERGED.reduce(case.edges, [states] * relations, "sum")
        assert isinstance(sums, Joined) == (relations == 3)
        for got, want in zip(sums, TORCH.reduce(case.edges, [states] * relations, "sum")):
            torch.testing.assert_close(got, want)


def test_half_precision_and_other_shapes_go_other_ways() -> None:
    case = Case([[2, 0], [1, 2]], [4], [0, 0])
    states = torch.randn(4, 3)
    half = MERGED.reduce(case.edges, [states.to(torch.bfloat16)] * 2, "sum")
    for got, want in zip(half, TORCH.reduce(case.edges, [states] * 2, "sum")):
        torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    wide = [states, torch.randn(4, 5)]  # of another width
    for got, want in itertools.zip_longest(MERGED.reduce(case.edges, wide, "mean"),
                                           TORCH.reduce(case.edges, wide, "mean")):
        torch.testing.assert_close(got, want)


def test_models_name_the_relation_that_does_not_fit() -> None:
    from dgl_heta.graph.schema import Relation
    from dgl_heta.models.relations import Edges, Relations
    from dgl_heta.nn import kernel_in_use, use_kernel
    from dgl_heta.sampling.blocks import Block, RelationBlock

    relations = [Relation("a", "r", "b"), Relation("a", "s", "b")]
    into = {"b": tuple(relations)}
    blocks = [RelationBlock(r, 0, torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]).int(), i)
              for i, r in enumerate(relations)]
    block = Block(1, {"a": 3, "b": 2}, {"b": 2}, blocks, {}, False, into, into)
    states = {"a": torch.zeros(3, 4), "b": torch.zeros(2, 4)}
    edges = Relations([Edges(block, each, states) for each in blocks])
    before = kernel_in_use()
    use_kernel(MERGED)
    try:
        with pytest.raises(InputError, match="^relation 'a s b': 5 rows are given for 2"):
            edges.dot([torch.zeros(2, 1, 4), torch.zeros(5, 1, 4)])
        with pytest.raises(InputError, match=r"^relation 'a s b': rows of shape \(3, 4\) cannot"):
            edges.matmul([states["a"]] * 2, [torch.zeros(4, 2), torch.zeros(3, 2)])
        with pytest.raises(InputError, match="^relation 'a r b': 1 rows are given for 3"):
            edges.softmax([torch.zeros(1, 2), torch.zeros(3, 2)])
    finally:
        use_kernel(before)
