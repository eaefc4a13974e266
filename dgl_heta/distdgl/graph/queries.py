"""Questions of a script about a graph, outside of data loaders, answered from the store.

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

from dgl_heta.distdgl.loading.script_sampler import BY_ITSELF
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.store import Store
from dgl_heta.store.structure import copied, in_edges


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
        """Return the in-edges of each node by all relations, int64."""
        degrees = torch.zeros(len(nodes), dtype=torch.int64)
        for at, ids, ntype in self._by_type(nodes):
            for relation in self.store.schema.into[ntype]:
                pointers = self._relation(relation).indptr
                numbers = ids.numpy()
                degrees[at] += torch.from_numpy(pointers[numbers + 1] - pointers[numbers])
        return degrees

    def out_degrees(self, nodes: Tensor) -> Tensor:
        """Return the out-edges of each node by all relations, int64; counted at the first call."""
        degrees = torch.zeros(len(nodes), dtype=torch.int64)
        for at, ids, ntype in self._by_type(nodes):
            for relation in self.store.schema.relations:
                if relation.src == ntype:
                    degrees[at] += self._out_of(relation)[ids]
        return degrees

    def find_edges(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Return the source and destination of each edge."""
        edges = self._checked(edges, sum(self.store.schema.edge_counts.values()), "edge")
        sources, destinations = torch.empty(2, len(edges), dtype=torch.int64)
        relation_of, ids = self.book.map_to_per_etype(edges)
        for number, relation in enumerate(self.store.schema.relations):
            at = (relation_of == number).nonzero()[:, 0]
            if not len(at):
                continue
            self._relation(relation)
            self._check_edge_ids()
            src, dst = self._ends.of(relation, ids[at])
            sources[at] = self.book.map_to_homo_nid(src, relation.src)
            destinations[at] = self.book.map_to_homo_nid(dst, relation.dst)
        return sources, destinations

    def neighbours(self, request: Any, exclude_edges: Tensor | None = None) -> Any:
        """Return the graph of the in-edges that a request of DGL asks for, with all nodes.

        `dgl.EID` has the edges' ids. Edges to exclude are dropped after sampling, as DGL does.

        Raises
        ------
        HetaError
            It asks for out-edges or GraphBolt, or a weight is below 0 or not finite.
        """
        for name, served in (("edge_dir", "in"), ("use_graphbolt", False)):
            value = getattr(request, name, served)
            if value != served:
                refuse("sampling by servers", name=name, value=value)
        self._check_edge_ids()
        edges = torch.cat([torch.empty(4, 0, dtype=torch.int64), *(
            self._sampled_into(ntype, ids, request)
            for _, ids, ntype in self._by_type(request.seed_nodes))], 1)
        if exclude_edges is not None:
            edges = edges[:, ~torch.isin(edges[2], exclude_edges)]
        src, dst, numbers, _ = edges
        graph = dgl.graph((src, dst), num_nodes=sum(self.store.schema.node_counts.values()))
        graph.edata[dgl.EID] = numbers
        return graph

    def _sampled_into(self, ntype: str, ids: Tensor, request: Any) -> Tensor:
        """Return (4, edges) as :meth:`_in_edges`: the sampled in-edges of nodes of a type."""
        fanout = getattr(request, "fan_out", -1)  # an InSubgraphRequest has none
        replace = getattr(request, "replace", False)
        into = self.store.schema.into[ntype]
        every = [self._in_edges(relation, ids) for relation in into]
        weights = [self._weights(request, relation, edges)
                   for relation, edges in zip(into, every)]
        if type(request).__name__ == "SamplingRequestEtype":
            every = [_sampled(edges, len(ids), self._fanout(fanout, relation), replace, weight)
                     for edges, relation, weight in zip(every, into, weights)]
        whole = torch.cat(every, 1) if every else torch.empty(4, 0, dtype=torch.int64)
        if type(request).__name__ == "SamplingRequestEtype":
            return whole
        # One fanout for all relations together: an edge without a weight has the weight 1.
        known = None if all(weight is None for weight in weights) else torch.cat([
            torch.ones(edges.shape[1], dtype=torch.float64) if weight is None else weight
            for edges, weight in zip(every, weights)])
        return _sampled(whole, len(ids), int(fanout), replace, known)

    def _in_edges(self, relation: Relation, ids: Tensor) -> Tensor:
        """Return (4, edges): source, destination and id of each in-edge, and whose of `ids` it is.
        """
        csc = self._relation(relation)
        numbers = ids.numpy()
        pointers, sources = in_edges(relation, csc, numbers,
                                     self.store.schema.node_counts[relation.src])
        counts = np.diff(pointers)
        whose = np.repeat(np.arange(len(numbers)), counts)
        positions = np.repeat(csc.indptr[numbers] - pointers[:-1], counts) + np.arange(len(sources))
        edges = np.array(self.store.edge_ids(relation)[positions], np.int64)
        book = self.book
        return torch.stack([
            book.map_to_homo_nid(torch.from_numpy(sources), relation.src),
            book.map_to_homo_nid(ids[torch.from_numpy(whose)], relation.dst),
            book.map_to_homo_eid(torch.from_numpy(edges), tuple(relation)),
            torch.from_numpy(whose)])

    def _weights(self, request: Any, relation: Relation, edges: Tensor) -> Tensor | None:
        """Return what a request's `prob` says of edges, float64; None where all are alike."""
        keys = getattr(request, "prob", None)
        if keys is not None and not isinstance(keys, str):
            keys = keys[self.store.schema.relations.index(relation)]
        if not keys:
            return None
        if self._pull is None:
            raise HetaError(f"sampling with prob needs a DistGraph, which has '{keys}'")
        ids = self.book.map_to_per_etype(edges[2])[1]
        weights = self._pull(keys, ids).to(torch.float64) if len(ids) else torch.empty(0).double()
        if weights.dim() != 1:
            raise HetaError(f"sampling with prob: edge data '{keys}' have {weights[0].numel()} "
                            "numbers for an edge; give data with one number for each")
        wrong = (~(weights.isfinite() & (weights >= 0))).nonzero()[:, 0]
        if len(wrong):
            raise HetaError(f"sampling with prob: edge data '{keys}' are "
                            f"{float(weights[wrong[0]])} for edge {int(ids[wrong[0]])} of "
                            f"'{relation}'; a weight is a finite number, 0 or more")
        return weights

    def _fanout(self, given: Any, relation: Relation) -> int:
        """Return how many edges to sample by a relation: one number, or one for each."""
        if isinstance(given, Mapping):
            return int(given.get(tuple(relation), given.get(relation.etype, 0)))
        if isinstance(given, int):
            return given
        return int(given[self.store.schema.relations.index(relation)])

    def _by_type(self, nodes: Any) -> Iterator[tuple[Tensor, Tensor, str]]:
        """Yield for each node type the positions of its nodes, their ids in it, and its name."""
        nodes = self._checked(nodes, sum(self.store.schema.node_counts.values()), "node")
        kinds, ids = self.book.map_to_per_ntype(nodes)
        for kind, ntype in enumerate(self.store.schema.node_types):
            at = (kinds == kind).nonzero()[:, 0]
            if len(at):
                yield at, ids[at], ntype

    @staticmethod
    def _checked(ids: Any, count: int, what: str) -> Tensor:
        ids = torch.as_tensor(ids).to(torch.int64)
        if ids.dim() != 1 or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count):
            raise HetaError(f"{what} ids must be a vector of numbers within 0 … {count - 1}")
        return ids

    def _relation(self, relation: Relation) -> Any:
        # Not at the start, which would read whole files that few scripts ask for.
        if relation in self._unread:
            self.store.verify((), [relation])
            self._unread.discard(relation)
        return self.store.relation(relation)

    def _check_edge_ids(self) -> None:
        if any(entry.edge_ids is None for entry in self.store.manifest.relations):
            refuse("edges of a store without ids", directory=self.store.directory)

    def _out_of(self, relation: Relation) -> Tensor:
        # The store has in-edges by destination: to count out-edges all of them are read.
        if relation not in self._out:
            count = self.store.schema.node_counts[relation.src]
            sources = copied(relation, self._relation(relation), count).indices
            self._out[relation] = torch.from_numpy(np.bincount(sources, minlength=count))
        return self._out[relation]


