"""The feature cache for GraphBolt: a feature store in front of another one.

Usable with nothing else of dgl-heta: give it to `fetch_feature` in the place of the data set's
own store.

>>> from dgl_heta.graphbolt import CachedFeatureStore
>>> store = CachedFeatureStore(dataset.feature, policy="hotness", capacity_mb=500)
>>> datapipe = datapipe.fetch_feature(store, node_feature_keys={"paper": ["feat"]})
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dgl import graphbolt as gb
from torch import Tensor

from dgl_heta.cache.observing import ObservingCache, called_rows
from dgl_heta.cache.policies import CachePolicy
from dgl_heta.errors import InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.memory import capacity_bytes

__all__ = ["CachedFeature", "CachedFeatureStore"]

log = logging.getLogger("dgl_heta")

Key = tuple[str, str | None, str]


class CachedFeatureStore(gb.FeatureStore):  # type: ignore[misc]
    """Another feature store, with copies of the rows that are read most, or cost most.

    The first batches are only counted; then a policy chooses rows by visits and by what a miss is
    measured to cost. What is read is the same, bit for bit. Write by :meth:`update` of this store:
    it cannot see what is written to the other one behind its back.

    Cached are features of rows of floating point numbers without gradients (not bfloat16) whose
    number of rows is known, from a `TorchBasedFeature` or from `counts`. Others are read as they
    were; a warning says so once.

    Parameters
    ----------
    store : the feature store to read from.
    policy : a cache policy, or the name of one (see `dgl-heta plugins`).
    capacity_mb : 10⁶ bytes per device; default: 4,000, at most half of what is free.
    devices : where copies live; row `n` on device `n mod len(devices)`. Default: the CPU.
    batches : batches to count before the cache is filled.
    counts : (domain, type, name) → visits per row, whole numbers; then nothing is counted, and
        other features are not cached.
    gate : do not cache features of which a miss costs nothing (of arrays in memory, on a CPU).

    Raises
    ------
    InputError
        An unknown policy, or one that needs degrees; more capacity than there is memory.
    """

    def __init__(self, store: Any, policy: str | CachePolicy = "miss_penalty",
                 capacity_mb: float | None = None,
                 devices: Sequence[str | torch.device] = ("cpu",), batches: int = 50,
                 counts: Mapping[Key, np.ndarray] | None = None, gate: bool = True) -> None:
        super().__init__()
        chosen: CachePolicy = (plugins().get("cache policy", policy) if isinstance(policy, str)
                               else policy)
        if not callable(getattr(store, "read", None)):
            raise InputError(f"there is no feature store to cache: {str(store)[:60]!r}")
        if not callable(getattr(chosen, "select", None)):
            raise InputError(f"{policy!r} is no cache policy: give a name or an object with select")
        on = [torch.device(d) for d in ([devices] if isinstance(devices, str) else devices)]
        capacity = min((capacity_bytes(capacity_mb, d, on.count(d)) for d in on), default=0)
        self._store = store
        self.cache = ObservingCache(chosen, capacity, on, batches, gate, counts)
        self._uncached: set[Key] = set()
        self._shapes: dict[Key, tuple[int, ...]] = {}  # of features that may be cached
        for key in counts or ():
            if key not in list(store.keys()):
                raise InputError(f"there are visits of {key}, but the store has no such feature; "
                                 f"it has {', '.join(map(str, store.keys()))}")
            self._known(key, len(np.atleast_1d((counts or {})[key])))

    def read(self, domain: str, type_name: str | None, feature_name: str,
             ids: Tensor | None = None) -> Tensor:
        """Return rows `ids` of a feature, or all of it."""
        key = (domain, type_name, feature_name)
        if ids is None or key in self._uncached or ids.dim() != 1 or not self._known(key) or bool(
                (ids < 0).any()):
            return self._store.read(*key, ids)
        # GraphBolt gives ids on the device of the batch; copies are found by numbers on the CPU.
        numbers, (count, *shape) = ids.detach().to("cpu", torch.int64).numpy(), self._shapes[key]
        check_ids(numbers, count)
        return self.cache.read(key, numbers, ids.device).view(len(ids), *shape)

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Return the shape of a row."""
        return self._store.size(domain, type_name, feature_name)

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> Any:
        """Return the feature's metadata."""
        return self._store.metadata(domain, type_name, feature_name)

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Return the number of rows; from DGL 2.4 on."""
        rows: int = self._store.count(domain, type_name, feature_name)
        return rows

    def __getitem__(self, key: Key) -> StoredFeature:
        """Return a feature that is read through this store, as DGL 2.4 fetches features."""
        return StoredFeature(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def update(self, domain: str, type_name: str | None, feature_name: str, value: Tensor,
               ids: Tensor | None = None) -> None:
        """Write to the feature, which is read from the other store from then on."""
        self._store.update(domain, type_name, feature_name, value, ids)
        self.forget((domain, type_name, feature_name))

    def forget(self, key: Key) -> None:
        """Read a feature, which was written to, from the other store from now on."""
        self.cache.forget(key)
        self._uncached.add(key)

    def stats(self) -> dict[Any, dict[str, Any]]:
        """Return per feature reads and hits since the cache was filled, rows and bytes cached."""
        return self.cache.stats()

    def __len__(self) -> int:
        return len(self._store)

    def keys(self) -> list[Key]:
        """Return the (domain, type, name) of all features."""
        keys: list[Key] = self._store.keys()
        return keys

    def _known(self, key: Key, rows: int | None = None) -> bool:
        """Make a feature known to the cache, if it is one that can be cached."""
        if key in self.cache:
            return True
        # No row, but with the dtype, width and device of all.
        some = self._store.read(*key, torch.zeros(0, dtype=torch.int64))
        source, reason = None, ""
        count = rows_of(self._store, key)
        count = rows if count is None else count
        if some.dim() < 2 or not some.dtype.is_floating_point:
            pass  # labels and the like: nobody expects them to be cached
        elif some.device.type != "cpu":
            reason = f"it is on {some.device} already"
        elif some.requires_grad or getattr(_tensor_of(self._store, key), "requires_grad", False):
            reason = "it requires gradients"
        elif count is None:
            reason = "its number of rows is not known (give counts)"
        else:
            source = called_rows(count, some.shape[1:], some.dtype,
                                 lambda ids: self._store.read(*key, ids))
            reason = f"NumPy has no {some.dtype}"
        if source is None:
            self._uncached.add(key)
            if reason:
                log.warning("%s is not cached: %s", "/".join(p for p in key if p), reason)
            return False
        self._shapes[key] = (source.shape[0], *some.shape[1:])
        self.cache.add(key, source)
        return True


def rows_of(store: Any, key: Key) -> int | None:
    """Return how many rows a feature has; None if only reading it would tell."""
    tensor = _tensor_of(store, key)
    return None if tensor is None else len(tensor)


def _tensor_of(store: Any, key: Key) -> Tensor | None:
    """Return the rows of a `TorchBasedFeature`; None of others."""
    # GraphBolt has no public name for them, and 2.1.0 no number of rows but theirs.
    features = getattr(store, "_features", None)
    tensor = getattr((features or {}).get(key), "_tensor", None)
    return tensor if isinstance(tensor, Tensor) else None


class _Rows:
    """Rows that are there, for DGL 2.4, which waits for them."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def wait(self) -> Tensor:
        return self._rows


