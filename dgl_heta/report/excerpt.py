"""The excerpt of a plan for all pictures: which part is drawn, who runs what, how even it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dgl_heta.graph.schema import Relation
from dgl_heta.planning.metatree import SubMetatree
from dgl_heta.planning.partition_shares import Share, holders
from dgl_heta.planning.plan import Plan


@dataclass
class Vertex:
    """A drawn vertex of the metatree: the relation that leads to it and what is below.

    `hidden` counts the children that are left out.
    """

    relation: Relation
    children: list[Vertex] = field(default_factory=list)
    hidden: int = 0


def outline(trees: Sequence[SubMetatree], room: int) -> list[Vertex]:
    """The sub-metatrees as nested vertices, cut to at most `room` lines below the roots.

    Level by level, and in a level the heaviest sub-metatree first. A vertex that has children
    reserves one line, for "… (N more)" or for the first of them.
    """
    below = []
    for tree in trees:
        by_level: list[dict[str, list[Relation]]] = [{} for _ in tree.levels]
        for by_type, level in zip(by_level, tree.levels):
            for relation in level:
                by_type.setdefault(relation.dst, []).append(relation)
        below.append(by_level)

    def under(tree: int, depth: int, relation: Relation) -> list[Relation]:
        levels = below[tree]
        return levels[depth].get(relation.src, []) if depth < len(levels) else []

    def lines(tree: int, depth: int, relation: Relation) -> int:
        return 1 + bool(under(tree, depth + 1, relation))

    roots = [Vertex(tree.root) for tree in trees]
    frontier = list(enumerate(roots))
    room -= sum(lines(i, 0, tree.root) - 1 for i, tree in enumerate(trees))
    depth = 1
    while frontier:
        needed = sum(sum(lines(i, depth, r) for r in below_it) - 1
                     for i, v in frontier if (below_it := under(i, depth, v.relation)))
        fits = needed <= room
        reached = []
        for done, (i, vertex) in enumerate(frontier):
            children = under(i, depth, vertex.relation)
            if not children:
                continue
            left = room if fits else min(room, max(8, room // (len(frontier) - done)))
            costs = [lines(i, depth, r) for r in children]
            shown, used = len(children), sum(costs) - 1
            if used > left:
                shown = used = 0
                while used + costs[shown] <= left:
                    used += costs[shown]
                    shown += 1
            room -= used
            vertex.children = [Vertex(r) for r in children[:shown]]
            vertex.hidden = len(children) - shown
            reached += [(i, child) for child in vertex.children]
        frontier = reached
        depth += 1
    return roots


def heaviest(plan: Plan, count: int) -> list[int]:
    """Indices of `count` sub-metatrees: the heaviest of every target in turn."""
    rank: dict[str, int] = {}
    keys = []
    for index, tree in enumerate(plan.sub_metatrees):
        rank[tree.target] = rank.get(tree.target, 0) + 1
        keys.append((rank[tree.target], index))
    return sorted(index for _, index in sorted(keys)[:max(count, len(plan.targets))])


def left_out(plan: Plan, shown: Sequence[int], target: str) -> int:
    """Number of the target's sub-metatrees that are not drawn."""
    drawn = sum(plan.sub_metatrees[i].target == target for i in shown)
    return sum(tree.target == target for tree in plan.sub_metatrees) - drawn


def holders_of(plan: Plan) -> list[list[tuple[int, Share]]]:
    """For each sub-metatree the partitions that run it, with their shares."""
    running: list[list[tuple[int, Share]]] = [[] for _ in plan.sub_metatrees]
    for partition in plan.partitions:
        for index, share in partition.sub_metatrees.items():
            running[index].append((partition.index, share))
    if plan.replication == "none":
        having = holders(p.relations for p in plan.partitions)
        return [[(part, Share()) for part in having.get(tree.root, ())]
                for tree in plan.sub_metatrees]
    return running


def balance(plan: Plan) -> str:
    """The heaviest weight of a partition over the lightest."""
    weights = [partition.weight for partition in plan.partitions]
    return f"{max(weights) / min(weights):.2f}" if min(weights) else "∞ (an empty partition)"
