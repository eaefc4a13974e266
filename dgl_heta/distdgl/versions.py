"""The table of names that dgl-heta replaces: where DGL and PyTorch keep them, by release of DGL.

A name may be in several places, as modules import it from each other (`from … import …`): each has
its own reference to the object, so it is replaced in all of them.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from functools import cache, reduce

from dgl_heta.errors import InputError
from dgl_heta.system.optional import optional

log = logging.getLogger("dgl_heta")

_DIST = "dgl.distributed"
_SERVICES = f"{_DIST}.graph_services"
_STORE = "dgl.graphbolt.impl.basic_feature_store:BasicFeatureStore"

Homes = dict[str, tuple[str, ...]]
"""A name → its homes ("module:name"), in all of which it is replaced."""

_EVERYWHERE: Homes = {
    "partition_graph": (f"{_DIST}:partition_graph", f"{_DIST}.partition:partition_graph"),
    "load_partition": (f"{_DIST}:load_partition", f"{_DIST}.partition:load_partition"),
    "load_partition of servers": (f"{_DIST}.dist_graph:load_partition",),
    "load_partition_feats": (
        f"{_DIST}:load_partition_feats", f"{_DIST}.partition:load_partition_feats",
        f"{_DIST}.dist_graph:load_partition_feats"),
    "dgl_partition_to_graphbolt": (f"{_DIST}:dgl_partition_to_graphbolt",
                                   f"{_DIST}.partition:dgl_partition_to_graphbolt"),
    "initialize": (f"{_DIST}:initialize", f"{_DIST}.dist_context:initialize"),
    "DistGraphServer": (f"{_DIST}.dist_graph:DistGraphServer",),
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
    "NeighborSampler": ("dgl.dataloading.neighbor_sampler:NeighborSampler",),
    "HeteroGraphConv": ("dgl.nn.pytorch.hetero:HeteroGraphConv",),
    "gspmm of graphs": ("dgl.ops.spmm:gspmm", "dgl.ops:gspmm"),
    "gsddmm of graphs": ("dgl.ops.sddmm:gsddmm", "dgl.ops:gsddmm"),
    "gspmm": ("dgl.ops.spmm:gspmm_internal",),
    "gsddmm": ("dgl.ops.sddmm:gsddmm_internal",),
    "edge_softmax": ("dgl.ops.edge_softmax:edge_softmax_internal",),
    "OnDiskDataset": ("dgl.graphbolt.impl.ondisk_dataset:OnDiskDataset",),
    "samplers of GraphBolt": ("dgl.graphbolt.subgraph_sampler:SubgraphSampler",),
    "DataLoader of GraphBolt": ("dgl.graphbolt.dataloader:DataLoader",),
    "DistEmbedding": (f"{_DIST}.nn.pytorch.sparse_emb:DistEmbedding",),
    "DistSparseGradOptimizer": (
        f"{_DIST}.optim.pytorch.sparse_optim:DistSparseGradOptimizer",),
    "backward": ("torch.autograd:backward",),
    "grad": ("torch.autograd:grad",),
    "Tensor": ("torch:Tensor",),
    "all_reduce": ("torch.distributed:all_reduce",
                   "torch.distributed.distributed_c10d:all_reduce"),
    "reduce": ("torch.distributed:reduce", "torch.distributed.distributed_c10d:reduce"),
    "barrier of torch": ("torch.distributed:barrier",),
    "destroy_process_group": (
        "torch.distributed:destroy_process_group",
        "torch.distributed.distributed_c10d:destroy_process_group"),
    "DistributedDataParallel": ("torch.nn.parallel.distributed:DistributedDataParallel",),
}


def _loaders(module: str) -> Homes:
    return {name: (f"{module}:{name}",) for name in ("DistNodeDataLoader", "DistEdgeDataLoader")}


RELEASES: dict[str, Homes] = {
    "2.1.0": {
        **_EVERYWHERE,
        **_loaders("dgl.dataloading.dist_dataloader"),
        "part to GraphBolt": (),
        "reads of BasicFeatureStore": (_STORE,),
        "items of BasicFeatureStore": (),
    },
    "2.4.0": {
        **_EVERYWHERE,
        **_loaders(f"{_DIST}.dist_dataloader"),
        "part to GraphBolt": (f"{_DIST}.partition:gb_convert_single_dgl_partition",),
        "reads of BasicFeatureStore": (),
        "items of BasicFeatureStore": (_STORE,),
    },
}
"""The releases that dgl-heta is tested with."""

_MEMBERS = {"items of BasicFeatureStore": "__getitem__"}
"""Members without which a home is not the one that is meant."""


def release() -> str:
    """Return the release of DGL that is installed.

    Between two that are known it is taken, with a warning, for the one of these that has all names
    in the same places, if there is one.

    Raises
    ------
    InputError
        It is none of these, or there is none.
    """
    dgl = optional("dgl", "switching DistDGL scripts", "dgl")
    return _known(dgl.__version__)


@cache
def _known(version: str) -> str:
    number = version.partition("+")[0]
    if number in RELEASES:
        return number
    known = sorted(RELEASES, key=_order)
    if _order(known[0]) < _order(number) < _order(known[-1]):
        for name in known:
            if all(map(_is_there, _names_of(name))):
                log.warning("dgl %s is installed, which dgl-heta was not tested with (tested: %s); "
                            "it has all names that are replaced", version, " and ".join(known))
                return name
    raise InputError(f"dgl {version} is installed; switching DistDGL scripts works with dgl "
                     f"{' and '.join(known)}: install one of these")


def _order(version: str) -> list[int]:
    """Return what releases are ordered by: 2.2.1 is before 2.10; empty for what is no release."""
    pieces = version.split(".")
    return [int(piece) for piece in pieces] if all(map(str.isdecimal, pieces)) else []


def _names_of(number: str) -> Iterator[str]:
    """Yield all names that must be there in a release."""
    for what, of_what in RELEASES[number].items():
        for home in of_what:
            yield f"{home}.{_MEMBERS[what]}" if what in _MEMBERS else home


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def homes(name: str, member: str = "") -> Iterator[str]:
    """Yield where a name is in the installed release, or a member of the classes there."""
    for home in RELEASES[release()][name]:
        yield f"{home}.{member}" if member else home
