"""Bytes that a partition holds: topology, static features, learnable features.

Topology is CSC: 8 bytes per destination node and relation, 4 per edge (8 where the source type has
2^31 nodes or more), as the store keeps it. A learnable row is its value and two moments of Adam.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.planning.workload import Workload

DISTDGL_EDGE_BYTES = 16
"""DistDGL keeps the ends of an edge as two 8-byte ids."""


def relation_bytes(schema: Schema, relation: Relation, low: int = 0, high: int | None = None
                   ) -> int:
    """Bytes of the CSC of a relation, or of the part for destinations `low … high - 1`.

    The edges of a part are taken to be in proportion to its destinations.
    """
    count = schema.node_counts[relation.dst]
    rows = (count if high is None else high) - low
    return csc_bytes(schema, relation, rows, schema.edge_counts[relation] * rows // max(count, 1))


def topology_bytes(schema: Schema, partition: Partition) -> int:
    """Bytes of the relations of a partition."""
    return sum(csc_bytes(schema, r, *partition.owned[r]) if r in partition.owned
               else relation_bytes(schema, r, *partition.ranges.get(r, (0, None)))
               for r in partition.relations)


def csc_bytes(schema: Schema, relation: Relation, rows: int, edges: int) -> int:
    """Bytes of so many destinations and edges of a relation."""
    width = 4 if schema.node_counts[relation.src] < 2**31 else 8
    return (rows + 1) * 8 + edges * width


def type_bytes(schema: Schema, ntypes: Iterable[str], work: Workload) -> tuple[int, int]:
    """Bytes of static and of learnable features of some node types."""
    features = learnable = 0
    for ntype in ntypes:
        if schema.feature_bytes.get(ntype):
            features += schema.node_counts[ntype] * schema.feature_bytes[ntype]
        else:
            learnable += schema.node_counts[ntype] * work.row_bytes * 3
    return features, learnable


def disk_bytes(schema: Schema, partition: Partition, targets: Iterable[str],
               beside: Mapping[str | Relation, int]) -> int:
    """Bytes of a partition's staged directory (`dgl-heta stage`).

    Parameters
    ----------
    beside : what a node type or relation has beside features and CSC: labels, masks, ids.
    """
    names = {*partition.relations, *partition.node_types, *targets}
    static = sum(schema.node_counts[t] * schema.feature_bytes.get(t, 0)
                 for t in partition.node_types)
    return static + topology_bytes(schema, partition) + sum(
        size for name, size in beside.items() if name in names)


def footprint(schema: Schema, partition: Partition, work: Workload) -> int:
    """Bytes that a partition holds, with all rows of its learnable types."""
    return topology_bytes(schema, partition) + sum(
        type_bytes(schema, partition.node_types, work))


def distdgl_footprint(schema: Schema, work: Workload) -> int:
    """Bytes of all of DistDGL's parts together, without the features of halo nodes."""
    return (sum(type_bytes(schema, schema.node_types, work))
            + DISTDGL_EDGE_BYTES * sum(schema.edge_counts.values()))
