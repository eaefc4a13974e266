"""DistGraph on a meta-partitioned graph: opening it, and what its servers cannot answer."""

from __future__ import annotations

import os
from typing import Any

from dgl.distributed import rpc
from dgl.distributed.kvstore import GetPartShapeRequest, KVClient

from dgl_heta.distdgl import tensors
from dgl_heta.distdgl.own_part import open_part, own_part
from dgl_heta.distdgl.parallel import check_no_plain_module, wrapper_for_any_graph
from dgl_heta.distdgl.partitions import is_ours, load_graph
from dgl_heta.distdgl.selection import selected
from dgl_heta.distdgl.session import open_session
from dgl_heta.distdgl.versions import homes
from dgl_heta.distdgl.whereabouts import at
from dgl_heta.errors import HetaError
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.patching import patch_all


def open_graph(graph: Any, part_config: str | None) -> None:
    """Called for every new DistGraph: opens a session if its partition is ours."""
    config = part_config or os.environ.get("DGL_CONF_PATH")
    if config is None or not is_ours(config):
        tensors.open_graph(graph)
        wrapper = wrapper_for_any_graph()
        open_part(graph, wrapper is not None and wrapper.own_part())
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
        part = own_part()
        if part is not None and original.__name__ == "_distributed_access":
            answer = part.access(g, *args, **kwargs)
            if answer is not None:
                return answer
        return original(g, *args, **kwargs)
    return access


def drain(client: Any) -> None:
    """Return when every server has done what this trainer asked of it before.

    A write to a DistTensor has no answer, but a server works through a connection in order: one
    that has answered a later request has done what came before it.
    """
    name = next(iter(client.data_name_list()), None)
    if name is None:
        return
    servers = rpc.get_num_server()
    for server in range(servers):
        rpc.send_request(server, GetPartShapeRequest(name))
    for _ in range(servers):
        rpc.recv_response()


def _barrier(original: Any) -> Any:
    def barrier(self: Any) -> None:
        if isinstance(self._client, KVClient):  # a process by itself has none
            drain(self._client)
        with at("g.barrier()"):
            original(self)
    return barrier


PATCHES = (
    *patch_all(homes("DistGraph", "__init__"), _init, "open the store and the plan"),
    *patch_all(homes("DistGraph", "local_partition"), _local_partition,
               "this machine's relations"),
    *patch_all(homes("DistGraph", "barrier"), _barrier,
               "servers have done all writes before it, not server 0 alone"),
    *patch_all(homes("queries of trainers"), _refused_access,
               "refuse sampling and queries by servers, which hold no edges; inside a part, sample "
               "its edges alone"),
)
