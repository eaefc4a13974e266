"""The cache in front of a GraphBolt script's feature stores, by configuration alone."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

from dgl_heta.distdgl.selection import selected
from dgl_heta.distdgl.versions import homes
from dgl_heta.graphbolt import CachedFeatureStore
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.patching import patch_all


class _Plain:
    """A feature store as it is without the replaced methods."""

    def __init__(self, store: Any, read: Callable[..., Any]) -> None:
        self._store, self._read = store, read
        self._features = store._features

    def read(self, *arguments: Any) -> Any:
        return self._read(self._store, *arguments)

    def keys(self) -> Any:
        return self._store.keys()


def cached(store: Any, read: Callable[..., Any]) -> Any:
    """The cached store before a store, made when it is first read; None where none is wanted.

    Copies of a store (`store.to(device)`) have other features, and a cache of their own.
    """
    cache = selected().cache
    if cache.policy == "none":
        return None
    kept = store.__dict__.get("heta")
    if kept is None or kept[0] is not store._features:
        made = CachedFeatureStore(_Plain(store, read), plugins().get("cache policy", cache.policy),
                                  cache.capacity_mb, batches=cache.batches, gate=cache.gate)
        kept = store.__dict__["heta"] = (store._features, made)
        atexit.register(lambda: tell(made.cache))
    return kept[1]


def written(store: Any, key: tuple[str, str | None, str]) -> None:
    """A feature was written to, so what is cached of it is forgotten."""
    kept = store.__dict__.get("heta")
    if kept is not None:
        kept[1].forget(key)


def tell(cache: Any) -> None:
    """Say at the end what a cache did."""
    print(f"dgl-heta: cache {cache.describe()}", file=sys.stderr, flush=True)


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


PATCHES = (
    *patch_all(homes("BasicFeatureStore", "read"), _read_cached,
               "the feature cache of GraphBolt scripts"),
    *patch_all(homes("BasicFeatureStore", "update"), _update, "what is written is not cached"),
)
