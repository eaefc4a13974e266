"""Static features with copies of some rows in faster memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.cache.slots import Slots
from dgl_heta.features.row_files import CPU, MappedRows, RowSource, move
from dgl_heta.features.row_kernels import gather_cached, gather_rows, gather_to

_FILL = 8 * 2**20  # bytes copied at a time
_REPLACING = threading.RLock()
"""Held from the look for rows until others have taken their slots: threads of several loaders read.
A thread takes it again where the rows come from another cache."""


class CachedRows:
    """Rows of a source, some of which are read from copies.

    Parameters
    ----------
    source : all rows.
    ids : rows to copy, int64, each once.
    devices : where the copies live; row `n` on device `n mod len(devices)`, and only there.
    replacement : None, "fifo" or "clock".

    Attributes
    ----------
    rows, hits : rows read so far, and those of them that were read from copies.
    """

    def __init__(self, source: RowSource, ids: np.ndarray, devices: Sequence[torch.device] = (CPU,),
                 replacement: str | None = None) -> None:
        self.source, self.devices = source, tuple(devices)
        self.shape, self.dtype = source.shape, source.dtype
        self.slots = Slots(source.shape[0], ids, len(self.devices), replacement)
        self.rows = self.hits = 0
        width = source.shape[1]
        self.copies = [torch.empty((len(rows_on), width), dtype=torch_dtype(source.dtype), device=d)
                       for rows_on, d in zip(self.slots.rows, self.devices)]
        step = max(_FILL // max(self.row_bytes, 1), 1)
        for copy, rows_on in zip(self.copies, self.slots.rows):
            for start in range(0, len(rows_on), step):
                rows = source.read(rows_on[start:start + step])
                copy[start:start + len(rows)].copy_(rows)
        self._staging = Staging()
        self._last: torch.cuda.Event | None = None

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the copies."""
        return len(self.slots) * self.row_bytes

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        """The rows `ids` (int64, in range), in their order, on a device: (ids, width)."""
        if not self.slots.replacement:
            return self._read(ids, device)
        with _REPLACING:
            # Another thread's stream writes what this one reads, and must not before it has.
            stream = (torch.cuda.current_stream(self.copies[0].device)
                      if self.copies[0].is_cuda else None)
            if stream is not None and self._last is not None:
                stream.wait_event(self._last)
            rows = self._read(ids, device)
            self._last = None if stream is None else stream.record_event()
            return rows

    def _read(self, ids: np.ndarray, device: torch.device) -> Tensor:
        self.rows += len(ids)
        if self.devices == (CPU,) and device == CPU and not self.slots.replacement:
            if self.slots.complete:
                self.hits += len(ids)
                return torch.from_numpy(gather_rows(self.copies[0].numpy(), ids))
            if (isinstance(self.source, MappedRows) and self.source.array.dtype.isnative
                    and self.source.cold is None):
                rows, hits = gather_cached(self.slots.of, self.copies[0].numpy(),
                                           self.source.array, ids)
                self.hits += hits
                return torch.from_numpy(rows)
        if self.devices == (device,) and self.slots.complete:
            self.hits += len(ids)
            return self.copies[0].index_select(0, move(torch.from_numpy(ids), device))
        places, slots, misses = self.slots.split(ids)
        self.hits += len(places)
        if self.devices == (CPU,) and device == CPU and self.dtype.isnative:
            rows = np.empty((len(ids), self.shape[1]), self.dtype)
            gather_to(self.copies[0].numpy(), slots, rows, places)
            self.source.read_to(ids[misses], rows, misses)
            self._admit(slots, ids[misses], misses, torch.from_numpy(rows))
            return torch.from_numpy(rows)
        out = torch.empty((len(ids), self.shape[1]), dtype=self.copies[0].dtype, device=device)
        missed = ids[misses]
        wait = self._staging.put(out, misses, lambda: self.source.read(missed, device))
        for index, copy in enumerate(self.copies):
            here = slice(None) if len(self.copies) == 1 else ids[places] % len(self.copies) == index
            where = move(torch.from_numpy(places[here]), device)
            taken = move(torch.from_numpy(slots[here]), copy.device)
            out.index_copy_(0, where, copy.index_select(0, taken).to(device))
        wait()
        self._admit(slots, missed, misses, out)
        return out

    def _admit(self, slots: np.ndarray, missed: np.ndarray, places: np.ndarray, out: Tensor
               ) -> None:
        """Let rows that were missed, and are in `out[places]`, take the places of others."""
        admitted, taken, _ = self.slots.admit(slots, missed)
        if len(admitted):
            rows = out.index_select(0, move(torch.from_numpy(places[admitted]), out.device))
            copy = self.copies[0]
            copy.index_copy_(0, move(torch.from_numpy(taken), copy.device), rows.to(copy.device))


class Staging:
    """Moves rows that were missed to a device; to a GPU on a stream of its own."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def put(self, out: Tensor, places: np.ndarray, read: Callable[[], Tensor]
            ) -> Callable[[], None]:
        """`out[places] = read()`, rows on the same device; call the result before `out` is used.

        On a GPU the copy runs beside what the caller does until then.
        """
        if out.device.type != "cuda":
            out.index_copy_(0, torch.from_numpy(places).to(out.device), read())
        if out.device.type != "cuda" or not len(places):
            return lambda: None
        if self._stream is None:
            self._stream = torch.cuda.Stream(out.device)
        self._stream.wait_stream(torch.cuda.current_stream(out.device))  # `out` was allocated there
        with torch.cuda.stream(self._stream):
            out.index_copy_(0, move(torch.from_numpy(places), out.device), read())
        out.record_stream(self._stream)
        event = self._stream.record_event()
        return lambda: torch.cuda.current_stream(out.device).wait_event(event)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """PyTorch's name of a dtype, of any byte order."""
    return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
