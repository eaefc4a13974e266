"""On a real GPU: Triton beside PyTorch's operators, and the CPU's batches, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dgl_heta_hifuse import layer_functions as functions
from dgl_heta_hifuse.device_sampling import DeviceLayers
from dgl_heta_hifuse.layer_edges import LayerEdges
from torch import Tensor

from dgl_heta import Relation
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import Block, RelationBlock
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from tests.support.drawn_graphs import bits
from tests.support.graphs import academic
from tests.support.pretended_worker import REAL

pytestmark = pytest.mark.gpu


def edges(sources: int) -> LayerEdges:
    """Two relations: rows of no edge, of few, and one of most edges."""
    generator, parts = np.random.default_rng(0), []
    for place, (ends, most) in enumerate(((("a", "r", "b"), 60), (("b", "s", "b"), 4))):
        degrees = generator.integers(0, most, 300)
        degrees[7] = 3000
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        parts.append(RelationBlock(
            Relation(*ends), 0, torch.from_numpy(indptr),
            torch.from_numpy(generator.integers(0, sources, indptr[-1]).astype(np.int32)), place))
    made = LayerEdges(Block(1, {"a": sources, "b": sources}, {"b": 300}, parts, {}, False, {}, {}))
    made.move(iter([x.cuda() for x in made.tensors()]))
    return made


def outcome(function: Callable[..., Tensor], *args: Any) -> list[Tensor]:
    """The result, and the gradients of tensors."""
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in args]
    out = function(*leaves)
    (out * torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)).sum().backward()
    return [out.detach(), *(x.grad for x in leaves if isinstance(x, Tensor) and x.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("width", "heads", "each"), [(1, 1, 1), (6, 2, 3), (64, 4, 16),
                                                      (300, 8, 40)])
def test_triton_computes_what_pytorchs_operators_do(
        dtype: torch.dtype, width: int, heads: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    of, states = edges(500), torch.randn(1000, width, dtype=dtype, device="cuda")
    weights, vectors = (torch.randn(shape, dtype=dtype, device="cuda") for shape in (
        (2, width, heads * each), (4, heads, each)))
    assert functions.fused is not None
    assert functions.fused.takes(states) == REAL
    for function, *args in ((functions.Reduce, states, of, "sum"),
                            (functions.Reduce, states, of, "mean"),
                            (functions.Attention, states, weights, vectors, of)):
        got = outcome(function.apply, *args)
        with monkeypatch.context() as patch:
            patch.setattr(functions, "fused", None)
            want = outcome(function.apply, *args)
        for x, y in zip(got, want, strict=True):
            scale = float(y.abs().max())
            assert float((x - y).abs().max()) <= scale * (1e-12 if dtype.itemsize == 8 else 1e-4)


def test_batches_that_it_samples_are_those_of_the_cpu_bit_for_bit(tmp_path: Path) -> None:
    write_store(academic(papers=3000), tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = make_plan(store.schema, "paper", 2, 1)
    for fanouts in ([3, 4], [-1, 2], [40, 7]):
        sampler = NeighborSampler(store, SamplingScope.of(plan, 0), fanouts)
        layers = DeviceLayers(sampler, torch.device("cuda", 0))
        layers.load()
        there = sampler.on(layers)
        for step in range(5):
            seeds = {"paper": np.random.default_rng(step).permutation(3000)[:256]}
            want, got = (by.sample(seeds, None, step) for by in (sampler, there))
            assert bits(got.to(torch.device("cpu"))) == bits(want)
