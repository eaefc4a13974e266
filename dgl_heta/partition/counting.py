"""Counts of what partitionings of a graph would send in sampled steps, row by row.

Steps are sampled on the store, as training would, and the rows and edges that each partitioning
would move are counted; :mod:`dgl_heta.planning.traffic` says how many bytes they are. Gradients of
dense parameters follow from the plan (:func:`dgl_heta.planning.compute.parameter_groups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dgl_heta.errors import InputError
from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning import traffic
from dgl_heta.planning.compute import parameter_groups
from dgl_heta.planning.footprint import DISTDGL_EDGE_BYTES, footprint, type_bytes
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import HubPieces, SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store
from dgl_heta.store.structure import copied

_NONE = np.empty(0, np.int64)

Owner = dict[str, np.ndarray]
"""Node type → part of each node."""


@dataclass(frozen=True)
class Partitioning:
    """One row of the comparison.

    Attributes
    ----------
    bytes_per_epoch : cause → bytes that all workers send in an epoch.
    memory_bytes : of the partition that holds most, predicted.
    memory_balance, edge_balance : most over mean of a partition's memory and of the edges that
        it samples in a step.
    replication_factor : nodes stored over all partitions per node, halo nodes included; None
        where they were not counted.
    boundary_nodes : nodes with neighbours in other partitions, of the one that has most (Heta, §4).
    cut_edges : edges between parts of nodes; None where whole relations are divided.
    missing : why there are no figures, if there are none.
    """

    name: str
    bytes_per_epoch: dict[str, int] = field(default_factory=dict)
    memory_bytes: int = 0
    memory_balance: float = 1.0
    edge_balance: float = 1.0
    replication_factor: float | None = None
    boundary_nodes: int = 0
    cut_edges: int | None = None
    missing: str | None = None

    @property
    def total(self) -> int:
        return sum(self.bytes_per_epoch.values())

    def to_json(self) -> dict[str, Any]:
        """Its figures by name; null where there are none."""
        figures = {**asdict(self), "total_bytes_per_epoch": self.total}
        if self.missing is None:
            return figures
        return {**dict.fromkeys(figures), "name": self.name, "missing": self.missing}


def train_nodes(store: Store, targets: Sequence[str]) -> dict[str, np.ndarray]:
    """The training nodes of each target: all, where it has no train mask.

    Raises
    ------
    InputError
        There are none.
    """
    found = {t: np.flatnonzero(store.array(t, TRAIN_MASK)) if store.has_array(t, TRAIN_MASK)
             else np.arange(store.schema.node_counts[t]) for t in targets}
    if not any(map(len, found.values())):
        raise InputError(f"no node of {', '.join(targets)} is in {TRAIN_MASK}, so there is no step "
                         "to sample")
    return found


def counting_of(store: Store, whole: Plan, work: Workload, request: PartitionRequest, steps: int,
                trainers: int = 1) -> Counting:
    """A sampler of `steps` steps over the training nodes, of one of the `trainers` on each machine.

    Raises
    ------
    InputError
        No node is in the train mask.
    """
    seeds = train_nodes(store, request.target)
    count = sum(map(len, seeds.values()))
    workers = request.parts * trainers
    steps_per_epoch = -(-count // (work.batch_size * workers))
    return Counting(store, whole, work, request, seeds, min(steps, steps_per_epoch),
                    steps_per_epoch, workers)


class Counting:
    """Samples steps and counts what partitionings would send."""

    def __init__(self, store: Store, whole: Plan, work: Workload, request: PartitionRequest,
                 seeds: Mapping[str, np.ndarray], steps: int, steps_per_epoch: int,
                 workers: int) -> None:
        self._store, self._work, self._request = store, work, request
        self._whole = whole
        self._seeds, self.steps, self.steps_per_epoch = seeds, steps, steps_per_epoch
        self._per_epoch = steps_per_epoch / steps
        # As in an epoch on average, whose last step is of what is left.
        self._batch = sum(map(len, seeds.values())) / (steps_per_epoch * workers)
        self._widths = store.schema.feature_bytes
        self._sampler = NeighborSampler(store, SamplingScope.of(whole, 0), work.fanouts,
                                        request.seed)

    def _step(self, number: int, size: int, seeds: Mapping[str, np.ndarray]
              ) -> dict[str, np.ndarray]:
        """`size` of the seeds, each type in proportion."""
        total = max(sum(map(len, seeds.values())), 1)
        rng = np.random.default_rng([self._request.seed, number])
        return {t: np.sort(rng.choice(ids, min(len(ids), -(-size * len(ids) // total)), False))
                for t, ids in seeds.items()}

    def raf(self, name: str, plan: Plan) -> Partitioning:
        """A plan's bytes, memory and balance."""
        sent: Counter[str] = Counter()
        edges = np.zeros(plan.num_parts)
        for number in range(self.steps):
            seeds = self._step(number, round(self._batch * len(plan.groups[0])), self._seeds)
            self.count(plan, seeds, number, sent, edges)
            _add(sent, "gradients", self._gradients(plan))
        sizes = [footprint(plan.schema, p, self._work) for p in plan.partitions]
        return self._row(name, sent, sizes, edges, plan.replication_factor(), plan.boundary_nodes)

    def count(self, plan: Plan, seeds: dict[str, np.ndarray], number: int, sent: Counter[str],
              edges: np.ndarray) -> None:
        """Add to `sent` the bytes of a step of these seeds but for gradients, by cause, and to
        `edges` the number that each partition samples."""
        count = self._replicated if plan.replication == "full" else self._unreplicated
        count(plan, seeds, number, sent, edges)

    def _gradients(self, plan: Plan | None) -> float:
        """Bytes of gradients in a step; without a plan every worker has all parameters."""
        parts, work = self._request.parts, self._work
        groups = parameter_groups(plan or self._whole, work)
        if plan is None:
            return parts * traffic.gradients(parts, sum(n for n, _ in groups), 0, work)
        return parts * traffic.gradients(
            parts, sum(n for n, users in groups if users > 1),
            sum(n for n, users in groups if users == 1), work)

    def _replicated(self, plan: Plan, seeds: dict[str, np.ndarray], number: int,
                    sent: Counter[str], edges: np.ndarray) -> None:
        """Partial aggregations of the seeds; learnable rows that another user owns."""
        row_bytes = traffic.seed_bytes(plan.hops, self._work)
        total = sum(map(len, seeds.values()))
        owners = {r.src: by for r, by in plan.offloaded.items()}
        plan, asking = plan.without_owners(), plan
        for partition in plan.partitions:
            group = plan.groups[partition.group]
            sampler = NeighborSampler(self._store, SamplingScope.of(plan, partition.index),
                                      self._work.fanouts, self._request.seed)
            shares = {t: SeedShares.even(len(ids), len(group), group.index(partition.index))
                      for t, ids in seeds.items()}
            batch = sampler.sample(seeds, shares, number)
            edges[partition.index] += _edges(batch)
            _add(sent, "partials", traffic.partials(len(group), total / len(group), row_bytes))
            if owners:
                self._delegated(asking.partitions[partition.index], batch, seeds, owners, sent)
            for ntype, ids in batch.input_nodes.items():
                if ntype not in owners:
                    self._read(plan, partition.index, ntype, ids, sent)

    def _read(self, plan: Plan, part: int, ntype: str, ids: np.ndarray, sent: Counter[str]) -> None:
        """Rows of a type that a partition reads, where they are learnable and another owns them."""
        users, nodes = plan.users(ntype), plan.schema.node_counts[ntype]
        if not self._widths.get(ntype) and len(users) > 1:
            low, high = Share(users.index(part), len(users)).rows(nodes)
            away = int(((ids < low) | (ids >= high)).sum())
            _add(sent, "learnable", traffic.learnable(away, self._work, len(ids) / max(nodes, 1)))

    def _delegated(self, own: Partition, batch: MiniBatch, seeds: Mapping[str, np.ndarray],
                   owners: Mapping[str, int], sent: Counter[str]) -> None:
        """Rows for which a partition asks others, and those of their types that it reads itself.

        Without offloading it would draw the same rows above layer 1, which `batch` has.
        """
        work, nodes = self._work, self._store.schema.node_counts
        (first,) = [block for block in batch.blocks if block.layer == 1]
        inner = {t: n - len(seeds.get(t, ())) for t, n in first.num_dst.items()}
        for dst, _ in {(r.dst, owners[r.src]) for r in own.asks}:
            _add(sent, "sampling", inner.get(dst, 0) * traffic.unsorted_id_bytes(nodes[dst]))
            _add(sent, "partials", inner.get(dst, 0) * 2 * traffic.delegated_row(work))
        for ntype, owner in owners.items():
            if owner != own.index and work.seed_states:
                read = first.num_dst.get(ntype, 0)
                _add(sent, "learnable", traffic.learnable(
                    read, work, read / max(nodes[ntype], 1)))

    def _unreplicated(self, plan: Plan, seeds: dict[str, np.ndarray], number: int,
                      sent: Counter[str], edges: np.ndarray) -> None:
        """Rows that several partitions have, at every layer; what they are; learnable rows."""
        work, parts = self._work, plan.num_parts
        batch = self._sampler.sample(seeds, None, number)
        holders = {t: len(plan.users(t)) for t in plan.schema.node_types}
        for block in batch.blocks:
            for ntype, rows in block.num_dst.items():
                sharing, row_bytes = (
                    (parts, traffic.last_layer(work)) if block.last
                    else (holders[ntype], traffic.lower_layer(work)))
                _add(sent, "partials", sharing * traffic.partials(
                    sharing, rows / sharing, row_bytes))
            for each in block.edges:
                if each.relation in plan.ownership:
                    hubs = HubPieces.of(plan.ownership[each.relation], 0)
                    having = len(plan.owners(block.layer, each.relation))
                    _add(sent, "partials", having * traffic.partials(
                        having, np.isin(_nodes(batch, each), hubs.nodes).sum() / having,
                        traffic.hub(work)))
        for partition in plan.partitions:
            own = part_of(batch, plan, partition.index)
            edges[partition.index] += _edges(own)
            for block in own.blocks:
                for ntype in block.num_src if block.layer > 1 else ():
                    read = np.unique(np.concatenate([_NONE, *_sources(block, ntype)]))
                    new = int((read >= block.num_dst.get(ntype, 0)).sum())
                    _add(sent, "sampling", traffic.common_ids(
                        holders[ntype], new, plan.schema.node_counts[ntype]))
            for ntype, ids in own.input_nodes.items():
                self._read(plan, partition.index, ntype, ids, sent)

    def distdgl(self, name: str, owner: Owner) -> Partitioning:
        """The bytes that data-parallel training over a partition of the nodes sends and holds."""
        parts = self._request.parts
        sent: Counter[str] = Counter()
        edges = np.zeros(parts)
        for part in range(parts):
            seeds = {t: ids[owner[t][ids] == part] for t, ids in self._seeds.items()}
            for number in range(self.steps):
                batch = self._sampler.sample(
                    self._step(number, round(self._batch), seeds), None, number)
                edges[part] += _edges(batch)
                self._count_remote(batch, owner, part, sent)
        _add(sent, "gradients", self.steps * self._gradients(None))
        sizes, stored = self._stored(owner)
        return self._row(name, sent, sizes, edges, float(stored.sum()) / max(
            sum(self._store.schema.node_counts.values()), 1), *self._crossing(owner))

    def _count_remote(self, batch: MiniBatch, owner: Owner, part: int, sent: Counter[str]) -> None:
        """Input rows, and rows whose in-edges are drawn, that another part owns."""
        for ntype, ids in batch.input_nodes.items():
            away, width = int((owner[ntype][ids] != part).sum()), self._widths.get(ntype)
            if width:
                _add(sent, "features", traffic.features(away, width))
            else:
                _add(sent, "learnable", traffic.pulled(away, self._work))
        for block in batch.blocks:
            for drawn in block.edges:
                nodes = batch.input_nodes[drawn.relation.dst][drawn.start:drawn.stop]
                away_rows = np.asarray(owner[drawn.relation.dst][nodes] != part)
                degrees = np.diff(drawn.indptr.numpy())
                _add(sent, "sampling", traffic.remote_sampling(
                    int(away_rows.sum()), int(degrees[away_rows].sum())))

    def _stored(self, owner: Owner) -> tuple[list[float], np.ndarray]:
        """Bytes of each of DistDGL's parts, without halo features; its nodes, halo included."""
        schema, parts = self._store.schema, self._request.parts
        sizes, stored = np.zeros(parts), self._halo(owner)
        for ntype, count in schema.node_counts.items():
            own = np.bincount(owner[ntype], minlength=parts)
            sizes += own * sum(type_bytes(schema, [ntype], self._work)) / max(count, 1)
            stored += own
        for relation in schema.relations:
            csc = self._store.relation(relation)
            sizes += DISTDGL_EDGE_BYTES * np.bincount(owner[relation.dst], np.diff(csc.indptr),
                                                      parts)
        return sizes.tolist(), stored

    def _halo(self, owner: Owner) -> np.ndarray:
        """Nodes of other parts that each part keeps as sources of its own nodes' in-edges."""
        schema, parts = self._store.schema, self._request.parts
        halo = np.zeros(parts)
        for ntype in schema.node_types:
            seen = np.zeros((parts, schema.node_counts[ntype]), bool)
            for relation in schema.relations:
                if relation.src == ntype:
                    csc = copied(relation, self._store.relation(relation), seen.shape[1])
                    seen[np.repeat(owner[relation.dst], np.diff(csc.indptr)), csc.indices] = True
            seen[owner[ntype], np.arange(seen.shape[1])] = False
            halo += seen.sum(1)
        return halo

    def _crossing(self, owner: Owner) -> tuple[int, int]:
        """Nodes with neighbours in other parts, of the part that has most; edges between parts."""
        schema, cut = self._store.schema, 0
        boundary = {t: np.zeros(n, bool) for t, n in schema.node_counts.items()}
        for relation in schema.relations:
            csc = copied(relation, self._store.relation(relation), schema.node_counts[relation.src])
            rows = np.repeat(np.arange(len(owner[relation.dst])), np.diff(csc.indptr))
            away = owner[relation.src][csc.indices] != owner[relation.dst][rows]
            boundary[relation.src][csc.indices[away]] = boundary[relation.dst][rows[away]] = True
            cut += int(away.sum())
        of_parts = sum(np.bincount(owner[t][there], minlength=self._request.parts)
                       for t, there in boundary.items())
        return int(np.max(of_parts)), cut

    def _row(self, name: str, sent: Counter[str], sizes: Sequence[float], edges: np.ndarray,
             replication: float, boundary: int, cut: int | None = None) -> Partitioning:
        return Partitioning(
            name, {cause: int(n * self._per_epoch) for cause, n in sent.items()},
            int(max(sizes)), max(sizes) / max(float(np.mean(sizes)), 1.0),
            float(edges.max() / max(edges.mean(), 1.0)), replication, boundary, cut)


