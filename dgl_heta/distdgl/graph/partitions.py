"""Partitions for DistDGL: make them by the selected method, load those of dgl-heta."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dgl
import dgl.distributed
import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.graph.graphbolt_parts import no_graphbolt
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.graph.source import graph_names, part_tensor
from dgl_heta.partition.arguments import shown, warn_once, whole
from dgl_heta.partition.dgl import DGL_METHODS, OWN, arguments_of, perform
from dgl_heta.partition.directory import is_part_config, is_partition, open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import MODELS
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.store.structure import copied
from dgl_heta.system.patching import patch_all
from dgl_heta.system.shared_memory import holders


def partition(original: Callable[..., Any], settings: Settings, /, *args: Any, **kwargs: Any
              ) -> Any:
    """`dgl.distributed.partition_graph` as the script says, and the settings where they say more.

    Parameters
    ----------
    original : DGL's own function.
    settings : what they name themselves wins over the script's arguments.
    """
    given = _decided(settings, arguments_of(*args, **kwargs))
    ours = given["part_method"] not in DGL_METHODS
    if ours and "overwrite" not in kwargs:
        state_of(_Earlier).check(given["out_path"])
    result = perform(given, original, settings.origin("partition.shared"))
    if ours:
        out = given["out_path"]
        state_of(_Earlier).made.add(Path(out).resolve())
        print(f"{several(given['num_parts'], 'partition')} of {given['graph_name']} by "
              f"{given['part_method']} in {out}; `dgl-heta inspect {out}` shows them", flush=True)
    return result


class _Earlier:
    """Partitions of before this program, which it replaces, or only if it was asked to.

    Attributes
    ----------
    kept : whether they are not to be replaced.
    made : directories of the partitions that this program has made.
    """

    def __init__(self) -> None:
        self.kept = False
        self.made: set[Path] = set()

    def check(self, out: Any) -> None:
        """
        Raises
        ------
        InputError
            There is a partition of before, and it is kept.
        """
        if not self.kept or not isinstance(out, str | os.PathLike):
            return
        path = Path(out)
        if is_partition(path) and path.resolve() not in self.made:
            raise InputError(f"{path} exists and holds a partition; choose another directory or "
                             "ask to overwrite it (dgl-heta run --overwrite, or overwrite=True of "
                             "partition_graph)")


def keep_earlier(kept: bool) -> None:
    """Whether `partition_graph` refuses to replace a partition that this program did not make,
    unless the script says `overwrite`."""
    earlier = state_of(_Earlier)
    earlier.kept = kept
    earlier.made.clear()


_SETTINGS = {"target_ntype": "target", "metapaths": "metapaths", "seed": "seed",
             "replication": "replication", "memory_mb": "memory_mb", "cut": "cut",
             "shared": "shared"}
"""Arguments that settings of the section `partition` have as well."""


def _decided(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments with what the settings name; what that overrules is said once."""
    said, asked, chosen = settings.partition, settings.asked("partition"), dict(given)
    if "method" in asked:
        chosen["part_method"] = said.method
    if chosen["part_method"] in DGL_METHODS:
        if given["part_method"] not in DGL_METHODS:
            chosen |= dict.fromkeys(OWN) | {"settings": (), "overwrite": True}
            _overruled(f"partition.method = {said.method} says", chosen, given)
        return chosen
    named = {argument: asked[key] for argument, key in _SETTINGS.items() if key in asked}
    if len(named.get("target_ntype") or ()) == 1:
        named["target_ntype"] = named["target_ntype"][0]
    if settings.origin("model.layers").asked and said.metapaths is None:
        named["hops"] = settings.model.layers
    if settings.origin("model.name").asked and settings.model.name in MODELS:
        named["model"] = settings.model.name
    if said.metapaths is not None and given["num_hops"] not in (None, 1):
        named["num_hops"] = None
    chosen |= named
    _overruled("the settings say", chosen, given)
    if "parts" in asked and said.parts != given["num_parts"]:
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
        csc = copied(relation, store.relation(relation), store.schema.node_counts[relation.src])
        rows = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        sides[0].append(torch.from_numpy(csc.indices + offsets[relation.src]))
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
    graph.ndata[dgl.NID] = _first(book.partid2nids(part_id))
    graph.ndata["inner_node"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.EID] = _first(book.partid2eids(part_id))
    graph.edata["inner_edge"] = torch.zeros(1, dtype=torch.uint8)
    graph.edata[dgl.ETYPE] = torch.zeros(1, dtype=torch.int32)
    return graph


