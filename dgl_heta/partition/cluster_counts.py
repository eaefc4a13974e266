"""Rows that are counted on a graph for `dgl-heta plan --cluster`, as `--compare` counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dgl_heta.partition.backends.dgl_methods import metis_or_why
from dgl_heta.partition.counting import (
    Owner,
    Partitioning,
    counting_of,
    part_of,
    train_nodes,
)
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import LayerField, ReceptiveField
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store
from dgl_heta.store.structure import copied


@dataclass(frozen=True)
class CountedRows:
    """The rows counted on a graph for `dgl-heta plan --cluster`.

    Attributes
    ----------
    sent : system → cause (features, learnable, sampling; without replication partials, too) →
        bytes that one trainer of a machine sends in a step.
    fields : what each partition samples in a step, and last what one process would.
    metis_cut : edges between METIS's parts ÷ those between random ones; None where METIS was not
        run, for the reason `missing`.
    """

    sent: dict[str, dict[str, float]]
    fields: list[ReceptiveField]
    steps: int
    metis_cut: float | None = None
    missing: str | None = None


def count_rows(store: Store, plan: Plan, work: Workload, seed: int = 0, steps: int = 3,
               trainers: int = 1) -> CountedRows:
    """Count the rows that move in some steps over a plan, over METIS's parts and over random ones,
    with so many `trainers` on each machine.

    Raises
    ------
    InputError
        No node is in the train mask.
    """
    request = PartitionRequest(plan.num_parts, plan.targets, plan.hops, seed=seed)
    work = replace(work, fanouts=work.fanouts_of(plan.hops), in_script=True)
    whole = make_plan(store.schema, plan.targets, plan.hops, 1)
    counting = counting_of(store, whole, work, request, steps, trainers)

    def per_machine(row: Partitioning, *more: str) -> dict[str, float]:
        scale = counting.steps_per_epoch * plan.num_parts
        return {cause: row.bytes_per_epoch.get(cause, 0) / scale
                for cause in ("features", "learnable", "sampling", *more)}

    rng = np.random.default_rng(seed)
    random = {t: rng.integers(0, plan.num_parts, n) for t, n in store.schema.node_counts.items()}
    own = plan.without_owners().for_scripts()
    fields = count_fields(store, plan, work, work.epoch(
        store.schema, plan.targets, plan.num_parts * trainers)[1], seed)
    partials = ["partials"] if own.replication == "none" else []  # else they follow from the plan
    by_system = {"dgl-heta": per_machine(counting.raf("dgl-heta", own), *partials),
             "DistDGL random": per_machine(counting.distdgl("", random))}
    owner, missing = metis_or_why(store, plan.num_parts)
    if owner is None:
        return CountedRows(by_system, fields, counting.steps, missing=missing)
    by_system["DistDGL METIS"] = per_machine(counting.distdgl("", owner))
    return CountedRows(by_system, fields, counting.steps,
                       _cut(store, owner) / max(_cut(store, random), 1))


def count_fields(store: Store, plan: Plan, work: Workload, seeds: float, seed: int = 0
                 ) -> list[ReceptiveField]:
    """Count the rows and edges that each partition samples in a step of `seeds` seeds per worker.

    Last is what one process samples for as many seeds. Without replication it is what a partition
    has of the batch of the group (:func:`~dgl_heta.partition.counting.part_of`).

    Raises
    ------
    InputError
        No node is in the train mask.
    """
    whole, scripts = make_plan(store.schema, plan.targets, plan.hops, 1), plan.for_scripts()
    rng = np.random.default_rng(seed)
    train = train_nodes(store, plan.targets)
    count = sum(map(len, train.values()))

    def sample(of: Plan, part: int, size: int) -> MiniBatch:
        """The batch of a partition, of a group of `size` workers."""
        return NeighborSampler(
            store, SamplingScope.of(of, part), work.fanouts_of(plan.hops), seed).sample({
                t: np.sort(rng.choice(
                    ids, min(round(seeds * size * (len(ids) / count)), len(ids)), False))
                for t, ids in train.items()})

    def field(batch: MiniBatch, size: int, apart: float) -> ReceptiveField:
        """Its rows, but for so much of the seeds, and edges."""
        own, layers = {t: len(ids) / size for t, ids in batch.seeds.items()}, list[LayerField]()
        for block in reversed(batch.blocks):
            inner, sources = ({t: max(n - apart * own.get(t, 0.0), 0.0) for t, n in side.items()}
                              for side in (block.num_dst, block.num_src))
            edges = [part for part in block.edges if len(part.indptr) > 1]
            numbers = [[len(part.indptr) - 1, 0, len(part.indices), 0] for part in edges]
            layers.append(LayerField(
                inner if layers else {}, sources, [part.relation for part in edges],
                np.array(numbers, np.float64).reshape(-1, 4).T))
        return ReceptiveField(layers, {t: float(len(ids)) for t, ids in batch.input_nodes.items()},
                              own)

    alone = field(sample(whole, 0, 1), 1, 1)
    sizes = [len(plan.groups[p.group]) for p in plan.partitions]
    if plan.replication == "full":
        return [*(field(sample(scripts, part, size), size, size)
                  for part, size in enumerate(sizes)), alone]
    batch = sample(whole, 0, len(sizes))
    return [*(field(part_of(batch, scripts, part), size, 1) for part, size in enumerate(sizes)),
            alone]


def _cut(store: Store, owner: Owner) -> int:
    """Edges between parts."""
    count = 0
    for relation in store.schema.relations:
        csc = copied(relation, store.relation(relation), len(owner[relation.src]))
        at = np.repeat(owner[relation.dst], np.diff(csc.indptr))
        count += int((owner[relation.src][csc.indices] != at).sum())
    return count