def _add(sent: Counter[str], cause: str, size: float) -> None:
    if size:
        sent[cause] += round(size)


def _edges(batch: MiniBatch) -> int:
    return sum(len(part.indices) for block in batch.blocks for part in block.edges)


def part_of(batch: MiniBatch, plan: Plan, part: int) -> MiniBatch:
    """What the worker of a partition has of its group's batch, without replication.

    All rows of its types, but of the first layer those sources alone that its edges read; the edges
    of its relations, and where one is cut those of its own destinations, or pieces of theirs.
    """
    own, blocks = plan.partitions[part], []
    for block in batch.blocks:
        edges = [_own_edges(each, _nodes(batch, each), plan, part) for each in block.edges
                 if each.relation in own.layers[block.layer]]
        num_src, num_dst = ({t: n for t, n in side.items() if t in own.node_types}
                            for side in (block.num_src, block.num_dst))
        blocks.append(replace(block, edges=edges, num_src=num_src, num_dst=num_dst))
    first = blocks[0]
    read = {t: np.unique(np.concatenate([np.arange(first.num_dst.get(t, 0)), *_sources(first, t)]))
            for t in first.num_src}
    blocks[0] = replace(first, num_src={t: len(rows) for t, rows in read.items()}, edges=[
        replace(each, indices=torch.from_numpy(np.searchsorted(
            read[each.relation.src], each.indices.numpy()))) for each in first.edges])
    return replace(batch, blocks=blocks, input_nodes={
        t: batch.input_nodes[t][rows] for t, rows in read.items()})


