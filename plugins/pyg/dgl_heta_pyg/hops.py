"""A sampled neighbourhood as one graph, hop by hop, as PyG's loaders have it.

Hop 0 are the seeds, hop h + 1 are the sources of the edges into hop h. A node that is reached over
paths of several lengths has a row in each of these hops, with in-edges of its own. So what a row is
computed from follows from its node and its hop alone, and rows below the seeds are whole on every
worker that has them: only seeds are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta import HetaError, Relation, Schema
from dgl_heta.tools import Comm, MiniBatch, Moments, RelationBlock


@dataclass
class Hops:
    """The graph of a batch. Rows of a type are those of its hops, one hop after the other.

    Attributes
    ----------
    seeds : node type → how the group's seeds, its leading rows, are shared by the workers.
    nodes : node type → node ids of its rows, int64; of a graph with times, ids of the pairs of
        nodes and times that its rows are of, see `moments`.
    at : node type → where the input features of its rows are among those that are read, int64.
    num_nodes, num_edges : node type, relation → rows and edges of each hop.
    edges : relation → (2, edges) int64, sources and destinations.
    edge_ids : relation → int64, places of the edges in the graph as it was given; of those
        relations for which they are asked for.
    covered : relation → bool (seeds,), the seeds whose in-edges by it are sampled here.
    once : node type → bool (rows,), the rows that this worker counts where all workers' are counted
        together, each node of a hop once: that of the first worker.
    moments : the times of the seeds; None in a graph without times.
    row_times : node type → the times of all nodes, int64, of types that have some.
    """

    seeds: dict[str, Any]
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    at: dict[str, Tensor] = field(default_factory=dict)
    num_nodes: dict[str, list[int]] = field(default_factory=dict)
    num_edges: dict[Relation, list[int]] = field(default_factory=dict)
    edges: dict[Relation, Tensor] = field(default_factory=dict)
    edge_ids: dict[Relation, np.ndarray] = field(default_factory=dict)
    covered: dict[Relation, Tensor] = field(default_factory=dict)
    once: dict[str, Tensor] = field(default_factory=dict)
    moments: Moments | None = None
    row_times: Mapping[str, np.ndarray] = field(default_factory=dict)

    def node_ids(self, ntype: str, rows: np.ndarray) -> np.ndarray:
        """The node ids of some of `nodes`."""
        return rows if self.moments is None or not len(rows) else self.moments.nodes(ntype, rows)

    def of_rows(self, ntype: str) -> dict[str, np.ndarray]:
        """What PyG's batches have of rows of a type: `n_id`, and in a graph with times `seed_time`,
        at which each is seen, and `time`, that of the node where it has one; int64."""
        rows = self.nodes[ntype]
        found = {"n_id": self.node_ids(ntype, rows)}
        if self.moments is not None:
            found["seed_time"] = self.moments.pairs(ntype, rows)[:, 1] if len(rows) else rows
        if ntype in self.row_times:
            found["time"] = self.row_times[ntype][found["n_id"]]
        return found

    def as_of(self, moments: Moments | None) -> Hops:
        """The same with the ids that pairs have among other seeds, which have these times, too."""
        if self.moments is None or moments is None:
            return self
        return replace(self, moments=moments, nodes={
            t: moments.ids(t, *self.moments.pairs(t, ids).T) if len(ids) else ids
            for t, ids in self.nodes.items()})

    def find_once(self, group: Comm) -> None:
        """Agree with the workers of the group on `once`."""
        hops = np.concatenate([*self.num_nodes.values()])  # of all types
        rows = np.stack([np.repeat(np.arange(len(hops)), hops),
                         np.concatenate([*self.nodes.values()])], 1)
        sizes = group.all_gather_json(len(rows), "control")
        every = group.all_gather_rows(torch.from_numpy(rows), sizes, "control").numpy()
        mask = np.zeros(len(every), bool)
        mask[np.unique(every, axis=0, return_index=True)[1]] = True
        device = next(iter(self.at.values())).device
        own = torch.from_numpy(mask).split(sizes)[group.rank].to(device)
        self.once = dict(zip(self.nodes, own.split([*map(len, self.nodes.values())])))


@dataclass
class Origin:
    """What a batch was made of; its edges know it.

    Attributes
    ----------
    step : the batch of the core that has the graph.
    own : what the batch has besides edges: the value, the node type or relation, the name, and
        the number of the graph of one type that has it, None for the batch itself.
    ones : the arguments by which graphs of one type were made of the batch.
    """

    hops: Hops
    step: Any = None
    own: list[tuple[Any, Any, str, int | None]] = field(default_factory=list)
    ones: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def note(self, stores: Iterable[Any], one: int | None = None) -> None:
        """Note what stores of a batch, or of a graph that was made of it, have."""
        self.own += [(value, store._key, name, one) for store in stores
                     for name, value in store.items() if name != "edge_index"]


@dataclass
class HopBatch(MiniBatch):
    """A batch without blocks, with its graph; `input_nodes` are unique."""

    hops: Hops | None = None

    def _moved(self) -> list[dict[Any, Tensor]]:
        return [] if self.hops is None else [self.hops.at, self.hops.edges, self.hops.covered]

    def tensors(self) -> list[Tensor]:
        return [tensor for of in self._moved() for tensor in of.values()]

    def to(self, device: torch.device) -> HopBatch:
        for of in self._moved() if device.type != "cpu" else ():
            of.update({key: tensor.to(device, non_blocking=True) for key, tensor in of.items()})
        return self


class HopSampler:
    """Samples graphs, hop by hop, by a sampler of the core.

    `ids_of` has of a relation the place of each edge of its CSC in the graph as it was given;
    `row_times` the times of nodes.
    """

    def __init__(self, sampler: Any, schema: Schema, row_times: Mapping[str, np.ndarray],
                 ids_of: Mapping[Relation, Callable[[], np.ndarray]]) -> None:
        self._sampler, self._schema, self._ids_of = sampler, schema, ids_of
        self._row_times = row_times

    def sample(self, seeds: Mapping[str, np.ndarray], shares: Mapping[str, Any], step: int,
               without: None = None, deliver: None = None) -> HopBatch:
        """The graph of a step, of the group's seeds in canonical order."""
        depth, schema, hops = self._sampler.scope.hops, self._schema, Hops(
            dict(shares), row_times=self._row_times)
        rows = {t: shares[t].local(torch.from_numpy(ids)).numpy() for t, ids in seeds.items()}
        batch = HopBatch([], {}, rows, {t: ids[:shares[t].own] for t, ids in rows.items()},
                         hops=hops)
        moments, rows = self._sampler.moments(rows)
        hops.moments = moments if self._sampler.timed else None
        nodes = {t: [rows.get(t, _NONE)] for t in schema.node_types}
        edges = {r: [torch.empty((2, 0), dtype=torch.int64)] for r in schema.relations}
        edge_ids = {r: [_NONE] for r in self._ids_of}
        hops.num_edges = {r: [0] * depth for r in schema.relations}
        for hop in range(depth):
            found, below = self._sampler.hop(depth - hop, rows, {} if hop else shares, step,
                                             moments)
            if hop:
                _check_whole(rows, found, schema)
            for one in found:
                relation, (src, _, dst) = one.relation, one.relation
                edges[relation].append(torch.stack([
                    one.indices.long() + sum(map(len, nodes[src])),
                    one.rows_at(one.in_edges.rows()) + sum(map(len, nodes[dst][:-1]))]))
                hops.num_edges[relation][hop] += len(one.indices)
                if relation in edge_ids:
                    at = hops.node_ids(
                        dst, rows[dst][one.rows_at(torch.arange(one.num_rows)).numpy()])
                    edge_ids[relation].append(self._ids_of[relation]()[
                        one.sample.positions(at, len(one.indices))])
                if not hop:
                    none = torch.zeros(len(rows[dst]), dtype=torch.bool)
                    hops.covered.setdefault(relation, none)[one.index] = True
            for ntype, of in nodes.items():
                of.append(below.get(ntype, _NONE))
            rows = below
        hops.num_nodes = {t: [*map(len, of)] for t, of in nodes.items()}
        hops.nodes = {t: np.concatenate(of) for t, of in nodes.items()}
        hops.edges = {r: torch.cat(of, 1) for r, of in edges.items()}
        hops.edge_ids = {r: np.concatenate(of) for r, of in edge_ids.items()}
        for ntype, ids in hops.nodes.items():
            unique, at = np.unique(hops.node_ids(ntype, ids), return_inverse=True)
            hops.at[ntype] = torch.from_numpy(at.astype(np.int64))
            if ntype in self._sampler.counts or len(unique):
                batch.input_nodes[ntype] = unique
        return batch


def _check_whole(rows: Mapping[str, np.ndarray], found: Sequence[RelationBlock], schema: Schema
                 ) -> None:
    """Refuse rows below the seeds that lack a relation: it would be left out of them silently."""
    here = {one.relation for one in found}
    for ntype, nodes in rows.items():
        if len(nodes) and (lacking := [r for r in schema.into[ntype] if r not in here]):
            raise HetaError(f"this worker has rows of '{ntype}' that are no seeds, but not their "
                            f"in-edges by '{lacking[0]}'; make the partition again")


_NONE = np.empty(0, np.int64)
