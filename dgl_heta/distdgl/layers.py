"""What is behind a script's block: the sampled block, and a DGL graph of each relation in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dgl
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl import message_passing
from dgl_heta.distdgl.session import Session
from dgl_heta.sampling.blocks import Block


class Layer:
    """One layer of a batch: the sampled block and DGL graphs of its relations, as needed.

    Attributes
    ----------
    ids : node ids of the batch's input rows per type; a block's rows on either side lead them.
    """

    def __init__(self, session: Session, block: Block, ids: Mapping[str, Tensor]) -> None:
        self.session, self.block, self.ids = session, block, ids
        self._graphs: dict[int, DGLBlock] = {}
        self.origin: Any = None
        """Where the block came from, at a step to prove (:mod:`dgl_heta.distdgl.proof`)."""

    def graph(self, place: int, device: torch.device) -> DGLBlock:
        """A relation by its place in `block.edges`: all source rows, its own range of rows."""
        if place not in self._graphs:
            edges = self.block.edges[place]
            relation = edges.relation
            made = dgl.create_block(
                {tuple(relation): ("csc", csc_with_ids(edges.indptr, edges.indices))},
                {relation.src: self.block.num_src[relation.src]}, {relation.dst: edges.num_rows})
            made._graph.heta_edges = message_passing.Edges(
                edges.indptr, edges.indices, self.block.num_src[relation.src])
            self._graphs[place] = RelationGraph(made._graph, (made.srctypes, made.dsttypes),
                                                made.etypes)
        graph = self._graphs[place]
        return graph if graph.device == device else graph.to(device)


class RelationGraph(DGLBlock):
    """The block of one relation. It is its own slice, so that DGL's message passing, which slices
    first, finds the CSC that it carries."""

    def __getitem__(self, key: Any) -> Any:
        if key in (self.canonical_etypes[0], self.etypes[0]):
            return self
        return super().__getitem__(key)


def csc_with_ids(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CSC with edge ids: without them some of DGL's kernels fail (copy_rhs by libxsmm)."""
    return indptr, indices.long(), torch.arange(len(indices))
