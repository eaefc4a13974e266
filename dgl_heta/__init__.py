"""dgl-heta: meta-partitioning and Relation-Aggregation-First training for heterogeneous GNNs.

The names below are loaded when first used, so that planning does not wait for torch, and
nothing but the adapters needs dgl.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dgl_heta._version import __version__

_LAZY = {
    "hookimpl": "dgl_heta.hooks.specs",
    "Relation": "dgl_heta.graph.schema",
    "Schema": "dgl_heta.graph.schema",
    "Plan": "dgl_heta.planning.plan",
    "make_plan": "dgl_heta.planning.making",
    "GraphSource": "dgl_heta.graph.source",
    "EdgeArrays": "dgl_heta.graph.source",
    "Task": "dgl_heta.graph.source",
    "Store": "dgl_heta.store",
    "write_store": "dgl_heta.store",
    "BatchSource": "dgl_heta.hooks.batch_protocol",
    "CachePolicy": "dgl_heta.hooks.protocols",
    "Command": "dgl_heta.hooks.protocols",
    "Cutter": "dgl_heta.hooks.cutter_protocol",
    "Dataset": "dgl_heta.hooks.protocols",
    "InputReader": "dgl_heta.hooks.protocols",
    "InputsContext": "dgl_heta.hooks.protocols",
    "Kernel": "dgl_heta.hooks.kernel_protocol",
    "Logger": "dgl_heta.hooks.protocols",
    "ModelInputs": "dgl_heta.hooks.protocols",
    "ModelProvider": "dgl_heta.hooks.protocols",
    "ModuleWrapper": "dgl_heta.hooks.protocols",
    "PartitionBackend": "dgl_heta.hooks.protocols",
    "Patches": "dgl_heta.hooks.protocols",
    "Program": "dgl_heta.hooks.protocols",
    "Provider": "dgl_heta.hooks.provider",
    "Reader": "dgl_heta.hooks.protocols",
    "RunLog": "dgl_heta.hooks.protocols",
    "Stage": "dgl_heta.hooks.batch_protocol",
    "WrapContext": "dgl_heta.hooks.protocols",
    "WrappedModule": "dgl_heta.hooks.protocols",
    "MetatreeBackend": "dgl_heta.partition.backends.metatree_backend",
    "AUTO": "dgl_heta.partition.request",
    "PartitionRequest": "dgl_heta.partition.request",
    "PartitionResult": "dgl_heta.partition.request",
    "as_source": "dgl_heta.store.reader",
    "SavedObject": "dgl_heta.graph.readers.torch_file",
    "open_edges": "dgl_heta.graph.readers.array_files",
    "read_saved": "dgl_heta.graph.readers.torch_file",
    "partition_graph": "dgl_heta.partition.dgl",
    "train": "dgl_heta.launch.jobs.from_python",
    "open_partition": "dgl_heta.launch.jobs.from_python",
    "predict_all": "dgl_heta.prediction.own_model",
    "Partition": "dgl_heta.training.own_loop",
    "distribute": "dgl_heta.training.distributed",
    "BlockModel": "dgl_heta.models",
    "Edges": "dgl_heta.models",
    "HGNN": "dgl_heta.models",
    "HGNNLayer": "dgl_heta.models",
    "HANLayer": "dgl_heta.models",
    "HGTLayer": "dgl_heta.models",
    "RGATLayer": "dgl_heta.models",
    "RGCNLayer": "dgl_heta.models",
    "ModelSpec": "dgl_heta.models",
    "slot": "dgl_heta.models",
    "enable": "dgl_heta.distdgl.activate",
    "disable": "dgl_heta.distdgl.activate",
    "all_seeds": "dgl_heta.distdgl.loading.all_seeds",
    "register_hetero_conv": "dgl_heta.distdgl.modules.registered_convs",
    "load_model": "dgl_heta.training.trained_model",
    "HetaError": "dgl_heta.errors",
    "InputError": "dgl_heta.errors",
}

__all__ = [
    "AUTO",
    "HGNN",
    "BatchSource",
    "BlockModel",
    "CachePolicy",
    "Command",
    "Cutter",
    "Dataset",
    "EdgeArrays",
    "Edges",
    "GraphSource",
    "HANLayer",
    "HGNNLayer",
    "HGTLayer",
    "HetaError",
    "InputError",
    "InputReader",
    "InputsContext",
    "Kernel",
    "Logger",
    "MetatreeBackend",
    "ModelInputs",
    "ModelProvider",
    "ModelSpec",
    "ModuleWrapper",
    "Partition",
    "PartitionBackend",
    "PartitionRequest",
    "PartitionResult",
    "Patches",
    "Plan",
    "Program",
    "Provider",
    "RGATLayer",
    "RGCNLayer",
    "Reader",
    "Relation",
    "RunLog",
    "SavedObject",
    "Schema",
    "Stage",
    "Store",
    "Task",
    "WrapContext",
    "WrappedModule",
    "__version__",
    "all_seeds",
    "as_source",
    "disable",
    "distribute",
    "enable",
    "hookimpl",
    "load_model",
    "make_plan",
    "open_edges",
    "open_partition",
    "partition_graph",
    "predict_all",
    "read_saved",
    "register_hetero_conv",
    "slot",
    "train",
    "write_store",
]

if TYPE_CHECKING:
    from dgl_heta.distdgl.activate import disable, enable
    from dgl_heta.distdgl.loading.all_seeds import all_seeds
    from dgl_heta.distdgl.modules.registered_convs import register_hetero_conv
    from dgl_heta.errors import HetaError, InputError
    from dgl_heta.graph.readers.array_files import open_edges
    from dgl_heta.graph.readers.torch_file import SavedObject, read_saved
    from dgl_heta.graph.schema import Relation, Schema
    from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
    from dgl_heta.hooks.batch_protocol import BatchSource, Stage
    from dgl_heta.hooks.cutter_protocol import Cutter
    from dgl_heta.hooks.kernel_protocol import Kernel
    from dgl_heta.hooks.protocols import (
        CachePolicy,
        Command,
        Dataset,
        InputReader,
        InputsContext,
        Logger,
        ModelInputs,
        ModelProvider,
        ModuleWrapper,
        PartitionBackend,
        Patches,
        Program,
        Provider,
        Reader,
        RunLog,
        WrapContext,
        WrappedModule,
    )
    from dgl_heta.hooks.specs import hookimpl
    from dgl_heta.launch.jobs.from_python import open_partition, train
    from dgl_heta.models import (
        HGNN,
        BlockModel,
        Edges,
        HANLayer,
        HGNNLayer,
        HGTLayer,
        ModelSpec,
        RGATLayer,
        RGCNLayer,
        slot,
    )
    from dgl_heta.partition.backends.metatree_backend import MetatreeBackend
    from dgl_heta.partition.dgl import partition_graph
    from dgl_heta.partition.request import AUTO, PartitionRequest, PartitionResult
    from dgl_heta.planning.making import make_plan
    from dgl_heta.planning.plan import Plan
    from dgl_heta.prediction.own_model import predict_all
    from dgl_heta.store import Store, write_store
    from dgl_heta.store.reader import as_source
    from dgl_heta.training.distributed import distribute
    from dgl_heta.training.own_loop import Partition
    from dgl_heta.training.trained_model import load_model


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dgl_heta' has no attribute '{name}'")
