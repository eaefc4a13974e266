"""Learnable features with copies of some rows, optimizer state included, in faster memory.

Updates of a cached row go to its copy; the table below sees them when it is read as a whole (a
checkpoint, the end) or when the row leaves the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.cache.cached_rows import CPU, Staging
from dgl_heta.cache.slots import Slots
from dgl_heta.features.row_files import move, to_memory
from dgl_heta.features.row_optimizers import (
    AdamSettings,
    cached_step,
    fused_step,
    step_by_operators,
)
from dgl_heta.features.row_table import BLOCK, RowTable
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row


class CachedTable:
    """A :class:`RowTable` some of whose rows live elsewhere.

    Parameters
    ----------
    table : all rows.
    ids, devices, replacement : as for :class:`dgl_heta.cache.cached_rows.CachedRows`.
    starts : first rows of the ranges to count reads of, ascending from 0.
    copies : per device memory for the copies (rows, 3 width); default: new.

    Attributes
    ----------
    rows, hits : per range the rows read so far, and those of them that were read from copies.
    """

    def __init__(self, table: RowTable, ids: np.ndarray, devices: Sequence[torch.device] = (CPU,),
                 replacement: str | None = None, starts: Sequence[int] = (0,),
                 copies: Sequence[Tensor] | None = None) -> None:
        self.table, self.devices = table, tuple(devices)
        self.shape, self.dtype = table.shape, table.dtype
        self.width = table.shape[1]
        self.slots = Slots(table.shape[0], ids, len(self.devices), replacement)
        self._starts = np.asarray(starts, np.int64)
        self.rows, self.hits = np.zeros((2, len(starts)), np.int64)
        self.copies = copies or [
            torch.empty((len(rows_on), 3 * self.width), dtype=self.dtype, device=d)
            for rows_on, d in zip(self.slots.rows, self.devices)]
        self._fill()
        self._staging = Staging()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its optimizer state."""
        return 3 * self.width * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all rows with their moments, and of the copies."""
        return self.table.bytes + len(self.slots) * self.row_bytes

    @property
    def step(self) -> int:
        return self.table.step

    @step.setter
    def step(self, value: int) -> None:
        self.table.step = value

    @property
    def value(self) -> Tensor:
        """All values, as they are now: the copies are written back first."""
        for copy, rows_on in zip(self.copies, self.slots.rows):
            for start in range(0, len(rows_on), BLOCK):
                self._write(rows_on[start:start + BLOCK], copy[start:start + BLOCK])
        return self.table.value

    def read(self, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        """Values of the rows `ids` (int64, in range), in their order."""
        if self._compiled(device):
            if self.table.prefetch is not None:
                self.table.prefetch(ids[self.slots.of[ids] < 0])
            out = np.empty((len(ids), self.width), self.table.value.numpy().dtype)
            _read(self.slots.of, self.copies[0].numpy(), self.table.value.numpy(), ids, out,
                  self._starts, self.rows, self.hits)
            return torch.from_numpy(out)
        places, slots, misses = self.slots.split(ids)
        for total, those in (self.rows, ids), (self.hits, ids[places]):
            ranges = np.searchsorted(self._starts, those, side="right") - 1
            total += np.bincount(ranges, minlength=len(total))
        out_rows = torch.empty((len(ids), self.width), dtype=self.dtype, device=device)
        missed = ids[misses]
        wait = self._staging.put(out_rows, misses, lambda: self.table.read(missed, device))
        for where, rows, copy in self._by_device(ids[places], slots):
            out_rows.index_copy_(0, move(torch.from_numpy(places[where]), device),
                                 copy[:, :self.width].index_select(0, rows).to(device))
        wait()
        self._admit(slots, missed)
        return out_rows

    def update(self, rows: np.ndarray, grads: Tensor, scale: float, adam: AdamSettings) -> None:
        """As :meth:`RowTable.update`, on the copies of the rows that are cached."""
        table = self.table
        # Counted here, as the table's own update is not called: copies and rows below share one
        # step.
        table.step += 1
        constants = adam.constants(table.step, scale, self.dtype)
        grads = grads.detach().to(self.dtype)
        state = [table.value.numpy(), table.first.numpy(), table.second.numpy()]
        if self._compiled(grads.device, updates=True):
            cached_step(rows, self.slots.of, grads.contiguous().numpy(), self.copies[0].numpy(),
                        *state, *constants)
            return
        places, slots, misses = self.slots.split(rows)
        missed = torch.empty((0, self.width), dtype=self.dtype)
        if len(misses):
            missed = to_memory(grads[move(torch.from_numpy(misses), grads.device)]).contiguous()
        for where, taken, copy in self._by_device(rows[places], slots):
            here = move(torch.from_numpy(places[where]), grads.device)
            some = grads.index_select(0, here).to(copy.device)
            if copy.device == CPU:
                fused_step(taken.numpy(), some.contiguous().numpy(),
                           *(part.numpy() for part in copy.chunk(3, 1)), *constants)
            else:
                copy.index_copy_(0, taken,
                                 step_by_operators(copy.index_select(0, taken), some, constants))
        fused_step(rows[misses], missed.numpy(), *state, *constants)

    def blocks(self) -> Iterator[dict[str, Tensor]]:
        """All rows as they are now, a block at a time; the copies stay the newer ones."""
        start = 0
        for block in self.table.blocks():
            state = torch.cat([block["value"], block["first"], block["second"]], 1)
            for copy, rows_on in zip(self.copies, self.slots.rows):
                # With replacement the rows are in no order.
                inside = np.flatnonzero((rows_on >= start) & (rows_on < start + len(state)))
                where = torch.from_numpy(rows_on[inside] - start)
                state[where] = copy[torch.from_numpy(inside).to(copy.device)].cpu()
            value, first, second = state.chunk(3, 1)
            yield {"value": value, "first": first, "second": second}
            start += len(state)

    def load(self, blocks: Iterable[Mapping[str, Tensor]], step: int) -> None:
        """Take over all rows, cached or not."""
        self.table.load(blocks, step)
        self._fill()

    def _compiled(self, device: torch.device, updates: bool = False) -> bool:
        return self.devices == (CPU,) and device == CPU and (
            updates or self.slots.replacement is None)

    def _by_device(self, ids: np.ndarray, slots: np.ndarray
                   ) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        """For each device: which of the ids are there, their slots on it, its copies."""
        for index, copy in enumerate(self.copies):
            where = np.flatnonzero(ids % len(self.copies) == index)
            yield where, move(torch.from_numpy(slots[where]), copy.device), copy

    def _fill(self) -> None:
        for copy, rows_on in zip(self.copies, self.slots.rows):
            for start in range(0, len(rows_on), BLOCK):
                copy[start:start + BLOCK].copy_(self._state(rows_on[start:start + BLOCK]))

    def _state(self, ids: np.ndarray) -> Tensor:
        rows, table = torch.from_numpy(ids), self.table
        return torch.cat([part.index_select(0, rows)
                          for part in (table.value, table.first, table.second)], 1)

    def _write(self, ids: np.ndarray, state: Tensor) -> None:
        rows, parts = torch.from_numpy(ids), to_memory(state).chunk(3, 1)
        for whole, part in zip((self.table.value, self.table.first, self.table.second), parts):
            whole[rows] = part

    def _admit(self, slots: np.ndarray, missed: np.ndarray) -> None:
        """Let rows that were read take the places of others, which are written back."""
        admitted, taken, left = self.slots.admit(slots, missed)
        if len(admitted):
            copy = self.copies[0]
            where = move(torch.from_numpy(taken), copy.device)
            self._write(left, copy.index_select(0, where))
            copy.index_copy_(0, where, move(self._state(missed[admitted]), copy.device))


@kernel
def _read(slots, cached, value, ids, out, starts, rows, hits):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    for i in range(len(ids)):
        prefetch(slots, ids, i + AHEAD)
        if i + AHEAD < len(ids):
            ahead = slots[ids[i + AHEAD]]
            if ahead >= 0:
                prefetch_row(cached, ahead)
            else:
                prefetch_row(value, ids[i + AHEAD])
        row = ids[i]
        slot, part = slots[row], 0
        while part + 1 < len(starts) and starts[part + 1] <= row:
            part += 1
        rows[part] += 1
        if slot >= 0:
            hits[part] += 1
            for k in range(width):
                out[i, k] = cached[slot, k]
        else:
            for k in range(width):
                out[i, k] = value[row, k]
