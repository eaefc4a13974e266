"""The layer behind a script's block: the sampled block, and a DGL graph of each relation in it.

A sampled block has this machine's relations, for destinations of all trainers of the group: the
seeds of all at the last layer, and remote destinations where relations are offloaded. The script
sees its own rows alone, which lead.
"""

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

from dgl_heta.distdgl.blocks.refusing import RefusedColumn
from dgl_heta.distdgl.blocks.relation_graph import RelationGraph, relation_graph
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
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
    planned : whether the group's relations of the layer are those that the plan gives each machine.
    presence : a :class:`..modules.absent_relations.Presence`, once it is asked for.
    origin : where the block came from, at a step to prove (:mod:`..proof.script_proof`).
    """

    def __init__(self, session: Session, block: Block, ids: Mapping[str, Tensor],
                 blocks: Sequence[Block], planned: bool = True) -> None:
        self.session, self.block, self.ids, self.blocks = session, block, ids, blocks
        self.planned = planned
        self.asked: set[Relation] = set()
        self.edges_read = False
        self.presence: Any = None
        self.origin: Any = None
        # By range of rows, for multi_update_all, which merges rows; by relation, for modules and
        # slices, which must see all in-edges of a row's relation at once.
        self._graphs: dict[int, RelationGraph] = {}
        self._joined: dict[Relation, tuple[RelationBlock, RelationGraph]] = {}
        self._edges_of_all: dict[Relation, int] | None = None

    def exchanges(self, ntype: str) -> bool:
        """Return whether trainers exchange rows of these destinations; the same on all of them."""
        return self.session.group.size > 1 and (
            self.block.exchanged(ntype) or ntype in self.block.remote)

    def destination_ids(self, ntype: str) -> Tensor:
        """Return node ids of all destination rows of a type, those of other trainers included."""
        ids, remote = self.ids.get(ntype, _NO_EDGES[1]), self.block.remote.get(ntype)
        if remote is None:
            return ids[:self.block.num_dst.get(ntype, 0)]
        return torch.cat([ids[:self.block.num_own(ntype)], torch.from_numpy(remote.ids)])

    def count(self, relation: Relation) -> int:
        """Return how many edges of a relation this machine has."""
        return sum(len(edges.indices) for edges in self.pieces(relation))

    def pieces(self, relation: Relation) -> list[RelationBlock]:
        """Return this machine's edges of a relation, for one range of rows after the other."""
        return [edges for edges in self.block.into(relation.dst) if edges.relation == relation]

    def edges_of_all(self, relation: Relation) -> int:
        """Return how many edges of a relation the machines of the group have."""
        # Collective at the first call of a block, for all relations: all trainers must ask.
        if self._edges_of_all is None:
            relations = self.session.store.schema.relations
            own = torch.tensor([self.count(r) for r in relations])
            every = self.session.group.all_reduce(own, "sum", "control").tolist()
            self._edges_of_all = dict(zip(relations, every))
        return self._edges_of_all[relation]

    def data_of(self, number: int, g: DGLBlock) -> dict[str, Tensor]:
        """Return data that a script has put on the edges of that number in `block.edges`."""
        wanted = self.block.edges[number]
        before = itertools.takewhile(lambda edges: edges is not wanted,
                                     self.pieces(wanted.relation))
        begin = sum(len(edges.indices) for edges in before)
        return {name: column[begin:begin + len(wanted.indices)]
                for name, column in g._edge_frames.of(wanted.relation).items()}

    def graph(self, number: int, device: torch.device) -> RelationGraph:
        """Return the graph of the edges of that number in `block.edges`: all source rows, the
        edges' own range of destination rows."""
        if number not in self._graphs:
            self._graphs[number] = self._graph_of(self.block.edges[number])
        return _on(self._graphs[number], device)

    def edges_of(self, relation: Relation, device: torch.device
                 ) -> tuple[RelationBlock, RelationGraph]:
        """Return all edges of a relation that this machine has, and their graph."""
        if relation not in self._joined:
            edges = _joined(self.pieces(relation) or [RelationBlock(relation, 0, *_NO_EDGES)])
            self._joined[relation] = edges, self._graph_of(edges)
        edges, graph = self._joined[relation]
        return edges, _on(graph, device)

    def relation(self, relation: Relation, g: DGLBlock, destinations: Frame | None = None
                 ) -> tuple[RelationBlock, RelationGraph]:
        """Return all edges of a relation, and their graph with the data that `g` has of its ends,
        or with other data of the `destinations`.

        Data that a script has put where other trainers' rows would be needed too is refused when
        it is read.
        """
        edges, graph = self.edges_of(relation, g.device)
        sources = g._node_frames[g.get_ntype_id_from_src(relation.src)]
        # The script's frame of sources itself: what a module puts there is on the block, as in DGL.
        graph._node_frames = [sources, self._destinations(edges, g) if destinations is None else
                              destinations]
        graph._edge_frames = [Frame(dict(g._edge_frames.of(relation)), graph.num_edges())
                              if g.partial else
                              g._edge_frames[g.get_etype_id(tuple(relation))]]
        return edges, graph

    def empty_graph(self, relation: Relation, device: torch.device) -> DGLBlock:
        """Return a relation that is not here: its source rows, no destinations, no edges."""
        sources = self.block.num_src.get(relation.src, 0)
        return _on(dgl.create_block({tuple(relation): (_NO_EDGES[1], _NO_EDGES[1])},
                                    {relation.src: sources}, {relation.dst: 0}), device)

    def _graph_of(self, edges: RelationBlock) -> RelationGraph:
        relation = edges.relation
        from_sources = [e for e in self.block.edges if e.relation.src == relation.src]
        reads = Reads(len(from_sources), sum(len(e.indices) for e in from_sources),
                      sum(e.num_rows for e in from_sources))
        # Alone, and with all rows in this piece, the edges out of a source are plain DGL's.
        whole = (self.session.group.size == 1
                 and edges.num_rows == self.block.num_dst[relation.dst])
        return relation_graph(edges, self.block.num_src.get(relation.src, 0), whole, reads)

    def _destinations(self, edges: RelationBlock, g: DGLBlock) -> Frame:
        """Return the data of a relation's destinations, with the ids of other trainers' rows."""
        relation, block = edges.relation, self.block
        data = g._node_frames[g.get_ntype_id_from_dst(relation.dst)]
        if (edges.rows is None and edges.start == 0
                and edges.num_rows == block.wanted(relation.dst)):  # the rows that the script sees
            return data
        rows = torch.arange(edges.start, edges.stop) if edges.rows is None else edges.rows
        # All rows are the script's, unless other trainers' seeds or remote destinations are there.
        remote = block.remote.get(relation.dst)
        if not block.last and (remote is None or not remote.total):
            return data.subframe(rows)
        refusal = ("a seed's data in a module" if block.last else
                   "a destination's data in a module")
        ids = self.destination_ids(relation.dst)[rows].to(g.device)
        columns = {name: ids if name == dgl.NID else RefusedColumn(len(rows), functools.partial(
            refuse, refusal, column=name, relation=tuple(relation))) for name in data}
        return Frame(columns, len(rows))


def _on(graph: Any, device: torch.device) -> Any:
    return graph if graph.device == device else graph.to(device)


def _joined(pieces: list[RelationBlock]) -> RelationBlock:
    """Return the pieces of one relation as one."""
    if len(pieces) == 1:
        return pieces[0]
    # Each piece's edges stand after those of the pieces before it.
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
"""CSC over no rows."""
