"""Per-edge kernels of attention: against dense attention, against PyTorch operators, gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.nn import (
    BaseKernel,
    FusedKernel,
    TorchKernel,
    attention_across,
    messages,
    segments,
)
from dgl_heta.nn.kernels import sums_across
from dgl_heta.sampling.blocks import InEdges

HEADS, WIDTH = 2, 3
FUSED, TORCH = FusedKernel(), TorchKernel()


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    degrees = draw(st.lists(st.integers(0, 4), max_size=6))
    sources = draw(st.integers(1, 5))
    edges = sum(degrees)
    indices = draw(st.lists(st.integers(0, sources - 1), min_size=edges, max_size=edges))
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return torch.from_numpy(indptr), torch.tensor(indices, dtype=torch.int32), sources


def cases(kernel: BaseKernel, indptr: Tensor, indices: Tensor, sources: int
          ) -> list[tuple[Callable[..., Tensor], ...]]:
    """Each operator of a kernel with random inputs that collect gradients."""
    generator = torch.Generator().manual_seed(len(indices))

    def of(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    rows, edges, block = len(indptr) - 1, len(indices), [InEdges(indptr, indices)]
    k = kernel
    return [  # type: ignore[return-value]
        (lambda q, s: k.u_dot_v(block, [s], [q])[0], of(rows, HEADS, WIDTH), of(sources, WIDTH)),
        (lambda q, s: k.u_dot_v(block, [s], [q])[0], of(rows, HEADS, WIDTH),
         of(sources, HEADS, WIDTH)),
        (lambda s, d: k.u_add_v(block, [s], [d])[0], of(sources, HEADS), of(rows, HEADS)),
        (lambda s, d: k.u_add_v(block, [s], [d])[0], of(sources), of(rows)),
        (lambda s: k.edge_softmax(block, [s])[0], of(edges, HEADS)),
        (lambda v: k.copy_v(block, [v])[0], of(rows, HEADS)),
        (lambda w: k.e_sum(block, [w])[0], of(edges, HEADS)),
        (lambda w, s: k.u_mul_e_sum(block, [s], [w])[0], of(edges, HEADS), of(sources, WIDTH)),
        (lambda w, s: k.u_mul_e_sum(block, [s], [w])[0], of(edges, HEADS),
         of(sources, HEADS, WIDTH)),
        (lambda s: k.e_max(block, [s])[0], of(edges, HEADS)),
        (lambda s, a, d: k.u_attend(block, [s], [a], [d])[0], of(sources, WIDTH),
         of(HEADS, WIDTH), of(rows, HEADS)),
        (lambda s, a, d: k.u_attend(block, [s], [a], [d])[0], of(sources, HEADS, WIDTH),
         of(HEADS, WIDTH), of(rows, HEADS)),
    ]


def attention_of(kernel: BaseKernel, block: InEdges, queries: Tensor, states: Tensor) -> Tensor:
    """Scores, softmax and weighted sums of one relation."""
    weights = kernel.edge_softmax([block], kernel.u_dot_v([block], [states], [queries]))
    return kernel.u_mul_e_sum([block], [states], weights)[0]


@settings(max_examples=10, deadline=None)
@given(blocks())
def test_compiled_kernels_agree_with_pytorch_and_gradients_of_both_are_right(block) -> None:  # type: ignore[no-untyped-def]
    for (kernel, *inputs), (operators, *_) in zip(cases(FUSED, *block), cases(TORCH, *block)):
        got, want = kernel(*inputs), operators(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        if got.requires_grad and got.numel():
            assert torch.autograd.gradcheck(kernel, inputs)
            assert torch.autograd.gradcheck(operators, inputs)


@pytest.mark.parametrize("rows", [slice(0, 3), slice(1, 1), torch.tensor([4, 0, 2])])
def test_rows_and_products_of_one_tensor(rows: Tensor | slice) -> None:
    """What several operators read of it is added up in its gradient."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
              for shape in ((5, WIDTH), (WIDTH, HEADS), (HEADS,))]

    def read(kernel: BaseKernel) -> Callable[..., Tensor]:
        def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            (some,) = kernel.gather([x], [rows])
            first, second = kernel.project([x, x], [weight, 2 * weight], [None, bias])
            return torch.cat([some @ weight, first * second])
        return call

    torch.testing.assert_close(read(FUSED)(*inputs), read(TORCH)(*inputs))
    assert torch.autograd.gradcheck(read(FUSED), inputs)


