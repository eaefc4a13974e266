"""Feature rows that wait, beside the same rows gathered."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.deferred import LazyRows, lazy_rows

NODES, WIDTH = 40, 12


def rows(dtype: type = np.float64, seed: int = 0, count: int = 30) -> tuple[Tensor, Tensor]:
    """Rows (count, WIDTH) that wait, and a plain tensor of them."""
    generator = np.random.default_rng(seed)
    array = generator.standard_normal((NODES, WIDTH)).astype(dtype)
    ids = generator.integers(0, NODES, count)
    found = lazy_rows(array, ids)
    assert isinstance(found, LazyRows)
    return found, torch.from_numpy(array[ids])


def line(inputs: int, outputs: int) -> Tensor:
    """A weight (outputs, inputs)."""
    return torch.linspace(-1, 1, inputs * outputs, dtype=torch.float64).view(outputs, inputs)
