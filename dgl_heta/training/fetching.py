"""The stage of batches after sampling: rows that no step changes, and copies to the device.

It may run ahead of training. Learnable rows are not read here: a step changes them, so those of a
batch are read when the step before it has updated them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dgl_heta.features import StaticFeatures
from dgl_heta.hooks.protocols import InputReader
from dgl_heta.sampling.blocks import MiniBatch


class Fetching:
    """Reads static rows of batches, and copies them and the edges to the device.

    On a GPU copies go from pinned memory and on a stream of their own. Training waits there for
    those of its batch alone.
    """

    def __init__(self, static: StaticFeatures, precomputed: InputReader | None,
                 device: torch.device) -> None:
        self._static, self._precomputed, self._device = static, precomputed, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def of_pass(self) -> Iterator[None]:
        """Around the batches of a pass: before and after it, caches on the device are read and
        written on the current stream."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(self._stream)

    def fetch(self, batch: MiniBatch) -> MiniBatch:
        """Read the static rows of a batch, and move it to the device."""
        if self._stream is None:
            batch.rows = self._read(batch)
            return batch
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            batch.rows = self._read(batch)
            batch.to(self._device)
            batch.copied = self._stream.record_event()
        return batch

    def arrive(self, batch: MiniBatch) -> MiniBatch:
        """Training takes a batch, on the current stream."""
        if batch.copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(batch.copied)
            batch.keep(current)  # memory that was allocated on the other one
            for rows in (batch.rows or {}).values():
                rows.record_stream(current)
            batch.copied = None
        return batch

    def rows(self, batch: MiniBatch) -> dict[str, torch.Tensor]:
        """The static rows of a batch, once those that were read with it, else read now."""
        rows, batch.rows = batch.rows, None
        return self._read(batch) if rows is None else rows

    def _read(self, batch: MiniBatch) -> dict[str, torch.Tensor]:
        if self._precomputed is not None:
            return self._precomputed.read(batch, self._device)
        return self._static.read(batch.input_nodes)
