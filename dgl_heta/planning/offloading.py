"""Delegation: learnable types that several partitions use are aggregated by one of them.

In ogbn-mag both of two partitions read authors: `cites` reaches papers, whose authors are read at
layer 1. Where authors have learnable features, their rows would travel to who reads them, and their
gradients back. Instead the partition that has the rows runs AGG_r on them for all others: these
send the ids of their destination rows, and get one partial aggregation for each, summed over all
relations that are delegated there. That is Heta's Algorithm 1 one layer deeper: what moves grows
with the destination rows, not with their neighbours. Sampling is stateless, so the other
partition draws the same neighbours.

Only layer 1 delegates, where sources are inputs. On seeds, whose ids all partitions have and whose
aggregations are partial anyway, the partition that has the rows runs the relation at layer 1
instead of the one that has it as a root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.assignment import Partition, Share, partitions_of_shares

if TYPE_CHECKING:
    from dgl_heta.planning.plan import Plan


def can_delegate(plan: Plan) -> str | None:
    """Why nothing of a plan can be delegated; None if it can."""
    if plan.replication != "full":
        return "without replication no relation is on two partitions"
    if plan.metapaths:
        return "metapaths follow other relations from a neighbour than from a seed"
    if plan.hops < 2:
        return "with one hop only seeds are destinations, and their aggregations are partial anyway"
    if len(plan.groups) != 1 or plan.num_parts < 2:
        return "every worker is by itself, or there are several groups of partitions"
    return None


def shared_learnable(plan: Plan) -> list[str]:
    """Node types without static features that several partitions read at layer 1."""
    readers = Counter(t for p in plan.partitions for t in {r.src for r in p.layers[1]})
    return [t for t in plan.schema.node_types
            if not plan.schema.feature_bytes.get(t, 0) and readers[t] > 1]


def delegated(plan: Plan, owners: Mapping[str, int]) -> Plan:
    """The plan in which one partition aggregates a node type for all others.

    Parameters
    ----------
    owners : learnable node type → partition that has its rows.

    Raises
    ------
    InputError
        The plan cannot delegate, or an owner is no partition of it.
    """
    if not owners:
        return plan
    why = can_delegate(plan)
    if why is not None:
        raise InputError(f"nothing can be delegated: {why}; use partition.shared = rows")
    for ntype, owner in owners.items():
        if ntype not in plan.schema.node_counts or not 0 <= owner < plan.num_parts:
            raise InputError(f"node type '{ntype}' cannot be delegated to partition {owner}")
    run = {r for p in plan.partitions for r in p.layers[1]}
    delegates = {r: owners[r.src] for r in plan.schema.relations if r.src in owners and r in run}
    return replace(plan, delegates=delegates, partitions=_with_delegates(plan, delegates))


def undelegated(plan: Plan) -> Plan:
    """The plan in which every partition runs its relations by itself."""
    if not plan.delegates:
        return plan
    return replace(plan, delegates={}, partitions=partitions_of_shares(
        plan.schema, plan.targets, plan.hops, plan.sub_metatrees,
        [(p.group, p.sub_metatrees) for p in plan.partitions]))


def _with_delegates(plan: Plan, delegates: Mapping[Relation, int]) -> tuple[Partition, ...]:
    """What each partition runs where some relations are delegated."""
    schema = plan.schema
    order = {r: i for i, r in enumerate(schema.relations)}
    every_root = {tree.root for tree in plan.sub_metatrees}
    runs = Counter(r for p in plan.partitions for r in p.inner[1])
    owned: list[list[Relation]] = [[] for _ in plan.partitions]
    for relation, owner in delegates.items():
        owned[owner].append(relation)

    def changed(own: Partition) -> Partition:
        before, kept = set(own.inner[1]), set(owned[own.index])
        inner = tuple(r for r in own.inner[1] if r in kept or r not in delegates)
        asks = tuple(r for r in own.inner[1] if r in delegates and r not in kept)
        served = tuple(r for r in owned[own.index] if runs[r] > (r in before))
        at_first = {*inner, *served, *(r for r in plan.roots(own.index) if r not in delegates),
                    *(r for r in kept if r in every_root)}
        layers = {**own.layers, 1: tuple(sorted(at_first, key=order.__getitem__))}
        relations = tuple(sorted({r for run in layers.values() for r in run},
                                 key=order.__getitem__))
        types = {*plan.targets, *(t for r in relations for t in (r.src, r.dst))}
        return replace(
            own, inner={**own.inner, 1: inner}, layers=layers, relations=relations, served=served,
            asks=asks, node_types=tuple(t for t in schema.node_types if t in types),
            num_nodes=sum(schema.node_counts[t] for t in types),
            num_edges=sum(schema.edge_counts[r] for r in relations))

    return tuple(changed(p) for p in plan.partitions)


def roots_at_first(plan: Plan, part: int) -> dict[Relation, Share]:
    """Root relations that a partition runs on the seeds at layer 1, with its share of them."""
    own, owner = plan.roots(part), _position(plan, part)
    kept = {r: share for r, share in own.items() if r not in plan.delegates}
    roots = {tree.root for tree in plan.sub_metatrees}
    return {**kept, **{r: Share() for r, by in plan.delegates.items()
                       if by == owner and r in roots}}


def _position(plan: Plan, part: int) -> int:
    """A partition's place in its group: what `delegates` knows it by."""
    return plan.groups[plan.partitions[part].group].index(part)

