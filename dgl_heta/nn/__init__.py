"""Building blocks of models: AGG_r (`segment`) and AGG_all (`cross`) of Heta Eq. (1)."""

from dgl_heta.nn.cross import REDUCERS, CrossRelation
from dgl_heta.nn.segment import segment_reduce, use_kernel

__all__ = ["REDUCERS", "CrossRelation", "segment_reduce", "use_kernel"]
