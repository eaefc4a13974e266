"""Partitions for DistDGL: make them by the selected method, load those of dgl-heta."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch

from dgl_heta.distdgl.selection import selected
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError, InputError
from dgl_heta.partition.arguments import shown, warn_once, whole
from dgl_heta.partition.dgl import DGL_METHODS, OWN, arguments_of, perform
from dgl_heta.partition.directory import graph_names, is_part_config, open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.patching import patch_all


def is_ours(part_config: Any) -> bool:
    """Whether a part_config JSON belongs to a partition of dgl-heta."""
    return is_part_config(part_config)


def partition(original: Callable[..., Any], settings: Settings, /, *args: Any, **kwargs: Any
              ) -> Any:
    """`dgl.distributed.partition_graph` as the script says, and the settings where they say more.

    Parameters
    ----------
    original : DGL's own function.
    settings : what they name themselves wins over the script's arguments.
    """
    given = _decided(settings, arguments_of(*args, **kwargs))
    result = perform(given, original)
    if given["part_method"] not in DGL_METHODS:
        out = given["out_path"]
        print(f"{given['num_parts']} partitions of {given['graph_name']} by "
              f"{given['part_method']} in {out}; `dgl-heta inspect {out}` shows them", flush=True)
    return result


_SETTINGS = {"target_ntype": "target", "metapaths": "metapaths", "seed": "seed",
             "replication": "replication", "memory_mb": "memory_mb", "cut": "cut"}
"""Arguments that settings of the section `partition` have as well."""


def _decided(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments with what the settings name; what that overrules is said once."""
    said, chosen = settings.partition, dict(given)
    if "method" in said.model_fields_set:
        chosen["part_method"] = said.method
    if chosen["part_method"] in DGL_METHODS:
        if given["part_method"] not in DGL_METHODS:
            chosen |= dict.fromkeys(OWN) | {"settings": (), "overwrite": True}
            _overruled(f"partition.method = {said.method} says", chosen, given)
        return chosen
    named = {argument: getattr(said, key) for argument, key in _SETTINGS.items()
             if key in said.model_fields_set}
    if "layers" in settings.model.model_fields_set and said.metapaths is None:
        named["hops"] = settings.model.layers
    if said.metapaths is not None and given["num_hops"] not in (None, 1):
        named["num_hops"] = None
    chosen |= named
    _overruled("the settings say", chosen, given)
    if "parts" in said.model_fields_set and said.parts != given["num_parts"]:
        warn_once(f"partition.parts = {said.parts} in the settings has no effect on a script: "
                  f"num_parts={given['num_parts']} counts")
    return chosen


def _overruled(by: str, chosen: dict[str, Any], given: dict[str, Any]) -> None:
    lost = [f"{name}={shown(value)}" for name, value in given.items()
            if name in (*OWN, "num_hops", "settings", "overwrite") and value is not None
            and chosen[name] is not value and chosen[name] != value]
    if lost:
        warn_once(f"no effect on partition_graph, since {by} otherwise: {', '.join(lost)}")


