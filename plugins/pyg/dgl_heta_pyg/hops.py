"""A sampled neighbourhood as one graph, hop by hop, as PyG's loaders have it.

The blocks of layers become one graph: hop 0 are the seeds, hop h + 1 are the sources of the edges
into hop h. A node that is reached over paths of several lengths has a row in each of these hops,
with in-edges of its own. So what a row is computed from follows from its node and its hop alone,
and rows below the seeds are whole on every worker that has them: only seeds are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta import HetaError, Relation, Schema
from dgl_heta.tools import Block, Comm, MiniBatch, Place, RelationBlock


@dataclass
class Hops:
    """The graph of a batch. Rows of a type are those of its hops, one hop after the other.

    Attributes
    ----------
    seeds : node type → how the group's seeds, its leading rows, are shared by the workers.
    nodes : node type → node ids of its rows, int64.
    at : node type → where the input features of its rows are among those that are read, int64.
    num_nodes, num_edges : node type, relation → rows and edges of each hop.
    edges : relation → (2, edges) int64, sources and destinations.
    edge_ids : relation → int64, places of the edges in the graph as it was given; of those
        relations for which they are asked for.
    covered : relation → bool (seeds,), the seeds whose in-edges by it are sampled here.
    place : where the batch is in training.
    once : node type → bool (rows,), the rows that this worker counts where all workers' are counted
        together, each node of a hop once; see :meth:`find_once`.
    reads : the read of learnable rows that the batch's came from.
    """

    seeds: dict[str, Any]
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    at: dict[str, Tensor] = field(default_factory=dict)
    num_nodes: dict[str, list[int]] = field(default_factory=dict)
    num_edges: dict[Relation, list[int]] = field(default_factory=dict)
    edges: dict[Relation, Tensor] = field(default_factory=dict)
    edge_ids: dict[Relation, np.ndarray] = field(default_factory=dict)
    covered: dict[Relation, Tensor] = field(default_factory=dict)
    place: Place | None = None
    once: dict[str, Tensor] = field(default_factory=dict)
    reads: int = 0

    def find_once(self, group: Comm) -> None:
        """Agree on who counts which rows: the first worker that has them."""
        kinds = np.arange(sum(map(len, self.num_nodes.values())))  # the hops of all types
        counts = np.concatenate([*self.num_nodes.values()])
        rows = np.stack([np.repeat(kinds, counts), np.concatenate([*self.nodes.values()])], 1)
        sizes = group.all_gather_json(len(rows), "control")
        every = group.all_gather_rows(torch.from_numpy(rows), sizes, "control").numpy()
        keys = every[:, 0] * (every[:, 1].max(initial=0) + 1) + every[:, 1]
        mask = np.zeros(len(every), bool)
        mask[np.unique(keys, return_index=True)[1]] = True
        device = next(iter(self.at.values())).device
        own = torch.from_numpy(mask).split(sizes)[group.rank].to(device)
        self.once = dict(zip(self.nodes, own.split([*map(len, self.nodes.values())])))

    def on_device(self) -> list[dict[Any, Tensor]]:
        return [self.at, self.edges, self.covered]


@dataclass
class HopBatch(MiniBatch):
    """A batch without blocks, with its graph; `input_nodes` are unique."""

    hops: Hops | None = None

    def tensors(self) -> list[Tensor]:
        return [] if self.hops is None else [x for of in self.hops.on_device() for x in of.values()]

    def to(self, device: torch.device) -> HopBatch:
        for of in self.hops.on_device() if self.hops is not None and device.type != "cpu" else ():
            of.update({key: tensor.to(device, non_blocking=True) for key, tensor in of.items()})
        return self


class HopSampler:
    """A sampler of graphs, by one of blocks without the seeds' states below the last layer.
    `ids_of` has of a relation the place of each edge of its CSC in the graph as it was given."""

    def __init__(self, sampler: Any, schema: Schema,
                 ids_of: Mapping[Relation, Callable[[], np.ndarray]]) -> None:
        self._sampler, self._schema, self._ids_of = sampler, schema, ids_of

    def sample(self, *args: Any, **kwargs: Any) -> HopBatch:
        """The graph of a step; arguments are those of `sampler.sample`."""
        mini = self._sampler.sample(*args, **kwargs)
        hops = _unrolled(mini, self._schema, self._ids_of)
        inputs: dict[str, np.ndarray] = {}
        for ntype, nodes in hops.nodes.items():
            inputs[ntype], at = np.unique(nodes, return_inverse=True)
            hops.at[ntype] = torch.from_numpy(at.astype(np.int64))
        return HopBatch([], {t: inputs[t] for t in self._schema.node_types if t in mini.input_nodes
                             or len(inputs[t])}, mini.seeds, mini.own_seeds, hops=hops)


class _Hop:
    """The rows of one hop: where each row of a block is among them, or -1, per node type."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.place = {t: torch.full((size,), -1, dtype=torch.int64) for t, size in sizes.items()}
        self.first: dict[str, int] = {}
        self.count: dict[str, int] = dict.fromkeys(sizes, 0)

    def take(self, ntype: str, rows: Tensor, first: int) -> None:
        self.place[ntype][rows] = torch.arange(len(rows))
        self.first[ntype], self.count[ntype] = first, len(rows)


