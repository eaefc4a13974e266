"""Sums of many relations by the kernel `merged`, beside the reference."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from dgl_heta_hifuse import kernel as merged_kernel
from dgl_heta_hifuse.kernel import MergedKernel, MergedSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta.nn import BaseKernel, FusedKernel, Joined, TorchKernel, use_kernel
from dgl_heta.tools import InEdges

WIDTH = 3
MERGED, TORCH = MergedKernel(), TorchKernel()
MERGED.settings = MergedSettings(few=0)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


class Case:
    """In-edges of several relations, some of them of the same source rows."""

    def __init__(self, degrees: Sequence[Sequence[int]], sources: Sequence[int],
                 of: Sequence[int], dtype: torch.dtype = torch.float64) -> None:
        generator = np.random.default_rng(len(degrees))
        self.edges, self.of, self.sources, self.dtype = [], list(of), list(sources), dtype
        for each, at in zip(degrees, of):
            indptr = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
            indices = generator.integers(0, sources[at], int(indptr[-1])).astype(np.int32)
            self.edges.append(InEdges(torch.from_numpy(indptr), torch.from_numpy(indices)))

    def states(self) -> tuple[Sequence[Tensor], list[Tensor]]:
        """The source states of each relation, fresh leaves of the same values at each call, and
        these leaves."""
        generator = torch.Generator().manual_seed(7)
        leaves = [torch.randn(n, WIDTH, dtype=self.dtype, generator=generator).requires_grad_()
                  for n in self.sources]
        return [leaves[at] for at in self.of], leaves


@st.composite
def some_cases(draw: st.DrawFn) -> Case:
    sources = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    relations = draw(st.integers(1, 5))
    degrees = draw(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=relations,
                            max_size=relations))
    of = draw(st.lists(st.integers(0, len(sources) - 1), min_size=relations, max_size=relations))
    return Case(degrees, sources, of, draw(st.sampled_from(list(TOLERANCES))))


def outcome(kernel: BaseKernel, case: Case, op: str) -> list[Tensor]:
    """Return the result for each relation, and the gradients of the states."""
    states, leaves = case.states()
    results = [*kernel.reduce(case.edges, states, op)]
    generator = torch.Generator().manual_seed(1)
    sum((x * torch.randn(x.shape, dtype=x.dtype, generator=generator)).sum()
        for x in results).backward()  # type: ignore[union-attr]
    return [*(x.detach() for x in results),
            *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


def check(case: Case, op: str) -> None:
    limit = TOLERANCES[case.dtype]
    for got, want in zip(outcome(MERGED, case, op), outcome(TORCH, case, op), strict=True):
        torch.testing.assert_close(got, want, rtol=limit, atol=limit)


@pytest.fixture(autouse=True)
def _elsewhere_than_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU the kernel is `fused` where kernels can be compiled."""
    monkeypatch.setattr(merged_kernel, "COMPILES", False)


@pytest.fixture
def leave_kernel() -> Iterator[None]:
    yield
    use_kernel(FusedKernel())


@pytest.mark.parametrize("op", ["sum", "mean"])
@settings(max_examples=30, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=some_cases())
def test_sums_agree_with_the_reference(op: str, case: Case) -> None:
    check(case, op)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_two_hundred_relations_many_of_them_empty(op: str) -> None:
    generator = np.random.default_rng(0)
    degrees = [(generator.integers(0, 3, generator.integers(0, 9)) * (i % 3 > 0)).tolist()
               for i in range(200)]
    # One source row for each edge, so that maxima do not tie.
    case = Case(degrees, [50, 1, 7], generator.integers(0, 3, 200).tolist())
    check(case, op)


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
