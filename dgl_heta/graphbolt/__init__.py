"""GraphBolt's side: the feature cache as a `gb.FeatureStore`, and scripts on meta-partitions.

:class:`CachedFeatureStore` is usable with nothing else of dgl-heta. While dgl-heta is enabled,
`raf_graph` takes the place of a data set's graph, `raf_dataloader` makes its batches
(`raf_minibatch`), and `feature_stores` puts the cache before a script's own stores. Imports dgl.
"""

from dgl_heta.graphbolt.cached_store import CachedFeature, CachedFeatureStore

__all__ = ["CachedFeature", "CachedFeatureStore"]
