"""What a miss costs: reading rows where they are, against reading them from the cache.

The miss-penalty ratio of Heta §6: seconds per byte of cache that a miss takes longer than a hit,
for static rows a read, for learnable ones a read and an update of value and moments. It depends on
the size of a row and on how many are read at once, so it is measured at several batch sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgl_heta.cache.cached_rows import CPU, torch_dtype
from dgl_heta.features.row_files import MappedRows, RowSource
from dgl_heta.features.row_kernels import gather_rows

SAMPLE_BYTES = 64_000_000
"""Of a cache that hits are timed on."""

SIZES = (64, 512, 4096, 32768)
"""Rows per read."""
_REPEATS = 5
_LONG_S = 0.05  # a reading that took so long is not tried with more rows
_SAME = 1.15  # a miss that takes less than this times a hit costs nothing
_NOISE_S = 20e-6  # nor does one that takes so little longer per read

Access = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Penalty:
    """The miss penalty of a node type.

    Attributes
    ----------
    row_bytes : of a row in the cache.
    seconds : rows per read → (seconds of misses, seconds of hits).
    """

    row_bytes: int
    seconds: Mapping[int, tuple[float, float]]

    def at(self, rows: float) -> float:
        """Seconds per byte, for reads of about so many rows; 0 where a miss costs nothing.

        Between measured sizes a read takes what lies between, beyond them in proportion.
        """
        if not self.seconds or rows <= 0:
            return 0.0
        sizes = sorted(self.seconds)
        at = min(max(rows, sizes[0]), sizes[-1])
        slow, fast = (float(np.interp(at, sizes, [self.seconds[s][i] for s in sizes]))
                      for i in range(2))
        if slow <= _SAME * fast or slow - fast <= _NOISE_S:
            return 0.0
        return (slow - fast) / (at * self.row_bytes)

    def to_json(self) -> dict[str, Any]:
        return {"row_bytes": self.row_bytes,
                "seconds": {str(size): list(pair) for size, pair in self.seconds.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Penalty:
        """The penalty that :meth:`to_json` described; ValueError or TypeError if it is none."""
        seconds = {int(size): (float(slow), float(fast))
                   for size, (slow, fast) in data["seconds"].items()}
        for size, pair in seconds.items():
            if size < 1 or not all(0 <= s < float("inf") for s in pair):
                raise ValueError(f"seconds are {pair} for {size} rows")
        return cls(int(data["row_bytes"]), seconds)


def measure(rows: int, row_bytes: int, miss: Access, hit: Access, cached: int,
            evict: Callable[[], None] | None = None, seed: int = 0) -> Penalty:
    """Measure the miss penalty of rows.

    Parameters
    ----------
    rows : how many there are.
    row_bytes : of one in the cache.
    miss, hit : use the given rows where they are, and the given slots of a cache.
    cached : slots of that cache.
    evict : drops the rows from memory first, where misses are to be read from a disk.
    """
    generator = np.random.default_rng(seed)
    seconds: dict[int, tuple[float, float]] = {}
    if not rows or not cached:
        return Penalty(row_bytes, seconds)
    few = generator.integers(0, min(rows, cached), 8)
    miss(few), hit(few)  # compiles
    if evict:
        evict()
    for size in (*(s for s in SIZES if s < rows), min(rows, SIZES[-1])):
        if size in seconds:
            continue
        taken: list[tuple[float, float]] = []
        for _ in range(_REPEATS):
            # Each id once: an update has each row once, and a second read would find it in memory.
            ids = generator.choice(rows, size, replace=False, shuffle=False) if rows < 8 * size \
                else np.unique(generator.integers(0, rows, size))
            slots = ids % cached if cached < rows else ids
            spent = []
            for access, places in ((miss, ids), (hit, np.unique(slots))):
                start = time.perf_counter()
                access(places)
                spent.append((time.perf_counter() - start) * size / len(places))
            taken.append((spent[0], spent[1]))
        # Noise only adds. But of a cold disk the first reading is the coldest, the least is luck.
        typical = np.median if evict else np.min
        seconds[size] = (float(typical([t[0] for t in taken])),
                         float(typical([t[1] for t in taken])))
        if seconds[size][0] > _LONG_S:
            break
    return Penalty(row_bytes, seconds)


def measure_reads(source: RowSource, device: torch.device, among: np.ndarray | None = None
                  ) -> Penalty:
    """Measure the miss penalty of static rows that are read to a device.

    Parameters
    ----------
    source : the rows; those of a file that does not fit in memory are read from a cold disk.
    among : ids of the rows to read; default: all.
    """
    row_bytes = source.shape[1] * source.dtype.itemsize
    rows = source.shape[0] if among is None else len(among)
    cached = min(rows, max(SAMPLE_BYTES // max(row_bytes, 1), 1))
    copies = torch.ones((cached, source.shape[1]), dtype=torch_dtype(source.dtype), device=device)

    def miss(ids: np.ndarray) -> None:
        source.read(ids if among is None else among[ids], device)
        finish(device)

    def hit(slots: np.ndarray) -> None:
        if device == CPU:
            torch.from_numpy(gather_rows(copies.numpy(), slots))
        else:
            copies.index_select(0, torch.from_numpy(slots).to(device))
            finish(device)

    evict = None
    if isinstance(source, MappedRows) and source.cold is not None:
        evict = source.evict
    return measure(rows, row_bytes, miss, hit, cached, evict)


def ungated(penalties: Mapping[str, float]) -> dict[str, float]:
    """The penalties, with a small one where there is none: for types to be cached all the same."""
    least = min((p for p in penalties.values() if p), default=1e-9)
    return {t: p or least for t, p in penalties.items()}


def finish(device: torch.device) -> None:
    """Wait until a device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
