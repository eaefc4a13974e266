"""Message flow of one mini-batch: what a model sees of a sampled neighbourhood.

A :class:`MiniBatch` is a list of :class:`Block`, input side first. A model that is written
over blocks does not know whether it runs alone or as one of several RAF workers; the block
says which destination rows each relation is aggregated for, and whose rows are wanted at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.packing import Packed, rows_with_edges
from dgl_heta.sampling.positions import EdgeSample
from dgl_heta.sampling.seeds import SeedReads, SeedShares

if TYPE_CHECKING:
    from dgl_heta.sampling.moments import Moments


class InEdges(NamedTuple):
    """In-edges of R destination rows, CSC: `indptr` (R + 1, int64), `indices` (E, source rows).

    Edges are in the order of their rows.
    """

    indptr: Tensor
    indices: Tensor

    def rows(self) -> Tensor:
        """The destination row of each edge (E,), int64."""
        rows = torch.arange(len(self.indptr) - 1, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff(), output_size=len(self.indices))


class SharedRows(NamedTuple):
    """The shared part of rows whose in-edges by a relation are on several workers.

    Attributes
    ----------
    own : bool (rows,), whether this worker's result counts where relations are merged.
    order : int64 (E,), the place of each edge among all edges of its row.
    """

    own: Tensor
    order: Tensor


@dataclass
class RelationBlock:
    """In-edges by one relation of destination rows `start … start + len(indptr) - 2`.

    `indptr` (int64) and `indices` (int32) are CSC over these rows; `indices` are rows of the
    source type on the block's source side. A row without edges still belongs to the relation:
    its aggregation is 0, and a bias of the relation applies to it. `place` is the relation's
    position in the schema. Where a relation is cut by destination, its rows need not follow
    each other: then `rows` (int64) has them, and `start` is 0. With `shared` the edges are a part
    of these rows' edges; all workers that have the relation have these rows, in one order. `sample`
    says how the edges were sampled, for who asks which they are; None where that is not known.
    Before the edges are moved to a GPU, which would have to be waited for, what :meth:`with_edges`
    returns is found: `filled`, or these edges themselves if they are `full`.
    """

    relation: Relation
    start: int
    indptr: Tensor
    indices: Tensor
    place: int = 0
    rows: Tensor | None = None
    shared: SharedRows | None = None
    sample: EdgeSample | None = None
    filled: RelationBlock | None = None
    full: bool = False

    @property
    def in_edges(self) -> InEdges:
        return InEdges(self.indptr, self.indices)

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def stop(self) -> int:
        return self.start + self.num_rows

    def with_edges(self) -> RelationBlock:
        """The same edges over those rows only that have any, if that are many fewer."""
        if self.shared is not None or self.full:
            return self
        if self.filled is not None:
            return self.filled
        indptr, rows = rows_with_edges(self.indptr, self.start, self.rows)
        if not len(indptr):
            return self
        return RelationBlock(self.relation, 0, indptr, self.indices, self.place, rows)

    def owned(self, values: Tensor) -> tuple[RelationBlock, Tensor]:
        """The rows that count here where relations are merged, without their edges, and their
        `values` (rows, …), complete."""
        if self.shared is None:
            return self, values
        assert self.rows is not None
        rows = self.rows[self.shared.own]
        return RelationBlock(self.relation, 0, self.indptr.new_zeros(len(rows) + 1),
                             self.indices[:0], self.place, rows), values[self.shared.own]

    def rows_at(self, positions: Tensor) -> Tensor:
        """Which destination rows the relation's rows at these positions are, int64."""
        return positions + self.start if self.rows is None else self.rows[positions]

    @property
    def index(self) -> Tensor | slice:
        """Where the relation's rows are among the destination rows."""
        return slice(self.start, self.stop) if self.rows is None else self.rows

    def of(self, values: Tensor) -> Tensor:
        """The rows of `values` (destination rows, …) that belong to this relation."""
        return values[self.index]


class RemoteDestinations(NamedTuple):
    """Destination rows of a node type that one worker aggregates for another.

    Attributes
    ----------
    received : per worker of the group, how many of its rows are aggregated here. They stand after
        the own destination rows, one worker's after the other's.
    sent : per worker, how many of this worker's rows it aggregates; those are the last ones before
        the rows received, the same for every worker that has any.
    ids : node ids of the rows received, int64; of pairs :meth:`Moments.keys`.
    """

    received: tuple[int, ...]
    sent: tuple[int, ...]
    ids: np.ndarray

    @property
    def total(self) -> int:
        """The number of rows received."""
        return sum(self.received)


class Prepared(Protocol):
    """What a kernel has made of all edges of a block before they are moved to a device."""

    def tensors(self) -> list[Tensor]:
        """What is to be moved with the edges."""

    def move(self, moved: Iterator[Tensor]) -> None:
        """Take the same tensors on the device."""

    def forward(self, layer: Any, block: Block, states: dict[str, Tensor]
                ) -> dict[str, Tensor] | None:
        """The results of an :class:`dgl_heta.HGNNLayer`; None if it is no layer that the kernel
        takes as a whole."""


