"""The graph of one relation in a block, which a relation's own module gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from dgl import utils
from dgl.graph_index import from_coo
from dgl.heterograph import DGLBlock
from dgl.heterograph_index import create_heterograph_from_relations, create_unitgraph_from_csr
from torch import Tensor

from dgl_heta.distdgl.blocks.block_names import SOURCES
from dgl_heta.distdgl.blocks.refusing import check_names
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.nn.attended import Reads
from dgl_heta.sampling.blocks import InEdges, RelationBlock


class RelationEdges(NamedTuple):
    """The edges of a relation's graph, its index's attribute `heta_edges`.

    DGL's own message passing sees the graph's index alone, so our kernels find the CSC there
    (:mod:`.message_passing`). Edge ids are in its order.

    Attributes
    ----------
    indptr, indices : CSC over the destination rows.
    sources : the number of source rows.
    whole : whether the edges out of each source are all here, as in plain DGL.
    reads : counts of all relations of the layer from the same sources.
    """

    indptr: Tensor
    indices: Tensor
    sources: int
    whole: bool
    reads: Reads

    @property
    def in_edges(self) -> InEdges:
        return InEdges(self.indptr, self.indices)

    def fits(self, rows: Tensor) -> bool:
        """Return whether these are the rows of the sources; DGL says what is wrong if not."""
        return len(rows) == self.sources


class RelationGraph(DGLBlock):
    """The block of one relation. It is its own slice, so that DGL's message passing, which slices
    first, finds the CSC that it carries.

    The in-edges of each destination are those that plain DGL's graph has. But there are
    destinations of other trainers, too, unless the group has one worker.
    """

    def __getitem__(self, key: Any) -> Any:
        if key in (self.canonical_etypes[0], self.etypes[0]):
            return self
        return super().__getitem__(key)

    def clone(self) -> Any:
        return self._carrying(super().clone())

    def to(self, device: Any, **kwargs: Any) -> Any:
        return self._carrying(super().to(device, **kwargs))

    # DGL makes a new index for a clone and on another device.
    def _carrying(self, other: Any) -> Any:
        other._graph.heta_edges = self._graph.heta_edges
        return other

    def check_name(self, name: str) -> None:
        """Refuse a name of DGLBlock that looks at edges from their sources, unless all are here."""
        edges = getattr(self._graph, "heta_edges", None)
        if edges is None or not edges.whole:
            refuse("edges from their sources", operation=name, relation=self.canonical_etypes[0])


check_names(RelationGraph, SOURCES)


def relation_graph(edges: RelationBlock, sources: int, whole: bool, reads: Reads) -> RelationGraph:
    """Return the graph of a relation's edges, between all source rows and the edges' rows."""
    # Not by `dgl.create_block`, whose checks take as long as the rest of a relation's call.
    unit = create_unitgraph_from_csr(2, sources, edges.num_rows, *csc_with_ids(
        edges.indptr, edges.indices), ["coo", "csr", "csc"], True)
    index = create_heterograph_from_relations(
        from_coo(2, [0], [1], True), [unit], utils.toindex([sources, edges.num_rows], "int64"))
    index.heta_edges = RelationEdges(edges.indptr, edges.indices, sources, whole, reads)
    relation = edges.relation
    return RelationGraph(index, ([relation.src], [relation.dst]), [relation.etype])


def csc_with_ids(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return CSC with edge ids: without them some of DGL's kernels fail (copy_rhs by libxsmm)."""
    return indptr, indices.long(), torch.arange(len(indices))
