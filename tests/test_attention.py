"""Per-edge kernels of attention: against dense attention, against PyTorch operators, gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta.nn import attention

HEADS, WIDTH = 2, 3


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    degrees = draw(st.lists(st.integers(0, 4), max_size=6))
    sources = draw(st.integers(1, 5))
    edges = sum(degrees)
    indices = draw(st.lists(st.integers(0, sources - 1), min_size=edges, max_size=edges))
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return torch.from_numpy(indptr), torch.tensor(indices, dtype=torch.int32), sources


def cases(indptr: Tensor, indices: Tensor, sources: int) -> list[tuple[Callable[..., Tensor], ...]]:
    """Each kernel with random inputs that collect gradients."""
    generator = torch.Generator().manual_seed(len(indices))

    def of(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    rows, edges = len(indptr) - 1, len(indices)
    a = attention
    return [  # type: ignore[return-value]
        (lambda q, s: a.edge_scores(indptr, indices, q, s), of(rows, HEADS, WIDTH),
         of(sources, WIDTH)),
        (lambda s, d: a.edge_sum(indptr, indices, s, d), of(sources, HEADS), of(rows, HEADS)),
        (lambda s: a.segment_softmax(indptr, s), of(edges, HEADS)),
        (lambda v: a.edge_rows(indptr, v), of(rows, HEADS)),
        (lambda w: a.segment_total(indptr, w), of(edges, HEADS)),
        (lambda w, s: a.attend(indptr, indices, w, s), of(edges, HEADS), of(sources, WIDTH)),
        (lambda s: a.segment_max(indptr, s), of(edges, HEADS)),
    ]


@settings(max_examples=25, deadline=None)
@given(blocks())
def test_compiled_kernels_agree_with_pytorch_and_their_gradients_are_right(block) -> None:  # type: ignore[no-untyped-def]
    for kernel, *inputs in cases(*block):
        got = kernel(*inputs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "_compiled", lambda tensor: False)
            want = kernel(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        if got.requires_grad and got.numel():
            assert torch.autograd.gradcheck(kernel, inputs)


def test_together_they_are_dense_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, sources = 5, 7
    mask = torch.rand(rows, sources, generator=generator) < 0.5
    mask[2] = False
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    indices = mask.nonzero()[:, 1].int()
    queries = torch.randn(rows, HEADS, WIDTH, dtype=torch.float64, generator=generator)
    states = torch.randn(sources, WIDTH, dtype=torch.float64, generator=generator)
    scores = attention.edge_scores(indptr, indices, queries, states)
    got = attention.attend(indptr, indices, attention.segment_softmax(indptr, scores), states)
    dense = torch.einsum("rhd,sd->rhs", queries, states).masked_fill(~mask[:, None], -torch.inf)
    want = torch.softmax(dense, 2).nan_to_num() @ states
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert (got[2] == 0).all()


def test_nan_is_not_lost_and_strides_do_not_matter() -> None:
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    states = torch.tensor([[1.0, 2.0], [float("nan"), 3.0]])
    weights = torch.ones(3, 1)
    assert attention.attend(indptr, indices, weights, states)[:, 0, 0].isnan().all()
    top = attention.segment_max(indptr, torch.tensor([[float("nan")], [1.0], [2.0]]))
    assert top[0].isnan().all()
    assert top[1] == 2
    wide = torch.randn(2, 4)
    torch.testing.assert_close(attention.attend(indptr, indices, weights, wide[:, ::2]),
                               attention.attend(indptr, indices, weights,
                                                wide[:, ::2].contiguous()))