@dataclass
class Block:
    """One layer of message flow.

    Attributes
    ----------
    layer : 1 (next to the input) … number of layers.
    num_src, num_dst : rows per node type on either side; node types in schema order.
    edges : relations with the rows that they are aggregated for. A relation can stand several
        times, for several ranges of rows.
    seeds : per node type how the leading destination rows, the group's seeds, are shared.
        Their aggregation is partial on each worker. Empty where no seed's state is wanted.
    last : whether this is the last layer: only the own seeds' output is wanted here, and a
        destination row of the result is an own seed.
    seed_relations, inner_relations : per node type the relations that reach a seed row or
        another row, over all workers, in the schema's order (what AGG_all ranges over).
    has_destinations : whether the source side begins with the destination rows, so that a
        model can read their state (self-loop, attention).
    own_states : whether on the source side, of the seeds, only this worker's own and those that
        edges read are complete.
    reads : per node type which other workers' seeds are read above; the states of the rest may
        stay incomplete. All are complete for a type that is not there.
    done : (layer, node type) of what was exchanged for the seeds; the blocks of a batch may share
        one set.
    offloads : whether workers aggregate rows for others here; the same on all of them.
    remote : per node type the remote destinations: rows that are aggregated here for other workers,
        or elsewhere for this one. They count among `num_dst`.
    remote_states : whether the source side has the states of the rows received, too.
    above : the block of the next layer, which reads what is computed here; None in the last layer,
        and where that is not known.
    prepared : what the kernel in use made of the edges; None if it takes them as they are.
    """

    layer: int
    num_src: dict[str, int]
    num_dst: dict[str, int]
    edges: list[RelationBlock]
    seeds: dict[str, SeedShares]
    last: bool
    seed_relations: dict[str, tuple[Relation, ...]]
    inner_relations: dict[str, tuple[Relation, ...]]
    has_destinations: bool = True
    own_states: bool = False
    reads: dict[str, SeedReads] = field(default_factory=dict)
    done: set[tuple[int, str]] = field(default_factory=set)
    offloads: bool = False
    remote: dict[str, RemoteDestinations] = field(default_factory=dict)
    remote_states: bool = False
    above: Block | None = None
    prepared: Prepared | None = None

    def __post_init__(self) -> None:
        self._into: dict[str, list[RelationBlock]] = {}
        for edges in self.edges:
            self._into.setdefault(edges.relation.dst, []).append(edges)

    def into(self, ntype: str) -> list[RelationBlock]:
        """The edges that end at a node type."""
        return self._into.get(ntype, [])

    def num_seeds(self, ntype: str) -> int:
        """The number of leading destination rows that are the group's seeds."""
        return self.seeds[ntype].total if ntype in self.seeds else 0

    def exchanged(self, ntype: str) -> bool:
        """Whether the workers of a group exchange destination rows of a type; the same on all."""
        return ntype in self.seeds and (
            self.seeds[ntype].common or self.seeds[ntype].total > 0)

    def num_own(self, ntype: str) -> int:
        """The number of destination rows without those of other workers."""
        return self.num_dst[ntype] - (self.remote[ntype].total if ntype in self.remote else 0)

    def wanted(self, ntype: str) -> int:
        """The number of leading destination rows whose output this block's layer returns."""
        return self.seeds[ntype].own if self.last else self.num_own(ntype)

    def check_destinations(self, ntype: str) -> None:
        """Raise a :class:`HetaError` unless the source side begins with the destination rows."""
        if not self.has_destinations:
            raise HetaError(
                f"the model reads the destination's state of '{ntype}' at layer {self.layer}, "
                "but the blocks were sampled without it; set train.seed_states = true"
            )

    def check_rows(self, edges: RelationBlock) -> None:
        """Raise a :class:`HetaError` unless the source side has the states of these rows."""
        self.check_destinations(edges.relation.dst)
        if self.remote_states or edges.relation.dst not in self.remote or not edges.num_rows:
            return
        stop = edges.stop if edges.rows is None else int(edges.rows.max()) + 1
        if stop > self.num_own(edges.relation.dst):
            raise HetaError(
                f"the model reads the destination's state of '{edges.relation.dst}' for rows of "
                "another worker, but its layers say that they do not (attends = False)")

    def destination(self, states: dict[str, Tensor], ntype: str) -> Tensor:
        """The states of the wanted destination rows, for self-loops and the like."""
        self.check_destinations(ntype)
        return states[ntype][:self.wanted(ntype)]


