"""Everything that dgl-heta itself provides, through the public hooks.

This module is an entry point of group `dgl_heta` (pyproject.toml), like a plugin's: built-ins come
in as plugins do. Imports are inside the functions, so that listing one kind
does not load what another needs, and planning does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgl_heta.hooks.specs import hookimpl

if TYPE_CHECKING:
    from dgl_heta.hooks import protocols
    from dgl_heta.hooks.kernel_protocol import Kernel


@hookimpl
def dgl_heta_partition_backends() -> list[protocols.PartitionBackend]:
    from dgl_heta.partition.backends.dgl_methods import DistDGL
    from dgl_heta.partition.backends.meta import Meta, MetaShared, MetaWhole
    from dgl_heta.partition.backends.relation_random import RelationRandom

    return [Meta(), MetaWhole(), MetaShared(), RelationRandom(), DistDGL("metis"),
            DistDGL("random")]


@hookimpl
def dgl_heta_cutters() -> list[protocols.Cutter]:
    from dgl_heta.partition.cutters import EvenBytes, EvenEdges, Ranges

    return [Ranges(), EvenEdges(), EvenBytes()]


@hookimpl
def dgl_heta_datasets() -> list[protocols.Dataset]:
    from dgl_heta.graph.datasets import Synthetic

    return [*Synthetic.all()]


@hookimpl
def dgl_heta_readers() -> list[protocols.Reader]:
    from dgl_heta.graph.readers import (
        DistDGLParts,
        EdgeFiles,
        GraphBolt,
        Ogb,
    )

    return [GraphBolt(), EdgeFiles(), DistDGLParts(), Ogb()]


@hookimpl
def dgl_heta_module_wrappers() -> list[protocols.ModuleWrapper]:
    from dgl_heta.raf.wrapper import Ddp, Raf

    return [Raf(), Ddp()]


@hookimpl
def dgl_heta_kernels() -> list[Kernel]:
    from dgl_heta.nn.kernels import FusedKernel, TorchKernel

    return [FusedKernel(), TorchKernel()]


@hookimpl
def dgl_heta_batch_sources() -> list[protocols.BatchSource]:
    from dgl_heta.sampling.sources import Auto, OnDemand

    return [Auto(), OnDemand()]


@hookimpl
def dgl_heta_loggers() -> list[protocols.Logger]:
    from dgl_heta.training.tensorboard import TensorBoard

    return [TensorBoard()]


@hookimpl
def dgl_heta_patches() -> list[protocols.Patches]:
    from dgl_heta.system.patching import PatchTable

    return [PatchTable("distdgl", "dgl_heta.distdgl.patches"),
            PatchTable("graphbolt", "dgl_heta.graphbolt.graphbolt_patches")]


@hookimpl
def dgl_heta_models() -> list[protocols.ModelProvider]:
    from dgl_heta import models as m

    hidden = "layer_norm", "dropout"
    return [m.BlockModel("rgcn", m.RGCNLayer,
                         ("aggregate", "reduce", "bases", "self_loop", *hidden)),
            m.BlockModel("rgat", m.RGATLayer, ("heads", "reduce", "self_loop", *hidden)),
            m.BlockModel("hgt", m.HGTLayer, ("heads", *hidden)),
            m.BlockModel("han", m.HANLayer, ("heads", "self_loop", *hidden))]


@hookimpl
def dgl_heta_cache_policies() -> list[protocols.CachePolicy]:
    from dgl_heta.cache import built_in

    return [*built_in()]
