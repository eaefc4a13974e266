"""The names of dgl_heta.graphbolt; `lazy_names` loads them."""

from dgl_heta.graphbolt.cached_store import (CachedFeature as CachedFeature,
    CachedFeatureStore as CachedFeatureStore)
