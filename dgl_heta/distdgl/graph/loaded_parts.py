"""Parts of a meta-partitioned graph as DGL loads them: trainers, servers and scripts.

Trainers sample from the relation store, so a server's graph has no edges; node and edge data are
served as by DGL's own parts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dgl
import dgl.distributed
import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.graph.graphbolt_parts import no_graphbolt
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Schema
from dgl_heta.graph.source import graph_names, part_tensor
from dgl_heta.partition.arguments import whole
from dgl_heta.partition.directory import is_part_config, open_partition
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store
from dgl_heta.store.manifest import ArrayEntry
from dgl_heta.store.structure import copied
from dgl_heta.system.patching import patch_all
from dgl_heta.system.shared_memory import holders


def load_graph(part_config: str, part_id: int) -> Any:
    """Return a part as DistDGL's homogeneous graph: all nodes of its types, edges of its relations.

    As in DistDGL's parts, ndata has dgl.NID, inner_node (owned by this part) and dgl.NTYPE,
    edata has dgl.EID, inner_edge and dgl.ETYPE.
    """
    store, plan, book = _opened(part_config, part_id)
    part = plan.partitions[part_id]
    offsets, total = {}, 0
    for ntype in part.node_types:
        offsets[ntype], total = total, total + store.schema.node_counts[ntype]
    sources, destinations = [], []
    for relation in part.relations:
        csc = copied(relation, store.relation(relation), store.schema.node_counts[relation.src])
        rows = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        sources.append(torch.from_numpy(csc.indices + offsets[relation.src]))
        destinations.append(torch.from_numpy(rows + offsets[relation.dst]))
    graph = dgl.graph((_join(sources), _join(destinations)), num_nodes=total)
    for name, column in _edge_columns(store, part, book, part_id).items():
        graph.edata[name] = column
    for name, column in _node_columns(store.schema, part, book, part_id).items():
        graph.ndata[name] = column
    return graph


def _edge_columns(store: Store, part: Partition, book: Any, part_id: int) -> dict[str, Tensor]:
    """Return what DGL's parts say of their edges, in the order of the part's relations."""
    # In DGL's own dtypes (uint8, int32): what reads DGL's parts reads these.
    columns: dict[str, list[Tensor]] = {dgl.EID: [], "inner_edge": [], dgl.ETYPE: []}
    for relation in part.relations:
        ids = torch.from_numpy(np.array(store.edge_ids(relation)))
        columns[dgl.EID].append(book.map_to_homo_eid(ids, tuple(relation)))
        columns["inner_edge"].append((book.eid2partid(ids, tuple(relation)) == part_id).to(
            torch.uint8))
        columns[dgl.ETYPE].append(torch.full(
            (len(ids),), store.schema.relations.index(relation), dtype=torch.int32))
    return {name: _join(pieces) for name, pieces in columns.items()}


def _node_columns(schema: Schema, part: Partition, book: Any, part_id: int) -> dict[str, Tensor]:
    """Return what DGL's parts say of their nodes, in the order of the part's node types."""
    columns: dict[str, list[Tensor]] = {dgl.NID: [], "inner_node": [], dgl.NTYPE: []}
    for ntype in part.node_types:
        ids = torch.arange(schema.node_counts[ntype])
        columns[dgl.NID].append(book.map_to_homo_nid(ids, ntype))
        columns["inner_node"].append((book.nid2partid(ids, ntype) == part_id).to(torch.uint8))
        columns[dgl.NTYPE].append(torch.full(
            (len(ids),), schema.node_types.index(ntype), dtype=torch.int32))
    return {name: _join(pieces) for name, pieces in columns.items()}


def load_nothing(part_config: str, part_id: int) -> Any:
    """Return the graph that a server of a meta-partitioned graph has: one without edges.

    Trainers sample from the store, and servers refuse to (see PATCHES). One self-loop of a
    halo node is there because shared memory cannot be empty.
    """
    _, _, book = _opened(part_config, part_id)
    state_of(_Served).graphs.append(part_config)
    graph = dgl.graph(([0], [0]), num_nodes=1)
    graph.ndata[dgl.NID] = _first(book.partid2nids(part_id))
    graph.ndata["inner_node"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.EID] = _first(book.partid2eids(part_id))
    graph.edata["inner_edge"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.ETYPE] = torch.zeros(1, dtype=torch.int32)
    return graph


def _first(ids: Tensor) -> Tensor:
    """Return the first id of a part, (1,); 0 where it owns none."""
    return ids[:1] if len(ids) else torch.zeros(1, dtype=torch.int64)


def load_features(part_config: str, part_id: int) -> dict[str, Any]:
    """Return arrays of a part's own nodes, `ntype/name` → tensor, as DistDGL keeps them."""
    store, _, _ = _opened(part_config, part_id)
    config = json.loads(Path(part_config).read_text(encoding="utf-8"))
    features = {}
    for ntype, arrays in store.manifest.arrays.items():
        low, high = _range(config["node_map"][ntype], part_id)
        names = graph_names(store.manifest, ntype)
        for name in arrays:
            key = f"{ntype}/{names.get(name, name)}"
            if key in features:
                raise InputError(f"'{key}' is the name of two arrays for DistDGL, because a node "
                                 "type or an array has a slash; rename one of them")
            # What a part has no rows of is not on its machine where that was staged.
            held = store.held_array(ntype, name)[low:high] if low < high else _no_rows(arrays[name])
            features[key] = _rows(store, ntype, name, held)
    return features