def mark_reads(below: Block, last: Block) -> None:
    """Note which seeds' states, made by the layer `below`, edges of the last layer read here.

    Besides these a worker needs those of its own seeds alone.
    """
    for ntype, shares in below.seeds.items():
        if len(shares.sizes) == 1 or shares.others or 0 in shares.sizes:
            continue  # who has no seed of a type has no row to stand for those that it lacks
        read = torch.zeros(shares.total, dtype=torch.bool)
        for edges in last.edges:
            if edges.relation.src == ntype:
                read[edges.indices[edges.indices < shares.total].long()] = True
        read[:shares.own] = False
        below.reads[ntype] = SeedReads(torch.nonzero(read).flatten(), shares)
        last.own_states = True


def forget_reads(blocks: Sequence[Block]) -> None:
    """Undo :func:`mark_reads`: the states of all seeds are wanted."""
    for block in blocks:
        block.reads.clear()
        block.own_states = False


@dataclass
class MiniBatch:
    """Blocks, the nodes whose features they start from, and the seeds.

    `input_nodes` are node ids per type (int64), in the row order of the first block's source
    side; every type of the worker's partition is there, with no ids where the batch reaches none.
    Ids are unique, but for seeds under metapaths, which have rows apart. `seeds` are those of the
    model-parallel group, this trainer's own first; `own_seeds` are these. `rows` are input features
    that were read with the batch, by the names that a model knows them by; None if none were.
    `copied` is the event after which they and the edges are on the device, if they are on the way.
    `excluded` are the edges that were left out of this batch, as :meth:`NeighborSampler.sample` was
    given them. Where seeds have times, which are beside their ids then (n, 2), a node has a row for
    each at which it is seen; `places` are, for each row of the first block's source side, that of
    its node in `input_nodes`, None where it is its own, as with one time. `pairs` are the ids in
    `moments` of the first of these rows; `moments` is None without times.
    """

    blocks: list[Block]
    input_nodes: dict[str, np.ndarray]
    seeds: dict[str, np.ndarray]
    own_seeds: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, Tensor] | None = None
    copied: torch.cuda.Event | None = None
    excluded: Mapping[Relation, np.ndarray] = field(default_factory=dict)
    places: dict[str, np.ndarray] | None = None
    moments: Moments | None = None
    pairs: dict[str, np.ndarray] = field(default_factory=dict)
    packed: Packed | None = None
    memory: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors of the edges."""
        return [*(tensor for block in self.blocks for edges in block.edges
                  for tensor in _tensors(edges)),
                *(tensor for block in self.blocks if block.prepared is not None
                  for tensor in block.prepared.tensors())]

    def pack(self, device: torch.device) -> MiniBatch:
        """Do what :meth:`to` does on the CPU, once. Threads that sample batches ahead do it side by
        side."""
        if self.packed is not None or self._is_on(device):
            return self
        for block in self.blocks:
            block.prepared = _prepare(block, device)
        if device.type != "cpu":
            for edges in self._every():
                some = edges.with_edges()
                edges.full = some is edges  # (a block that refers to itself is not freed in time)
                edges.filled = None if edges.full else some
            self.packed = Packed(self.tensors(), device)
        return self

    def to(self, device: torch.device) -> MiniBatch:
        """Move the edges to a device, all in one copy, from pinned memory, unless they were sampled
        there."""
        if self._is_on(device):
            self.keep(torch.cuda.current_stream(device))
            return self
        self.pack(device)
        if self.packed is None:
            return self
        self.memory, tensors = self.packed.on(device)
        self.packed, moved = None, iter(tensors)
        for edges in self._every():
            edges.indptr, edges.indices = next(moved), next(moved)
            if edges.rows is not None:
                edges.rows = next(moved)
            if edges.shared is not None:
                edges.shared = SharedRows(next(moved), next(moved))
            if (some := edges.filled) is not None:
                some.indptr, some.rows, some.indices = next(moved), next(moved), edges.indices
        for block in self.blocks:
            if block.prepared is not None:
                block.prepared.move(moved)
        return self

    def keep(self, stream: torch.cuda.Stream) -> None:
        """Let another stream of the GPU use the edges: their memory is theirs until it has."""
        for tensor in self.tensors() if self.memory is None else [self.memory]:
            tensor.record_stream(stream)

    def _every(self) -> list[RelationBlock]:
        return [edges for block in self.blocks for edges in block.edges]

    def _is_on(self, device: torch.device) -> bool:
        """Whether the edges are on a GPU already."""
        every = self._every()
        return device.type != "cpu" and bool(every) and every[0].indptr.device.type == device.type


Prepare = Callable[[Block, torch.device], "Prepared | None"]
_prepare: Prepare = lambda block, device: None  # noqa: E731


def prepare_by(prepare: Prepare) -> None:
    """Let a kernel see the blocks of this process before they are moved to a device."""
    global _prepare
    _prepare = prepare


def _tensors(edges: RelationBlock) -> list[Tensor]:
    rows = [] if edges.rows is None else [edges.rows]
    filled = [] if edges.filled is None else [edges.filled.indptr, edges.filled.rows]
    return [edges.indptr, edges.indices, *rows, *(edges.shared or ()),
            *(x for x in filled if x is not None)]
