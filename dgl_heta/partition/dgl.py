"""`dgl_heta.partition_graph`: the call of `dgl.distributed.partition_graph`, with more methods.

This is an adapter: it imports dgl.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.metatree import parse_metapaths

DGL_METHODS = ("metis", "random")


# Without it, importing dgl writes a file into the home directory, which may be read-only.
os.environ.setdefault("DGLBACKEND", "pytorch")


def partition_graph(
    g: Any,
    graph_name: str,
    num_parts: int,
    out_path: str,
    num_hops: int | None = None,
    part_method: str = "metis",
    balance_ntypes: Any = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    objtype: str = "cut",
    graph_formats: Any = None,
    use_graphbolt: bool = False,
    *,
    target_ntype: str | Sequence[str] | None = None,
    metapaths: Any = None,
    seed: int = 0,
    replication: str | None = None,
    memory_mb: float | None = None,
    overwrite: bool = False,
    **dgl_arguments: Any,
) -> Any:
    """Partition a DGLGraph as `dgl.distributed.partition_graph` does, or by meta-partitioning.

    Methods of DGL go to DGL with all their arguments. The methods of dgl-heta (`meta`, and
    those of plugins) write a relation store and a plan in `out_path`, with DistDGL's
    part_config `<graph_name>.json` beside them.

    Parameters
    ----------
    target_ntype : target node type or types; needed by the methods of dgl-heta. A graph with a
        single node type needs none. Without its labels and train mask the graph is partitioned,
        but `dgl-heta train` has no task.
    num_hops : depth of the metatree, the number of layers of the model (default 2). For DGL's
        methods it is what DGL takes it for (default 1).
    metapaths : a list of metapaths, each a list of relations in edge direction.
    seed : for methods that draw at random.
    replication : full, none, or (default) the method's own; DistDGL scripts need full.
    memory_mb : MB that a partition may hold, as predicted.
    overwrite : replace an earlier partition in `out_path` (methods of dgl-heta).
    return_mapping : with the methods of dgl-heta ids do not change: the identity is returned.
    balance_ntypes, balance_edges, num_trainers_per_machine, objtype, graph_formats,
    use_graphbolt, **dgl_arguments : go to DGL; methods of dgl-heta have no use for them.

    Returns
    -------
    What DGL returns; for methods of dgl-heta nothing, or with `return_mapping` the original
    node and edge ids per type.

    Raises
    ------
    InputError
        Unknown method or target, a graph with bad features, an existing `out_path`.
    """
    import dgl

    if part_method in DGL_METHODS:
        for name, value in (("target_ntype", target_ntype), ("metapaths", metapaths),
                            ("replication", replication), ("memory_mb", memory_mb)):
            if value is not None:
                raise InputError(f"{name} goes with the methods of dgl-heta (part_method='meta'), "
                                 f"not with '{part_method}'")
        from dgl_heta.system.patching import plain

        return plain(dgl.distributed.partition_graph)(
            g, graph_name, num_parts, out_path, 1 if num_hops is None else num_hops,
            part_method, balance_ntypes, balance_edges, return_mapping, num_trainers_per_machine,
            objtype, graph_formats, use_graphbolt, **dgl_arguments)
    backend = plugins().get("partition backend", part_method)
    if dgl_arguments:
        raise InputError(f"part_method='{part_method}' takes no argument "
                         f"{listing(repr(name) for name in dgl_arguments)}; see the documentation "
                         "of dgl_heta.partition_graph")
    if target_ntype is None:
        if len(g.ntypes) > 1:
            raise InputError(f"part_method='{part_method}' needs target_ntype, the node type to "
                             f"train for; node types: {listing(g.ntypes)}")
        target_ntype = g.ntypes[0]
    target = (target_ntype,) if isinstance(target_ntype, str) else tuple(target_ntype)
    from dgl_heta.graph.readers import read_dgl_graph

    labelled = len(target) == 1 and target[0] in g.ntypes and {
        "label", "labels"} & set(g.nodes[target[0]].data) and "train_mask" in g.nodes[
        target[0]].data
    source = read_dgl_graph(g, graph_name, target=target[0] if labelled else None)
    schema = source.schema()
    paths = parse_metapaths(metapaths, schema) if metapaths is not None else ()
    hops = num_hops if num_hops is not None or metapaths is not None else 2
    request = PartitionRequest(
        num_parts, target, hops, paths, seed, edge_ids=True, replication=replication,
        memory_limit=None if memory_mb is None else round(memory_mb * 1e6))
    backend.partition(source, request, Path(out_path), overwrite=overwrite)
    if return_mapping:
        import torch

        nodes = {t: torch.arange(g.num_nodes(t)) for t in g.ntypes}
        edges = {e: torch.arange(g.num_edges(e)) for e in g.canonical_etypes}
        return (nodes[g.ntypes[0]], edges[g.canonical_etypes[0]]) if len(nodes) == 1 == len(
            edges) else (nodes, edges)
    return None
