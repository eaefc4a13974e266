"""Adam for rows: one pass over the touched rows of value, first and second moment.

The same mathematics as `torch.optim.SparseAdam`: the bias correction counts steps of the
table, moments of rows that are not touched stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """Learning rate, moment decays and the constant under the root (Kingma and Ba 2014)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class RowTable:
    """Rows of learnable features with their optimizer state, all of shape (rows, width)."""

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

    def update(self, rows: Tensor, grads: Tensor, adam: AdamSettings) -> None:
        """One step on unique `rows` (int64) with their gradients (rows, width)."""
        self.step += 1
        scale = adam.lr * math.sqrt(1 - adam.beta2**self.step) / (1 - adam.beta1**self.step)
        if self.value.device.type == "cpu":
            _fused_step(rows.numpy(), grads.contiguous().numpy(), self.value.numpy(),
                        self.first.numpy(), self.second.numpy(), scale, adam.beta1, adam.beta2,
                        adam.eps)
            return
        first = self.first[rows].lerp_(grads, 1 - adam.beta1)
        second = self.second[rows].lerp_(grads * grads, 1 - adam.beta2)
        self.first[rows], self.second[rows] = first, second
        self.value[rows] -= scale * first / (second.sqrt() + adam.eps)


@numba.njit(nogil=True, cache=True)
def _fused_step(rows, grads, value, first, second, scale, beta1, beta2, eps):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        for k in range(value.shape[1]):
            grad = grads[i, k]
            m = first[row, k] + (1 - beta1) * (grad - first[row, k])
            v = second[row, k] + (1 - beta2) * (grad * grad - second[row, k])
            first[row, k] = m
            second[row, k] = v
            value[row, k] -= scale * m / (math.sqrt(v) + eps)
