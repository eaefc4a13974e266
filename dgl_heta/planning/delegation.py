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
    return [t for t in plan.schema.node_types
            if not plan.schema.feature_bytes.get(t, 0) and len(_readers(plan, t)) > 1]


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
    delegates = {}
    for ntype, owner in owners.items():
        if ntype not in plan.schema.node_counts or not 0 <= owner < plan.num_parts:
            raise InputError(f"node type '{ntype}' cannot be delegated to partition {owner}")
        delegates.update({r: owner for r in plan.schema.relations if r.src == ntype and any(
            r in p.layers[1] for p in plan.partitions)})
    delegates = {r: delegates[r] for r in plan.schema.relations if r in delegates}
    return replace(plan, delegates=delegates, partitions=tuple(
        _with_delegates(plan, p, delegates) for p in plan.partitions))


def undelegated(plan: Plan) -> Plan:
    """The plan in which every partition runs its relations by itself."""
    if not plan.delegates:
        return plan
    return replace(plan, delegates={}, partitions=partitions_of_shares(
        plan.schema, plan.targets, plan.hops, plan.sub_metatrees,
        [(p.group, p.sub_metatrees) for p in plan.partitions]))


def _readers(plan: Plan, ntype: str) -> list[int]:
    """Partitions that read a type as the source of a relation at layer 1."""
    return [p.index for p in plan.partitions if any(r.src == ntype for r in p.layers[1])]


def _with_delegates(plan: Plan, own: Partition, delegates: Mapping[Relation, int]) -> Partition:
    """What a partition runs where some relations are delegated."""
    schema, roots = plan.schema, set(plan.roots(own.index))
    order = {r: i for i, r in enumerate(schema.relations)}
    others = [p for p in plan.partitions if p.index != own.index]
    mine = {r for r, owner in delegates.items() if owner == own.index}
    inner = tuple(r for r in own.inner[1] if r in mine or r not in delegates)
    asks = tuple(r for r in own.inner[1] if r in delegates and r not in mine)
    served = tuple(sorted((r for r in mine if any(r in p.inner[1] for p in others)),
                          key=order.__getitem__))
    every_root = {tree.root for tree in plan.sub_metatrees}
    at_first = {*inner, *served, *(r for r in roots if r not in delegates),
                *(r for r in mine if r in every_root)}
    layers = {**own.layers, 1: tuple(sorted(at_first, key=order.__getitem__))}
    relations = tuple(r for r in schema.relations if any(r in run for run in layers.values()))
    types = {*plan.targets, *(t for r in relations for t in (r.src, r.dst))}
    return replace(
        own, inner={**own.inner, 1: inner}, layers=layers, relations=relations, served=served,
        asks=asks, node_types=tuple(t for t in schema.node_types if t in types),
        num_nodes=sum(schema.node_counts[t] for t in types),
        num_edges=sum(schema.edge_counts[r] for r in relations))


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

