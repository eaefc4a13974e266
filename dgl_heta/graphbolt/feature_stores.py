"""The cache in front of a GraphBolt script's feature stores, by configuration alone."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from dgl_heta.distdgl.state import selected
from dgl_heta.distdgl.versions import homes
from dgl_heta.graphbolt.cached_store import AsyncReads, CachedFeatureStore
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.patching import patch_all


class _Unpatched:
    """A feature store with DGL's own methods, behind the replaced ones."""

    def __init__(self, store: Any, read: Callable[..., Any]) -> None:
        self._store, self._read = store, read
        self._features = store._features

    def read(self, *arguments: Any) -> Any:
        return self._read(self._store, *arguments)

    def keys(self) -> Any:
        return self._store.keys()


def cached(store: Any, read: Callable[..., Any]) -> Any:
    """Return the cached store before a store, made at its first read; None where none is wanted."""
    cache = selected().cache
    if (policy := cache.policy_on(False)) == "none":
        return None
    before = store.__dict__.get("heta")
    # A copy of a store (`store.to(device)`) has its attributes, but features of its own, which need
    # a cache of their own.
    if before is None or before[0] is not store._features:
        store_of_copies = CachedFeatureStore(
            _Unpatched(store, read), plugins().get("cache policy", policy), cache.capacity_mb,
            batches=cache.batches, gate=cache.gate)
        before = store.__dict__["heta"] = (store._features, store_of_copies)
        atexit.register(store_of_copies.cache.tell)
    return before[1]


def written(store: Any, key: tuple[str, str | None, str]) -> None:
    """Forget what is cached of a feature that was written to."""
    cached_before = store.__dict__.get("heta")
    if cached_before is not None:
        cached_before[1].forget(key)


def _read_cached(original: Any) -> Any:
    def read(self: Any, domain: str, type_name: str, feature_name: str, ids: Any = None) -> Any:
        store = cached(self, original)
        if store is None or ids is None:
            return original(self, domain, type_name, feature_name, ids)
        return store.read(domain, type_name, feature_name, ids)
    return read


def _update(original: Any) -> Any:
    def update(self: Any, domain: str, type_name: str, feature_name: str, value: Any,
               ids: Any = None) -> None:
        original(self, domain, type_name, feature_name, value, ids)
        written(self, (domain, type_name, feature_name))
    return update


class _ReadThrough(AsyncReads):
    """A feature of a store with a cache, for as long as it is the store's."""

    def __init__(self, feature: Any, owner: Any, key: Any, store: Any) -> None:
        super().__init__()
        self._feature, self._owner, self._key, self._cached = feature, owner, key, store

    def __getattr__(self, name: str) -> Any:  # what only some features have
        return getattr(self.__dict__["_feature"], name)

    def read(self, ids: Any = None) -> Any:
        # Another feature may have been put in its place: the cache has rows of that one then.
        if ids is None or self._owner._features.get(self._key) is not self._feature:
            return self._feature.read(ids)
        return self._cached.read(*self._key, ids)

    def size(self) -> Any:
        return self._feature.size()

    def count(self) -> Any:
        return self._feature.count()

    def update(self, value: Any, ids: Any = None) -> None:
        self._feature.update(value, ids)
        written(self._owner, self._key)

    def metadata(self) -> Any:
        return self._feature.metadata()


def _getitem(original: Any) -> Any:
    def read(store: Any, domain: str, type_name: str, feature_name: str, ids: Any = None) -> Any:
        return original(store, (domain, type_name, feature_name)).read(ids)

    def __getitem__(self: Any, feature_key: Any) -> Any:
        feature, store = original(self, feature_key), cached(self, read)
        return feature if store is None else _ReadThrough(feature, self, feature_key, store)
    return __getitem__


def _setitem(original: Any) -> Any:
    def __setitem__(self: Any, feature_key: Any, feature: Any) -> None:
        original(self, feature_key, feature)
        written(self, feature_key)
    return __setitem__


PATCHES = (
    *patch_all(homes("reads of BasicFeatureStore", "read"), _read_cached,
               "the feature cache of GraphBolt scripts"),
    *patch_all(homes("reads of BasicFeatureStore", "update"), _update,
               "what is written is not cached"),
    *patch_all(homes("items of BasicFeatureStore", "__getitem__"), _getitem,
               "the feature cache of GraphBolt scripts"),
    *patch_all(homes("items of BasicFeatureStore", "__setitem__"), _setitem,
               "what is written is not cached"),
)
