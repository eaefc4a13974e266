"""A cache for rows that something else samples: it counts what is read, then fills itself.

For GraphBolt's feature stores and DistDGL's tensors. There a script samples, so visits are not
pre-sampled but counted in its first batches, which changes nothing of what it computes.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.cache.cached_rows import CPU, CachedRows
from dgl_heta.cache.penalties import measure_reads, ungated
from dgl_heta.cache.policies import CachePolicy, by_device
from dgl_heta.errors import InputError
from dgl_heta.features.row_files import CalledRows, RowSource
from dgl_heta.features.row_kernels import count_ids

log = logging.getLogger("dgl_heta")
_OBSERVING = threading.RLock()  # the rows may come from another cache


@dataclass
class _Feature:
    """One feature: where its rows come from, and what was read of them."""

    source: RowSource
    costly: np.ndarray | None
    counts: np.ndarray
    batches: int = 0
    cached: CachedRows | None = None
    rows: int = 0
    hits: int = 0
    """Reads, and those of them that hit, since the cache was filled, but those of `cached`."""
    written: bool = False
    penalty: float = 0.0


class ObservingCache:
    """Copies of the rows of several features, chosen by what the first batches read.

    Parameters
    ----------
    policy : chooses the rows; it must not need degrees.
    capacity : bytes per device.
    devices : where copies live; row `n` on device `n mod len(devices)`.
    batches : reads of a feature after which the cache is filled.
    gate : do not cache features of which a miss is measured to cost nothing.
    counts : feature → visits per row, int64; then nothing is observed.

    Raises
    ------
    InputError
        The policy needs degrees, which are not known here.
    """

    def __init__(self, policy: CachePolicy, capacity: int,
                 devices: Sequence[torch.device] = (CPU,), batches: int = 50, gate: bool = True,
                 counts: Mapping[Any, np.ndarray] | None = None) -> None:
        if getattr(policy, "counts", "visits") != "visits" and counts is None:
            raise InputError(f"cache policy '{policy.name}' chooses by degrees, which are not "
                             "known where a script samples; use hotness or miss_penalty")
        if not isinstance(batches, int) or batches < 1:
            raise InputError(f"the number of batches to observe is {batches}; it must be a whole "
                             "number, 1 or more")
        if not devices:
            raise InputError("a cache needs a device; for example devices=['cpu']")
        if getattr(policy, "replacement", None) and len(devices) > 1:
            raise InputError(f"cache policy '{policy.name}' replaces rows, which works on one "
                             f"device; there are {len(devices)}")
        self.policy, self.capacity, self.devices = policy, capacity, tuple(devices)
        self._batches, self._gate, self._counts = batches, gate, counts
        self._features: dict[Hashable, _Feature] = {}
        self.filled = False
        self.seconds = 0.0

    def add(self, key: Hashable, source: RowSource, costly: np.ndarray | None = None) -> None:
        """Make a feature known.

        Parameters
        ----------
        key : names it.
        source : its rows.
        costly : ids (int64, ascending) of those rows whose misses cost something; others are
            never cached. Default: all.
        """
        given = None if self._counts is None else self._counts.get(key)
        counts = np.zeros(source.shape[0], np.int64) if given is None else np.asarray(given)
        if counts.shape != (source.shape[0],):
            raise InputError(f"there are visits of {len(counts)} rows of {_name(key)}, but it has "
                             f"{source.shape[0]}")
        if counts.dtype.kind not in "iu" or (len(counts) and counts.min() < 0):
            raise InputError(f"visits of {_name(key)} must be whole numbers, 0 or more")
        self._features[key] = _Feature(source, costly, counts.astype(np.int64))
        if self.filled:
            log.warning("%s was first read after the cache was filled, so it is not cached",
                        _name(key))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._features

    def read(self, key: Hashable, ids: np.ndarray, device: torch.device = CPU) -> Tensor:
        """Rows `ids` (int64, in range) of a feature: (ids, width)."""
        feature = self._features[key]
        if not self.filled:
            with _OBSERVING:  # several threads may read
                self._observe(feature, ids)
        if feature.cached is not None:
            return feature.cached.read(ids, device)
        feature.rows += len(ids) if self.filled else 0
        return feature.source.read(ids, device)

    def _observe(self, feature: _Feature, ids: np.ndarray) -> None:
        if self.filled:
            return
        if self._counts is not None or feature.batches >= self._batches:
            self.fill()
        else:
            count_ids(feature.counts, ids)
            feature.batches += 1

    def fill(self) -> None:
        """Choose rows by what was read so far, and copy them."""
        start = time.perf_counter()
        self.filled = True
        counts, sizes, penalties = {}, {}, {}
        names = {_name(key): key for key in self._features}
        for name, key in names.items():
            feature = self._features[key]
            row_bytes = feature.source.shape[1] * feature.source.dtype.itemsize
            chosen = slice(None) if feature.costly is None else feature.costly
            counts[name], sizes[name] = feature.counts[chosen], row_bytes
            feature.penalty = 0.0
            if len(counts[name]) and row_bytes and self.capacity:
                penalty = measure_reads(feature.source, self.devices[0], feature.costly)
                feature.penalty = penalty.at(feature.counts.sum() / max(feature.batches, 1)
                                             if feature.batches else 2**15)
            penalties[name] = feature.penalty
        if not self._gate:
            penalties = ungated(penalties)
        cached = by_device(self.policy, counts, sizes, penalties, self.capacity, len(self.devices))
        for name, key in names.items():
            feature, ids = self._features[key], cached[name]
            if feature.costly is not None:
                ids = feature.costly[ids]
            if len(ids):
                feature.cached = CachedRows(feature.source, ids, self.devices,
                                            getattr(self.policy, "replacement", None))
            feature.counts = np.empty(0, np.int64)
        self.seconds = time.perf_counter() - start
        log.info("cache filled in %.2f s: %s", self.seconds, self.describe())

    def forget(self, key: Hashable) -> None:
        """A feature was written to: read it from its source from now on."""
        if key in self._features:
            feature = self._features[key]
            if feature.cached is not None:
                log.warning("%s was written to, so it is not cached any longer", _name(key))
                feature.rows += feature.cached.rows
                feature.hits += feature.cached.hits
            feature.cached, feature.written = None, True
            feature.costly = np.empty(0, np.int64)  # nor later

    def stats(self) -> dict[Hashable, dict[str, Any]]:
        """Per feature: rows read since the cache was filled, hits, rows and bytes cached, penalty.

        The penalty is in seconds per byte.
        """
        return {key: {"reads": f.rows + (f.cached.rows if f.cached else 0),
                      "hits": f.hits + (f.cached.hits if f.cached else 0),
                      "rows": len(f.cached.slots) if f.cached else 0,
                      "cached_bytes": f.cached.bytes if f.cached else 0,
                      "penalty": f.penalty} for key, f in self._features.items()}

    def describe(self) -> str:
        """One line for people."""
        if not self.filled:
            return f"policy {self.policy.name}, not filled yet"
        parts, free = [], []
        for key, s in self.stats().items():
            if not s["rows"] and not s["hits"]:
                free.append(_name(key))
                continue
            rows = f"{s['rows']:,} rows"
            if self._features[key].written:
                rows = f"{s['hits']:,} hits before it was written to, not cached since"
            parts.append(f"{_name(key)}: {rows}" + (
                f", {s['hits'] / s['reads']:.1%} hits" if s["reads"] else ""))
        if free:
            parts.append(f"not cached: {', '.join(free)}")
        return f"policy {self.policy.name}, {'; '.join(parts) or 'nothing cached'}"

    def tell(self) -> None:
        """Print on standard error what the cache did; for the end of a process."""
        print(f"dgl-heta: cache {self.describe()}", file=sys.stderr, flush=True)


def _name(key: Hashable) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    return "/".join(str(part) for part in parts if part is not None)


def called_rows(count: int, shape: Sequence[int], dtype: torch.dtype,
                read: Callable[[Tensor], Tensor]) -> CalledRows | None:
    """Rows that a function of PyTorch tensors reads, as a source; None for dtypes NumPy lacks.

    Parameters
    ----------
    count, shape : rows, and the shape of one.
    """
    try:
        kind = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None
    width = int(np.prod(shape, dtype=np.int64))
    return CalledRows((count, width), kind, lambda ids: read(torch.from_numpy(ids)).cpu().reshape(
        len(ids), width).numpy())
