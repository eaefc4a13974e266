"""What is done to the edges of a batch before they are copied to a GPU.

Python's lock is let go of as seldom as can be. PyTorch does so in each operator, and has
to wait for it then, as has the thread that trains.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.system import jit

_ALIGNED = 64  # bytes


class Packed:
    """Tensors in one array of bytes, pinned for a GPU; those of a dtype follow each other."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._shapes = [t.shape for t in tensors]
        self._places: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(tensors):
            self._places.setdefault(tensor.dtype, []).append(place)
        gaps = [-t.nbytes % _ALIGNED for t in tensors]
        self._sizes = {dtype: [n // dtype.itemsize for place in places
                               for n in (tensors[place].nbytes, gaps[place])]
                       for dtype, places in self._places.items()}
        self._near = torch.empty(sum(t.nbytes for t in tensors) + sum(gaps), dtype=torch.uint8,
                                 pin_memory=device.type == "cuda")
        into, start = self._near.numpy(), 0
        for place in itertools.chain(*self._places.values()):
            stop = start + tensors[place].nbytes
            into[start:stop] = _bytes(tensors[place])
            start = stop + gaps[place]

    def on(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """The bytes on a device, which nobody waits for, and the tensors, which are parts of them.
        """
        far, start = self._near.to(device, non_blocking=True), 0
        found: list[Tensor] = [far] * len(self._shapes)
        for dtype, sizes in self._sizes.items():
            stop = start + dtype.itemsize * sum(sizes)
            parts = far[start:stop].view(dtype).split(sizes)  # all of them by one operator
            for place, part in zip(self._places[dtype], parts[::2]):
                shape = self._shapes[place]
                found[place] = part if len(shape) == 1 else part.view(shape)
            start = stop
        return far, found


def _bytes(tensor: Tensor) -> np.ndarray:
    flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
    if flat.dtype is torch.bfloat16:  # which NumPy does not have
        flat = flat.view(torch.int16)
    return np.ascontiguousarray(flat.numpy()).view(np.uint8)


def rows_with_edges(indptr: Tensor, start: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """CSC pointers over the rows that have edges, and these rows, int64: `rows` of them, or what
    they are from `start` on. Both are empty where more than three quarters have edges."""
    if jit.COMPILES and indptr.device.type == "cpu":
        some = _rows_with_edges(indptr.numpy(), start, None if rows is None else rows.numpy())
        return torch.from_numpy(some[0]), torch.from_numpy(some[1])
    kept = torch.nonzero(indptr.diff()).flatten()
    if 4 * len(kept) > 3 * (len(indptr) - 1):
        return indptr[:0], kept[:0]
    return torch.cat([indptr[kept], indptr[-1:]]), kept + start if rows is None else rows[kept]


@jit.late_kernel
def _rows_with_edges(indptr, start, rows):  # type: ignore[no-untyped-def]
    count = 0
    for row in range(len(indptr) - 1):
        if indptr[row + 1] > indptr[row]:
            count += 1
    if 4 * count > 3 * (len(indptr) - 1):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ends, kept = np.empty(count + 1, np.int64), np.empty(count, np.int64)
    at = 0
    for row in range(len(indptr) - 1):
        if indptr[row + 1] > indptr[row]:
            ends[at] = indptr[row]
            kept[at] = row + start if rows is None else rows[row]
            at += 1
    ends[count] = indptr[-1]
    return ends, kept