class AsyncReads(gb.Feature):  # type: ignore[misc]
    """Reads in stages, as DGL 2.4 asks for them: all is read in the first, and only, stage."""

    def read_async(self, ids: Tensor) -> Iterator[_Rows]:
        """Yield what has the rows `ids`, at its `wait()`."""
        yield _Rows(self.read(ids))

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        """Return the number of stages of :meth:`read_async`."""
        return 1


class StoredFeature(AsyncReads):
    """One feature of a feature store, read and written through the store."""

    def __init__(self, store: Any, key: Key) -> None:
        super().__init__()
        self._store, self._key = store, key

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows `ids`, or all of them."""
        rows: Tensor = self._store.read(*self._key, ids)
        return rows

    def size(self) -> torch.Size:
        """Return the shape of a row."""
        return self._store.size(*self._key)

    def count(self) -> int:
        """Return the number of rows; from DGL 2.4 on."""
        rows: int = self._store.count(*self._key)
        return rows

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Write to the feature."""
        self._store.update(*self._key, value, ids)

    def metadata(self) -> Any:
        """Return the feature's metadata."""
        return self._store.metadata(*self._key)


class CachedFeature(StoredFeature):
    """One feature with copies of some rows: as :class:`CachedFeatureStore`, for a `gb.Feature`.

    Once it is written to (:meth:`update`) it is not cached any more.

    Parameters
    ----------
    feature : the feature to read from.
    options : as for :class:`CachedFeatureStore`; `counts` is an array.
    """

    _KEY: Key = ("node", None, "feature")

    def __init__(self, feature: Any, counts: np.ndarray | None = None, **options: Any) -> None:
        self.store = CachedFeatureStore(
            gb.BasicFeatureStore({self._KEY: feature}),
            counts=None if counts is None else {self._KEY: counts}, **options)
        super().__init__(self.store, self._KEY)
        self._feature = feature

    def count(self) -> int:
        """Return the number of rows, where the feature tells it."""
        rows: int = self._feature.count()  # DGL 2.1's stores have no count, a feature may have one
        return rows
