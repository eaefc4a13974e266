"""The built-in wrappers, kernels, models and cache policies, through the public hooks.

Imports are inside the functions, so that planning does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgl_heta.hookspecs import hookimpl

if TYPE_CHECKING:
    from dgl_heta.cache import CachePolicy
    from dgl_heta.models import ModelProvider
    from dgl_heta.nn.segment import Kernel
    from dgl_heta.raf.wrapper import ModuleWrapper


@hookimpl
def dgl_heta_module_wrappers() -> list[ModuleWrapper]:
    from dgl_heta.raf.wrapper import Ddp, Raf

    return [Raf(), Ddp()]


@hookimpl
def dgl_heta_kernels() -> list[Kernel]:
    from dgl_heta.nn.segment import FusedKernel, TorchKernel

    return [FusedKernel(), TorchKernel()]


@hookimpl
def dgl_heta_models() -> list[ModelProvider]:
    from dgl_heta import models as m

    return [m.BlockModel("rgcn", m.RGCNLayer), m.BlockModel("rgat", m.RGATLayer),
            m.BlockModel("hgt", m.HGTLayer), m.BlockModel("han", m.HANLayer), m.PathModel(),
            m.SubsetModel()]


@hookimpl
def dgl_heta_cache_policies() -> list[CachePolicy]:
    from dgl_heta.cache import built_in

    return [*built_in()]
