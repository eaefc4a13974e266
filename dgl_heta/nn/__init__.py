"""Building blocks of models: AGG_r (`segment`, `attention`), AGG_all (`cross`), Heta Eq. (1)."""

from dgl_heta.nn.aggregate import segment_reduce, use_kernel
from dgl_heta.nn.cross import REDUCERS, CrossRelation, CrossSoftmax, CrossStack

__all__ = ["REDUCERS", "CrossRelation", "CrossSoftmax", "CrossStack", "segment_reduce",
           "use_kernel"]
