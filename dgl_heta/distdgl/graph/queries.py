"""What a script asks of a graph outside of data loaders, answered from this machine's store.

Degrees, ends of edges and neighbourhoods: in DistDGL servers answer them. Servers of a
meta-partitioned graph hold no edges, but the store of each machine has every relation whole, so
each trainer answers by itself, without a message. Ids are DistDGL's: those of all node types (or
relations) one after the other, as the partition book maps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.loading.loader_scope import BY_ITSELF
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.store import Store
from dgl_heta.store.structure import copied, in_edges

INSTEAD = "sample with DistNodeDataLoader, or load the graph with dgl.distributed.load_partition"


class Queries:
    """The questions about one graph.

    Parameters
    ----------
    store : the relations.
    ends : finds the ends of edges in it.
    book : the graph's partition book.
    unread : relations that were not compared with their checksums yet; each is when it is first
        asked for.
    pull : gives rows of DistDGL's key-value store, by an array's key and ids.
    """

    def __init__(self, store: Store, ends: EdgeEnds, book: Any, unread: set[Relation],
                 pull: Callable[[str, Tensor], Tensor] | None = None) -> None:
        self.store, self.book, self._unread, self._pull = store, book, unread, pull
        self._ends = ends
        self._out: dict[Relation, Tensor] = {}

    def in_degrees(self, nodes: Tensor) -> Tensor:
        """In-edges of each node by all relations, int64."""
        found = torch.zeros(len(nodes), dtype=torch.int64)
        for at, ids, ntype in self._by_type(nodes):
            for relation in self.store.schema.into[ntype]:
                pointers = self._relation(relation).indptr
                numbers = ids.numpy()
                found[at] += torch.from_numpy(pointers[numbers + 1] - pointers[numbers])
        return found

    def out_degrees(self, nodes: Tensor) -> Tensor:
        """Out-edges of each node by all relations, int64. They are counted at the first call."""
        found = torch.zeros(len(nodes), dtype=torch.int64)
        for at, ids, ntype in self._by_type(nodes):
            for relation in self.store.schema.relations:
                if relation.src == ntype:
                    found[at] += self._out_of(relation)[ids]
        return found

    def find_edges(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Source and destination of each edge."""
        edges = self._checked(edges, sum(self.store.schema.edge_counts.values()), "edge")
        ends = torch.empty(2, len(edges), dtype=torch.int64)
        kinds, numbers = self.book.map_to_per_etype(edges)
        for place, relation in enumerate(self.store.schema.relations):
            at = (kinds == place).nonzero()[:, 0]
            if not len(at):
                continue
            self._relation(relation)
            self._check_edge_ids()
            found = self._ends.of(relation, numbers[at])
            for side, ntype in ((0, relation.src), (1, relation.dst)):
                ends[side, at] = self.book.map_to_homo_nid(found[side], ntype)
        return ends[0], ends[1]

    def neighbours(self, request: Any, exclude_edges: Tensor | None = None) -> Any:
        """The graph of the in-edges that a request of DGL asks for, all nodes in it, without those
        to exclude; `dgl.EID` has the edges' ids.

        Raises
        ------
        HetaError
            It asks for out-edges or GraphBolt, or a weight is below 0 or not finite.
        """
        kind = type(request).__name__
        for name, plain in (("edge_dir", "in"), ("use_graphbolt", False)):
            given = getattr(request, name, plain)
            if given != plain:
                raise HetaError(f"sampling with {name}={given!r} cannot be used on a "
                                f"meta-partitioned graph; {INSTEAD}")
        self._check_edge_ids()
        fanout = getattr(request, "fan_out", -1)  # an InSubgraphRequest has none
        by_relation = kind == "SamplingRequestEtype"
        pieces = []
        for _, ids, ntype in self._by_type(request.seed_nodes):
            into = self.store.schema.into[ntype]
            found = [self._in_edges(relation, ids) for relation in into]
            weights = [self._weights(request, relation, piece)
                       for relation, piece in zip(into, found)]
            if by_relation:
                found = [_drawn(piece, len(ids), self._fanout(fanout, relation), request.replace,
                                weight) for piece, relation, weight in zip(found, into, weights)]
            whole = torch.cat(found, 1) if found else torch.empty(4, 0, dtype=torch.int64)
            if not by_relation:
                every = [torch.ones(piece.shape[1], dtype=torch.float64) if weight is None
                         else weight for piece, weight in zip(found, weights)]
                whole = _drawn(whole, len(ids), int(fanout), getattr(request, "replace", False),
                               None if all(w is None for w in weights) else torch.cat(every))
            pieces.append(whole)
        edges = torch.cat(pieces, 1) if pieces else torch.empty(4, 0, dtype=torch.int64)
        if exclude_edges is not None:
            edges = edges[:, ~torch.isin(edges[2], exclude_edges)]
        src, dst, numbers, _ = edges
        graph = dgl.graph((src, dst), num_nodes=sum(self.store.schema.node_counts.values()))
        graph.edata[dgl.EID] = numbers
        return graph

    def _in_edges(self, relation: Relation, ids: Tensor) -> Tensor:
        """(4, edges): source, destination and number of each in-edge, and whose it is of `ids`."""
        csc = self._relation(relation)
        numbers = ids.numpy()
        pointers, sources = in_edges(relation, csc, numbers,
                                     self.store.schema.node_counts[relation.src])
        counts = np.diff(pointers)
        whose = np.repeat(np.arange(len(numbers)), counts)
        places = np.repeat(csc.indptr[numbers] - pointers[:-1], counts) + np.arange(len(sources))
        own = np.array(self.store.edge_ids(relation)[places], np.int64)
        book = self.book
        return torch.stack([
            book.map_to_homo_nid(torch.from_numpy(sources), relation.src),
            book.map_to_homo_nid(ids[torch.from_numpy(whose)], relation.dst),
            book.map_to_homo_eid(torch.from_numpy(own), tuple(relation)),
            torch.from_numpy(whose)])

    def _weights(self, request: Any, relation: Relation, edges: Tensor) -> Tensor | None:
        """What a request's `prob` says of edges, float64; None where all are alike."""
        keys = getattr(request, "prob", None)
        if keys is not None and not isinstance(keys, str):
            keys = keys[self.store.schema.relations.index(relation)]
        if not keys:
            return None
        if self._pull is None:
            raise HetaError(f"sampling with prob needs a DistGraph, which has '{keys}'")
        ids = self.book.map_to_per_etype(edges[2])[1]
        found = self._pull(keys, ids).to(torch.float64) if len(ids) else torch.empty(0).double()
        if found.dim() != 1:
            raise HetaError(f"sampling with prob: edge data '{keys}' have {found[0].numel()} "
                            "numbers for an edge; give data with one number for each")
        wrong = (~(found.isfinite() & (found >= 0))).nonzero()[:, 0]
        if len(wrong):
            raise HetaError(f"sampling with prob: edge data '{keys}' are {float(found[wrong[0]])} "
                            f"for edge {int(ids[wrong[0]])} of '{relation}'; a weight is a finite "
                            "number, 0 or more")
        return found

    def _fanout(self, given: Any, relation: Relation) -> int:
        """Edges to draw by one relation: a number, or one for each by place or name."""
        if isinstance(given, Mapping):
            return int(given.get(tuple(relation), given.get(relation.etype, 0)))
        if isinstance(given, int):
            return given
        return int(given[self.store.schema.relations.index(relation)])

    def _by_type(self, nodes: Any) -> Iterator[tuple[Tensor, Tensor, str]]:
        """For each node type the places of its nodes, their ids in the type, and its name."""
        nodes = self._checked(nodes, sum(self.store.schema.node_counts.values()), "node")
        kinds, ids = self.book.map_to_per_ntype(nodes)
        for place, ntype in enumerate(self.store.schema.node_types):
            at = (kinds == place).nonzero()[:, 0]
            if len(at):
                yield at, ids[at], ntype

    @staticmethod
    def _checked(ids: Any, count: int, what: str) -> Tensor:
        ids = torch.as_tensor(ids).to(torch.int64)
        if ids.dim() != 1 or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count):
            raise HetaError(f"{what} ids must be a vector of numbers within 0 … {count - 1}")
        return ids

    def _relation(self, relation: Relation) -> Any:
        if relation in self._unread:
            self.store.verify((), [relation])
            self._unread.discard(relation)
        return self.store.relation(relation)

    def _check_edge_ids(self) -> None:
        if any(entry.edge_ids is None for entry in self.store.manifest.relations):
            raise HetaError(f"the store {self.store.directory} keeps no edge ids, by which edges "
                            "are known; partition the graph by partition_graph, which keeps them")

    def _out_of(self, relation: Relation) -> Tensor:
        if relation not in self._out:
            count = self.store.schema.node_counts[relation.src]
            sources = copied(relation, self._relation(relation), count).indices
            self._out[relation] = torch.from_numpy(np.bincount(sources, minlength=count))
        return self._out[relation]