def load_graph(part_config: str, part_id: int) -> Any:
    """A part as DistDGL's homogeneous graph: all nodes of its types, all edges of its relations.

    As in DistDGL's parts, ndata has dgl.NID, inner_node (owned by this part) and dgl.NTYPE,
    edata has dgl.EID, inner_edge and dgl.ETYPE.
    """
    store, plan, book = _opened(part_config, part_id)
    part = plan.partitions[part_id]
    offsets, total = {}, 0
    for ntype in part.node_types:
        offsets[ntype], total = total, total + store.schema.node_counts[ntype]
    sides: tuple[list[Any], list[Any]] = ([], [])
    edata: dict[str, list[Any]] = {dgl.EID: [], "inner_edge": [], dgl.ETYPE: []}
    for relation in part.relations:
        csc = store.relation(relation)
        rows = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        sides[0].append(torch.from_numpy(csc.indices.astype(np.int64) + offsets[relation.src]))
        sides[1].append(torch.from_numpy(rows + offsets[relation.dst]))
        ids = torch.from_numpy(np.array(store.edge_ids(relation)))
        edata[dgl.EID].append(book.map_to_homo_eid(ids, tuple(relation)))
        edata["inner_edge"].append((book.eid2partid(ids, tuple(relation)) == part_id).to(
            torch.uint8))
        edata[dgl.ETYPE].append(torch.full((len(ids),), store.schema.relations.index(relation),
                                           dtype=torch.int32))
    graph = dgl.graph((_join(sides[0]), _join(sides[1])), num_nodes=total)
    for name, pieces in edata.items():
        graph.edata[name] = _join(pieces)
    node_ids, inner, kinds = [], [], []
    for ntype in part.node_types:
        ids = torch.arange(store.schema.node_counts[ntype])
        node_ids.append(book.map_to_homo_nid(ids, ntype))
        inner.append((book.nid2partid(ids, ntype) == part_id).to(torch.uint8))
        kinds.append(torch.full((len(ids),), store.schema.node_types.index(ntype),
                                dtype=torch.int32))
    graph.ndata[dgl.NID], graph.ndata["inner_node"] = _join(node_ids), _join(inner)
    graph.ndata[dgl.NTYPE] = _join(kinds)
    return graph


def load_nothing(part_config: str, part_id: int) -> Any:
    """The graph that a server of a meta-partitioned graph holds: a part's nodes without edges.

    Trainers sample from the store, and servers refuse to (see `patches`). One self-loop of a
    halo node is there because shared memory cannot be empty.
    """
    _, _, book = _opened(part_config, part_id)
    graph = dgl.graph(([0], [0]), num_nodes=1)
    graph.ndata[dgl.NID] = torch.tensor([int(book.partid2nids(part_id)[0])])
    graph.ndata["inner_node"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.EID] = torch.tensor([int(book.partid2eids(part_id)[0])])
    graph.edata["inner_edge"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.ETYPE] = torch.zeros(1, dtype=torch.int32)
    return graph


def load_features(part_config: str, part_id: int) -> dict[str, Any]:
    """Arrays of the nodes that a part owns, `ntype/name` → tensor, as DistDGL keeps them."""
    store, _, _ = _opened(part_config, part_id)
    config = json.loads(Path(part_config).read_text(encoding="utf-8"))
    features = {}
    for ntype, arrays in store.manifest.arrays.items():
        low, high = _owned(config, ntype, part_id)
        names = graph_names(store, ntype)
        for name in arrays:
            rows = torch.from_numpy(np.array(store.array(ntype, name)[low:high]))
            if rows.dtype == torch.bool:  # not in the key-value store; DGL's parts have uint8 too
                rows = rows.to(torch.uint8)
            features[f"{ntype}/{names.get(name, name)}"] = rows
    return features


def _owned(config: dict[str, Any], ntype: str, part_id: int) -> tuple[int, int]:
    """The ids of a type that a part owns; part by part its ranges make 0 … count."""
    sizes = [high - low for low, high in config["node_map"][ntype]]
    return sum(sizes[:part_id]), sum(sizes[:part_id + 1])


def _opened(part_config: str, part_id: int) -> tuple[Store, Plan, Any]:
    store, plan = open_partition(Path(part_config).parent)
    whole("part_id", part_id, least=0)
    if not 0 <= part_id < plan.num_parts:
        raise InputError(f"{part_config} has the parts 0 … {plan.num_parts - 1}, and no "
                         f"{part_id}")
    return store, plan, dgl.distributed.load_partition_book(part_config, part_id)[0]


def _join(pieces: list[Any]) -> Any:
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)


def _partition_graph(original: Any) -> Any:
    def partition_graph(*args: Any, **kwargs: Any) -> Any:
        return partition(original, selected(), *args, **kwargs)
    return partition_graph