@pytest.mark.parametrize(("rows", "sources"), [(0, 0), (0, 3), (4, 0), (4, 3)])
def test_a_block_without_edges(rows: int, sources: int) -> None:
    block = torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), sources
    for (kernel, *inputs), (operators, *_) in zip(cases(FUSED, *block), cases(TORCH, *block)):
        got = kernel(*inputs)
        torch.testing.assert_close(got, operators(*inputs))
        assert len(got) in (0, rows)
        if got.requires_grad:
            for grad in torch.autograd.grad(got.sum(), inputs):
                assert (grad == 0).all()


def test_scores_of_zero_and_what_is_no_number() -> None:
    """LeakyReLU's gradient at 0 is the slope, as PyTorch's; NaN is not hidden."""
    edges = InEdges(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 2, 2]))
    found = []
    for kernel in (FUSED, TORCH):
        x = torch.tensor([[1.0, -1], [-2, 2], [torch.nan, 1]], requires_grad=True)
        out = kernel.u_attend([edges], [x], [torch.ones(1, 2)], [torch.zeros(2, 1)])[0]
        assert out[1].isnan().all()
        (out[0] @ torch.tensor([1.0, 2])).sum().backward()
        found.append((out[0], x.grad[:2]))
    for got, want in zip(*found):
        torch.testing.assert_close(got, want)


def test_wide_rows_in_single_and_double_precision() -> None:
    generator = torch.Generator().manual_seed(1)
    block = InEdges(torch.arange(0, 401, 8),
                    torch.randint(30, (400,), generator=generator).int())
    queries = torch.randn(50, 4, 67, dtype=torch.float64, generator=generator)
    states = torch.randn(30, 67, dtype=torch.float64, generator=generator)

    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        inputs = [x.to(dtype).requires_grad_() for x in (queries, states)]
        exact = [x.clone().requires_grad_() for x in (queries, states)]
        got = attention_of(FUSED, block, *inputs)
        want = attention_of(TORCH, block, *exact)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=error, atol=error)
        for mine, right in zip(torch.autograd.grad(got.square().sum(), inputs),
                               torch.autograd.grad(want.square().sum(), exact)):
            torch.testing.assert_close(mine.double(), right, rtol=error, atol=10 * error)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_and_mixed_precision(dtype: torch.dtype) -> None:
    indptr, indices = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    for kernel, *inputs in cases(FUSED, indptr, indices, 2):
        got = kernel(*(x.to(dtype) for x in inputs))
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), kernel(*inputs), rtol=0.05, atol=0.05)
    weights, states = torch.rand(3, HEADS), torch.rand(2, WIDTH)
    block = [InEdges(indptr, indices)]
    (want,) = FUSED.u_mul_e_sum(block, [states], [weights])
    for some, others in (weights.to(dtype), states), (weights, states.to(dtype)):
        (got,) = FUSED.u_mul_e_sum(block, [others], [some])
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_together_they_are_dense_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, sources = 5, 7
    mask = torch.rand(rows, sources, generator=generator) < 0.5
    mask[2] = False
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    indices = mask.nonzero()[:, 1].int()
    queries = torch.randn(rows, HEADS, WIDTH, dtype=torch.float64, generator=generator)
    states = torch.randn(sources, WIDTH, dtype=torch.float64, generator=generator)
    got = attention_of(FUSED, InEdges(indptr, indices), queries, states)
    dense = torch.einsum("rhd,sd->rhs", queries, states).masked_fill(~mask[:, None], -torch.inf)
    want = torch.softmax(dense, 2).nan_to_num() @ states
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert (got[2] == 0).all()


