"""Partitionings of one graph side by side: what each would send, hold and balance.

Nothing is guessed about frontiers: rows are counted (:mod:`dgl_heta.partition.counting`), as for
`dgl-heta plan --cluster` where the graph has edges (:mod:`dgl_heta.partition.cluster_counts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.partition.backends.dgl_methods import metis_or_why
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.counting import Partitioning, counting_of
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.workload import DEFAULT_HOPS, Workload
from dgl_heta.store import Store


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
        wish = replace(request, replication=replication, memory_limit=None, workload=work)
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
