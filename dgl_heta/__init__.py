"""dgl-heta: meta-partitioning and Relation-Aggregation-First training for heterogeneous GNNs.

The names in `__init__.pyi` are loaded when first used, so that planning does not wait for torch,
and nothing but the adapters needs dgl.
"""

from dgl_heta.system.lazy_names import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