def test_nan_and_infinity_are_not_lost() -> None:
    nan, inf = float("nan"), float("inf")
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0], dtype=torch.int32)
    states = torch.ones(2, 20)
    states[1, 7] = nan
    scores = messages.edge_dot(indptr, indices, states, torch.ones(2, 1, 20))
    assert scores.isnan().flatten().tolist() == [False, True, False]
    weights = segments.segment_softmax(indptr, scores)
    assert weights.isnan().flatten().tolist() == [True, True, False]
    assert segments.segment_max(indptr, scores)[:, 0].isnan().tolist() == [True, False]
    assert segments.segment_total(indptr, scores)[:, 0].isnan().tolist() == [True, False]
    ones = torch.ones(3, 1, requires_grad=True)
    sums = messages.weighted_sum(indptr, indices, states, ones)
    assert sums.isnan().nonzero().tolist() == [[0, 0, 7]]
    (grad,) = torch.autograd.grad(sums.sum(), ones)
    assert grad.isnan().flatten().tolist() == [False, True, False]
    states[1, 7] = -inf
    scores = messages.edge_dot(indptr, indices, states, torch.ones(2, 1, 20))
    assert scores.flatten().tolist() == [20, -inf, 20]
    assert segments.segment_softmax(indptr, scores).flatten().tolist() == [1, 0, 1]


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([[1e4], [1e4], [-1e4]])
    got = segments.segment_softmax(torch.tensor([0, 3]), scores)
    assert got.flatten().tolist() == [0.5, 0.5, 0]


def test_strides_do_not_matter() -> None:
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    for kernel, *inputs in cases(FUSED, indptr, indices, 2):
        apart = [torch.stack([x, x], -1).detach()[..., 0].requires_grad_() for x in inputs]
        assert not any(x.is_contiguous() for x in apart)
        got, want = kernel(*apart), kernel(*inputs)
        torch.testing.assert_close(got, want)
        if want.requires_grad:
            grad = torch.stack([torch.randn_like(want)] * 2, -1)[..., 0]
            for a, b in zip(torch.autograd.grad(got, apart, grad),
                            torch.autograd.grad(want, inputs, grad.contiguous())):
                torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused() -> None:
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    m, s = messages, segments
    with pytest.raises(InputError, match=r"destination rows .* \(2, 1, 4\); .* be \(2, 1, 2\)"):
        m.edge_dot(indptr, indices, torch.ones(2, 2), torch.ones(2, 1, 4))
    with pytest.raises(InputError, match=r"destination rows .* \(3, 3, 4\); .* be \(2, 3, 4\)"):
        m.edge_dot(indptr, indices, torch.ones(2, 4), torch.ones(3, 3, 4))
    with pytest.raises(InputError, match=r"destination rows .* \(2, 3, 4\); .* be \(2, 2, 4\)"):
        m.edge_dot(indptr, indices, torch.ones(2, 2, 4), torch.ones(2, 3, 4))
    with pytest.raises(InputError, match="1 source rows, but an edge starts at row 1"):
        m.weighted_sum(indptr, indices, torch.ones(1, 4), torch.ones(3, 1))
    for op in ("sum", "mean", "max", "min"):
        with pytest.raises(InputError, match="1 source rows, but an edge starts at row 1"):
            FUSED.reduce([InEdges(indptr, indices)], [torch.ones(1, 4)], op)
    with pytest.raises(InputError, match=r"weights .* \(2, 5\); it should be \(3, 5\)"):
        m.weighted_sum(indptr, indices, torch.ones(2, 4), torch.ones(2, 5))
    for kernel in (s.segment_softmax, s.segment_max, s.segment_total):
        for wrong in torch.ones(2, 1), torch.ones(4, 1), torch.ones(3):
            with pytest.raises(InputError, match=r"it should be \(3, heads\)"):
                kernel(indptr, wrong)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("most", [1, 5])
