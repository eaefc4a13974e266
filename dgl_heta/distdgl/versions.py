"""Where DGL and PyTorch keep the names that dgl-heta replaces, for each release of DGL."""

from __future__ import annotations

from collections.abc import Iterator

from dgl_heta.errors import InputError, listing
from dgl_heta.system.optional import optional

_DIST = "dgl.distributed"
_SERVICES = f"{_DIST}.graph_services"
_LOADERS = "dgl.dataloading.dist_dataloader"

RELEASES: dict[str, dict[str, tuple[str, ...]]] = {
    "2.1.0": {
        "partition_graph": (f"{_DIST}:partition_graph", f"{_DIST}.partition:partition_graph"),
        "load_partition": (f"{_DIST}:load_partition", f"{_DIST}.partition:load_partition"),
        "load_partition of servers": (f"{_DIST}.dist_graph:load_partition",),
        "load_partition_feats": (
            f"{_DIST}:load_partition_feats", f"{_DIST}.partition:load_partition_feats",
            f"{_DIST}.dist_graph:load_partition_feats"),
        "dgl_partition_to_graphbolt": (f"{_DIST}:dgl_partition_to_graphbolt",
                                       f"{_DIST}.partition:dgl_partition_to_graphbolt"),
        "empty_shared_mem": (f"{_DIST}.kvstore:empty_shared_mem",
                             f"{_DIST}.shared_mem_utils:empty_shared_mem"),
        "queries of trainers": (
            f"{_SERVICES}:_distributed_access", f"{_SERVICES}:_distributed_edge_access",
            f"{_SERVICES}:_distributed_get_node_property"),
        "requests to servers": tuple(f"{_SERVICES}:{name}" for name in (
            "SamplingRequest", "SamplingRequestEtype", "EdgesRequest", "InDegreeRequest",
            "OutDegreeRequest", "InSubgraphRequest")),
        "node_split": (f"{_DIST}:node_split", f"{_DIST}.dist_graph:node_split"),
        "DistGraph": (f"{_DIST}.dist_graph:DistGraph",),
        "DistTensor": (f"{_DIST}.dist_tensor:DistTensor",),
        "DistNodeDataLoader": (f"{_LOADERS}:DistNodeDataLoader",),
        "DistEdgeDataLoader": (f"{_LOADERS}:DistEdgeDataLoader",),
        "HeteroGraphConv": ("dgl.nn.pytorch.hetero:HeteroGraphConv",),
        "gspmm": ("dgl.ops.spmm:gspmm_internal",),
        "gsddmm": ("dgl.ops.sddmm:gsddmm_internal",),
        "edge_softmax": ("dgl.ops.edge_softmax:edge_softmax_internal",),
        "DistEmbedding": (f"{_DIST}.nn.pytorch.sparse_emb:DistEmbedding",),
        "DistSparseGradOptimizer": (
            f"{_DIST}.optim.pytorch.sparse_optim:DistSparseGradOptimizer",),
        "BasicFeatureStore": ("dgl.graphbolt.impl.basic_feature_store:BasicFeatureStore",),
        "backward": ("torch.autograd:backward",),
        "grad": ("torch.autograd:grad",),
        "Tensor": ("torch:Tensor",),
        "barrier of torch": ("torch.distributed:barrier",),
        "destroy_process_group": (
            "torch.distributed:destroy_process_group",
            "torch.distributed.distributed_c10d:destroy_process_group"),
        "DistributedDataParallel": ("torch.nn.parallel.distributed:DistributedDataParallel",),
    },
}
"""Release → what is meant → every place that it must be replaced in ("module:name")."""


def release() -> str:
    """The release of DGL that is installed.

    Raises
    ------
    InputError
        It is none whose names are known here, or there is none.
    """
    dgl = optional("dgl", "switching DistDGL scripts", "dgl")
    number: str = dgl.__version__.partition("+")[0]
    if number not in RELEASES:
        raise InputError(f"dgl {dgl.__version__} is installed; switching DistDGL scripts works "
                         f"with dgl {listing(RELEASES)}: install that version")
    return number


def homes(name: str, member: str = "") -> Iterator[str]:
    """Where a name is in the installed release, or a member of the classes there."""
    for place in RELEASES[release()][name]:
        yield f"{place}.{member}" if member else place
