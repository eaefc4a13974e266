"""The index of a RAF block in place of DGL's: numbers of nodes and edges, and no edges.

DGL reaches a graph's edges by its index alone, from Python or by its C API. A block of a group of
several workers has the edges of its machine's relations only, so its index gives none, and names
who asks. In a group of one worker the real index is made when something asks for edges. So a block
costs the same with few relations or hundreds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from dgl import utils
from dgl._ffi.object_generic import ObjectGeneric
from dgl.graph_index import from_coo
from dgl.heterograph_index import (
    HeteroGraphIndex,
    create_heterograph_from_relations,
    create_unitgraph_from_csr,
)
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_ids import EdgeCount, EdgeIds
from dgl_heta.distdgl.blocks.edge_rows import edge_rows, of_edges
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.relation_graph import csc_with_ids
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.graph.schema import Relation


def itself(value: Any) -> Any:
    """Return what was pickled in the place of something."""
    return value


class Kinds:
    """Node types on either side of a block and its relations, all in the schema's order."""

    def __init__(self, sources: tuple[str, ...], destinations: tuple[str, ...],
                 relations: tuple[Relation, ...]) -> None:
        self.sources, self.destinations, self.relations = sources, destinations, relations
        self.metagraph = from_coo(
            len(sources) + len(destinations), [sources.index(r.src) for r in relations],
            [len(sources) + destinations.index(r.dst) for r in relations], True)


@functools.lru_cache(maxsize=1024)
def kinds(sources: tuple[str, ...], destinations: tuple[str, ...],
          relations: tuple[Relation, ...]) -> Kinds:
    return Kinds(sources, destinations, relations)


_CPU = utils.to_dgl_context(torch.device("cpu"))


def is_partial(layer: Layer) -> bool:
    """Return whether other workers of the group have other relations of a block."""
    return layer.session.group.size > 1


class BlockIndex(ObjectGeneric):  # type: ignore[misc]
    """In place of a `HeteroGraphIndex`.

    Parameters
    ----------
    layer : the sampled block.
    kinds : its node types and relations, or one of them, for a slice.
    """

    # Of a relation's graph alone; else `__getattr__` would refuse to say so.
    heta_edges = None
    # DGL's functions ask `isinstance(gidx, HeteroGraphIndex)`, which has no room for our state.
    __class__ = HeteroGraphIndex  # type: ignore[assignment]

    def __init__(self, layer: Layer, kinds: Kinds) -> None:
        self.layer, self._kinds = layer, kinds
        block = layer.block
        # The script's own rows: remote ones and other trainers' seeds stand after them.
        self._nodes = [*(block.num_src.get(t, 0) for t in kinds.sources),
                       *(block.wanted(t) if t in block.num_dst else 0
                         for t in kinds.destinations)]
        self.partial = is_partial(layer)
        self.dtype = "int64"
        self.ctx = _CPU
        self._real: Any = None

    @property
    def metagraph(self) -> Any:
        return self._kinds.metagraph

    def is_metagraph_unibipartite(self) -> bool:
        return True

    def number_of_ntypes(self) -> int:
        return len(self._nodes)

    def number_of_etypes(self) -> int:
        return len(self._kinds.relations)

    def num_nodes(self, number: int) -> int:
        return self._nodes[number]

    number_of_nodes = num_nodes  # DGL's index has both names

    @property
    def relation(self) -> Relation:
        """Return the only one, of a slice."""
        (relation,) = self._kinds.relations
        return relation

    # Not under DGL's name, `number_of_edges`: its operators do nothing where there are no edges,
    # and this trainer would miss an exchange.
    def count_edges(self, number: int) -> EdgeCount:
        """Return the number of a relation's edges on this machine, for all trainers' seeds."""
        relation = self._kinds.relations[number]
        count: EdgeCount = EdgeIds(relation, self.layer).counted(self.layer.count(relation))
        return count

    def has_nodes(self, number: int, ids: Tensor) -> Tensor:
        return ((ids >= 0) & (ids < self._nodes[number])).long()

    def get_relation_graph(self, number: int) -> Any:
        if not self.partial:
            return self.real().get_relation_graph(number)
        relation = self._kinds.relations[number]
        of_one = kinds((relation.src,), (relation.dst,), (relation,))
        return self._with(self.dtype, self.ctx, of_one)

    def of_edges(self, rows: Any, compute: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """Return what a function of the edges' index gives for rows of the edges of a slice: rows
        of edges again, each made of those of its destination, which are all here."""
        ids = EdgeIds(self.relation, self.layer)
        bare = of_edges(rows, ids)
        _, graph = self.layer.edges_of(self.relation, bare.device)
        # Another trainer may have the edges: without any there is nothing to compute.
        return edge_rows(compute(graph._graph, bare) if len(bare) else bare, ids)

    def copy_to(self, ctx: Any) -> BlockIndex:
        return self._with(self.dtype, ctx)

    def asbits(self, bits: int) -> BlockIndex:
        return self._with(f"int{bits}", self.ctx)

    def formats(self, formats: Any = None) -> Any:
        if not self.partial:
            return self.real().formats(formats)
        # Nothing is ever made in other formats, so to restrict them changes nothing.
        return {"created": ["csc"], "not created": ["coo", "csr"]} if formats is None else self

    def create_formats_(self) -> None:
        pass

    def is_pinned(self) -> bool:
        return False

    def _with(self, dtype: str, ctx: Any, kinds: Kinds | None = None) -> BlockIndex:
        new = BlockIndex(self.layer, kinds or self._kinds)
        new.dtype, new.ctx = dtype, ctx
        return new

    def real(self) -> Any:
        """Return DGL's own index, in a group of one worker.

        Raises
        ------
        HetaError
            The group has several workers.
        """
        if self.partial:
            refuse("messages over a block", operation="an operation on edges")
        # Only when it is asked for: it has a part for each relation, of which there are many.
        if self._real is None:
            index = create_heterograph_from_relations(
                self.metagraph, [self._unit_graph(r) for r in self._kinds.relations],
                utils.toindex(self._nodes, "int64")).copy_to(self.ctx)
            self._real = index if self.dtype == "int64" else index.asbits(int(self.dtype[3:]))
        return self._real

    def _unit_graph(self, relation: Relation) -> Any:
        kinds = self._kinds
        sources = self._nodes[kinds.sources.index(relation.src)]
        rows = self._nodes[len(kinds.sources) + kinds.destinations.index(relation.dst)]
        degrees = torch.zeros(rows, dtype=torch.int64)
        indices = [torch.empty(0, dtype=torch.int64)]
        for edges in self.layer.pieces(relation):
            # Ranges of rows of one relation follow each other, so their edges do, too.
            counts = edges.indptr.diff()[:max(rows - edges.start, 0)]
            degrees[edges.start:edges.start + len(counts)] = counts
            indices.append(edges.indices[:int(counts.sum())])
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        indptr, columns, ids = csc_with_ids(indptr, torch.cat(indices))
        return create_unitgraph_from_csr(2, sources, rows, indptr, columns, ids,
                                         ["coo", "csr", "csc"], True)

    def asobject(self) -> Any:
        """Return the index for DGL's C API."""
        return self.real()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for methods
            raise AttributeError(name)
        if self.partial:
            refuse("messages over a block", operation=name)
        return getattr(self.real(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self.real(),)
