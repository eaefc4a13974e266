"""Optimizers of learnable rows: steps on the rows that a batch has touched, and on no others.

Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980) is here in two semantics, which differ in
what the bias correction counts, and so in their results:

============== ============================ =====================================================
               steps of the table           steps of each row
============== ============================ =====================================================
follows        `torch.optim.SparseAdam`     `dgl.distributed.optim.SparseAdam` (DGL 2.1)
used by        `dgl-heta train`             DistDGL scripts (`DistEmbedding`)
kernels        :func:`fused_step`,          :func:`adam_by_row`
               :func:`cached_step`,
               :func:`step_by_operators`
t counts       updates of the table         updates that had a gradient for this row
gradient g     summed over workers, scaled  the mean over the times that the row was read
============== ============================ =====================================================

In both, moments of rows that are not touched stay as they are. With gradient g in step t,

    m ← m + (1 - β₁)(g - m)
    v ← v + (1 - β₂)(g² - v)
    x ← x - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε)        steps of the table
    x ← x - lr m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)       steps of each row

so ε, too, is added before the correction of v in one and after it in the other.

SparseAdagrad (:func:`adagrad_by_row`) follows DGL 2.1 on CPUs, for scripts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row


@dataclass(frozen=True)
class AdamSettings:
    """Learning rate, moment decays and the constant beside the root (Kingma and Ba 2015)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def constants(self, step: int, scale: float, dtype: torch.dtype) -> tuple[Any, ...]:
        """Scale, rate, 1 - β₁, 1 - β₂ and ε in the table's type: the last arguments of its kernels.

        Parameters
        ----------
        step : t, the table's; from 1.
        scale : what gradients are multiplied by.
        """
        rate = self.lr * math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)
        number = np.float64 if dtype == torch.float64 else np.float32
        return tuple(number(x) for x in (scale, rate, 1 - self.beta1, 1 - self.beta2, self.eps))


@kernel
def fused_step(rows, grads, value, first, second, scale, rate, keep1, keep2, eps):  # type: ignore[no-untyped-def]
    """The step of unique `rows` of value, first and second moment, in place; steps of the table."""
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


@kernel
def cached_step(rows, slots, grads, cached, value, first, second, scale, rate, keep1, keep2, eps):  # type: ignore[no-untyped-def]
    """:func:`fused_step` where some rows have their state `[value | first | second]` in a cache.

    `slots` has each row's slot in `cached`, -1 where it has none.
    """
    width = grads.shape[1]
    for i in range(len(rows)):
        prefetch(slots, rows, i + AHEAD)
        if i + AHEAD < len(rows):
            ahead = slots[rows[i + AHEAD]]
            if ahead >= 0:
                prefetch_row(cached, ahead)
            else:
                prefetch_row(value, rows[i + AHEAD])
                prefetch_row(first, rows[i + AHEAD])
                prefetch_row(second, rows[i + AHEAD])
        row, slot = rows[i], slots[rows[i]]
        # Written out twice, as views that are one or the other would be reference-counted, with
        # locked instructions, in every round.
        if slot >= 0:
            state = cached[slot]
            for k in range(width):
                grad = grads[i, k] * scale
                state[width + k] += keep1 * (grad - state[width + k])
                state[2 * width + k] += keep2 * (grad * grad - state[2 * width + k])
                state[k] -= rate * state[width + k] / (np.sqrt(state[2 * width + k]) + eps)
        else:
            for k in range(width):
                grad = grads[i, k] * scale
                first[row, k] += keep1 * (grad - first[row, k])
                second[row, k] += keep2 * (grad * grad - second[row, k])
                value[row, k] -= rate * first[row, k] / (np.sqrt(second[row, k]) + eps)


def step_by_operators(state: Tensor, grads: Tensor, constants: tuple[Any, ...]) -> Tensor:
    """The same step of rows `[value | first | second]`, in place, by PyTorch operators, for GPUs.

    One rounding per operation, in the order of :func:`fused_step`, so the bits are the same where
    operators round correctly. PyTorch's square root on CPUs does not (MKL, up to one unit).
    """
    # Floats, not NumPy scalars; an operator rounds them to the tensors' type.
    scale, rate, keep1, keep2, eps = map(float, constants)
    value, first, second = state.chunk(3, 1)
    grads = grads if scale == 1 else grads * scale
    first += (grads - first) * keep1
    second += (grads * grads - second) * keep2
    value -= first * rate / (second.sqrt() + eps)
    return state


@kernel
def adam_by_row(rows, at, grads, counts, value, step, first, second, lr, beta1, keep1, beta2,
                keep2, eps):  # type: ignore[no-untyped-def]
    """The step of unique `rows` of value, step count and moments, in place; steps of each row.

    The gradient of `rows[i]` is `grads[at[i]] / counts[i]`. float32 throughout, as DGL's operators.
    """
    one = np.float32(1)
    for i in range(len(rows)):
        prefetch(value, rows, i)
        prefetch(step, rows, i)
        prefetch(first, rows, i)
        prefetch(second, rows, i)
        prefetch(grads, at, i)
        row = rows[i]
        step[row] += one
        correct1 = one / (one - beta1 ** step[row])
        correct2 = one / (one - beta2 ** step[row])
        scale = one / counts[i]
        x, m, v, g = value[row], first[row], second[row], grads[at[i]]
        for k in range(len(g)):
            grad = g[k] * scale
            m[k] = beta1 * m[k] + keep1 * grad
            v[k] = beta2 * v[k] + keep2 * grad * grad
            x[k] -= lr * m[k] * correct1 / (np.sqrt(v[k] * correct2) + eps)


@kernel
def adagrad_by_row(rows, at, grads, counts, value, total, lr, eps):  # type: ignore[no-untyped-def]
    """A step of dgl.distributed.optim.SparseAdagrad of DGL 2.1 on CPUs; arguments as above.

    It keeps √(Σ + g²) + ε as the next step's Σ.
    """
    for i in range(len(rows)):
        prefetch(value, rows, i)
        prefetch(total, rows, i)
        prefetch(grads, at, i)
        x, s, g = value[rows[i]], total[rows[i]], grads[at[i]]
        for k in range(len(g)):
            grad = g[k] / counts[i]
            s[k] = np.sqrt(s[k] + grad * grad) + eps
            x[k] -= lr * grad / s[k]
