"""Input features: static ones read from the store, learnable ones trained with the model."""

from dgl_heta.features.learnable import LearnableFeatures, initial_rows
from dgl_heta.features.static import StaticFeatures

__all__ = ["LearnableFeatures", "StaticFeatures", "initial_rows"]
