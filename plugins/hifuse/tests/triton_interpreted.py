"""Compares the Triton kernels, run by Triton's interpreter, with PyTorch's operators; single
precision, which is what the interpreter of Triton 2.2 has.

`TRITON_INTERPRET=1 python triton_interpreted.py`; prints what it compared.
"""

from __future__ import annotations

import numpy as np
import torch
from dgl_heta_hifuse import layer_functions as f
from dgl_heta_hifuse import triton_kernels
from dgl_heta_hifuse.layer_edges import LayerEdges
from torch import Tensor
from triton.runtime import interpreter

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, RelationBlock

if hasattr(interpreter, "Builder"):
    interpreter.Builder.target = None  # Triton 2.2 asks it which GPU there is


def layer() -> LayerEdges:
    """Two relations, one of more edges than a tile has, into rows of which some have none."""
    generator, parts = np.random.default_rng(0), []
    for place, (ends, degree) in enumerate(((("a", "r", "b"), 9), (("b", "s", "b"), 3))):
        indptr = np.concatenate([[0], np.cumsum(generator.integers(0, degree, 20))])
        parts.append(RelationBlock(
            Relation(*ends), 0, torch.from_numpy(indptr),
            torch.from_numpy(generator.integers(0, 30, indptr[-1]).astype(np.int32)), place))
    return LayerEdges(Block(1, {"a": 30, "b": 30}, {"b": 20}, parts, {}, False, {}, {}))


def outcome(function: type[torch.autograd.Function], by_triton: bool, *args: object
            ) -> list[Tensor | None]:
    """The result, and the gradients of tensors."""
    triton_kernels.takes = lambda *tensors: by_triton
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in args]
    out = function.apply(*leaves)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(x.grad for x in leaves if isinstance(x, Tensor))]


def main() -> None:
    torch.manual_seed(0)
    edges, width, heads, each = layer(), 6, 2, 3
    assert len(edges.source) > 64 < len(edges.degree)
    states = torch.randn(60, width)
    weights, vectors = torch.randn(2, width, heads * each), torch.randn(4, heads, each)
    for name, function, *args in (
            ("sums", f.Reduce, states, edges, "sum"), ("means", f.Reduce, states, edges, "mean"),
            ("attention", f.Attention, states, weights, vectors, edges)):
        got, want = (outcome(function, by, *args) for by in (True, False))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        print(name, len(got))


if __name__ == "__main__":
    main()
