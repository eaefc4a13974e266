"""Adam for rows: one pass over the touched rows of value, first and second moment.

The same mathematics as `torch.optim.SparseAdam`: the bias correction counts steps of the
table, moments of rows that are not touched stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgl_heta.jit import kernel


@dataclass(frozen=True)
class AdamSettings:
    """Learning rate, moment decays and the constant under the root (Kingma and Ba 2014)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class RowTable:
    """Rows of learnable features with their optimizer state: CPU tensors (rows, width)."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.first = torch.zeros_like(value)
        self.second = torch.zeros_like(value)
        self.step = 0

    def state(self) -> dict[str, Tensor]:
        return {"value": self.value, "first": self.first, "second": self.second,
                "step": torch.tensor(self.step)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.value.copy_(state["value"])
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.step = int(state["step"])

    def update(self, rows: np.ndarray, grads: Tensor, scale: float, adam: AdamSettings) -> None:
        """One step on unique `rows` (int64) with `scale` times their gradients (rows, width)."""
        self.step += 1
        rate = adam.lr * math.sqrt(1 - adam.beta2**self.step) / (1 - adam.beta1**self.step)
        grads = grads.detach().to(self.value.device, self.value.dtype)
        number = np.float64 if self.value.dtype == torch.float64 else np.float32
        _fused_step(rows, grads.contiguous().numpy(), self.value.numpy(), self.first.numpy(),
                    self.second.numpy(), number(scale), number(rate), number(1 - adam.beta1),
                    number(1 - adam.beta2), number(adam.eps))


@kernel
def _fused_step(rows, grads, value, first, second, scale, rate, keep1, keep2, eps):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        g, x, m, v = grads[i], value[row], first[row], second[row]
        for k in range(len(g)):
            grad = g[k] * scale
            m[k] += keep1 * (grad - m[k])
            v[k] += keep2 * (grad * grad - v[k])
            x[k] -= rate * m[k] / (np.sqrt(v[k]) + eps)