def _unrolled(mini: MiniBatch, schema: Schema,
              ids_of: Mapping[Relation, Callable[[], np.ndarray]]) -> Hops:
    blocks = mini.blocks[::-1]
    hops = Hops(seeds=dict(blocks[0].seeds))
    pieces: dict[str, list[np.ndarray]] = {t: [mini.seeds.get(t, _NONE)] for t in schema.node_types}
    hops.num_nodes = {t: [len(pieces[t][0])] for t in schema.node_types}
    edges: dict[Relation, list[Tensor]] = {r: [] for r in schema.relations}
    ids: dict[Relation, list[np.ndarray]] = {r: [] for r in ids_of}
    hops.num_edges = {r: [0] * len(blocks) for r in schema.relations}
    totals = {t: len(pieces[t][0]) for t in schema.node_types}
    above = _Hop(blocks[0].num_dst)
    for ntype, count in blocks[0].num_dst.items():
        above.take(ntype, torch.arange(count), 0)
    for one in blocks[0].edges:
        covered = torch.zeros(blocks[0].num_dst[one.relation.dst], dtype=torch.bool)
        hops.covered.setdefault(one.relation, covered)[one.index] = True
    for number, block in enumerate(blocks):
        if number:
            _check_whole(block, above, schema)
        kept = [(one, *_kept(one, above)) for one in block.edges]
        below = _Hop(block.num_src)
        for one, _, source, _ in kept:
            below.place[one.relation.src][source] = 0
        for ntype, place in below.place.items():
            rows = torch.nonzero(place == 0).flatten()
            below.take(ntype, rows, totals[ntype])
            pieces[ntype].append(mini.input_nodes[ntype][rows.numpy()])
            totals[ntype] += len(rows)
        for ntype, counts in hops.num_nodes.items():
            counts.append(below.count.get(ntype, 0))
        for one, chosen, source, row in kept:
            relation = one.relation
            edges[relation].append(torch.stack([
                below.place[relation.src][source] + below.first[relation.src],
                row + above.first[relation.dst]]))
            hops.num_edges[relation][number] += len(row)
            if relation in ids_of:
                ids_dst = (mini.seeds if block.last else mini.input_nodes)[relation.dst]
                at = ids_dst[one.rows_at(torch.arange(one.num_rows)).numpy()]
                places = one.sample.positions(at, len(one.indices))  # type: ignore[union-attr]
                ids[relation].append(ids_of[relation]()[places[chosen.numpy()]])
        above = below
    hops.nodes = {t: np.concatenate(of) for t, of in pieces.items()}
    hops.edges = {r: torch.cat(of, 1) if of else torch.empty((2, 0), dtype=torch.int64)
                  for r, of in edges.items()}
    hops.edge_ids = {r: np.concatenate([_NONE, *of]) for r, of in ids.items()}
    return hops


def _kept(one: RelationBlock, above: _Hop) -> tuple[Tensor, Tensor, Tensor]:
    """Of a relation's edges those into the hop `above`: which, their sources, and the places of
    their destinations in the hop."""
    row = above.place[one.relation.dst][one.rows_at(one.in_edges.rows())]
    chosen = torch.nonzero(row >= 0).flatten()
    return chosen, one.indices[chosen].long(), row[chosen]


def _check_whole(block: Block, above: _Hop, schema: Schema) -> None:
    """Refuse rows below the seeds that lack a relation: it would be left out of them silently."""
    for ntype, count in above.count.items():
        here = {one.relation for one in block.into(ntype)}
        if count and (lacking := [r for r in schema.into[ntype] if r not in here]):
            raise HetaError(f"this worker has rows of '{ntype}' that are no seeds, but not their "
                            f"in-edges by '{lacking[0]}'; make the partition again")


_NONE = np.empty(0, np.int64)