def test_attention_across_relations_and_its_gradients(most: int, shared: bool) -> None:
    """Eight products at a time and what is left of them; scores far apart; rows without edges."""
    torch.manual_seed(0)
    degrees = torch.randint(0, most, (3, 20))
    rows = [slice(0, 20), slice(5, 25), torch.randperm(30)[:20]]
    edges = [InEdges(torch.cat([torch.zeros(1, dtype=torch.int64), x.cumsum(0)]),
                     torch.randint(0, 9, (int(x.sum()),), dtype=torch.int32)) for x in degrees]
    states = (9, 13) if shared else (9, 2, 2, 10)  # for keys, values and all heads; or of each
    inner = states[-1]
    inputs = [torch.randn(size, dtype=torch.float64) for size in (
        *[states] * 3, (30, 2, 10), (3, 2, 10, inner), (3, 2, inner, 10), (3, 2, 2, 10))]
    inputs[3] *= 30
    found = []
    for kernel in (FUSED, TORCH):
        leaves = [x.clone().requires_grad_() for x in inputs]
        sums, top = kernel.attend_across(edges, rows, leaves[:3], *leaves[3:6],
                                         *leaves[6:] if shared else ())
        grads = torch.autograd.grad(sums.square().sum(), leaves[:6 + shared])
        assert not top.requires_grad
        found.append([sums, top, *grads])
    for got, want in zip(*found):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("change", "said"), [
    ({"sources": torch.zeros(3, 2, 2, 4)}, "starts at row 3"),
    ({"sources": torch.zeros(4, 2, 2, 5)}, "keys and values"),
    ({"sources": torch.zeros(4, 5)}, "weights of scores"),
    ({"rows": torch.tensor([0, 2])}, "starts at row 2"),
    ({"rows": torch.tensor([0])}, "numbers of rows"),
    ({"biases": torch.zeros(1, 2, 4)}, "biases"),
    ({"to_sums": torch.zeros(1, 2, 4, 5)}, "weights of sums")])
def test_attention_across_relations_reads_no_foreign_memory(change, said) -> None:  # type: ignore[no-untyped-def]
    given = {"sources": torch.zeros(4, 2, 2, 4), "rows": torch.tensor([0, 1]),
             "queries": torch.zeros(2, 2, 4), "to_scores": torch.zeros(1, 2, 4, 4),
             "to_sums": torch.zeros(1, 2, 4, 4), "biases": None} | change
    with pytest.raises(InputError, match=said):
        attention_across.attend_across(
            [InEdges(torch.tensor([0, 1, 2]), torch.tensor([0, 3]))], [given["rows"]],
            [given["sources"]], given["queries"], given["to_scores"], given["to_sums"],
            given["biases"])


@pytest.mark.parametrize("kernel", [FUSED, TORCH])
def test_scores_of_minus_infinity_alone_add_nothing(kernel: BaseKernel) -> None:
    """A row whose edges here are all masked may have others, by other workers and relations."""
    inf = float("inf")
    edges = [InEdges(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32))]
    scores = torch.tensor([[-inf], [-inf], [1.0]], requires_grad=True)
    states = torch.ones(2, 3, requires_grad=True)
    sums, top = sums_across(kernel, edges, [slice(0, 2)], [scores], 2, lambda weights: [
        x.flatten(1) for x in kernel.u_mul_e_sum(edges, [states], weights)])
    assert (sums.tolist(), top.tolist()) == ([[0.0] * 4, [1.0] * 4], [[-inf], [1.0]])
    assert all(x.isfinite().all() for x in torch.autograd.grad(sums.sum(), [scores, states]))
    # The first relation's scores overflow; the second reaches one of its two rows.
    low, high = (torch.full((1, 2, 1, 2), x, dtype=torch.float64, requires_grad=True)
                 for x in (-1e200, 0.0))
    queries = torch.full((2, 1, 2), 1e200, dtype=torch.float64, requires_grad=True)
    one = torch.eye(2, dtype=torch.float64).expand(2, 1, 2, 2)
    each = [InEdges(torch.tensor([0, 1, 2]), torch.tensor([0, 0])),
            InEdges(torch.tensor([0, 1]), torch.tensor([0]))]
    sums, top = kernel.attend_across(each, [slice(0, 2), slice(0, 1)], [low, high], queries, one,
                                     one)
    assert (sums.tolist(), top.tolist()) == ([[0.0, 0.0, 1.0], [0.0] * 3], [[0.0], [-inf]])
    assert all(x.isfinite().all() for x in torch.autograd.grad(sums.sum(), [low, high, queries]))


def test_attention_across_relations_is_compiled_once_for_all_processes() -> None:
    """A kernel that refers to another one of its own process is never found in the cache."""
    for _ in range(2):
        attention_across._passes.cache_clear()
        both = torch.ones(1, 2, 1, 2, requires_grad=True)
        sums, _ = FUSED.attend_across([InEdges(torch.tensor([0, 1]), torch.tensor([0]))],
                                      [slice(0, 1)], [both], torch.ones(1, 1, 2),
                                      *torch.ones(2, 1, 1, 2, 2))
        sums.sum().backward()
    for compiled in attention_across._passes(1, 2, 2, False):
        assert sum(compiled.stats.cache_hits.values()) == 1
