"""DistGraph on a meta-partitioned graph: opening it, and what its servers cannot answer."""

from __future__ import annotations

import os
from typing import Any

from dgl_heta.distdgl import tensors
from dgl_heta.distdgl.parallel import check_no_plain_module
from dgl_heta.distdgl.partitions import is_ours, load_graph
from dgl_heta.distdgl.selection import selected
from dgl_heta.distdgl.session import open_session
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.patching import patch_all


def open_graph(graph: Any, part_config: str | None) -> None:
    """Called for every new DistGraph: opens a session if its partition is ours."""
    config = part_config or os.environ.get("DGL_CONF_PATH")
    if config is None or not is_ours(config):
        tensors.open_graph(graph)
        return
    check_no_plain_module()
    graph.heta = open_session(config, graph.get_partition_book().partid, selected(), plugins())


def _init(original: Any) -> Any:
    def __init__(self: Any, graph_name: str, gpb: Any = None, part_config: Any = None) -> None:
        original(self, graph_name, gpb, part_config)
        open_graph(self, part_config)
    return __init__


def _local_partition(original: Any) -> Any:
    def local_partition(self: Any) -> Any:
        session = getattr(self, "heta", None)
        if session is None:
            return original.fget(self)
        if session.whole is None:
            session.whole = load_graph(session.part_config, session.part)
        return session.whole
    return property(local_partition, doc=original.__doc__)


def _refused_access(original: Any) -> Any:
    def access(g: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(g, "heta", None) is not None:
            raise HetaError(
                f"{original.__name__.removeprefix('_distributed_')} by DistDGL's servers cannot "
                "be used on a meta-partitioned graph, whose servers hold no edges: sample with "
                "DistNodeDataLoader, or load the graph with dgl.distributed.load_partition")
        return original(g, *args, **kwargs)
    return access


PATCHES = (
    *patch_all(homes("DistGraph", "__init__"), _init, "open the store and the plan"),
    *patch_all(homes("DistGraph", "local_partition"), _local_partition,
               "this machine's relations"),
    *patch_all(homes("queries of trainers"), _refused_access,
               "refuse sampling and queries by servers, which hold no edges"),
)
