"""Partitionings of one graph side by side: what each would send, hold and balance.

Nothing is guessed about frontiers: some steps are sampled on the store, as training would, and
the rows and edges that each partitioning would move are counted; :mod:`dgl_heta.planning.traffic`
says how many bytes they are. Gradients of dense parameters follow from the plan
(:func:`dgl_heta.planning.compute.parameter_groups`). `dgl-heta plan --cluster` takes the same
counts where the graph has edges (:mod:`dgl_heta.partition.counted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.partition.backends.dgl_methods import metis_parts
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning import traffic
from dgl_heta.planning.compute import parameter_groups
from dgl_heta.planning.footprint import DISTDGL_EDGE_BYTES, footprint, type_bytes
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import DEFAULT_HOPS, Workload
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store
from dgl_heta.store.structure import copied

_METIS_EDGES = 30_000_000  # more take METIS minutes and gigabytes

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


@dataclass(frozen=True)
class Comparison:
    """All partitionings of one graph for one workload."""

    parts: int
    steps_per_epoch: int
    sampled_steps: int
    workload: Workload
    methods: tuple[Partitioning, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "methods": [m.to_json() for m in self.methods]}


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
    store.check_untimed("a comparison of partition methods samples")
    schema = store.schema
    hops = request.hops or DEFAULT_HOPS
    task = store.manifest.task
    work = replace(work, fanouts=work.fanouts_of(hops),
                   classes=work.classes or (task.num_classes if task else 0))
    whole = make_plan(schema, request.target, hops, 1)
    counting = counting_of(store, whole, work, request, steps)
    steps_per_epoch = counting.steps_per_epoch
    rows = []
    candidates = ((Meta(), "full", "meta"), (Meta(), "none", "meta, replication none"),
                  (RelationRandom(), "none", "relation-random"))
    for backend, replication, name in candidates:
        progress(name)
        wish = replace(request, replication=replication, memory_limit=None)
        try:
            plan = backend.plan(schema, wish)
        except InputError as error:
            rows.append(Partitioning(name, missing=str(error)))
            continue
        rows.append(counting.raf(name, choose(plan, work, "auto")[0]))
    progress("DistDGL random")
    rng = np.random.default_rng(request.seed)
    rows.append(counting.distdgl("DistDGL random", {
        t: rng.integers(0, request.parts, n) for t, n in schema.node_counts.items()}))
    progress("DistDGL METIS")
    owner, missing = metis_or_why(store, request.parts)
    rows.append(Partitioning("DistDGL METIS", missing=missing) if owner is None
                else counting.distdgl("DistDGL METIS", owner))
    return Comparison(request.parts, steps_per_epoch, counting.steps, work, tuple(rows),
                      _warnings(rows, request.parts, work))


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


def counting_of(store: Store, whole: Plan, work: Workload, request: PartitionRequest, steps: int
              ) -> Counting:
    """A sampler of `steps` steps over the training nodes.

    Raises
    ------
    InputError
        No node is in the train mask.
    """
    seeds = train_nodes(store, request.target)
    count = sum(map(len, seeds.values()))
    steps_per_epoch = -(-count // (work.batch_size * request.parts))
    return Counting(store, whole, work, request, seeds, min(steps, steps_per_epoch),
                     steps_per_epoch)


def _warnings(rows: Sequence[Partitioning], parts: int, work: Workload) -> tuple[str, ...]:
    meta = rows[0]
    warnings = []
    for other in rows[1:]:
        if meta.missing is None and other.missing is None and other.total < meta.total:
            reason = (f"hidden size {work.hidden} × {parts} partitions make partial aggregations "
                      "larger than the features they save; a smaller hidden size, fewer partitions "
                      "or train.seed_states = false would change that"
                      if "DistDGL" in other.name else "see the bytes by cause")
            warnings.append(
                f"{other.name} would send less than meta: {other.total / 1e6:,.1f} MB "
                f"instead of {meta.total / 1e6:,.1f} MB per epoch ({reason})")
    return tuple(warnings)


class Counting:
    """Samples steps and counts what partitionings would send."""

    def __init__(self, store: Store, whole: Plan, work: Workload, request: PartitionRequest,
                 seeds: Mapping[str, np.ndarray], steps: int, steps_per_epoch: int) -> None:
        self._store, self._work, self._request = store, work, request
        self._whole = whole
        self._seeds, self.steps, self.steps_per_epoch = seeds, steps, steps_per_epoch
        self._per_epoch = steps_per_epoch / steps
        # As in an epoch on average, whose last step is of what is left.
        self._batch = sum(map(len, seeds.values())) / (steps_per_epoch * request.parts)
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
            count = self._replicated if plan.replication == "full" else self._unreplicated
            count(plan, seeds, number, sent, edges)
            _add(sent, "gradients", self._gradients(plan))
        sizes = [footprint(plan.schema, p, self._work) for p in plan.partitions]
        return self._row(name, sent, sizes, edges, plan.replication_factor(), plan.boundary_nodes)

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
            _add(sent, "partials", inner.get(dst, 0) * 2 * work.sent_row_bytes)
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
            for partition in plan.partitions:
                reached: dict[str, list[np.ndarray]] = {}
                for relation, indices in _drawn(batch, block.layer, partition, plan):
                    edges[partition.index] += len(indices)
                    reached.setdefault(relation.src, []).append(indices)
                for ntype in partition.node_types:
                    # Every holder has all destinations, and those sources that its edges read.
                    old = block.num_dst.get(ntype, 0)
                    read = np.unique(np.concatenate([np.arange(old), *reached.get(ntype, ())]))
                    if block.layer > 1:
                        _add(sent, "sampling", traffic.common_ids(
                            holders[ntype], len(read) - old, plan.schema.node_counts[ntype]))
                    elif len(read):
                        self._read(plan, partition.index, ntype, batch.input_nodes[ntype][read],
                                   sent)

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


def _drawn(batch: MiniBatch, layer: int, partition: Partition, plan: Plan
           ) -> Iterator[tuple[Relation, np.ndarray]]:
    """Source rows of the edges of a layer that a partition draws, relation by relation."""
    (block,) = [block for block in batch.blocks if block.layer == layer]
    for edges in block.edges:
        if edges.relation not in partition.layers[layer]:
            continue
        indices = edges.indices.numpy()
        if edges.relation in {**partition.ranges, **partition.owned}:
            nodes = batch.input_nodes[edges.relation.dst][edges.start:edges.stop]
            low, high = partition.ranges.get(edges.relation, (0, 0))
            own = ((nodes >= low) & (nodes < high) if high else
                   plan.ownership[edges.relation].owner[nodes] == partition.index)
            indices = indices[np.repeat(own, np.diff(edges.indptr.numpy()))]
        yield edges.relation, indices


def metis_or_why(store: Store, parts: int) -> tuple[Owner | None, str | None]:
    """METIS's parts, or why there are none."""
    edges = sum(store.schema.edge_counts.values())
    if edges > _METIS_EDGES:
        return None, f"not run: METIS takes long for {edges:,} edges"
    try:
        return metis_parts(store, parts), None
    except InputError:
        return None, "DGL is not installed"