def load_edge_data(part_config: str, part_id: int) -> dict[str, Any]:
    """Return arrays of a part's own edges, `src:etype:dst/name` → tensor, as in DistDGL."""
    store, _, _ = _opened(part_config, part_id)
    config = json.loads(Path(part_config).read_text(encoding="utf-8"))
    arrays = {}
    for item in store.manifest.relations:
        low, high = _range(config["edge_map"][":".join(item.relation)], part_id)
        held = store.edge_arrays(item.relation) if low < high else {}
        for name, entry in item.arrays.items():
            rows = held[name][low:high] if low < high else _no_rows(entry)
            arrays[f"{':'.join(item.relation)}/{name}"] = _rows(store, item.relation, name, rows)
    return arrays


def _no_rows(entry: ArrayEntry) -> np.ndarray:
    return np.empty((0, *entry.shape[1:]), entry.dtype)


def _rows(store: Store, kind: Any, name: str, stored: np.ndarray) -> Tensor:
    """Return rows of an array of a node type or relation, as DGL's own parts have them."""
    # A copy: the array is a map of a file, which nobody may write to.
    rows: Tensor = part_tensor(np.array(stored), store.manifest.given.get(kind, {}).get(name))
    return rows


_SERVED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
           torch.float32, torch.float64)
_LONGEST = 254
"""Bytes of a name in shared memory, without a slash before it."""


def _check_served(kind: str, data: Mapping[str, Tensor]) -> None:
    """Check that DistDGL's servers can hold data of a partition, or raise InputError."""
    for key, rows in data.items():
        ntype, _, name = key.partition("/")
        what = f"{kind} data '{name}' of '{ntype}' cannot be held by DistDGL's servers"
        if rows.dtype not in _SERVED:
            refuse("data of a dtype that servers have not", what=what,
                   dtype=str(rows.dtype).removeprefix("torch."))
        if kind == "edge" and 0 in rows.shape[1:]:  # of nodes they are read from the store
            refuse("edge data without numbers", what=what, shape=list(rows.shape[1:]))
        if mark := next((mark for mark in "/~" if mark in name), None):
            refuse("data with a mark in the name", what=what, mark=mark)
        if len(f"{kind}~{ntype}~{name}-kvdata-".encode()) > _LONGEST:
            refuse("data with a long name", what=what)


def _range(ranges: list[list[int]], part_id: int) -> tuple[int, int]:
    """Return the ids that a part owns; part by part the ranges of a type make 0 … count."""
    sizes = [high - low for low, high in ranges]
    return sum(sizes[:part_id]), sum(sizes[:part_id + 1])


def _check_alone(directory: Path) -> None:
    """Check that no program has put data for DGL's parts into a partition's directory.

    Raises
    ------
    InputError
        One has, which nobody would read.
    """
    later = next(iter(sorted(directory.glob("part*/*.dgl"))), None)
    if later is not None:
        refuse("data that are added to parts", path=later)


