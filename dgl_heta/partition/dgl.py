"""`dgl_heta.partition_graph`: the call of `dgl.distributed.partition_graph`, with more methods.

This is an adapter: it imports dgl.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.manager import plugins
from dgl_heta.hooks.protocols import PartitionBackend
from dgl_heta.partition.request import PartitionResult, ScriptArguments, make_request
from dgl_heta.settings import load_settings
from dgl_heta.system.patching import plain

DGL_METHODS = ("metis", "random")

_WORDS = {"method": "part_method", "parts": "num_parts", "target": "target_ntype",
          "hops": "num_hops"}

# Without it, importing dgl writes a file into the home directory, which may be read-only.
os.environ.setdefault("DGLBACKEND", "pytorch")


def partition_graph(
    g: Any,
    graph_name: str,
    num_parts: int | str,
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
    settings: Iterable[str] = (),
    **dgl_arguments: Any,
) -> Any:
    """Partition a DGLGraph as `dgl.distributed.partition_graph` does, or by meta-partitioning.

    Methods of DGL go to DGL with all their arguments. The methods of dgl-heta (`meta`, and
    those of plugins) write a relation store and a plan in `out_path`, with DistDGL's
    part_config `<graph_name>.json` beside them.

    Parameters
    ----------
    num_parts : number of partitions, or "auto" for methods that decide it themselves.
    target_ntype : target node type or types; needed by `meta` and its like. A graph with a
        single node type needs none. Without its labels and train mask the graph is partitioned,
        but `dgl-heta train` has no task.
    num_hops : depth of the metatree, the number of layers of the model (default 2). For methods
        that make halo nodes, DGL's among them, the hops of these (default 1).
    metapaths : a list of metapaths, each a list of relations in edge direction.
    seed : for methods that draw at random.
    replication : full, none, or (default) the method's own; DistDGL scripts need full.
    memory_mb : MB that a partition may hold, as predicted.
    overwrite : replace an earlier partition in `out_path` (methods of dgl-heta).
    settings : overrides as of `--set`, for methods that have settings: "plugins.NAME.key=value".
    return_mapping : whether to return the original ids. `meta` and its like do not change them.
    balance_ntypes, balance_edges, num_trainers_per_machine, objtype, graph_formats,
    use_graphbolt, **dgl_arguments : go to DGL, and to methods that honour them; `meta` has no use
        for them.

    Returns
    -------
    What DGL returns; for methods of dgl-heta nothing, or with `return_mapping` the original
    node and edge ids per type.

    Raises
    ------
    InputError
        Unknown method or target, a graph with bad features, an existing `out_path`.
    """
    script: dict[str, Any] = {
        "num_hops": 1 if num_hops is None else num_hops, "balance_ntypes": balance_ntypes,
        "balance_edges": balance_edges, "num_trainers_per_machine": num_trainers_per_machine,
        "objtype": objtype, "graph_formats": graph_formats, "use_graphbolt": use_graphbolt,
        **dgl_arguments}
    if part_method in DGL_METHODS:
        for name, value in (("target_ntype", target_ntype), ("metapaths", metapaths),
                            ("replication", replication), ("memory_mb", memory_mb)):
            if value is not None:
                raise InputError(f"{name} goes with the methods of dgl-heta (part_method='meta'), "
                                 f"not with '{part_method}'")
        import dgl

        return plain(dgl.distributed.partition_graph)(
            g, graph_name, num_parts, out_path, part_method=part_method,
            return_mapping=return_mapping, **script)
    registry = plugins()
    if overrides := list(settings):
        registry = registry.configured(load_settings(None, overrides))
    backend: PartitionBackend = registry.get("partition backend", part_method)
    source = _source(g, graph_name, target_ntype)
    request = make_request(
        backend, source.schema(), num_parts, _targets(g, target_ntype),
        hops=None if "num_hops" in backend.honours else num_hops, metapaths=metapaths, seed=seed,
        edge_ids=True, replication=replication, memory_mb=memory_mb, script=script,
        word=lambda name: _WORDS.get(name, name))
    result = backend.partition(source, request, Path(out_path), overwrite=overwrite)
    return _mapping(g, result) if return_mapping else None


def honoured(backend: PartitionBackend, script: Mapping[str, Any]) -> dict[str, Any]:
    """Of a script's arguments those that :func:`partition_graph` takes for a backend."""
    usual = {field.name for field in fields(ScriptArguments)}
    return {name: value for name, value in script.items() if name in usual | backend.honours}


def _targets(g: Any, given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return tuple(g.ntypes) if len(g.ntypes) == 1 else ()
    return (given,) if isinstance(given, str) else tuple(given)


def _source(g: Any, name: str, given: str | Sequence[str] | None) -> GraphSource:
    """The graph, with a task if its only target has labels and a train mask."""
    from dgl_heta.graph.readers import read_dgl_graph

    targets = _targets(g, given)
    data = g.nodes[targets[0]].data if len(targets) == 1 and targets[0] in g.ntypes else {}
    labelled = {"label", "labels"} & set(data) and "train_mask" in data
    return read_dgl_graph(g, name, target=targets[0] if labelled else None)


def _mapping(g: Any, result: PartitionResult) -> Any:
    """Original ids by new ids, in DGL's form: per type, or where there is one, its tensor."""
    import torch

    def ids(maps: Mapping[Any, Any] | None, counts: dict[Any, int]) -> Any:
        return {kind: torch.arange(count) if maps is None else torch.as_tensor(maps[kind])
                for kind, count in counts.items()}

    nodes = ids(result.nodes, {t: g.num_nodes(t) for t in g.ntypes})
    edges = ids(None if result.edges is None else {tuple(r): m for r, m in result.edges.items()},
                {e: g.num_edges(e) for e in g.canonical_etypes})
    if len(nodes) == 1 == len(edges):
        return next(iter(nodes.values())), next(iter(edges.values()))
    return nodes, edges
