"""DistGraph on a meta-partitioned graph: opening it, and what its servers cannot answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from dgl.distributed import role, rpc
from dgl.distributed.kvstore import GetPartShapeRequest, KVClient

from dgl_heta.distdgl.graph.given_data import check_as_given
from dgl_heta.distdgl.graph.graphbolt_parts import check_graph
from dgl_heta.distdgl.graph.loaded_parts import load_graph
from dgl_heta.distdgl.graph.queries import Queries, answer
from dgl_heta.distdgl.modules.group_merge import canonical
from dgl_heta.distdgl.programs import check_programs
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.rows import node_data
from dgl_heta.distdgl.session import leave_session, open_session
from dgl_heta.distdgl.state import selected, wrapper_for_any_graph
from dgl_heta.distdgl.training.parallel import check_no_plain_module
from dgl_heta.distdgl.versions import homes
from dgl_heta.distdgl.watchdog import at
from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.directory import is_part_config
from dgl_heta.system.patching import patch_all


def open_graph(graph: Any, part_config: str | None) -> None:
    """Open the session of a new DistGraph, if its partition is a meta-partition. The graph that was
    opened last counts."""
    node_data.forget_cached()
    config = part_config or os.environ.get("DGL_CONF_PATH")
    if config is None or not is_part_config(config):
        leave_session()
        node_data.open_graph(graph)
        wrapper = wrapper_for_any_graph()
        if wrapper is not None and wrapper.own_part():
            plugins().get("patches", "local-partition")  # an error says what to install
        return
    check_no_plain_module()
    check_programs(plugins())
    graph.heta = open_session(config, graph.get_partition_book().partid, selected(), plugins())
    graph.heta.server_column = partial(_column, graph)
    if graph.heta.settings.run.record is not None:
        check_as_given(graph, graph.heta.store.manifest, role.get_num_trainers())


def _column(graph: Any, relation: Relation, name: str) -> Callable[[], np.ndarray] | None:
    """Return what reads edge data from DistDGL's servers; None where there are none of the name."""
    data = graph.edges[tuple(relation)].data
    if name not in data:
        return None
    key, edges = data[name].kvstore_key, torch.arange(graph.num_edges(tuple(relation)))
    return lambda: graph._client.pull(key, edges).numpy()  # type: ignore[no-any-return]


def _init(original: Any) -> Any:
    def __init__(self: Any, graph_name: str, gpb: Any = None, part_config: Any = None) -> None:
        # Before DGL's own, which would ask the servers for a graph that they have not.
        if part_config is not None and is_part_config(part_config):
            check_graph(part_config)
        original(self, graph_name, gpb, part_config)
        open_graph(self, part_config)
    return __init__


def _local_partition(original: Any) -> Any:
    def local_partition(self: Any) -> Any:
        session = getattr(self, "heta", None)
        if session is None:
            return original.fget(self)
        # Made when it is asked for, and once: it has a copy of all edges of the part.
        if "heta_local" not in self.__dict__:
            self.heta_local = load_graph(session.part_config, session.part)
        return self.heta_local
    return property(local_partition, doc=original.__doc__)


def _queries(g: Any, session: Any) -> Queries:
    """Return what answers a script's questions about a graph, made at the first."""
    queries: Queries | None = g.__dict__.get("heta_queries")
    if queries is None:
        # The session has compared its partition's relations with their checksums when it opened.
        unread = {*session.store.schema.relations} - {*session.partition.relations}
        queries = g.heta_queries = Queries(session.store, session.edge_ends, g.get_partition_book(),
                                           unread if session.settings.run.verify else set(),
                                           g._client.pull)
    return queries


def _access(original: Any) -> Any:
    def access(g: Any, ids: Any, request: Any, local: Any, **more: Any) -> Any:
        # `local` is DGL's way around a server, for a part's own nodes: no other way is needed here.
        session = getattr(g, "heta", None)
        if session is not None:
            return answer(_queries(g, session), original.__name__, ids, request,
                          say=session.say, **more)
        return original(g, ids, request, local, **more)
    return access


def _find_edges(original: Any) -> Any:
    def find_edges(self: Any, edges: Any, etype: Any = None) -> Any:
        session = getattr(self, "heta", None)
        if session is None:
            return original(self, edges, etype)
        relations = session.store.schema.relations
        if etype is None and len(relations) > 1:
            refuse("find_edges without etype")
        return session.edge_ends.of(relations[0] if etype is None else canonical(etype, relations),
                               edges)
    return find_edges


def drain(client: Any) -> None:
    """Wait until every server has done what this trainer asked of it before.

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
    *patch_all(homes("DistGraph", "find_edges"), _find_edges, "edges' ends from the store"),
    *patch_all(homes("DistGraph", "barrier"), _barrier,
               "servers have done all writes before it, not server 0 alone"),
    *patch_all(homes("queries of trainers"), _access,
               "answer from this machine's store, as servers hold no edges"),
)
