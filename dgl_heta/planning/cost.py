"""The cost of each partition of a plan: bytes that it holds, bytes that it sends in a step.

A test compares the figures with what the store holds and what training counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dgl_heta.graph.schema import Relation
from dgl_heta.planning import traffic
from dgl_heta.planning.footprint import disk_bytes, topology_bytes, type_bytes
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import (
    ReceptiveField,
    ReceptiveFields,
    destinations,
    field_of_one_process,
)
from dgl_heta.planning.workload import MODELS, Workload


@dataclass(frozen=True)
class PartitionCost:
    """Predicted figures of one partition; all sizes in bytes.

    `partial_bytes` and `gradient_bytes` are sent by this worker per step: partial
    aggregations of boundary nodes with their gradients (without replication also the ids of such
    nodes), and at most for the averaging of dense parameter gradients: those that one worker
    alone has cost half.
    """

    relations: int
    nodes: int
    edges: int
    topology_bytes: int
    feature_bytes: int
    learnable_bytes: int
    boundary_nodes: int
    partial_bytes: int
    gradient_bytes: int
    disk_bytes: int
    """Of the directory that `dgl-heta stage` writes for it."""
    partials_known: bool = True
    """False where `partial_bytes` are those of another model or batch than the workload's."""


def predict(plan: Plan, work: Workload, beside: Mapping[str | Relation, int] | None = None
            ) -> list[PartitionCost]:
    """Predict each partition's cost in `dgl-heta train`; `beside` as for
    :func:`~dgl_heta.planning.footprint.disk_bytes`, as far as it is known."""
    apart = {of: partials + ids for of, (partials, ids) in (
        below_last(plan, work).items() if plan.replication == "none" else ())}
    for_others, known = _for_others(plan, work), _known(plan, work)
    costs = []
    for partition in plan.partitions:
        features, learnable = type_bytes(plan.schema, partition.node_types, work)
        size = len(plan.groups[partition.group])
        partials = traffic.partials(
            size, work.batch_size,
            traffic.last_layer(work) if apart else traffic.seed_bytes(plan.hops, work))
        costs.append(PartitionCost(
            relations=len(partition.relations),
            nodes=partition.num_nodes,
            edges=partition.num_edges,
            topology_bytes=topology_bytes(plan.schema, partition),
            feature_bytes=features,
            learnable_bytes=learnable,
            boundary_nodes=plan.boundary_nodes // len(plan.groups),
            partial_bytes=int(partials + for_others[partition.index]
                              + sum(apart.get(t, 0.0) for t in partition.node_types)
                              + sum(apart.get(r, 0.0) for r in partition.relations)),
            gradient_bytes=int(traffic.gradients(plan.num_parts, work.parameters, 0, work)),
            disk_bytes=disk_bytes(plan.schema, partition, plan.targets, beside or {}),
            partials_known=known,
        ))
    return costs


def _known(plan: Plan, work: Workload) -> bool:
    """Return whether what a step sends of partial aggregations is counted here: not of models that
    merge in ways of their own, of links, whose ends are as many seeds as they are, and of extremes
    where relations are offloaded."""
    return max(map(len, plan.groups)) == 1 or not (
        work.links or work.model not in MODELS or (work.takes_extremes and plan.offloaded))


def _for_others(plan: Plan, work: Workload) -> list[float]:
    """Bytes that each partition sends where relations are offloaded: partial aggregations of rows
    of others, and gradients of those of its own rows."""
    sent = [0.0] * plan.num_parts
    if not plan.offloaded:
        return sent
    fields = ReceptiveFields(plan.without_owners(), work.fanouts_of(plan.hops))
    for partition in plan.partitions:
        group = plan.groups[partition.group]
        asked = {(group[plan.offloaded[r]], r.dst) for r in partition.asks}
        if asked:
            step = fields.field(partition.index, work.batch_size * len(group), work.batch_size)
            for owner, ntype in asked:
                rows = step.layers[-1].inner.get(ntype, 0.0)
                sent[owner] += rows * traffic.delegated_row(work)
                sent[partition.index] += rows * traffic.delegated_row(work)
    return sent


def below_last(plan: Plan, work: Workload, fields: Sequence[ReceptiveField] | None = None
               ) -> dict[str | Relation, tuple[float, float]]:
    """Bytes that a holder sends without replication besides the seeds' rows of the last layer.

    Every layer below completes the rows of each node type that several partitions have, and the
    holders tell each other which they are. Of a relation whose hubs' in-edges are cut, the holders
    complete the hubs at every layer.

    Parameters
    ----------
    fields : what each partition samples, where that was counted; else it is expected.

    Returns
    -------
    Node type, or relation → bytes of partial aggregations, and of ids.
    """
    counts = plan.schema.node_counts
    if fields:
        rows = [{t: max(f.layers[i].inner.get(t, 0.0) + f.own.get(t, 0.0) for f in fields)
                 for t in counts} for i in range(plan.hops)]
        seeds = {t: sum(f.own.get(t, 0.0) for f in fields) for t in counts}
        rows[0] = seeds
        reached = {t: rows[-1][t] - seeds[t] for t in counts}
    else:
        step = field_of_one_process(plan, work.fanouts_of(plan.hops),
                                    work.batch_size * len(plan.groups[0]))
        rows, reached = destinations(step, plan), step.layers[-1].inner
    sent = dict[str | Relation, tuple[float, float]]()
    for ntype, count in counts.items():
        holders = len(plan.users(ntype, 0))
        if holders > 1:
            partials = sum(traffic.partials(holders, layer.get(ntype, 0.0) / holders,
                                            traffic.lower_layer(work)) for layer in rows[1:])
            # What a holder reached is new once, at the layer that reached it; sources of the first
            # layer nobody completes.
            sent[ntype] = partials, traffic.common_ids(
                holders, reached.get(ntype, 0.0) / holders, count)
    for relation, ownership in plan.ownership.items():
        share = len(ownership.hubs) / max(counts[relation.dst], 1)
        holders = sum(relation in p.relations for p in plan.partitions)
        sent[relation] = sum(traffic.partials(
            holders, share * layer.get(relation.dst, 0.0) / holders, traffic.hub(work))
            for number, layer in enumerate(rows)
            if plan.owners(plan.hops - number, relation)), 0.0
    return sent


def to_json(work: Workload, costs: Sequence[PartitionCost]) -> dict[str, Any]:
    """The prediction as one JSON object, the field `prediction` of `--json`; bytes that are not
    known are null."""
    partitions = [asdict(cost) for cost in costs]
    for each in partitions:
        if not each.pop("partials_known"):
            each["partial_bytes"] = None
    return {"workload": asdict(work), "partitions": partitions}