def _drawn(edges: Tensor, nodes: int, fanout: int, replace: bool, weights: Tensor | None = None
           ) -> Tensor:
    """At most `fanout` in-edges of each node, drawn by DGL; all for -1.

    Parameters
    ----------
    edges : (4, edges), of which the last row says whose each is.
    weights : what an edge's chance is proportional to, float64; edges with 0 are not drawn.
    """
    if weights is not None:
        edges, weights = edges[:, weights > 0], weights[weights > 0]
    if fanout == -1:
        return edges
    star = dgl.heterograph({("edge", "of", "node"): (torch.arange(edges.shape[1]), edges[3])},
                           num_nodes_dict={"edge": edges.shape[1], "node": nodes})
    if weights is not None:
        star.edata["weight"] = weights
    drawn = dgl.sampling.sample_neighbors(star, {"node": torch.arange(nodes)}, fanout,
                                          prob=None if weights is None else "weight",
                                          replace=replace)
    return edges[:, drawn.edges()[0]]


def answer(queries: Queries, access: str, ids: Any, request: Callable[..., Any],
           exclude_edges: Any = None, say: Callable[[str], None] = lambda text: None) -> Any:
    """What one of DGL's functions that ask servers returns.

    Parameters
    ----------
    access : the function's name.
    request : makes the request to a server, which says what is asked for.
    exclude_edges : ids of edges that are left out of what was drawn (DGL 2.4).
    say : logs a line; that a script samples by itself.
    """
    if access == "_distributed_edge_access":
        return queries.find_edges(ids)
    if access == "_distributed_get_node_property":
        kind = type(request(ids, 0)).__name__
        return queries.in_degrees(ids) if kind == "InDegreeRequest" else queries.out_degrees(ids)
    made = request(ids)
    if type(made).__name__.startswith("SamplingRequest"):
        say(BY_ITSELF)
    return queries.neighbours(made, exclude_edges)
