"""Building blocks of models, Heta Eq. (1): AGG_r (`aggregate`, by a kernel of `kernels`) and
AGG_all (`cross`)."""

from dgl_heta.errors import RelationError
from dgl_heta.nn.aggregate import segment_reduce
from dgl_heta.nn.cross import REDUCERS, CrossRelation, CrossSoftmax, CrossStack
from dgl_heta.nn.gradient_hub import differentiable_once
from dgl_heta.nn.joined import Joined
from dgl_heta.nn.kernels import BaseKernel, FusedKernel, TorchKernel, kernel_in_use, use_kernel
from dgl_heta.sampling.blocks import Prepared

__all__ = ["REDUCERS", "BaseKernel", "CrossRelation", "CrossSoftmax", "CrossStack",
           "FusedKernel", "Joined", "Prepared", "RelationError", "TorchKernel",
           "differentiable_once", "kernel_in_use", "segment_reduce", "use_kernel"]
