"""Which trainers' batches have an edge of a relation, and which rows belong to which batches.

Plain DGL leaves a relation out where a batch has no edge of it: a user-defined reduce function then
gives nothing, a built-in maximum 0 in place of minus infinity. Under RAF a machine's batch is that
of all trainers of its group, so this must be known for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.source_trainers import (
    Words,
    trainers_of_destinations,
    trainers_of_seeds,
    trainers_of_sources,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import Block, RelationBlock
from dgl_heta.sampling.trainer_bits import MOST_TRAINERS


@dataclass
class Presence:
    """The presence of a block's relations; trainers are bits by their position in the group.

    Attributes
    ----------
    rows : per node type the trainers whose batches have each destination row, int64; rows that
        are aggregated here for others included.
    there : per relation the trainers whose batches have an edge of it at this layer.
    """

    rows: dict[str, Tensor]
    there: dict[Relation, int]

    def of(self, edges: RelationBlock) -> tuple[Tensor, Tensor]:
        """Return two masks of a relation's rows here, bool (edges.num_rows,): those without an edge
        in whose trainers' batches the relation is absent; those where it is absent in some and
        there in others."""
        rows = edges.of(self.rows[edges.relation.dst])
        with_it = rows & self.there[edges.relation]
        empty = edges.indptr.diff() == 0
        return empty & (with_it == 0), empty & (with_it != 0) & (with_it != rows)


def presence(layer: Layer) -> Presence:
    """Return the presence of a block's relations, which the group agrees on once per block."""
    # Collective: 8 bytes a seed and layer above, and 8 a relation. All trainers must ask alike.
    if layer.presence is None:
        group, block = layer.session.group, layer.block
        if group.size > MOST_TRAINERS:
            refuse("own functions in a large group", trainers=group.size, most=MOST_TRAINERS)
        blocks = layer.blocks
        rows = trainers_of_destinations(
            block, _rows(group, blocks[block.layer - 1:]), group, "control")
        relations = list(layer.session.store.schema.relations)
        words = np.zeros(len(relations), np.int64)
        for edges in block.edges:
            bits = edges.of(torch.from_numpy(rows[edges.relation.dst])).numpy()
            with_edges = bits[edges.indptr.diff().numpy() > 0]
            # A relation can stand several times, for several ranges of rows.
            words[edges.place] |= np.bitwise_or.reduce(with_edges, initial=0)
        there = group.all_reduce(torch.from_numpy(words), "or", "control").tolist()
        layer.presence = Presence({t: torch.from_numpy(bits) for t, bits in rows.items()},
                                  dict(zip(relations, there)))
    return layer.presence


def _rows(group: Comm, blocks: Sequence[Block]) -> Words:
    """Return the trainers of a worker's own destination rows of the first of some blocks."""
    rows = trainers_of_seeds(blocks[-1].seeds, range(group.size))
    for below, block in reversed([*itertools.pairwise(blocks)]):
        rows = trainers_of_sources(block, rows, below.seeds, group, "control")
    return rows


def extreme_rows(value: Tensor, op: str, edges: RelationBlock, there: Presence | None) -> Tensor:
    """Return an extreme where rows without an edge are infinite, as DGL reduces them, or 0 where it
    sees a relation without any edge."""
    empty = (edges.indptr.diff() == 0).to(value.device)
    if not bool(empty.any()):
        return value
    filler = value.new_full((len(value),), EXTREMES[op])
    if there is not None:
        filler[there.of(edges)[0].to(value.device)] = 0
    if not len(edges.indices):
        value = value.detach()  # DGL's own backward pass would look for a source row
    broadcast = (-1, *[1] * (value.dim() - 1))
    return torch.where(empty.view(broadcast), filler.view(broadcast).expand_as(value), value)
