"""Rows that are counted on a graph for `dgl-heta plan --cluster`, as `--compare` counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dgl_heta.partition.method_comparison import Owner, Partitioning, counting_of, metis_or_why
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store
from dgl_heta.store.structure import copied


@dataclass(frozen=True)
class CountedRows:
    """The rows counted on a graph for `dgl-heta plan --cluster`.

    Attributes
    ----------
    sent : system → cause (features, learnable, sampling) → bytes that one machine sends in a step,
        with a trainer on each.
    metis_cut : edges between METIS's parts ÷ those between random ones; None where METIS was not
        run, for the reason `missing`.
    """

    sent: dict[str, dict[str, float]]
    steps: int
    metis_cut: float | None = None
    missing: str | None = None


def count_rows(store: Store, plan: Plan, work: Workload, seed: int = 0, steps: int = 3
               ) -> CountedRows:
    """Count the rows that move in some steps over a plan, over METIS's parts and over random ones.

    Raises
    ------
    InputError
        No node is in the train mask.
    """
    request = PartitionRequest(plan.num_parts, plan.targets, plan.hops, seed=seed)
    work = replace(work, fanouts=work.fanouts_of(plan.hops), in_script=True)
    whole = make_plan(store.schema, plan.targets, plan.hops, 1)
    counting = counting_of(store, whole, work, request, steps)

    def per_machine(row: Partitioning) -> dict[str, float]:
        scale = counting.steps_per_epoch * plan.num_parts
        return {cause: row.bytes_per_epoch.get(cause, 0) / scale
                for cause in ("features", "learnable", "sampling")}

    rng = np.random.default_rng(seed)
    random = {t: rng.integers(0, plan.num_parts, n) for t, n in store.schema.node_counts.items()}
    own = plan.without_owners().for_scripts()
    by_system = {"dgl-heta": per_machine(counting.raf("dgl-heta", own)),
             "DistDGL random": per_machine(counting.distdgl("", random))}
    owner, missing = metis_or_why(store, plan.num_parts)
    if owner is None:
        return CountedRows(by_system, counting.steps, missing=missing)
    by_system["DistDGL METIS"] = per_machine(counting.distdgl("", owner))
    return CountedRows(by_system, counting.steps, _cut(store, owner) / max(_cut(store, random), 1))


def _cut(store: Store, owner: Owner) -> int:
    """Edges between parts."""
    count = 0
    for relation in store.schema.relations:
        csc = copied(relation, store.relation(relation), len(owner[relation.src]))
        at = np.repeat(owner[relation.dst], np.diff(csc.indptr))
        count += int((owner[relation.src][csc.indices] != at).sum())
    return count
