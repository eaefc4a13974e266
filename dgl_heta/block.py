"""Message flow of one mini-batch: what a model sees of a sampled neighbourhood.

A :class:`MiniBatch` is a list of :class:`Block`, input side first. A model that is written
over blocks does not know whether it runs alone or as one of several RAF workers; the block
says which destination rows each relation is aggregated for, and whose rows are wanted at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import HetaError
from dgl_heta.schema import Relation


@dataclass
class RelationBlock:
    """In-edges by one relation of destination rows `start … start + len(indptr) - 2`.

    `indptr` (int64) and `indices` (int32) are CSC over these rows; `indices` are rows of the
    source type on the block's source side. A row without edges still belongs to the relation:
    its aggregation is 0, and a bias of the relation applies to it.
    """

    relation: Relation
    start: int
    indptr: Tensor
    indices: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def stop(self) -> int:
        return self.start + self.num_rows


@dataclass
class Block:
    """One layer of message flow.

    Attributes
    ----------
    layer : 1 (next to the input) … number of layers.
    num_src, num_dst : rows per node type on either side; node types in schema order.
    edges : relations with the rows that they are aggregated for. A relation can stand twice,
        for two ranges of rows.
    seed_rows : per target type the number of leading destination rows that are the group's
        seeds. Their aggregation is partial on each worker of a model-parallel group.
    own : last layer only: per target type the half-open range of seed rows whose output is
        wanted here. A destination row is then a row of that range.
    seed_relations, inner_relations : per node type how many relations reach a seed row or
        another row, over all workers (the divisor of a mean over relations).
    has_destinations : whether the source side begins with the destination rows, so that a
        model can read their state (self-loop, attention).
    """

    layer: int
    num_src: dict[str, int]
    num_dst: dict[str, int]
    edges: list[RelationBlock]
    seed_rows: dict[str, int]
    own: dict[str, tuple[int, int]] | None
    seed_relations: dict[str, int]
    inner_relations: dict[str, int]
    has_destinations: bool = True

    def __post_init__(self) -> None:
        self._into: dict[str, list[RelationBlock]] = {}
        for edges in self.edges:
            self._into.setdefault(edges.relation.dst, []).append(edges)

    def into(self, ntype: str) -> list[RelationBlock]:
        """The edges that end at a node type."""
        return self._into.get(ntype, [])

    def wanted(self, ntype: str) -> tuple[int, int]:
        """Destination rows whose output this block's layer returns."""
        if self.own is not None:
            return self.own[ntype]
        return 0, self.num_dst[ntype]

    def destination(self, states: dict[str, Tensor], ntype: str) -> Tensor:
        """The states of the wanted destination rows, for self-loops and the like."""
        if not self.has_destinations:
            raise HetaError(
                f"the model reads the destination's state of '{ntype}' at layer {self.layer}, "
                "but the blocks were sampled without it; set train.seed_states = true"
            )
        low, high = self.wanted(ntype)
        return states[ntype][low:high]


@dataclass
class MiniBatch:
    """Blocks, the nodes whose features they start from, and the seeds.

    `input_nodes` are node ids per type (int64), in the row order of the first block's source
    side; every type of the worker's partition is there, with no ids where the batch reaches none.
    Ids are unique, but for seeds under metapaths, which have rows apart. `seeds` are those of the
    model-parallel group; `own_seeds` this trainer's own among them.
    """

    blocks: list[Block]
    input_nodes: dict[str, np.ndarray]
    seeds: dict[str, np.ndarray]
    own_seeds: dict[str, np.ndarray] = field(default_factory=dict)

    def to(self, device: torch.device) -> MiniBatch:
        """Move the edges to a device."""
        if device.type != "cpu":
            for block in self.blocks:
                for edges in block.edges:
                    edges.indptr = edges.indptr.to(device, non_blocking=True)
                    edges.indices = edges.indices.to(device, non_blocking=True)
        return self