def _first(ids: Tensor) -> Tensor:
    """The first id of a part, (1,); 0 where it owns none."""
    return ids[:1] if len(ids) else torch.zeros(1, dtype=torch.int64)


def load_features(part_config: str, part_id: int) -> dict[str, Any]:
    """Arrays of the nodes that a part owns, `ntype/name` → tensor, as DistDGL keeps them."""
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
            features[key] = _rows(store, ntype, name, store.held_array(ntype, name)[low:high])
    return features


def load_edge_data(part_config: str, part_id: int) -> dict[str, Any]:
    """Arrays of the edges that a part owns, `src:etype:dst/name` → tensor, as in DistDGL."""
    store, _, _ = _opened(part_config, part_id)
    config = json.loads(Path(part_config).read_text(encoding="utf-8"))
    found = {}
    for relation in store.schema.relations:
        low, high = _range(config["edge_map"][":".join(relation)], part_id)
        for name, array in store.edge_arrays(relation).items():
            found[f"{':'.join(relation)}/{name}"] = _rows(store, relation, name, array[low:high])
    return found


def _rows(store: Store, kind: Any, name: str, held: np.ndarray) -> Tensor:
    """Rows of an array of a node type or relation, as DGL's own parts have them."""
    found: Tensor = part_tensor(np.array(held), store.manifest.given.get(kind, {}).get(name))
    return found


_SERVED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
           torch.float32, torch.float64)
_LONGEST = 254
"""Bytes of a name in shared memory, without a slash before it."""


def _check_served(kind: str, data: Mapping[str, Tensor]) -> None:
    """
    Raises
    ------
    InputError
        Data that are in a partition, but that DistDGL's servers cannot hold.
    """
    for key, rows in data.items():
        ntype, _, name = key.partition("/")
        what = f"{kind} data '{name}' of '{ntype}' cannot be held by DistDGL's servers"
        if rows.dtype not in _SERVED:
            raise InputError(f"{what}: they are {str(rows.dtype).removeprefix('torch.')}; convert "
                             "them before partition_graph, complex ones by torch.view_as_real")
        if kind == "edge" and 0 in rows.shape[1:]:  # of nodes they are read from the store
            raise InputError(f"{what}: their rows {list(rows.shape[1:])} have no numbers; leave "
                             "them out")
        if mark := next((mark for mark in "/~" if mark in name), None):
            raise InputError(f"{what}: the name has a '{mark}', by which they separate names; "
                             "rename them before partition_graph")
        if len(f"{kind}~{ntype}~{name}-kvdata-".encode()) > _LONGEST:
            raise InputError(f"{what}: the name is too long for shared memory; shorten it before "
                             "partition_graph")


def _range(ranges: list[list[int]], part_id: int) -> tuple[int, int]:
    """The ids that a part owns; part by part the ranges of a type make 0 … count."""
    sizes = [high - low for low, high in ranges]
    return sum(sizes[:part_id]), sum(sizes[:part_id + 1])


def _check_alone(directory: Path) -> None:
    """
    Raises
    ------
    InputError
        A program has put data for DGL's parts into the directory, which nobody would read.
    """
    later = next(iter(sorted(directory.glob("part*/*.dgl"))), None)
    if later is not None:
        raise InputError(
            f"{later} was not written by dgl-heta: what a program adds to DGL's parts after "
            "partition_graph is not read from a meta-partition; give the graph its data before, or "
            "let DGL partition (part_method='metis' or 'random') and make meta-partitions of its "
            "parts by `dgl-heta partition PARTS/NAME.json`")


