"""Adam for rows: one pass over the touched rows of value, first and second moment.

Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980), as `torch.optim.SparseAdam` has it: with
gradient g of a touched row in step t of the table,

    m ← m + (1 - β₁)(g - m)
    v ← v + (1 - β₂)(g² - v)
    x ← x - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε)

The bias correction counts steps of the table; moments of rows that are not touched stay as they
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.files import CPU
from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

BLOCK = 2**13  # rows of a table that are moved at a time


@dataclass(frozen=True)
class AdamSettings:
    """Learning rate, moment decays and the constant under the root (Kingma and Ba 2015)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class RowTable:
    """Rows of learnable features with their optimizer state: CPU tensors (rows, width).

    Parameters
    ----------
    value : the rows.
    first, second : their moments; default: zeros.
    """

    def __init__(self, value: Tensor, first: Tensor | None = None, second: Tensor | None = None
                 ) -> None:
        self.value = value
        self.first = torch.zeros_like(value) if first is None else first
        self.second = torch.zeros_like(value) if second is None else second
        self.step = 0
        self.evict: Callable[[], None] | None = None
        """Drops the rows from memory where they are a file's; None where they are not."""
        self.prefetch: Callable[[np.ndarray], None] | None = None
        """Asks for rows of a file that does not fit in memory, before they are read."""

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def bytes(self) -> int:
        """Bytes of all rows with their moments."""
        return 3 * self.value.nbytes

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        """Values of the rows `ids` (int64, in range), in their order."""
        if self.prefetch is not None:
            self.prefetch(ids)
        return torch.from_numpy(gather_rows(self.value.numpy(), ids)).to(device)

    def blocks(self) -> Iterator[dict[str, Tensor]]:
        """All rows, in order, a block of value, first and second moment at a time."""
        for start in range(0, len(self.value), BLOCK):
            part = slice(start, start + BLOCK)
            yield {"value": self.value[part], "first": self.first[part],
                   "second": self.second[part]}

    def load(self, blocks: Iterable[Mapping[str, Tensor]], step: int) -> None:
        """Take over all rows, as :meth:`blocks` gives them, and the number of steps."""
        start = 0
        for block in blocks:
            part = slice(start, start + len(block["value"]))
            self.value[part].copy_(block["value"])
            self.first[part].copy_(block["first"])
            self.second[part].copy_(block["second"])
            start += len(block["value"])
        self.step = step

    def update(self, rows: np.ndarray, grads: Tensor, scale: float, adam: AdamSettings) -> None:
        """One step on unique `rows` (int64) with `scale` times their gradients (rows, width)."""
        self.step += 1
        grads = grads.detach().to("cpu", self.dtype)
        fused_step(rows, grads.contiguous().numpy(), self.value.numpy(), self.first.numpy(),
                   self.second.numpy(), *self.constants(scale, adam))

    def constants(self, scale: float, adam: AdamSettings) -> tuple[Any, ...]:
        """Scale, rate, 1 - β₁, 1 - β₂ and ε of the step that is counted, in the table's type."""
        rate = adam.lr * math.sqrt(1 - adam.beta2**self.step) / (1 - adam.beta1**self.step)
        number = np.float64 if self.dtype == torch.float64 else np.float32
        return tuple(number(x) for x in (scale, rate, 1 - adam.beta1, 1 - adam.beta2, adam.eps))


@kernel
def fused_step(rows, grads, value, first, second, scale, rate, keep1, keep2, eps):  # type: ignore[no-untyped-def]
    """The step of `rows` of value, first and second moment, in place."""
    for i in range(len(rows)):
        prefetch(value, rows, i)
        prefetch(first, rows, i)
        prefetch(second, rows, i)
        row = rows[i]
        g, x, m, v = grads[i], value[row], first[row], second[row]
        for k in range(len(g)):
            grad = g[k] * scale
            m[k] += keep1 * (grad - m[k])
            v[k] += keep2 * (grad * grad - v[k])
            x[k] -= rate * m[k] / (np.sqrt(v[k]) + eps)


def step_by_operators(state: Tensor, grads: Tensor, constants: tuple[Any, ...]) -> Tensor:
    """The same step of rows `[value | first | second]` by PyTorch operators, for GPUs.

    One rounding per operation, in the order of :func:`fused_step`, so the bits are the same where
    operators round correctly. PyTorch's square root on CPUs does not (MKL, up to one unit).
    """
    # Floats, not NumPy scalars; an operator rounds them to the tensors' type.
    scale, rate, keep1, keep2, eps = map(float, constants)
    value, first, second = state.chunk(3, 1)
    grads = grads * scale
    first = first + (grads - first) * keep1
    second = second + (grads * grads - second) * keep2
    value = value - first * rate / (second.sqrt() + eps)
    return torch.cat([value, first, second], 1)
