"""A table of learnable rows with their optimizer state: values, first and second moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.row_files import CPU, to_memory
from dgl_heta.features.row_kernels import gather_rows, gather_to
from dgl_heta.features.row_optimizers import AdamSettings, fused_step

BLOCK = 2**13  # rows of a table that are moved at a time


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
        if device.type != "cuda":
            return torch.from_numpy(gather_rows(self.value.numpy(), ids)).to(device)
        rows = torch.empty((len(ids), self.shape[1]), dtype=self.dtype, pin_memory=True)
        gather_to(self.value.numpy(), ids, rows.numpy(), np.arange(len(ids)))
        return rows.to(device, non_blocking=True)

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
        # Before the constants: steps count from 1, or the first correction would divide by 0.
        self.step += 1
        # On the CPU, where the table is; a GPU's gradient is copied once, of the touched rows
        # alone.
        grads = to_memory(grads.detach()).to(self.dtype)
        fused_step(rows, grads.contiguous().numpy(), self.value.numpy(), self.first.numpy(),
                   self.second.numpy(), *adam.constants(self.step, scale, self.dtype))
