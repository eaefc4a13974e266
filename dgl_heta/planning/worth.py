"""Whether heavy sub-metatrees are shared by several partitions: by the work that is waited for."""

from __future__ import annotations

import math

from dgl_heta.planning.compute import bytes_moved
from dgl_heta.planning.footprint import footprint
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.partition_shares import Share
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import ReceptiveFields
from dgl_heta.planning.workload import MODELS, Workload

LESS, MORE = 0.9, 1.1
"""Sub-metatrees are shared where the partition that has most work in a step has at most so much of
what it has with whole ones, and the one that holds most so much more memory at most."""


def worth_sharing(whole: Plan, shared: Plan, work: Workload, way: str) -> bool:
    """Return whether `shared`, in which partitions share heavy sub-metatrees, is to be preferred to
    the plan of `whole` ones.

    Parameters
    ----------
    work : of a worker. Of a model of which it is not known what it reads nothing is shared.
    way : `partition.shared`. Where one partition may aggregate a type for the others, each plan
        is expected with its own best owners.
    """
    if (work.model not in MODELS or _are_copies(shared) > _are_copies(whole)
            or all(s == Share() for p in shared.partitions for s in p.sub_metatrees.values())):
        return False
    (before, held), (after, needed) = (
        (max(works(plan, work)), max(footprint(plan.schema, p, work) for p in plan.partitions))
        for plan in (choose(one, work, "rows" if way == "rows" else "auto")[0]
                     for one in (whole, shared)))
    return after <= LESS * before and needed <= MORE * held


def _are_copies(plan: Plan) -> bool:
    """Return whether every partition has the whole graph."""
    return all(len(p.relations) == len(plan.schema.relations) for p in plan.partitions)


def works(plan: Plan, work: Workload) -> list[float]:
    """Expected work of each partition in a step of `work.batch_size` seeds per worker, as
    :func:`~dgl_heta.planning.compute.bytes_moved` counts it.

    What is offloaded is the work of its owner partition, which reads each row once for all.
    """
    fields = ReceptiveFields(plan.without_owners(), work.fanouts_of(plan.hops))
    steps = [fields.field(p.index, work.batch_size * len(plan.groups[p.group]), work.batch_size)
             for p in plan.partitions]
    edges = [float(sum(layer.edges for layer in step.layers)) for step in steps]
    inputs = [dict(step.inputs) for step in steps]
    for relation, owner in plan.offloaded.items():
        for part, step in enumerate(steps):
            asked = step.layers[-1].sampled.get(relation, 0.0)
            edges[part] -= asked
            edges[owner] += asked
    for ntype, owner in {r.src: owner for r, owner in plan.offloaded.items()}.items():
        count = plan.schema.node_counts[ntype]
        unread = math.prod(1 - rows.pop(ntype, 0.0) / max(count, 1) for rows in inputs)
        inputs[owner][ntype] = count * (1 - unread)
    return [bytes_moved(plan, partition, sampled, rows, work)
            for partition, sampled, rows in zip(plan.partitions, edges, inputs)]
