"""The cache in front of a GraphBolt script's feature stores, by configuration alone."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

from dgl_heta.distdgl.activate import selected
from dgl_heta.hooks.manager import plugins


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
    cache = selected()[0].cache
    if cache.policy == "none":
        return None
    found = store.__dict__.get("heta")
    if found is None or found[0] is not store._features:
        from dgl_heta.graphbolt import CachedFeatureStore

        made = CachedFeatureStore(_Plain(store, read), plugins().get("cache policy", cache.policy),
                                  cache.capacity_mb, batches=cache.batches, gate=cache.gate)
        found = store.__dict__["heta"] = (store._features, made)
        atexit.register(lambda: tell(made.cache))
    return found[1]


def written(store: Any, key: tuple[str, str | None, str]) -> None:
    """A feature was written to, so what is cached of it is forgotten."""
    found = store.__dict__.get("heta")
    if found is not None:
        found[1].forget(key)


def tell(cache: Any) -> None:
    """Say at the end what a cache did."""
    print(f"dgl-heta: cache {cache.describe()}", file=sys.stderr, flush=True)
