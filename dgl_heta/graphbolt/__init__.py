"""GraphBolt's side: the feature cache as a `gb.FeatureStore`, and scripts on meta-partitions.

:class:`CachedFeatureStore` is usable with nothing else of dgl-heta. While dgl-heta is enabled,
`raf_graph` takes the place of a data set's graph, `raf_dataloader` makes its batches
(`raf_minibatch`), and `feature_stores` puts the cache before a script's own stores. dgl is imported
with the first name that is used.
"""

from dgl_heta.system.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
