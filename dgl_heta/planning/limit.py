"""Plans that fit a limit of memory per partition.

What a partition holds is predicted from the schema (:func:`dgl_heta.planning.footprint.footprint`):
topology, static features, learnable features with their moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.footprint import footprint, relation_bytes, type_bytes
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.partition_shares import Piece
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload


def within(plan: Plan, limit: int, work: Workload) -> Plan:
    """The plan, or another one by the same rules, whose partitions hold `limit` bytes at most.

    Raises
    ------
    InputError
        None was found; says by how much the limit is exceeded, and what would do.
    """
    worst = largest(plan, work)
    if worst <= limit:
        return plan
    if plan.replication == "full" and plan.num_parts <= len(plan.sub_metatrees):
        other = _by_memory(plan, plan.num_parts, work)
        if largest(other, work) < worst:
            plan, worst = other, largest(other, work)
    if worst <= limit:
        return plan
    raise InputError(
        f"with {several(plan.num_parts, 'partition')} and replication = {plan.replication} a "
        f"partition holds {mb(worst)} MB, {mb(worst - limit)} MB more than the limit of "
        f"{mb(limit)} MB; {_remedies(plan, limit, work, worst)}")


def largest(plan: Plan, work: Workload) -> int:
    """Bytes of the partition that holds most."""
    return max(footprint(plan.schema, p, work) for p in plan.partitions)


def deal_within(schema: Schema, relations: Sequence[Relation], targets: Sequence[str], parts: int,
                limit: int, work: Workload) -> list[list[Piece]]:
    """Deal relations to partitions of `limit` bytes, each to the one that it fills least.

    A relation that fits nowhere as a whole is cut by destination, in pieces as large as the
    partitions have room for.

    Raises
    ------
    InputError
        Not even the pieces fit; or they are fewer than partitions.
    """
    dealt: list[list[Piece]] = [[] for _ in range(parts)]
    types = [set(targets) for _ in range(parts)]
    base = sum(type_bytes(schema, set(targets), work))
    used = [base] * parts

    def with_types(part: int, relation: Relation) -> int:
        return used[part] + sum(type_bytes(schema, {relation.src, relation.dst} - types[part],
                                           work))

    for relation in sorted(relations, key=lambda r: -relation_bytes(schema, r)):
        count, whole = schema.node_counts[relation.dst], relation_bytes(schema, relation)
        best = min(range(parts), key=lambda p: (with_types(p, relation) + whole, p))
        pieces = [(best, 0, count)]
        if with_types(best, relation) + whole > limit and count > 1:
            pieces = _cut(schema, relation, [limit - with_types(p, relation)
                                             for p in range(parts)])
        if not pieces:
            room = sum(max(limit - with_types(p, relation), 0) for p in range(parts))
            features = sum(type_bytes(schema, {relation.src, relation.dst, *targets}, work))
            if features > limit:
                raise InputError(
                    f"the features of the targets and of the ends of '{relation}' alone take "
                    f"{mb(features)} MB, {mb(features - limit)} MB more than the limit of "
                    f"{mb(limit)} MB; node types are not cut, so use a limit above that")
            raise InputError(
                f"relation '{relation}' needs {mb(whole)} MB, but {several(parts, 'partition')} "
                f"of {mb(limit)} MB have room for {mb(room)} MB of it beside the other relations "
                f"and the features of its node types: {mb(whole - room)} MB too little; use "
                "more partitions or a higher limit")
        for part, low, high in pieces:
            used[part] = with_types(part, relation) + relation_bytes(schema, relation, low, high)
            types[part] |= {relation.src, relation.dst}
            dealt[part].append((relation, low, high))
    filled = sum(map(bool, dealt))
    if filled < parts:  # an empty partition always has most room, so there was no piece for it
        raise InputError(
            f"{parts} partitions are too many for replication = none and a limit of {mb(limit)} "
            f"MB, by which {several(len(relations), 'relation')} that the model needs are cut in "
            f"{several(filled, 'piece')}; use at most {several(filled, 'partition')}, or a lower "
            "limit")
    return dealt


def _cut(schema: Schema, relation: Relation, room: Sequence[int]) -> list[tuple[int, int, int]]:
    """Ranges of destinations by partition, in proportion to `room`; empty if too little.

    On the fewest partitions that it fits on. What room is left is left on all of them, as pieces by
    edges are not quite as large as planned.
    """
    count = schema.node_counts[relation.dst]
    row = max((relation_bytes(schema, relation) - 8) / count, 1e-9)
    fits = [max(int((free - 8) / row), 0) for free in room]
    if sum(fits) < count:
        return []
    order = sorted(range(len(room)), key=lambda p: (-fits[p], p))
    ends = list(accumulate(fits[part] for part in order))
    used = next(i for i, end in enumerate(ends) if end >= count) + 1
    bounds = [0, *(count * end // ends[used - 1] for end in ends[:used])]
    return [(part, low, high) for part, (low, high) in zip(order, pairwise(bounds)) if low < high]


def _by_memory(plan: Plan, parts: int, work: Workload) -> Plan:
    """Sub-metatrees, largest first, to the partition that is then the smallest."""
    schema, trees = plan.schema, plan.sub_metatrees

    def size(indices: Sequence[int]) -> int:
        relations = {r for i in indices for r in trees[i].relations}
        types = {t for i in indices for t in trees[i].node_types}
        return (sum(relation_bytes(schema, r) for r in relations)
                + sum(type_bytes(schema, types, work)))

    def assign(weights: Sequence[int], parts: int) -> list[list[int]]:
        assigned: list[list[int]] = [[] for _ in range(parts)]
        for index in sorted(range(len(trees)), key=lambda i: -size([i])):
            best = min(range(parts), key=lambda p: (size([*assigned[p], index]), p))
            assigned[best].append(index)
        return assigned

    return make_plan(schema, plan.targets, plan.hops, parts, plan.metapaths or None, assign,
                     plan.method)


def _remedies(plan: Plan, limit: int, work: Workload, worst: int) -> str:
    remedies = []
    if plan.replication == "full":
        for parts in range(plan.num_parts + 1, len(plan.sub_metatrees) + 1):
            if largest(_by_memory(plan, parts, work), work) <= limit:
                remedies.append(f"{parts} partitions")
                break
        if not plan.metapaths and (best := _without_replication(plan, limit, work)) is not None:
            remedies.append(f"replication = none ({mb(best)} MB)")
    remedies.append(f"a limit of {mb(worst)} MB")
    return " or ".join(remedies) + " would do"


def _without_replication(plan: Plan, limit: int, work: Workload) -> int | None:
    """Bytes of the largest partition without replication, if that fits the limit."""
    def dealt(schema: Schema, relations: Sequence[Relation], parts: int) -> list[list[Piece]]:
        return deal_within(schema, relations, plan.targets, parts, limit, work)

    try:
        other = plan_without_replication(plan.schema, plan.targets, plan.hops, plan.num_parts,
                                         dealt, plan.method)
    except HetaError:
        return None
    size = largest(other, work)
    return size if size <= limit else None


def mb(size: int) -> str:
    """So many bytes in MB, to a tenth where they are few."""
    return f"{size / 1e6:,.1f}" if abs(size) < 1e9 else f"{size / 1e6:,.0f}"
