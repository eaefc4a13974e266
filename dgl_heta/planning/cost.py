"""What a plan will cost: memory per partition and bytes exchanged per step.

The formulas count what the RAF engine does (docs/performance.md lists them); a test compares
them with the bytes that the engine counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.assignment import Partition
from dgl_heta.planning.plan import Plan


@dataclass(frozen=True)
class Workload:
    """The training that a prediction is for.

    Attributes
    ----------
    batch_size : seeds per worker and step.
    hidden : width of hidden states and learnable features.
    itemsize : bytes per element of states and parameters.
    parameters : number of dense parameters, whose gradients are averaged; 0 if unknown.
    seed_states : whether the model reads the destination's state (self-loop, attention), so
        that the seeds' states are completed below the last layer.
    reduce : cross-relation reducer; max and min exchange the extremes and who attains them.
    """

    batch_size: int = 1024
    hidden: int = 64
    itemsize: int = 4
    parameters: int = 0
    seed_states: bool = True
    reduce: str = "sum"
    fanouts: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartitionCost:
    """Predicted figures of one partition; all sizes in bytes.

    `partial_bytes` and `gradient_bytes` are sent by this worker per step: partial
    aggregations of boundary nodes with their gradients, and at most for the averaging of dense
    parameter gradients: those that one worker alone has cost half.
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


def predict(plan: Plan, work: Workload) -> list[PartitionCost]:
    """Predict each partition's cost.

    Topology is CSC: 8 bytes per destination node and relation, 4 per edge (8 where a type
    has 2^31 nodes or more). Learnable features count their value and two moments of Adam.
    """
    schema = plan.schema
    below = _below_last(plan, work) if plan.replication == "none" else {}
    costs = []
    for partition in plan.partitions:
        topology = sum(relation_bytes(schema, r, *partition.ranges.get(r, (0, None)))
                       for r in partition.relations)
        features, learnable = type_bytes(schema, partition.node_types, work)
        size = len(plan.groups[partition.group])
        costs.append(PartitionCost(
            relations=len(partition.relations),
            nodes=partition.num_nodes,
            edges=partition.num_edges,
            topology_bytes=topology,
            feature_bytes=features,
            learnable_bytes=learnable,
            boundary_nodes=plan.boundary_nodes // len(plan.groups),
            partial_bytes=(_partials(size, 1, work) + sum(below[t] for t in partition.node_types)
                           if below else _partials(size, plan.hops, work)),
            gradient_bytes=_all_reduce(plan.num_parts, work.parameters * work.itemsize),
        ))
    return costs


def relation_bytes(schema: Schema, relation: Relation, low: int = 0, high: int | None = None
                   ) -> int:
    """Bytes of the CSC of a relation, or of the part for destinations `low … high - 1`.

    The edges of a part are taken to be in proportion to its destinations.
    """
    count = schema.node_counts[relation.dst]
    rows = (count if high is None else high) - low
    width = 4 if schema.node_counts[relation.src] < 2**31 else 8
    return (rows + 1) * 8 + schema.edge_counts[relation] * rows // max(count, 1) * width


def type_bytes(schema: Schema, ntypes: Iterable[str], work: Workload) -> tuple[int, int]:
    """Bytes of static and of learnable features (value and two moments) of some node types."""
    features = learnable = 0
    for ntype in ntypes:
        if schema.feature_bytes.get(ntype):
            features += schema.node_counts[ntype] * schema.feature_bytes[ntype]
        else:
            learnable += schema.node_counts[ntype] * work.hidden * work.itemsize * 3
    return features, learnable


def memory(schema: Schema, partition: Partition, work: Workload) -> int:
    """Bytes that a partition holds: topology, features, learnable features."""
    return (sum(relation_bytes(schema, r, *partition.ranges.get(r, (0, None)))
                for r in partition.relations)
            + sum(type_bytes(schema, partition.node_types, work)))


def expected_rows(plan: Plan, work: Workload) -> list[dict[str, float]]:
    """Expected destination rows per node type of each layer, layer 1 first, of one step.

    Draws of neighbours are taken to be even over the nodes of the source type, so that d draws
    find N (1 - exp(-d / N)) of N nodes, and every node to have the mean number of neighbours.
    """
    schema = plan.schema
    fanouts = work.fanouts or (25, *[20] * (plan.hops - 1))
    seeds = work.batch_size * len(plan.groups[0]) / len(plan.targets)
    rows = {t: min(seeds, float(schema.node_counts[t])) for t in plan.targets}
    found = [rows]
    for layer in range(plan.hops, 1, -1):
        fanout = fanouts[layer - 1] if fanouts[layer - 1] >= 0 else math.inf
        draws: dict[str, float] = {}
        relations = {r for p in plan.partitions for r in p.layers[layer]}
        for relation in relations:
            degree = schema.edge_counts[relation] / max(schema.node_counts[relation.dst], 1)
            draws[relation.src] = (draws.get(relation.src, 0.0)
                                   + rows.get(relation.dst, 0.0) * min(fanout, degree))
        rows = dict(rows)
        for ntype, drawn in draws.items():
            rows[ntype] = _found(schema.node_counts[ntype], rows.get(ntype, 0.0), drawn)
        found.append(rows)
    return found[::-1]