def _opened(part_config: str, part_id: int) -> tuple[Store, Plan, Any]:
    _check_alone(Path(part_config).parent)
    store, plan = open_partition(Path(part_config).parent, verify=selected().run.verify)
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
        if not is_part_config(part_config):
            return original(part_config, *args, **kwargs)
        return _loaded(load_graph, part_config, *args, **kwargs)
    return load_partition


def _load_partition_on_server(original: Any) -> Any:
    def load_partition(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if not is_part_config(part_config):
            return original(part_config, *args, **kwargs)
        state_of(_Served).graphs.append(part_config)
        return _loaded(load_nothing, part_config, *args, **kwargs)
    return load_partition


class _Served:
    """The meta-partitioned graphs of which this process is a server.

    Attributes
    ----------
    graphs : their part_config files.
    """

    def __init__(self) -> None:
        self.graphs: list[str] = []


def _loaded(load: Callable[[str, int], Any], part_config: str, /, part_id: int,
            load_feats: bool = True, use_graphbolt: bool = False) -> Any:
    """What `load_partition` returns, with the graph that `load` makes; DGL's own arguments."""
    if use_graphbolt:
        raise no_graphbolt("use_graphbolt=True", part_config)
    graph = load(part_config, part_id)
    book, name, ntypes, etypes = dgl.distributed.load_partition_book(part_config, part_id)
    features, edge_data = (load(part_config, part_id) if load_feats else {}
                           for load in (load_features, load_edge_data))
    return graph, features, edge_data, book, name, list(ntypes), list(etypes)


def _load_partition_feats(original: Any) -> Any:
    def load_partition_feats(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if not is_part_config(part_config):
            return original(part_config, *args, **kwargs)
        return _features(part_config, *args, **kwargs)
    return load_partition_feats


def _features(part_config: str, /, part_id: int, load_nodes: bool = True, load_edges: bool = True
              ) -> Any:
    """What `load_partition_feats` returns."""
    found = (load_features(part_config, part_id) if load_nodes else None,
             load_edge_data(part_config, part_id) if load_edges else None)
    if part_config in state_of(_Served).graphs:
        for kind, data in zip(("node", "edge"), found):
            _check_served(kind, data or {})
    return found


def _empty_shared_mem(original: Any) -> Any:
    def empty_shared_mem(name: str, is_create: bool, shape: Any, dtype: Any = "float32") -> Any:
        """Shared memory cannot be empty, but a part may own no node of a type. Nor may it be that
        of another program, which DGL's names do not tell apart."""
        if 0 not in shape:
            if is_create:
                _refuse_another_programs(name.lstrip("/"))
            return original(name, is_create, shape, dtype)
        return dgl.ndarray.empty(tuple(shape), dtype)
    return empty_shared_mem


def _refuse_another_programs(name: str) -> None:
    run = "DGL_IP_CONFIG"
    for pid in holders(name):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            here = f"{run}={os.environ.get(run)}".encode()
            if any(x.startswith(f"{run}=".encode()) and x != here for x in environment):
                raise HetaError(
                    f"'{name}' in shared memory belongs to another DGL program on this machine "
                    f"(process {pid}): DGL names it by the graph and the feature alone, so one of "
                    "the two would read the other's; wait for its end, or emulate hosts "
                    "(`dgl-heta launch --hosts`), which have a shared memory of their own")


def _refused_request(original: Any) -> Any:
    def process_request(self: Any, server_state: Any) -> Any:
        if served := state_of(_Served).graphs:
            raise HetaError(f"{type(self).__name__} reached the server of the meta-partitioned "
                            f"graph {served[-1]}, which holds no edges: a trainer runs without "
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
    *patch_all(homes("empty_shared_mem"), _empty_shared_mem,
               "a part may own no node of a type; another program's memory is refused"),
    *patch_all(homes("requests to servers", "process_request"), _refused_request,
               "refuse sampling and queries on the servers, too"),
)
