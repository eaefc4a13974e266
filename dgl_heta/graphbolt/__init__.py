"""GraphBolt's side: the feature cache as a `gb.FeatureStore`, and scripts on meta-partitions.

:class:`CachedFeatureStore` is usable with nothing else of dgl-heta. While dgl-heta is enabled,
`raf_graph` takes the place of a data set's graph, `raf_dataloader` makes its batches
(`raf_minibatch`), and `feature_stores` puts the cache before a script's own stores. dgl is imported
with the first name that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["CachedFeature", "CachedFeatureStore"]

if TYPE_CHECKING:
    from dgl_heta.graphbolt.cached_store import CachedFeature, CachedFeatureStore


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dgl_heta.graphbolt import cached_store

        return getattr(cached_store, name)
    raise AttributeError(f"module 'dgl_heta.graphbolt' has no attribute '{name}'")
