"""How a relation that is too large for a partition is cut, without replication (Heta §5).

A cutter says whose the in-edges of each destination are. Built in are the plan's own ranges of
destinations, and ranges of as many edges, or bytes, for what the plan gave as destinations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.cutter_protocol import Cutter
from dgl_heta.partition.arguments import warn_once
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.footprint import csc_bytes, footprint, relation_bytes
from dgl_heta.planning.hubs import even_piece
from dgl_heta.planning.plan import Plan
from dgl_heta.store.csc import count_in_degrees

CHUNK = 2**20  # edges


class Ranges(Cutter):
    """`ranges`: the plan's ranges of destinations, as if in-degrees were even."""

    name = "ranges"
    description = "ranges of destinations as planned, as if all had as many in-edges"

    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]
            ) -> np.ndarray | None:
        return None


class EvenEdges(Cutter):
    """`even-edges`: ranges of destinations whose in-edges are shared as the plan shares nodes."""

    name = "even-edges"
    description = "ranges of destinations that have as many in-edges"

    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]
            ) -> np.ndarray | None:
        return _ranges(in_degrees(source, relation), parts)


class EvenBytes(Cutter):
    """`even-bytes`: the same by what CSC takes, 8 bytes per destination, 4 or 8 per in-edge."""

    name = "even-bytes"
    description = "ranges of destinations that take as much memory"

    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]
            ) -> np.ndarray | None:
        width = 4 if source.node_counts[relation.src] < 2**31 else 8
        return _ranges(8 + width * in_degrees(source, relation), parts)


def in_degrees(source: GraphSource, relation: Relation) -> np.ndarray:
    """In-edges of each destination node, int64 (destination nodes,); a pass over the edges.

    Raises
    ------
    InputError
        An id out of range, by edge.
    """
    counts = source.node_counts
    return np.diff(count_in_degrees(relation, source.edges[relation], counts[relation.src],
                                    counts[relation.dst], CHUNK, lambda edges: None))


def _ranges(weights: np.ndarray, parts: Sequence[int]) -> np.ndarray:
    """Each destination to the piece in whose range the middle of its weight lies."""
    ends = np.cumsum(parts) / sum(parts) * weights.sum()
    middle = np.cumsum(weights) - weights / 2
    return np.minimum(np.searchsorted(ends, middle, "right"), len(parts) - 1)


def warn_of_ranges(plan: Plan, relation: Relation, degrees: np.ndarray, request: PartitionRequest
                   ) -> None:
    """Say so where ranges of destinations are far from even, or do not fit the limit."""
    even = even_piece(degrees, sum(relation in p.ranges for p in plan.partitions))
    ends = np.concatenate([[0], np.cumsum(degrees)])
    worst, said = 0.0, ""
    for partition in plan.partitions:
        if relation not in partition.ranges:
            continue
        low, high = partition.ranges[relation]
        edges, planned = int(ends[high] - ends[low]), plan.schema.edge_counts[relation]
        size = (footprint(plan.schema, partition, request.workload)
                - relation_bytes(plan.schema, relation, low, high)
                + csc_bytes(plan.schema, relation, high - low, edges))
        over = 0 if request.memory_limit is None else size - request.memory_limit
        planned = planned * (high - low) // len(degrees)
        if edges > max(worst, 1.2 * planned) and (over > 0 or edges > 1.5 * planned):
            worst, said = edges, (
                f"relation '{relation}', cut by ranges of destinations: partition "
                f"{partition.index} has {edges:,} edges where {planned:,} were planned "
                f"({edges / max(even, 1):.1f} even pieces)"
                + (f", {over / 1e6:,.1f} MB more than the limit" if over > 0 else ""))
    if said:
        warn_once(f"{said}; another cut evens them out (--cut even-bytes, --cut even-edges)")


def check_hub(plan: Plan, relation: Relation, degrees: np.ndarray, request: PartitionRequest
              ) -> None:
    """Name the node whose in-edges alone are more than a piece should have.

    Raises
    ------
    InputError
        Because of it a partition exceeds the limit. Without a limit, or within it, a warning.
    """
    own = plan.ownership[relation]
    node, even = int(degrees.argmax()), even_piece(degrees, sum(map(bool, own.edges)))
    most = int(degrees[node])
    if most <= even:
        return
    holder = plan.partitions[int(own.owner[node])]
    over = footprint(plan.schema, holder, request.workload) - (request.memory_limit or 0)
    what = (f"relation '{relation}' cannot be cut evenly: node {node} of '{relation.dst}' alone "
            f"has {most:,} in-edges, and one owner has them all; the best balance is "
            f"{most / even:.2f} even pieces of {even:,.0f} edges")
    remedy = "cut its in-edges, too (partition.hubs = 1)"
    if request.memory_limit is not None and over > 0:
        raise InputError(f"{what}; partition {holder.index} holds {over / 1e6:,.1f} MB more than "
                         f"the limit of {request.memory_limit / 1e6:,.1f} MB; {remedy}, or use a "
                         "higher limit")
    warn_once(f"{what}; {remedy}")
