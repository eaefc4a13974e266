"""What a plan will cost: memory per partition and bytes exchanged per step.

The formulas count what the RAF engine does (docs/performance.md lists them); a test compares
them with the bytes that the engine counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dgl_heta.plan import Plan


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


@dataclass(frozen=True)
class PartitionCost:
    """Predicted figures of one partition; all sizes in bytes.

    `partial_bytes` and `gradient_bytes` are sent by this worker per step: partial
    aggregations of boundary nodes with their gradients, and the averaging of dense
    parameter gradients.
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
    costs = []
    for partition in plan.partitions:
        topology = 0
        for relation in partition.relations:
            width = 4 if schema.node_counts[relation.src] < 2**31 else 8
            topology += (schema.node_counts[relation.dst] + 1) * 8
            topology += schema.edge_counts[relation] * width
        features = learnable = 0
        for ntype in partition.node_types:
            if schema.feature_bytes.get(ntype):
                features += schema.node_counts[ntype] * schema.feature_bytes[ntype]
            else:
                learnable += schema.node_counts[ntype] * work.hidden * work.itemsize * 3
        size = len(plan.groups[partition.group])
        costs.append(PartitionCost(
            relations=len(partition.relations),
            nodes=partition.num_nodes,
            edges=partition.num_edges,
            topology_bytes=topology,
            feature_bytes=features,
            learnable_bytes=learnable,
            boundary_nodes=plan.boundary_nodes // len(plan.groups),
            partial_bytes=_partials(size, plan.hops, work),
            gradient_bytes=_all_reduce(plan.num_parts, work.parameters * work.itemsize),
        ))
    return costs


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