def _opened(part_config: str, part_id: int) -> tuple[Store, Plan, Any]:
    _check_alone(Path(part_config).parent)
    store, plan = open_partition(Path(part_config).parent, verify=selected().run.verify)
    store.check_untimed("scripts of DistDGL and GraphBolt go")
    store.check_unscaled()  # a part may have no rows of that type
    whole("part_id", part_id, least=0)
    if not 0 <= part_id < plan.num_parts:
        raise InputError(f"{part_config} has the parts 0 … {plan.num_parts - 1}, and no "
                         f"{part_id}")
    return store, plan, dgl.distributed.load_partition_book(part_config, part_id)[0]


def _join(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)


class _Served:
    """The meta-partitioned graphs of which this process is a server.

    Attributes
    ----------
    graphs : their part_config files.
    """

    def __init__(self) -> None:
        self.graphs: list[str] = []


def _of_meta_partition(load: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what makes a patch of a function of DGL: `load` where its part is a meta-partition's.
    """
    def make(original: Any) -> Any:
        def patched(part_config: str, *args: Any, **kwargs: Any) -> Any:
            chosen = load if is_part_config(part_config) else original
            return chosen(part_config, *args, **kwargs)
        return patched
    return make


def _loaded(load: Callable[[str, int], Any], part_config: str, /, part_id: int,
            load_feats: bool = True, use_graphbolt: bool = False) -> Any:
    """Return what `load_partition` does, with the graph that `load` makes; DGL's arguments."""
    if use_graphbolt:
        no_graphbolt("use_graphbolt=True", part_config)
    graph = load(part_config, part_id)
    book, name, ntypes, etypes = dgl.distributed.load_partition_book(part_config, part_id)
    features = load_features(part_config, part_id) if load_feats else {}
    edge_data = load_edge_data(part_config, part_id) if load_feats else {}
    return graph, features, edge_data, book, name, list(ntypes), list(etypes)


def _features(part_config: str, /, part_id: int, load_nodes: bool = True, load_edges: bool = True
              ) -> Any:
    """Return what `load_partition_feats` does."""
    both = (load_features(part_config, part_id) if load_nodes else None,
             load_edge_data(part_config, part_id) if load_edges else None)
    # On a server alone: a script may load data that no server could hold.
    if part_config in state_of(_Served).graphs:
        for kind, data in zip(("node", "edge"), both):
            _check_served(kind, data or {})
    return both


def _empty_shared_mem(original: Any) -> Any:
    def empty_shared_mem(name: str, is_create: bool, shape: Any, dtype: Any = "float32") -> Any:
        # A part may own no node of a type, but shared memory cannot be empty. Nor may it be that of
        # another program, which DGL's names do not tell apart.
        if 0 not in shape:
            if is_create:
                _refuse_another_programs(name.lstrip("/"))
            return original(name, is_create, shape, dtype)
        return dgl.ndarray.empty(tuple(shape), dtype)
    return empty_shared_mem


def _refuse_another_programs(name: str) -> None:
    """Refuse shared memory that a process of another launch has: of another file of addresses."""
    run = "DGL_IP_CONFIG"
    for pid in holders(name):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            here = f"{run}={os.environ.get(run)}".encode()
            if any(x.startswith(f"{run}=".encode()) and x != here for x in environment):
                refuse("shared memory of another program", name=name, pid=pid)


def _refused_request(original: Any) -> Any:
    def process_request(self: Any, server_state: Any) -> Any:
        if served := state_of(_Served).graphs:
            refuse("request of a trainer without dgl-heta", request=type(self).__name__,
                   graph=served[-1])
        return original(self, server_state)
    return process_request


PATCHES = (
    *patch_all(homes("load_partition"), _of_meta_partition(partial(_loaded, load_graph)),
               "load a part from the relation store"),
    *patch_all(homes("load_partition of servers"),
               _of_meta_partition(partial(_loaded, load_nothing)),
               "servers of a meta-partitioned graph hold no edges"),
    *patch_all(homes("load_partition_feats"), _of_meta_partition(_features),
               "node data of a part from the relation store"),
    *patch_all(homes("empty_shared_mem"), _empty_shared_mem,
               "a part may own no node of a type; another program's memory is refused"),
    *patch_all(homes("requests to servers", "process_request"), _refused_request,
               "refuse sampling and queries on the servers, too"),
)