EDGE, GATHER, PRODUCT = 0.5, 1.0, 2 / 25
"""Nanoseconds per number of a row: to add it to a destination, to gather it (forward and
backward), and to multiply it by one column of a weight (the same). Rough, not fitted; what decides
is their ratio."""
MARGIN = 0.8
"""Aggregation comes first if that is expected to take at most so much of the time."""


def aggregated_first(rows: float, edges: float, destinations: float, own: float, width: float,
                     out: int) -> bool:
    """Whether feature rows are aggregated before they are multiplied by a weight.

    Parameters
    ----------
    rows : source rows, (rows, width), and `edges` of all relations from them.
    destinations : rows of all these relations.
    own : rows that are multiplied besides, for the destinations' own states.
    out : width of the product.
    """
    per_row = GATHER + PRODUCT * out
    return edges * EDGE + (destinations + own) * per_row < MARGIN * (
        rows * per_row + 2 * edges * EDGE * out / width)


CALL = 10_000_000
"""Work of running one relation at one layer apart from its rows and edges, in bytes moved: about
two milliseconds of calls."""


def step_work(plan: Plan, partition: Partition, work: Workload) -> float:
    """Expected work of a partition in a step of `work.batch_size` seeds, in bytes moved.

    The rows of its input nodes, static or learnable with two moments, four times (gathered,
    projected, and both again backward), two rows of hidden states for every sampled edge, and
    :data:`CALL` per relation and layer. What several sub-metatrees reach counts once. Draws are
    even, as in :func:`expected_rows`.
    """
    schema, roots = plan.schema, plan.roots(partition.index)
    fanouts = work.fanouts or (25, *[20] * (plan.hops - 1))
    width = work.hidden * work.itemsize
    seeds = {r: work.batch_size / len(plan.targets) * share.width / share.count
             for r, share in roots.items()}
    rows: dict[str, float] = {}
    drawn = calls = 0.0
    for layer in range(plan.hops, 0, -1):
        fanout = fanouts[layer - 1] if fanouts[layer - 1] >= 0 else math.inf
        draws: dict[str, float] = {}
        reached = [*seeds.items(), *((r, rows.get(r.dst, 0.0)) for r in partition.inner[layer])]
        for relation, count in reached:
            degree = schema.edge_counts[relation] / max(schema.node_counts[relation.dst], 1)
            draws[relation.src] = draws.get(relation.src, 0.0) + count * min(fanout, degree)
        drawn += sum(draws.values())
        calls += len(partition.layers[layer])
        for ntype, count in draws.items():
            rows[ntype] = _found(schema.node_counts[ntype], rows.get(ntype, 0.0), count)
    return CALL * calls + 2 * drawn * width + sum(
        4 * count * (schema.feature_bytes.get(t) or 3 * width) for t, count in rows.items())


def _found(nodes: int, already: float, draws: float) -> float:
    """Expected distinct nodes after more draws, which are even over the nodes of a type."""
    return already + (nodes - already) * -math.expm1(-draws / max(nodes, 1))


def _below_last(plan: Plan, work: Workload) -> Mapping[str, int]:
    """Bytes that each holder of a node type sends per step below the last layer.

    Forward and backward an all-reduce of the type's rows over its holders, and their ids.
    """
    found = dict.fromkeys(plan.schema.node_types, 0)
    for rows in expected_rows(plan, work)[:-1]:
        for ntype, count in rows.items():
            holders = len(plan.users(ntype, 0))
            if holders > 1:
                size = int(count) * work.hidden * work.itemsize
                found[ntype] += 2 * _all_reduce(holders, size) + int(count) * 8
    return found


def _partials(group: int, layers: int, work: Workload) -> int:
    """Bytes a worker sends per step for the partial aggregations of the group's seeds.

    Backward the last layer is an all-gather, and each layer below it, where the seeds' states
    are needed everywhere, an all-reduce. Forward they are a reduce-scatter and an all-reduce;
    for max and min two all-reduces each.
    """
    batch = group * work.batch_size * work.hidden * work.itemsize
    scatter, everywhere = batch * (group - 1) // group, _all_reduce(group, batch)
    forward = 2 * everywhere if work.reduce in ("max", "min") else scatter
    last = forward + scatter
    if work.reduce not in ("max", "min"):
        forward = everywhere
    below = forward + everywhere if work.seed_states else 0
    return last + (layers - 1) * below


def _all_reduce(ranks: int, size: int) -> int:
    return 2 * size * (ranks - 1) // ranks


def to_json(plan: Plan, work: Workload) -> dict[str, Any]:
    """The prediction as one JSON object, the field `prediction` of `--json`."""
    return {"workload": asdict(work), "partitions": [asdict(c) for c in predict(plan, work)]}
