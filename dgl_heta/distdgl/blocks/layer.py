"""What is behind a script's block: the sampled block, and a DGL graph of each relation in it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import dgl
import torch
from dgl.frame import Frame
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl.blocks import message_passing
from dgl_heta.distdgl.blocks.block_names import SOURCES
from dgl_heta.distdgl.blocks.refused_column import Absent
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.attended import Reads
from dgl_heta.sampling.blocks import Block, RelationBlock


class Layer:
    """One layer of a batch: the sampled block and DGL graphs of its relations, as needed.

    Attributes
    ----------
    ids : node ids of the batch's input rows per type; a block's rows on either side lead them.
    blocks : all of the batch, input side first.
    asked : relations of whose edges the script has asked the number.
    edges_read : whether the script has read data by the ids of edges.
    """

    def __init__(self, session: Session, block: Block, ids: Mapping[str, Tensor],
                 blocks: Sequence[Block]) -> None:
        self.session, self.block, self.ids, self.blocks = session, block, ids, blocks
        self.asked: set[Relation] = set()
        self.edges_read = False
        self.presence: Any = None  # a Presence, once it is asked for
        self._graphs: dict[int, RelationGraph] = {}
        self._joined: dict[Relation, tuple[RelationBlock, RelationGraph]] = {}
        self._counts: dict[Relation, int] | None = None
        self.planned = True
        """Whether the group's relations of the layer are those that the plan gives each machine."""
        self.origin: Any = None
        """Where the block came from, at a step to prove (:mod:`..proof.script_proof`)."""

    def graph(self, place: int, device: torch.device) -> RelationGraph:
        """A relation by its place in `block.edges`: all source rows, its own range of rows."""
        if place not in self._graphs:
            self._graphs[place] = self._made(self.block.edges[place])
        graph = self._graphs[place]
        return graph if graph.device == device else graph.to(device)

    def relation(self, relation: Relation, g: DGLBlock, destinations: Frame | None = None
                 ) -> tuple[RelationBlock, RelationGraph]:
        """All edges of a relation, and their graph with the data that `g` has of its ends, or with
        other data of the `destinations`.

        Data that a script has put where other trainers' rows would be needed too is refused when
        it is read.
        """
        edges, graph = self.edges_of(relation, g.device)
        sources = g._node_frames[g.get_ntype_id_from_src(relation.src)]
        graph._node_frames = [sources, self._destinations(edges, g) if destinations is None else
                              destinations]
        graph._edge_frames = [Frame(dict(g._edge_frames.of(relation)), graph.num_edges())
                              if g.partial else
                              g._edge_frames[g.get_etype_id(tuple(relation))]]
        return edges, graph

    def edges_of(self, relation: Relation, device: torch.device
                 ) -> tuple[RelationBlock, RelationGraph]:
        """All edges of a relation that this machine has, and their graph."""
        if relation not in self._joined:
            edges = _joined([e for e in self.block.into(relation.dst) if e.relation == relation]
                            or [RelationBlock(relation, 0, *_NO_EDGES)])
            self._joined[relation] = edges, self._made(edges)
        edges, graph = self._joined[relation]
        return edges, graph if graph.device == device else graph.to(device)

    def count(self, relation: Relation) -> int:
        """How many edges of a relation this machine has."""
        return sum(len(edges.indices) for edges in self.block.into(relation.dst)
                   if edges.relation == relation)

    def exchanges(self, ntype: str) -> bool:
        """Whether trainers exchange rows of these destinations; the same on all of them."""
        return self.session.group.size > 1 and (
            self.block.num_seeds(ntype) > 0 or ntype in self.block.remote)

    def edges_of_all(self, relation: Relation) -> int:
        """How many edges of a relation the machines of the group have. All trainers ask alike: the
        first time they tell each other."""
        if self._counts is None:
            relations = self.session.store.schema.relations
            own = torch.tensor([self.count(r) for r in relations])
            every = self.session.group.all_reduce(own, "sum", "control").tolist()
            self._counts = dict(zip(relations, every))
        return self._counts[relation]

    def data_of(self, place: int, g: DGLBlock) -> dict[str, Tensor]:
        """Data that a script has put on the edges at a place in `block.edges`."""
        wanted = self.block.edges[place]
        begin = 0
        for edges in self.block.into(wanted.relation.dst):
            if edges is wanted:
                break
            begin += len(edges.indices) * (edges.relation == wanted.relation)
        return {name: column[begin:begin + len(wanted.indices)]
                for name, column in g._edge_frames.of(wanted.relation).items()}

    def _made(self, edges: RelationBlock) -> RelationGraph:
        relation = edges.relation
        sources = self.block.num_src.get(relation.src, 0)
        made = dgl.create_block(
            {tuple(relation): ("csc", csc_with_ids(edges.indptr, edges.indices))},
            {relation.src: sources}, {relation.dst: edges.num_rows})
        whole = (self.session.group.size == 1
                 and edges.num_rows == self.block.num_dst[relation.dst])
        made._graph.heta_edges = message_passing.Edges(
            edges.indptr, edges.indices, sources, whole, self._reads(relation.src))
        return RelationGraph(made._graph, (made.srctypes, made.dsttypes), made.etypes)

    def _reads(self, ntype: str) -> Reads:
        """All edges from a type, and their destination rows."""
        some = [e for e in self.block.edges if e.relation.src == ntype]
        return Reads(len(some), sum(len(e.indices) for e in some),
                     sum(e.num_rows for e in some))

    def _destinations(self, edges: RelationBlock, g: DGLBlock) -> Frame:
        """The data of a relation's destinations, with the ids of other trainers' seeds."""
        relation = edges.relation
        known = g._node_frames[g.get_ntype_id_from_dst(relation.dst)]
        if self._same_rows(edges):
            return known
        rows = torch.arange(edges.start, edges.stop) if edges.rows is None else edges.rows
        guests = self.block.remote.get(relation.dst)
        if not self.block.last and (guests is None or not guests.total):
            return known.subframe(rows)
        ids, whose = self.destination_ids(relation.dst), (
            "seeds and the module runs for those" if self.block.last else
            "rows and the module runs for some")
        return Frame({name: ids[rows].to(g.device) if name == dgl.NID else Absent(
            len(rows), f"'{name}' of destinations of {tuple(relation)} cannot be read by its "
            f"module at {'the last layer' if self.block.last else 'layer 1'} of a "
            f"meta-partitioned graph, because the script has put it on this trainer's own {whose} "
            "of all trainers; give it to the module as input rows of HeteroGraphConv"
            + ("" if self.block.last else ", or set partition.shared = rows"))
            for name in known}, len(rows))

    def destination_ids(self, ntype: str) -> Tensor:
        """Node ids of all destination rows of a type, those of other trainers included."""
        ids, guests = self.ids.get(ntype, _NO_EDGES[1]), self.block.remote.get(ntype)
        if guests is None:
            return ids[:self.block.num_dst.get(ntype, 0)]
        return torch.cat([ids[:self.block.num_own(ntype)], torch.from_numpy(guests.ids)])

    def _same_rows(self, edges: RelationBlock) -> bool:
        """Whether a relation's rows are the destination rows that the script sees."""
        return (edges.rows is None and edges.start == 0
                and edges.num_rows == self.block.wanted(edges.relation.dst))

    def empty_graph(self, relation: Relation, device: torch.device) -> DGLBlock:
        """A relation that is not here: its source rows, no destinations, no edges."""
        none = torch.empty(0, dtype=torch.int64)
        made = dgl.create_block({tuple(relation): (none, none)},
                                {relation.src: self.block.num_src.get(relation.src, 0)},
                                {relation.dst: 0})
        return made if made.device == device else made.to(device)


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

    def _carrying(self, other: Any) -> Any:
        other._graph.heta_edges = self._graph.heta_edges
        return other

    def _refuse(self, operation: str) -> None:
        edges = getattr(self._graph, "heta_edges", None)
        if edges is None or not edges.whole:
            raise HetaError(
                f"{operation} of the graph of {self.canonical_etypes[0]} cannot be used on a "
                "meta-partitioned graph: a relation's module runs for the seeds of all trainers, "
                "so what is counted or reduced by source would depend on theirs; use in-degrees "
                "and what is reduced by destination (GraphConv: norm='right' or 'none')")


