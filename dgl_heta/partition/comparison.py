"""Partitionings of one graph side by side: what each would send, hold and balance.

Nothing is guessed about frontiers: some steps are sampled on the store, as training would, and
the rows and edges that each method would move are counted (docs/performance.md lists what is
counted). The averaging of dense gradients is equal for all and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cost import Workload, memory, predict, type_bytes
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store

_EDGE_BYTES = 24  # DistDGL returns source, destination and edge id of a remotely sampled edge
_ID_BYTES = 8
_METIS_EDGES = 30_000_000  # more take METIS minutes and gigabytes

Owner = dict[str, np.ndarray]
"""Node type → part of each node."""


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes
    ----------
    bytes_per_epoch : cause → bytes that all workers send in an epoch.
    memory_bytes : of the partition that holds most, predicted.
    memory_balance, edge_balance : most over mean of a partition's memory and of the edges that
        it samples in a step.
    replication_factor : nodes stored over all partitions per node, halo nodes included; None
        where they were not counted.
    missing : why there are no figures, if there are none.
    """

    name: str
    bytes_per_epoch: dict[str, int] = field(default_factory=dict)
    memory_bytes: int = 0
    memory_balance: float = 1.0
    edge_balance: float = 1.0
    replication_factor: float | None = None
    missing: str | None = None

    @property
    def total(self) -> int:
        return sum(self.bytes_per_epoch.values())


@dataclass(frozen=True)
class Comparison:
    """All methods on one graph and workload."""

    parts: int
    steps_per_epoch: int
    sampled_steps: int
    workload: Workload
    methods: tuple[Method, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "methods": [{**asdict(m), "total_bytes_per_epoch": m.total}
                                            for m in self.methods]}


