"""Scripts that stay within their machine's part of a graph that DGL's format holds.

A module wrapper asks for it (`ModuleWrapper.own_part`): training as in CATGNN (§3.3), where a
machine trains on its part alone and machines exchange models, not features. A part is its own nodes
and the halo nodes around them. Then

- `node_split` gives a trainer nodes of its machine's own, so numbers of steps differ;
- neighbours are sampled from the part's edges: own nodes have all their in-edges there, halo nodes
  those that the part has with `num_hops` 2 or more (with 1 none are taken);
- node data of halo nodes, which DGL's parts do not hold, are copied from their owners when a
  trainer first reads some of them, all at once; afterwards no read of the part's nodes sends
  anything.

A data loader for nodes of other machines samples over the network, as DistDGL does, and says so. So
does a query of a script's own for nodes that the part has not.

These patches wrap dgl-heta's own of the same names, and hand over to them for graphs that are
meta-partitioned (which have a session, `heta`).
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dgl import EID, NID
from dgl.distributed.graph_services import LocalSampledGraph, merge_graphs
from dgl.utils import toindex
from torch import Tensor

from dgl_heta import HetaError, InputError
from dgl_heta.tools import homes, patch_all, plain, state_of, wrapper_for_any_graph

log = logging.getLogger("dgl_heta")
_CHUNK = 1 << 16  # halo rows that are asked for at once


class OwnPart:
    """The part of a graph that a trainer has without asking another machine.

    Parameters
    ----------
    graph : a DistGraph on parts in DGL's format, whose servers run on the trainer's machine.

    Attributes
    ----------
    copied : names of node data in the key-value store → halo rows that were copied.
    bytes : what came from other machines for them.
    """

    def __init__(self, graph: Any) -> None:
        local, self._book = graph.local_partition, graph.get_partition_book()
        if local is None:
            raise InputError("this trainer's machine has no part of the graph to stay within: its "
                             "servers run elsewhere; start both by `dgl-heta launch`")
        self._graph = graph
        outside = (~local.ndata["inner_node"].bool()).nonzero().flatten()
        # Sorted, so that a node's row among the copies is found by bisection.
        ids, order = local.ndata[NID][outside].sort()
        self._halo, self._places = ids, outside[order]
        # With `num_hops` 1 METIS's parts have those in-edges of halo nodes that come from own ones,
        # a stream partitioner's none. Edges between halo nodes come with further hops.
        self._deep = any(self._from_halo(local, places) for places in self._places.split(_CHUNK))
        self._typed: dict[str, Tensor] = {}
        kinds, numbers = self._book.map_to_per_ntype(ids)
        for kind, ntype in enumerate(graph.ntypes):
            self._typed[ntype] = numbers[kinds == kind]
        store = graph._ndata_store
        tables = [store] if len(graph.ntypes) == 1 else [store[t] for t in graph.ntypes]
        self._names = {tensor._name for table in tables for tensor in table.values()}
        self._rows: dict[str, Tensor] = {}
        self.copied: dict[str, int] = {}
        self.bytes = 0
        self._whole = False
        self._told: set[str] = set()

    @staticmethod
    def _from_halo(local: Any, places: Tensor) -> bool:
        """Whether some in-edges of nodes come from halo nodes."""
        src, _ = local.in_edges(places.to(local.idtype))
        return not bool(local.ndata["inner_node"][src.long()].all())

    def warn(self, kind: str, text: str) -> None:
        """A warning, once of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            log.warning(text)

    def owns(self, ids: Tensor, ntype: str) -> Tensor:
        """Which nodes of a type are this machine's own, bool as `ids`."""
        return self._book.nid2partid(ids, ntype) == self._book.partid  # type: ignore[no-any-return]

    @contextmanager
    def whole_graph(self) -> Iterator[None]:
        """Sampling inside is over the whole graph, as DistDGL's."""
        before, self._whole = self._whole, True
        try:
            yield
        finally:
            self._whole = before

    def access(self, graph: Any, nodes: Tensor, issue: Callable[[Tensor], Any],
               local: Callable[..., Any], exclude_edges: Tensor | None = None) -> Any | None:
        """The in-edges of nodes that a query asks for, of those that the part has.

        Parameters
        ----------
        nodes : ids over all types, in any order.
        issue : makes DistDGL's request for other machines, which says what is asked for.
        local : answers for the machine's own nodes.
        exclude_edges : edges that are left out after sampling; from DGL 2.4 on.

        Returns
        -------
        DistDGL's graph of the answer; None where the whole graph is to be asked.
        """
        if self._whole or graph is not self._graph:
            return None
        nodes = torch.as_tensor(nodes)
        inner = self._book.nid2partid(nodes) == self._book.partid
        outer = nodes[~inner]
        if not self._has(outer):
            self.warn("query", "a query asks for edges of nodes that this machine's part does not "
                      "have, nor as halo nodes: such queries go over the network, for all of their "
                      "nodes; split nodes by dgl.distributed.node_split to stay inside")
            return None
        graphs = [local(graph.local_partition, self._book, nodes[inner])]
        if self._deep and len(outer):
            graphs.append(self._around(outer, issue))
        left_out = {} if exclude_edges is None else {"exclude_edges": exclude_edges}
        return merge_graphs(graphs, graph.num_nodes(), **left_out)

    def read(self, tensor: Any, ids: Tensor, pull: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Rows of node data; None if some of the nodes are not of this part, or nothing of it."""
        if tensor._name not in self._names:
            return None
        policy = tensor.part_policy
        outer = (policy.to_partid(ids) != policy.part_id).nonzero().flatten()
        if not len(outer):
            return None  # DistDGL reads them from the machine's memory
        halo = self._typed.get(policy.type_name)
        if halo is None or not len(halo):
            return None
        wanted = ids[outer]
        places = torch.searchsorted(halo, wanted).clamp_(max=len(halo) - 1)
        if not bool((halo[places] == wanted).all()):
            return None
        copies = self._rows.get(tensor._name)
        if copies is None:
            copies = self._copy(tensor, halo, pull)
        inner = torch.ones(len(ids), dtype=torch.bool)
        inner[outer] = False
        rows = copies.new_empty((len(ids), *copies.shape[1:]))
        rows[outer] = copies[places]
        if len(outer) < len(ids):
            rows[inner] = pull(tensor, ids[inner])
        return rows

    def refuse_write(self, tensor: Any) -> None:
        """
        Raises
        ------
        HetaError
            The DistTensor holds node data of the graph.
        """
        if tensor._name in self._names:
            raise HetaError(f"'{tensor.name}' belongs to the graph, and trainers that stay within "
                            "their parts have copies of rows of it, which would not see what is "
                            "written; create a dgl.distributed.DistTensor for results")

    def tell(self) -> None:
        """Say at the end what was copied."""
        if self.copied:
            rows = ", ".join(f"{count} of {name.removeprefix('node~').replace('~', '/')}"
                             for name, count in self.copied.items())
            print("dgl-heta: rows of other machines' nodes, copied once into this trainer: "
                  f"{rows}; {self.bytes} bytes", file=sys.stderr, flush=True)

    def _copy(self, tensor: Any, halo: Tensor, pull: Callable[[Any, Any], Tensor]) -> Tensor:
        """All halo rows of an array, from their owners."""
        rows = torch.cat([pull(tensor, ids) for ids in halo.split(_CHUNK)])
        self._rows[tensor._name] = rows
        self.copied[tensor._name] = len(rows)
        self.bytes += rows.nbytes + halo.nbytes
        return rows

    def _has(self, nodes: Tensor) -> bool:
        """Whether all of some nodes are halo nodes."""
        if not len(nodes) or not len(self._halo):
            return not len(nodes)
        places = torch.searchsorted(self._halo, nodes).clamp_(max=len(self._halo) - 1)
        return bool((self._halo[places] == nodes).all())

    def _around(self, nodes: Tensor, issue: Callable[[Tensor], Any]) -> Any:
        """In-edges of halo nodes, as the request says: DGL's samplers number a part's own edges."""
        request = issue(nodes)
        fanout = getattr(request, "fan_out", -1)
        if getattr(request, "prob", None) is not None or getattr(request, "replace", False) or (
                getattr(request, "edge_dir", "in") != "in"):
            raise InputError("on parts with halo nodes of several hops, neighbours are sampled "
                             "inside a part without prob, replace and edge_dir='out'; leave them "
                             "out, or partition with num_hops=1")
        local = self._graph.local_partition
        chosen = self._places[torch.searchsorted(self._halo, nodes)].to(local.idtype)
        src, dst, edges = local.in_edges(chosen, form="all")
        edges = local.edata[EID][edges.long()]
        ids = local.ndata[NID]
        kinds = (torch.zeros_like(edges) if self._book.is_homogeneous
                 else self._book.map_to_per_etype(edges)[0].long())
        most = torch.as_tensor(fanout).expand(len(self._graph.canonical_etypes))[kinds]
        kept = _draw(dst.long() * len(self._graph.canonical_etypes) + kinds, most)
        return LocalSampledGraph(ids[src.long()][kept], ids[dst.long()][kept], edges[kept])


def _draw(groups: Tensor, most: Tensor) -> Tensor:
    """At random at most `most` (-1: all) of the edges of each group; places, ascending."""
    order = torch.rand(len(groups)).argsort()
    order = order[groups[order].argsort(stable=True)]
    ordered = groups[order]
    position = torch.arange(len(order))
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    begin = torch.where(first, position, 0).cummax(0).values if len(order) else position
    limit = most[order]
    return order[(limit < 0) | (position - begin < limit)].sort().values


class _Open:
    """The part that this trainer stays within, if it does."""

    part: OwnPart | None = None


def own_part() -> OwnPart | None:
    """The part that this trainer stays within, if it does."""
    return state_of(_Open).part


def open_graph(graph: Any) -> None:
    """Open this trainer's part of a new DistGraph, if the module wrapper stays within parts.

    Raises
    ------
    InputError
        The parts are in GraphBolt's form.
    """
    wrapper = None if hasattr(graph, "heta") else wrapper_for_any_graph()
    if wrapper is None or not wrapper.own_part():
        state_of(_Open).part = None
        return
    if getattr(graph, "_use_graphbolt", False):
        raise InputError("use_graphbolt=True cannot be used with a module wrapper that stays "
                         "inside a part, which samples from parts in DGL's form: leave it out of "
                         "dgl.distributed.initialize (model_average: or set "
                         "plugins.model_average.inside = false)")
    part = state_of(_Open).part = OwnPart(graph)
    atexit.register(part.tell)


def open_nodes(loader: Any) -> None:
    """Called for every new DistNodeDataLoader: it samples in this process, from the part.

    Sampler processes know nothing of the part. A loader with nodes of other machines is not
    narrowed, because these have no in-edges here.
    """
    part = own_part()
    if part is None:
        return
    if loader.pool is not None:
        part.warn("samplers", "sampler processes (DGL_NUM_SAMPLER) stay idle: inside a part each "
                  "trainer samples by itself, without other machines")
        loader.pool, loader.num_workers = None, 0
    nodes = loader.collator.nids
    own, count = 0, 0
    for ntype, ids in (nodes.items() if isinstance(nodes, dict) else [("_N", nodes)]):
        ids = torch.as_tensor(ids)
        if ids.dtype == torch.bool:
            ids = ids.nonzero().flatten()
        kind = ntype if ntype in part._typed else next(iter(part._typed))
        own, count = own + int(part.owns(ids, kind).sum()), count + len(ids)
    if own < count:
        part.warn("nodes", f"a data loader has {count - own} nodes of other machines (of {count}), "
                  "which have no in-edges in this machine's part: it samples over the network; "
                  "split nodes by dgl.distributed.node_split to stay inside")
        collate = loader.collate_fn

        def everywhere(items: Any) -> Any:
            with part.whole_graph():
                return collate(items)

        loader.collate_fn = everywhere


def refuse_edges() -> None:
    """
    Raises
    ------
    InputError
        Trainers stay within their parts.
    """
    if own_part() is not None:
        raise InputError("DistEdgeDataLoader needs nodes of all machines, so it cannot be used "
                         "with a module wrapper that stays inside a part (model_average: set "
                         "plugins.model_average.inside = false)")


def _graph(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        open_graph(self)
    return __init__


def _queries(original: Any) -> Any:
    if original.__name__ != "_distributed_access":
        return original

    def access(g: Any, ids: Any, request: Any, local: Any, **more: Any) -> Any:
        part = own_part()
        answer = None if part is None else part.access(g, ids, request, local, **more)
        return original(g, ids, request, local, **more) if answer is None else answer
    return access


def _getitem(original: Any) -> Any:
    pull = plain(original)  # past the cache of node data, whose rows these are not

    def __getitem__(self: Any, idx: Any) -> Any:
        part = own_part()
        if part is None or self._attach:
            return original(self, idx)
        ids = idx if isinstance(idx, Tensor) else toindex(idx).tousertensor()
        if ids.dtype == torch.bool or ids.dim() != 1:
            return original(self, idx)
        rows = part.read(self, ids.to(torch.int64), pull)
        return original(self, idx) if rows is None else rows
    return __getitem__


def _setitem(original: Any) -> Any:
    def __setitem__(self: Any, idx: Any, val: Any) -> None:
        part = own_part()
        if part is not None and not self._attach:
            part.refuse_write(self)
        original(self, idx, val)
    return __setitem__


def _nodes(original: Any) -> Any:
    def __init__(self: Any, g: Any, *args: Any, **kwargs: Any) -> None:
        original(self, g, *args, **kwargs)
        if not hasattr(g, "heta"):
            open_nodes(self)
    return __init__


def _edges(original: Any) -> Any:
    def __init__(self: Any, g: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(g, "heta"):
            refuse_edges()
        original(self, g, *args, **kwargs)
    return __init__


def _node_split(original: Any) -> Any:
    def node_split(nodes: Any, partition_book: Any = None, ntype: str = "_N", rank: Any = None,
                   force_even: bool = True, node_trainer_ids: Any = None) -> Any:
        if own_part() is None:
            return original(nodes, partition_book, ntype, rank, force_even, node_trainer_ids)
        # Even shares would give a trainer nodes of other machines.
        return original(nodes, partition_book, ntype, rank, False, None)
    return node_split


PATCHES = (
    *patch_all(homes("DistGraph", "__init__"), _graph, "open the part to stay within"),
    *patch_all(homes("queries of trainers"), _queries, "sample the part's edges alone"),
    *patch_all(homes("DistTensor", "__getitem__"), _getitem, "copies of rows of halo nodes"),
    *patch_all(homes("DistTensor", "__setitem__"), _setitem, "refuse to write what was copied"),
    *patch_all(homes("DistNodeDataLoader", "__init__"), _nodes, "sample in this process"),
    *patch_all(homes("DistEdgeDataLoader", "__init__"), _edges, "refused inside a part"),
    *patch_all(homes("node_split"), _node_split, "a trainer has its machine's nodes"),
)