def _refusing(name: str) -> Any:
    original = getattr(DGLBlock, name)

    @functools.wraps(original)
    def call(self: RelationGraph, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)
        return original(self, *args, **kwargs)
    return call


for _name in SOURCES:
    setattr(RelationGraph, _name, _refusing(_name))


def _joined(pieces: list[RelationBlock]) -> RelationBlock:
    """The pieces of one relation as one."""
    if len(pieces) == 1:
        return pieces[0]
    lengths = [0, *(len(p.indices) for p in pieces[:-1])]
    shifts = torch.tensor(lengths).cumsum(0).tolist()
    indptr = torch.cat([*(p.indptr[:-1] + shift for p, shift in zip(pieces, shifts)),
                        pieces[-1].indptr[-1:] + shifts[-1]])
    indices = torch.cat([p.indices for p in pieces])
    first = pieces[0]
    follow = all(a.stop == b.start for a, b in itertools.pairwise(pieces))
    rows = None if follow else torch.cat([torch.arange(p.start, p.stop) for p in pieces])
    return RelationBlock(first.relation, first.start if follow else 0, indptr, indices,
                         first.place, rows)


_NO_EDGES = torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


def csc_with_ids(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CSC with edge ids: without them some of DGL's kernels fail (copy_rhs by libxsmm)."""
    return indptr, indices.long(), torch.arange(len(indices))