def compare(store: Store, request: PartitionRequest, work: Workload, steps: int = 3,
            progress: Callable[[str], None] = lambda what: None) -> Comparison:
    """Compare meta-partitioning, plans without replication and DistDGL's partitionings.

    Parameters
    ----------
    request : targets, hops, parts, seed.
    work : batch size per worker, hidden size, fanouts.
    steps : number of steps to sample.

    Raises
    ------
    InputError
        As planning does; no training node.
    """
    schema = store.schema
    hops = request.hops or 2
    fanouts = work.fanouts or (25, *[20] * (hops - 1))
    work = replace(work, fanouts=fanouts)
    whole = make_plan(schema, request.target, hops, 1)
    seeds = {t: np.flatnonzero(store.array(t, "train_mask")) if store.has_array(t, "train_mask")
             else np.arange(schema.node_counts[t]) for t in request.target}
    count = sum(map(len, seeds.values()))
    if not count:
        raise InputError(f"no node of {', '.join(request.target)} is in train_mask, so there is "
                         "no step to sample")
    size = work.batch_size * request.parts
    runner = _Runner(store, whole, work, request, seeds, min(steps, -(-count // size)))
    methods = []
    candidates = ((Meta(), "full", "meta"), (Meta(), "none", "meta, replication none"),
                  (RelationRandom(), "none", "relation-random"))
    for backend, replication, name in candidates:
        progress(name)
        wish = replace(request, replication=replication, memory_limit=None)
        try:
            plan = backend.plan(schema, wish)
        except InputError as error:
            methods.append(Method(name, missing=str(error)))
            continue
        methods.append(runner.raf(name, plan))
    progress("DistDGL random")
    rng = np.random.default_rng(request.seed)
    methods.append(runner.distdgl("DistDGL random", {
        t: rng.integers(0, request.parts, n) for t, n in schema.node_counts.items()}))
    progress("DistDGL METIS")
    owner, missing = _metis(store, request.parts)
    methods.append(Method("DistDGL METIS", missing=missing) if owner is None
                   else runner.distdgl("DistDGL METIS", owner))
    return Comparison(request.parts, -(-count // size), runner.steps, work, tuple(methods),
                      _warnings(methods, request.parts, work))


def _warnings(methods: Sequence[Method], parts: int, work: Workload) -> tuple[str, ...]:
    meta = methods[0]
    found = []
    for other in methods[1:]:
        if meta.missing is None and other.missing is None and other.total < meta.total:
            reason = (f"hidden size {work.hidden} × {parts} partitions make partial aggregations "
                      "larger than the features they save; a smaller hidden size, fewer partitions "
                      "or train.seed_states = false would change that"
                      if "DistDGL" in other.name else "see the bytes by cause")
            found.append(f"{other.name} would send less than meta: {other.total / 1e6:,.1f} MB "
                         f"instead of {meta.total / 1e6:,.1f} MB per epoch ({reason})")
    return tuple(found)


class _Runner:
    """Samples steps and counts what methods would send."""

    def __init__(self, store: Store, whole: Plan, work: Workload, request: PartitionRequest,
                 seeds: Mapping[str, np.ndarray], steps: int) -> None:
        self._store, self._whole, self._work, self._request = store, whole, work, request
        self._seeds, self.steps = seeds, steps
        count = sum(map(len, seeds.values()))
        self._per_epoch = -(-count // (work.batch_size * request.parts)) / steps
        self._row = work.hidden * work.itemsize
        self._widths = store.schema.feature_bytes
        self._sampler = NeighborSampler(store, SamplingScope.of(whole, 0), work.fanouts,
                                        request.seed)

    def _step(self, number: int, size: int, of: Mapping[str, np.ndarray] | None = None
              ) -> dict[str, np.ndarray]:
        """Seeds of a step, each type in proportion."""
        chosen = self._seeds if of is None else of
        total = max(sum(map(len, chosen.values())), 1)
        rng = np.random.default_rng([self._request.seed, number])
        return {t: np.sort(rng.choice(ids, min(len(ids), -(-size * len(ids) // total)), False))
                for t, ids in chosen.items()}

    def raf(self, name: str, plan: Plan) -> Method:
        """A plan's bytes, memory and balance."""
        bytes_sent: Counter[str] = Counter()
        edges = np.zeros(plan.num_parts)
        for number in range(self.steps):
            seeds = self._step(number, self._work.batch_size * len(plan.groups[0]))
            if plan.replication == "full":
                self._full(plan, seeds, number, bytes_sent, edges)
            else:
                self._none(plan, seeds, number, bytes_sent, edges)
        held = [memory(plan.schema, p, self._work) for p in plan.partitions]
        return self._method(name, bytes_sent, held, edges, plan.replication_factor())

    def _full(self, plan: Plan, seeds: dict[str, np.ndarray], number: int,
              sent: Counter[str], edges: np.ndarray) -> None:
        costs = predict(plan, self._work)
        for part, cost in enumerate(costs):
            group = plan.groups[plan.partitions[part].group]
            sampler = NeighborSampler(self._store, SamplingScope.of(plan, part),
                                      self._work.fanouts, self._request.seed)
            shares = {t: SeedShares.even(len(ids), len(group), group.index(part))
                      for t, ids in seeds.items()}
            batch = sampler.sample(seeds, shares, number)
            edges[part] += _edges(batch)
            share = sum(map(len, seeds.values())) / (self._work.batch_size * len(group))
            sent["partials"] += int(cost.partial_bytes * share)
            for ntype, ids in batch.input_nodes.items():
                users = len(plan.users(ntype))
                if not self._widths.get(ntype) and users > 1:
                    sent["learnable"] += self._shared(len(ids), users)

    def _none(self, plan: Plan, seeds: dict[str, np.ndarray], number: int,
              sent: Counter[str], edges: np.ndarray) -> None:
        batch = self._sampler.sample(seeds, None, number)
        holders = {t: len(plan.users(t, 0)) for t in plan.schema.node_types}
        for block in batch.blocks:
            for ntype, rows in block.num_dst.items():
                if holders[ntype] > 1 and not block.last:
                    sent["partials"] += 4 * rows * self._row * (holders[ntype] - 1)
                    sent["sampling"] += rows * _ID_BYTES * (holders[ntype] - 1)
                elif block.last and ntype in seeds:
                    sent["partials"] += 2 * rows * self._row * (plan.num_parts - 1)
            for part in block.edges:
                for p in plan.partitions:
                    if part.relation in p.layers[block.layer]:
                        low, high = p.ranges.get(
                            part.relation, (0, plan.schema.node_counts[part.relation.dst]))
                        share = (high - low) / max(plan.schema.node_counts[part.relation.dst], 1)
                        edges[p.index] += len(part.indices) * share
        for ntype, ids in batch.input_nodes.items():
            if not self._widths.get(ntype) and holders[ntype] > 1:
                sent["learnable"] += holders[ntype] * self._shared(len(ids), holders[ntype])

    def _shared(self, rows: int, users: int) -> int:
        """Bytes to fetch rows of a learnable type from their owners and bring gradients back."""
        return rows * (users - 1) // users * (_ID_BYTES + 2 * self._row)

    def distdgl(self, name: str, owner: Owner) -> Method:
        """What data-parallel training over a partition of the nodes sends and holds."""
        schema, parts = self._store.schema, self._request.parts
        sent: Counter[str] = Counter()
        edges = np.zeros(parts)
        for part in range(parts):
            mine = {t: ids[owner[t][ids] == part] for t, ids in self._seeds.items()}
            for number in range(self.steps):
                batch = self._sampler.sample(self._step(number, self._work.batch_size, mine), None,
                                             number)
                edges[part] += _edges(batch)
                for ntype, ids in batch.input_nodes.items():
                    remote = int((owner[ntype][ids] != part).sum())
                    width = self._widths.get(ntype) or 0
                    sent["features" if width else "learnable"] += remote * (
                        _ID_BYTES + (width or 2 * self._row))
                for block in batch.blocks:
                    for piece in block.edges:
                        nodes = batch.input_nodes[piece.relation.dst][piece.start:piece.stop]
                        remote_rows = owner[piece.relation.dst][nodes] != part
                        degrees = np.diff(piece.indptr.numpy())
                        sent["sampling"] += int(degrees[remote_rows].sum()) * _EDGE_BYTES
                        sent["sampling"] += int(remote_rows.sum()) * _ID_BYTES
        held, stored = np.zeros(parts), np.zeros(parts)
        for ntype, count in schema.node_counts.items():
            per_node = sum(type_bytes(schema, [ntype], self._work)) / max(count, 1)
            own = np.bincount(owner[ntype], minlength=parts)
            held += own * per_node
            stored += own
        for relation in schema.relations:
            csc = self._store.relation(relation)
            degrees = np.bincount(owner[relation.dst], np.diff(csc.indptr), parts)
            held += 2 * _ID_BYTES * degrees
        stored += self._halo(owner)
        return self._method(name, sent, held.tolist(), edges,
                            float(stored.sum()) / max(sum(schema.node_counts.values()), 1))

    def _halo(self, owner: Owner) -> np.ndarray:
        """Nodes of other parts that each part keeps as sources of its own nodes' in-edges."""
        schema, parts = self._store.schema, self._request.parts
        found = np.zeros(parts)
        for ntype in schema.node_types:
            seen = np.zeros((parts, schema.node_counts[ntype]), bool)
            for relation in schema.relations:
                if relation.src == ntype:
                    csc = self._store.relation(relation)
                    seen[np.repeat(owner[relation.dst], np.diff(csc.indptr)), csc.indices] = True
            seen[owner[ntype], np.arange(seen.shape[1])] = False
            found += seen.sum(1)
        return found

    def _method(self, name: str, sent: Counter[str], held: Sequence[float], edges: np.ndarray,
                replication: float) -> Method:
        return Method(
            name, {cause: int(n * self._per_epoch) for cause, n in sent.items()},
            int(max(held)), max(held) / max(float(np.mean(held)), 1.0),
            float(edges.max() / max(edges.mean(), 1.0)), replication)


def _edges(batch: MiniBatch) -> int:
    return sum(len(part.indices) for block in batch.blocks for part in block.edges)


def _metis(store: Store, parts: int) -> tuple[Owner | None, str | None]:
    """METIS's parts of the graph taken as homogeneous, as DistDGL takes it; or why not."""
    schema = store.schema
    edges = sum(schema.edge_counts.values())
    if edges > _METIS_EDGES:
        return None, f"not run: METIS takes long for {edges:,} edges"
    try:
        import dgl
        import torch
    except ImportError:
        return None, "DGL is not installed"
    offsets, total = {}, 0
    for ntype, count in schema.node_counts.items():
        offsets[ntype], total = total, total + count
    sources, destinations = [], []
    for relation in schema.relations:
        csc = store.relation(relation)
        sources.append(np.asarray(csc.indices, np.int64) + offsets[relation.src])
        rows = np.arange(schema.node_counts[relation.dst]) + offsets[relation.dst]
        destinations.append(np.repeat(rows, np.diff(csc.indptr)))
    src, dst = np.concatenate(sources), np.concatenate(destinations)
    pairs = np.unique(np.concatenate([src * total + dst, dst * total + src]))
    graph = dgl.graph((torch.from_numpy(pairs // total), torch.from_numpy(pairs % total)),
                      num_nodes=total)
    if parts == 1:
        found = np.zeros(total, np.int64)
    else:
        found = dgl.metis_partition_assignment(graph, parts).numpy()
    return {t: found[offsets[t]:offsets[t] + n] for t, n in schema.node_counts.items()}, None