def _own_edges(edges: RelationBlock, nodes: np.ndarray, plan: Plan, part: int) -> RelationBlock:
    """The rows and edges of a relation that a partition has; `nodes` are those of the rows."""
    ownership, ranges = plan.ownership.get(edges.relation), plan.partitions[part].ranges
    if ownership is not None:
        own = ownership.owner[nodes] == part
    elif edges.relation in ranges:
        low, high = ranges[edges.relation]
        own = (nodes >= low) & (nodes < high)
    else:
        return edges
    degrees = np.diff(edges.indptr.numpy())
    here = np.repeat(own, degrees)
    if ownership is not None and ownership.hubs:
        assert edges.sample is not None
        hubs = HubPieces.of(ownership, part)
        rows, at = hubs.find(nodes, nodes)
        first, last = np.zeros((2, len(nodes)), np.int64)
        last[own], own[rows] = len(edges.sample.csc.indices), True
        first[rows], last[rows] = hubs.low[at], hubs.high[at]
        place = (edges.sample.positions(nodes, len(here))
                 - np.repeat(edges.sample.csc.indptr[nodes], degrees))
        here = (place >= np.repeat(first, degrees)) & (place < np.repeat(last, degrees))
        degrees = np.bincount(np.repeat(np.arange(len(nodes)), degrees)[here], minlength=len(nodes))
    indptr = np.concatenate([[0], np.cumsum(degrees[own])])
    return replace(edges, indptr=torch.from_numpy(indptr), indices=edges.indices[here],
                   rows=torch.from_numpy(edges.start + np.flatnonzero(own)), start=0)


def _nodes(batch: MiniBatch, edges: RelationBlock) -> np.ndarray:
    """The destination nodes of some edges of a process that samples alone."""
    return batch.input_nodes[edges.relation.dst][edges.start:edges.stop]


def _sources(block: Block, ntype: str) -> list[np.ndarray]:
    """Rows of a type that edges of a block read."""
    return [each.indices.numpy() for each in block.edges if each.relation.src == ntype]