def _sampled(edges: Tensor, nodes: int, fanout: int, replace: bool, weights: Tensor | None = None
             ) -> Tensor:
    """Return at most `fanout` in-edges of each node, sampled by DGL; all for -1.

    Parameters
    ----------
    edges : (4, edges), of which the last row says whose each is.
    weights : what an edge's chance is proportional to, float64; edges with 0 are not sampled.
    """
    if weights is not None:
        edges, weights = edges[:, weights > 0], weights[weights > 0]
    if fanout == -1:
        return edges
    # DGL samples edges of a graph: here each edge is the only out-edge of a node of its own, so
    # the sampled ones are known by their sources.
    star = dgl.heterograph({("edge", "of", "node"): (torch.arange(edges.shape[1]), edges[3])},
                           num_nodes_dict={"edge": edges.shape[1], "node": nodes})
    if weights is not None:
        star.edata["weight"] = weights
    sampled = dgl.sampling.sample_neighbors(star, {"node": torch.arange(nodes)}, fanout,
                                            prob=None if weights is None else "weight",
                                            replace=replace)
    return edges[:, sampled.edges()[0]]


def answer(queries: Queries, access: str, ids: Any, request: Callable[..., Any],
           exclude_edges: Any = None, say: Callable[[str], None] = lambda text: None) -> Any:
    """Return what one of DGL's functions that ask servers does.

    Parameters
    ----------
    access : the function's name.
    request : makes the request to a server, which says what is asked for.
    exclude_edges : ids of edges that are left out of what was sampled (DGL 2.4).
    say : logs a line; that a script samples by itself.
    """
    if access == "_distributed_edge_access":
        return queries.find_edges(ids)
    if access == "_distributed_get_node_property":
        kind = type(request(ids, 0)).__name__
        return queries.in_degrees(ids) if kind == "InDegreeRequest" else queries.out_degrees(ids)
    asked = request(ids)
    if type(asked).__name__.startswith("SamplingRequest"):
        say(BY_ITSELF)
    return queries.neighbours(asked, exclude_edges)