def _load_partition(original: Any) -> Any:
    def load_partition(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(part_config):
            return original(part_config, *args, **kwargs)
        return _loaded(load_graph, part_config, *args, **kwargs)
    return load_partition


def _load_partition_on_server(original: Any) -> Any:
    def load_partition(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(part_config):
            return original(part_config, *args, **kwargs)
        _serving.append(part_config)
        return _loaded(load_nothing, part_config, *args, **kwargs)
    return load_partition


_serving: list[str] = []
"""The meta-partitioned graphs of which this process is a server."""


def _loaded(load: Callable[[str, int], Any], part_config: str, /, part_id: int,
            load_feats: bool = True, use_graphbolt: bool = False) -> Any:
    """What `load_partition` returns, with the graph that `load` makes; DGL's own arguments."""
    if use_graphbolt:
        raise _no_graphbolt("use_graphbolt=True", part_config)
    graph = load(part_config, part_id)
    book, name, ntypes, etypes = dgl.distributed.load_partition_book(part_config, part_id)
    features = load_features(part_config, part_id) if load_feats else {}
    return graph, features, {}, book, name, list(ntypes), list(etypes)


def _no_graphbolt(what: str, part_config: Any) -> InputError:
    return InputError(f"{what} cannot be used with {part_config}, a meta-partitioned graph: its "
                      "parts have no form for GraphBolt, trainers sample from the relation store; "
                      "leave it out (in dgl.distributed.initialize as well), or partition with "
                      "part_method='metis' for GraphBolt")


def _load_partition_feats(original: Any) -> Any:
    def load_partition_feats(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(part_config):
            return original(part_config, *args, **kwargs)
        return _features(part_config, *args, **kwargs)
    return load_partition_feats


def _features(part_config: str, /, part_id: int, load_nodes: bool = True, load_edges: bool = True
              ) -> Any:
    """What `load_partition_feats` returns; edges have no data."""
    return (load_features(part_config, part_id) if load_nodes else None,
            {} if load_edges else None)


def _to_graphbolt(original: Any) -> Any:
    def dgl_partition_to_graphbolt(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if is_ours(part_config):
            raise _no_graphbolt("dgl_partition_to_graphbolt", part_config)
        return original(part_config, *args, **kwargs)
    return dgl_partition_to_graphbolt


def _empty_shared_mem(original: Any) -> Any:
    def empty_shared_mem(name: str, is_create: bool, shape: Any, dtype: Any = "float32") -> Any:
        """Shared memory cannot be empty, but a part may own no node of a type."""
        if 0 not in shape:
            return original(name, is_create, shape, dtype)
        return dgl.ndarray.empty(tuple(shape), dtype)
    return empty_shared_mem


def _refused_request(original: Any) -> Any:
    def process_request(self: Any, server_state: Any) -> Any:
        if _serving:
            raise HetaError(f"{type(self).__name__} reached the server of the meta-partitioned "
                            f"graph {_serving[-1]}, which holds no edges: a trainer runs without "
                            "dgl-heta; start all processes by `dgl-heta launch` or `dgl-heta run`")
        return original(self, server_state)
    return process_request


PATCHES = (
    *patch_all(homes("partition_graph"), _partition_graph, "partition by the selected method"),
    *patch_all(homes("load_partition"), _load_partition, "load a part from the relation store"),
    *patch_all(homes("load_partition of servers"), _load_partition_on_server,
               "servers of a meta-partitioned graph hold no edges"),
    *patch_all(homes("load_partition_feats"), _load_partition_feats,
               "node data of a part from the relation store"),
    *patch_all(homes("dgl_partition_to_graphbolt"), _to_graphbolt,
               "a meta-partition has no form for GraphBolt"),
    *patch_all(homes("empty_shared_mem"), _empty_shared_mem, "a part may own no node of a type"),
    *patch_all(homes("requests to servers", "process_request"), _refused_request,
               "refuse sampling and queries on the servers, too"),
)
