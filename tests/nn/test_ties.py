"""Of several edges with the maximum of a row the first has its gradient, by every kernel."""

from __future__ import annotations

import pytest
import torch

from dgl_heta.nn import BaseKernel, FusedKernel, TorchKernel
from dgl_heta.sampling.blocks import InEdges

EDGES = InEdges(torch.tensor([0, 3, 3, 5]), torch.tensor([2, 0, 1, 1, 0], dtype=torch.int32))
STATES = [[0.0, 3.0], [2.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(("kernel", "dtype"), [
    (FusedKernel(), torch.float64),  # compiled
    (FusedKernel(), torch.bfloat16),  # by PyTorch's operators, as on a GPU
    (TorchKernel(), torch.float64)])
@pytest.mark.parametrize("op", ["max", "min"])
def test_the_first_edge_has_the_gradient(kernel: BaseKernel, dtype: torch.dtype, op: str) -> None:
    sign = 1 if op == "max" else -1
    states = (sign * torch.tensor(STATES, dtype=dtype)).requires_grad_()
    (rows,) = kernel.reduce([EDGES], [states], op)
    assert (sign * rows).tolist() == [[2.0, 3.0], [0.0, 0.0], [2.0, 3.0]]
    rows.backward(torch.tensor([[1.0, 10.0], [100.0, 100.0], [1000.0, 10000.0]], dtype=dtype))
    assert states.grad is not None
    assert states.grad.tolist() == [[0.0, 10000.0 if dtype != torch.bfloat16 else 9984.0],
                                    [1000.0, 0.0], [1.0, 10.0]]


@pytest.mark.parametrize("kernel", [FusedKernel(), TorchKernel()])
def test_what_is_no_number_stays_none(kernel: BaseKernel) -> None:
    states = torch.tensor([[float("nan"), 1.0], [2.0, float("-inf")], [3.0, float("-inf")]])
    (rows,) = kernel.reduce([EDGES], [states], "max")
    assert rows[0, 0].isnan()
    assert rows[2].isnan().tolist() == [True, False]
    assert rows[:2, 1].tolist() == [1.0, 0.0]
