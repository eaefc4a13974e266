"""Making plans: meta-partitioning (technical report, Algorithm 2), and without replication."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.dealing import group_sizes, longest_processing_time, spread
from dgl_heta.planning.metatree import Metapath, check_hops, sub_metatrees
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.partition_shares import (
    Assignment,
    Piece,
    Share,
    check_pieces,
    partitions_of_pieces,
    partitions_of_shares,
    used_relations,
)
from dgl_heta.planning.plan import Plan

Assign = Callable[[Sequence[int], int], Sequence[Sequence[int]]]
"""`assign(weights, parts)` returns for each partition the indices of its sub-metatrees."""

Deal = Callable[[Schema, Sequence[Relation], int], Sequence[Sequence[Piece]]]
"""`deal(schema, relations, parts)` returns for each partition its pieces of the relations."""

MOST_PARTS = 4096
MOST_LAYERS = 16 * MOST_PARTS


def make_plan(
    schema: Schema,
    target: str | Sequence[str],
    hops: int | None = None,
    parts: int = 2,
    metapaths: Sequence[Metapath] | None = None,
    assign: Assign = longest_processing_time,
    method: str = "meta",
) -> Plan:
    """Plan the meta-partitioning of a graph (technical report, Algorithm 2).

    With more partitions than sub-metatrees, every sub-metatree is given to several
    partitions (Heta §5, Fig. 7): as many whole model-parallel groups as fit, and inside a
    group the heaviest sub-metatrees are run by more than one partition, which split the
    group's target nodes.

    Raises
    ------
    InputError
        See :func:`dgl_heta.planning.metatree.sub_metatrees`; `parts` < 1; `assign` did not deal
        every sub-metatree once.
    """
    targets = (target,) if isinstance(target, str) else tuple(target)
    hops = check_hops(hops, metapaths)
    check_parts(parts, hops)
    trees = tuple(sub_metatrees(schema, targets, hops, metapaths))
    weights = [tree.weight for tree in trees]
    assignment: list[tuple[int, dict[int, Share]]] = []
    if parts <= len(trees):
        dealt = _dealt_once(assign(weights, parts), len(trees), parts, method)
        assignment = [(0, {i: Share() for i in sorted(part)}) for part in dealt]
    else:
        for group, size in enumerate(group_sizes(parts, len(trees))):
            assignment += [(group, {i: share}) for i, share in spread(weights, size)]
    partitions = partitions_of_shares(schema, targets, hops, trees, assignment)
    return Plan(schema, targets, hops, method, tuple(metapaths or ()), trees, partitions)


def reassigned(plan: Plan, assignment: Assignment, method: str) -> Plan:
    """The plan of the same sub-metatrees that follows from another assignment of them."""
    partitions = partitions_of_shares(plan.schema, plan.targets, plan.hops, plan.sub_metatrees,
                                      assignment)
    return Plan(plan.schema, plan.targets, plan.hops, method, plan.metapaths, plan.sub_metatrees,
                partitions)


def plan_without_replication(schema: Schema, target: str | Sequence[str], hops: int, parts: int,
                             deal: Deal, method: str) -> Plan:
    """A plan that puts every relation on one partition (Heta §4, Algorithm 1 in general).

    Less disk and memory per partition, more to exchange: partial aggregations of rows of any
    type that several partitions have. A relation too large for a partition can be cut by
    destination: as the in-edges of a node stay together, AGG_r of a row is still the work of
    one partition.

    Parameters
    ----------
    deal : says who gets what: for each partition pieces (relation, low, high) that together
        have every destination node of every relation once, at most one piece of a relation
        each.

    Raises
    ------
    InputError
        See :func:`dgl_heta.planning.metatree.sub_metatrees`; `parts` < 1; pieces that do not fit.
    """
    check_parts(parts, hops)
    targets = (target,) if isinstance(target, str) else tuple(target)
    trees = tuple(sub_metatrees(schema, targets, hops))
    used = used_relations(schema, trees)
    pieces = [list(own) for own in deal(schema, used, parts)]
    check_pieces(pieces, used, schema, parts, method)
    partitions = partitions_of_pieces(schema, targets, hops, trees, pieces)
    return Plan(schema, targets, hops, method, (), trees, partitions, "none")


def with_ownership(plan: Plan, ownership: Mapping[Relation, Ownership]) -> Plan:
    """A plan without replication in which some relations are cut by arrays instead of ranges."""
    pieces = [[(r, *p.ranges.get(r, (0, plan.schema.node_counts[r.dst])))
               for r in p.relations if r not in ownership] for p in plan.partitions]
    return replace(plan, ownership=dict(ownership), partitions=partitions_of_pieces(
        plan.schema, plan.targets, plan.hops, plan.sub_metatrees, pieces, ownership))


def deal_whole(schema: Schema, relations: Sequence[Relation], parts: int) -> list[list[Piece]]:
    """Deal whole relations, heaviest first to the lightest partition.

    A relation's weight is the number of its edges and destinations.

    Raises
    ------
    InputError
        There are fewer relations than partitions.
    """
    if parts > len(relations):
        raise InputError(
            f"{parts} partitions are too many for replication = none: the model needs "
            f"{len(relations)} relations, and each is on one partition; use at most "
            f"{len(relations)}, or a memory limit, by which relations are cut")
    dealt = longest_processing_time(
        [schema.edge_counts[r] + schema.node_counts[r.dst] for r in relations], parts)
    return [[(relations[i], 0, schema.node_counts[relations[i].dst]) for i in sorted(part)]
            for part in dealt]


def check_parts(parts: int, hops: int = 1) -> None:
    """Refuse a number of partitions that no cluster has.

    Raises
    ------
    InputError
        It is less than 1 or more than :data:`MOST_PARTS`, or with so many hops the plan would
        have more than :data:`MOST_LAYERS` layers of partitions.
    """
    if not 1 <= parts <= MOST_PARTS:
        raise InputError(f"the number of partitions is {quoted(parts)}; it must be 1 to "
                         f"{MOST_PARTS:,}")
    if parts * hops > MOST_LAYERS:
        raise InputError(f"{parts:,} partitions with {hops} hops are more than a plan can have: "
                         f"their product must be at most {MOST_LAYERS:,}")


def _dealt_once(assigned: Sequence[Sequence[int]], trees: int, parts: int,
                method: str) -> list[list[int]]:
    """The indices that a backend dealt; an :class:`InputError` unless each was dealt once."""
    try:
        dealt = [[operator.index(i) for i in part] for part in assigned]
    except TypeError:
        raise InputError(
            f"partition method '{method}' returned {assigned!r}; it must return for each of "
            f"{parts} partitions a list of the indices of its sub-metatrees"
        ) from None
    indices = sorted(i for part in dealt for i in part)
    if len(dealt) != parts or indices != list(range(trees)):
        raise InputError(
            f"partition method '{method}' dealt sub-metatrees {indices} to {len(dealt)} "
            f"partitions; each of 0 … {trees - 1} must go to exactly one of {parts}"
        )
    return dealt
