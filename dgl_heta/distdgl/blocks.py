"""DGL blocks for a script, made from sampled blocks.

What a script sees is a DGLBlock whose leading destination rows at the last layer are the
trainer's own seeds; what is aggregated for the other trainers' seeds stays inside
(:class:`Layer`) and is reached by HeteroGraphConv and multi_update_all alone.
"""

from __future__ import annotations

from typing import Any

import dgl
import numpy as np
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl import message_passing
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import HetaError
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock


class Layer:
    """One layer of a batch: the sampled block and DGL graphs of its relations, as needed."""

    def __init__(self, session: Session, block: Block) -> None:
        self.session, self.block = session, block
        self._graphs: dict[int, DGLBlock] = {}

    def graph(self, place: int, device: torch.device) -> DGLBlock:
        """A relation by its place in `block.edges`: all source rows, its own range of rows."""
        if place not in self._graphs:
            edges = self.block.edges[place]
            relation = edges.relation
            made = dgl.create_block(
                {tuple(relation): ("csc", _with_ids(edges.indptr, edges.indices))},
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


class RafBlock(DGLBlock):
    """A block of a meta-partitioned graph.

    It can be looked at, moved and carry data as any block. Aggregating over it other than by
    HeteroGraphConv or multi_update_all would leave out what other trainers hold, and is refused.
    """

    layer: Layer | None = None

    def update_all(self, *args: Any, **kwargs: Any) -> None:
        _refuse("update_all")

    def send_and_recv(self, *args: Any, **kwargs: Any) -> None:
        _refuse("send_and_recv")

    def pull(self, *args: Any, **kwargs: Any) -> None:
        _refuse("pull")

    def push(self, *args: Any, **kwargs: Any) -> None:
        _refuse("push")

    def multi_update_all(self, etype_dict: Any, cross_reducer: Any,
                         apply_node_func: Any = None) -> None:
        from dgl_heta.distdgl.hetero import multi_update_all

        multi_update_all(self, etype_dict, cross_reducer, apply_node_func)

    def __getitem__(self, key: Any) -> Any:
        self._touch()
        return super().__getitem__(key)

    def local_var(self) -> Any:
        self._touch()
        return super().local_var()

    def _touch(self) -> None:
        if self.layer is not None and self.layer.session.batch is not None:
            self.layer.session.batch.touched = True


def _refuse(operation: str) -> None:
    raise HetaError(f"{operation} on a block of a meta-partitioned graph would leave out the "
                    "relations of other partitions; merge relations by dgl.nn.HeteroGraphConv or "
                    "block.multi_update_all")


def make_blocks(session: Session, batch: MiniBatch) -> list[RafBlock]:
    """The blocks of a batch as a script sees them, with node ids (dgl.NID) on both sides."""
    made = []
    everything = session.store.schema.node_types  # as in DistDGL, on both sides of every block
    ids = {t: torch.from_numpy(found) for t, found in batch.input_nodes.items()}
    for block in batch.blocks:
        wanted = {t: block.wanted(t) if t in block.num_dst else 0 for t in everything}
        sources = {t: block.num_src.get(t, 0) for t in everything}
        edges = {}
        for into in block.num_dst:
            for relation, parts in _by_relation(block.into(into)).items():
                edges[tuple(relation)] = ("csc", _csc(parts, wanted[into]))
        graph = dgl.create_block(edges, sources, wanted)
        public = RafBlock(graph._graph, (graph.srctypes, graph.dsttypes), graph.etypes)
        public.layer = Layer(session, block)
        for t in everything:
            public.srcnodes[t].data[dgl.NID] = ids.get(t, _NO_IDS)[:sources[t]]
            public.dstnodes[t].data[dgl.NID] = ids.get(t, _NO_IDS)[:wanted[t]]
        made.append(public)
    return made


def _by_relation(edges: list[RelationBlock]) -> dict[Any, list[RelationBlock]]:
    found: dict[Any, list[RelationBlock]] = {}
    for part in edges:
        found.setdefault(part.relation, []).append(part)
    return found


def _csc(parts: list[RelationBlock], rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSC over destination rows 0 … rows - 1 from ascending ranges of rows."""
    indptr = np.zeros(rows + 1, np.int64)
    indices = []
    for part in parts:
        low, high = min(part.start, rows), min(part.stop, rows)
        if high > low:
            pointers = part.indptr.numpy()[:high - low + 1]
            indptr[low + 1:high + 1] = np.diff(pointers)
            indices.append(part.indices[:int(pointers[-1])])
    np.cumsum(indptr, out=indptr)
    joined = indices[0] if len(indices) == 1 else torch.cat(indices) if indices else _NO_IDS
    return _with_ids(torch.from_numpy(indptr), joined)


def _with_ids(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CSC with edge ids: without them some of DGL's kernels fail (copy_rhs by libxsmm)."""
    return indptr, indices.long(), torch.arange(len(indices))


_NO_IDS = torch.empty(0, dtype=torch.int64)
