"""The plan: which partition runs which (layer, relation) (Heta §5, steps 3 and 4).

A plan is made from a schema alone and only refers to data, so another number of partitions
is another plan. It is about (layer, relation) and not about relations: in ogbn-mag a
partition that owns `cites` runs `writes` at layer 1, because papers are the children of
`cites`, while at layer 2 `writes` belongs to another partition.
"""

from __future__ import annotations

import heapq
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema, read_json
from dgl_heta.planning.metatree import (
    Metapath,
    SubMetatree,
    check_hops,
    inner_relations,
    parse_metapaths,
    sub_metatrees,
    with_relations,
)

Assign = Callable[[Sequence[int], int], Sequence[Sequence[int]]]
"""`assign(weights, parts)` returns for each partition the indices of its sub-metatrees."""

Piece = tuple[Relation, int, int]
"""The in-edges by a relation of destination nodes `low … high - 1`."""

Deal = Callable[[Schema, Sequence[Relation], int], Sequence[Sequence[Piece]]]
"""`deal(schema, relations, parts)` returns for each partition its pieces of the relations."""


@dataclass(frozen=True)
class Share:
    """The `width` parts from `index` on of `count` equal parts of the group's target nodes, in
    seed order."""

    index: int = 0
    count: int = 1
    width: int = 1

    def rows(self, total: int) -> tuple[int, int]:
        """The half-open range of this share in `total` rows."""
        return total * self.index // self.count, total * (self.index + self.width) // self.count

    def __str__(self) -> str:
        """Such as 2/3, or 2–5/16 for several parts."""
        last = self.index + self.width
        return f"{self.index + 1}{f'–{last}' if self.width > 1 else ''}/{self.count}"

    def to_json(self) -> list[int]:
        return [self.index, self.count, *([self.width] if self.width != 1 else [])]


@dataclass(frozen=True)
class Partition:
    """What one worker runs.

    Attributes
    ----------
    sub_metatrees : index into the plan's sub-metatrees → share of the group's target nodes
        that this partition aggregates for it (the whole unless there are more partitions
        than sub-metatrees).
    group : index of the model-parallel group that exchanges partial aggregations.
    relations, node_types : de-duplicated, in canonical order. Features of all these types
        are needed locally, also of those that are destinations only.
    inner : layer → relations run on rows that are not seeds.
    layers : layer → all relations run at that layer, the root relations (for the seeds)
        included: below the last layer their result is the seeds' own state.
    weight : sum of the weights of its sub-metatrees, before de-duplication; without
        replication, its edges plus its nodes.
    ranges : without replication, the relations that are cut by destination: this partition
        has the in-edges of nodes `low … high - 1` alone. `num_edges` is in proportion.
    """

    index: int
    group: int
    sub_metatrees: dict[int, Share]
    relations: tuple[Relation, ...]
    node_types: tuple[str, ...]
    inner: dict[int, tuple[Relation, ...]]
    layers: dict[int, tuple[Relation, ...]]
    num_nodes: int
    num_edges: int
    weight: int
    ranges: dict[Relation, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """An assignment of sub-metatrees to partitions, with all that follows from it.

    With `replication` "full" every partition has all relations that its sub-metatrees need, so
    that only seeds have partial aggregations. With "none" every relation, or every piece of a
    relation that is cut, is on one partition, and rows of any type are exchanged at every layer
    (Heta Algorithm 1 in general); partitions have no sub-metatrees then.
    """

    schema: Schema
    targets: tuple[str, ...]
    hops: int
    method: str
    metapaths: tuple[Metapath, ...]
    sub_metatrees: tuple[SubMetatree, ...]
    partitions: tuple[Partition, ...]
    replication: str = "full"

    @property
    def num_parts(self) -> int:
        return len(self.partitions)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Model-parallel groups, each a tuple of partition indices."""
        members: dict[int, list[int]] = {}
        for partition in self.partitions:
            members.setdefault(partition.group, []).append(partition.index)
        return tuple(tuple(members[g]) for g in sorted(members))

    def roots(self, part: int) -> dict[Relation, Share]:
        """Root relations of a partition with its share of the group's seeds."""
        return {self.sub_metatrees[i].root: share
                for i, share in self.partitions[part].sub_metatrees.items()}

    def owners(self, layer: int, relation: Relation) -> tuple[int, ...]:
        """Partitions that run `relation` at `layer` (1 … hops)."""
        return tuple(p.index for p in self.partitions if relation in p.layers[layer])

    def users(self, ntype: str, group: int | None = None) -> tuple[int, ...]:
        """Partitions, of a group or of all, that need the features of a node type."""
        return tuple(p.index for p in self.partitions
                     if ntype in p.node_types and group in (None, p.group))

    @property
    def boundary_nodes(self) -> int:
        """Nodes with neighbours in more than one partition of a group.

        The target nodes; without replication, all nodes of a type that several partitions have.
        """
        if all(len(group) == 1 for group in self.groups):
            return 0
        types = self.targets if self.replication == "full" else [
            t for t in self.schema.node_types if len(self.users(t)) > 1]
        return sum(self.schema.node_counts[t] for t in types)

    def replication_factor(self) -> float:
        """Nodes stored over all partitions, per node of the graph that any of them stores."""
        stored = sum(p.num_nodes for p in self.partitions)
        types = {t for p in self.partitions for t in p.node_types}
        return stored / sum(self.schema.node_counts[t] for t in types)

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the fields are listed in docs/format.md."""
        # One list per relation: a dense schema names each of them millions of times.
        listed = {r: list(r) for r in self.schema.relations}
        return {
            "target": self.targets[0] if len(self.targets) == 1 else list(self.targets),
            "hops": self.hops,
            "parts": self.num_parts,
            "method": self.method,
            "replication": self.replication,
            "metapaths": [[listed[r] for r in path] for path in self.metapaths] or None,
            "sub_metatrees": [
                {"root_relation": list(tree.root), "weight": tree.weight,
                 "relations": [listed[r] for r in tree.relations],
                 "node_types": list(tree.node_types)}
                for tree in self.sub_metatrees
            ],
            "partitions": [
                {"sub_metatrees": list(p.sub_metatrees),
                 "shares": [s.to_json() for s in p.sub_metatrees.values()],
                 "group": p.group,
                 "relations": [listed[r] for r in p.relations],
                 "ranges": [[listed[r], low, high] for r, (low, high) in p.ranges.items()],
                 "node_types": list(p.node_types),
                 "num_nodes": p.num_nodes, "num_edges": p.num_edges, "weight": p.weight,
                 "layers": {str(layer): [listed[r] for r in relations]
                            for layer, relations in p.layers.items()}}
                for p in self.partitions
            ],
            "boundary_nodes": self.boundary_nodes,
        }

    def save(self, path: str | Path) -> None:
        """Write the plan and its schema as JSON."""
        data = {"format": "dgl-heta-plan", "version": 1, "schema": self.schema.to_json(),
                "plan": self.to_json()}
        Path(path).write_text(json.dumps(data) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan written by :meth:`save`."""
        data = read_json(path, "plan")
        if not isinstance(data, dict) or data.get("format") != "dgl-heta-plan":
            raise InputError(f"{path} is not a dgl-heta plan (no field format: dgl-heta-plan)")
        if data.get("version") != 1:
            raise InputError(f"plan {path} has format version {data.get('version')!r}; "
                             "this dgl-heta reads version 1")
        for name in ("schema", "plan"):
            if name not in data:
                raise InputError(f"plan {path} is damaged: it lacks the field '{name}'")
        return cls.from_json(data["plan"], Schema.from_json(data["schema"], str(path)), str(path))

    @classmethod
    def from_json(cls, data: dict[str, Any], schema: Schema, origin: str) -> Plan:
        """Rebuild a plan from its assignment and check that the rest of the file agrees."""
        try:
            targets = data["target"] if isinstance(data["target"], list) else [data["target"]]
            paths = parse_metapaths(data["metapaths"], schema, origin) if data["metapaths"] else []
            hops, method = data["hops"], data["method"]
            # First of all, because what follows takes time in proportion to the number of hops.
            same = bool(data["partitions"]) and all(len(p["layers"]) == hops
                                                    for p in data["partitions"])
            if same and data["replication"] == "none":
                plan = plan_without_replication(
                    schema, targets, hops, len(data["partitions"]),
                    lambda *_: [_pieces(p, schema) for p in data["partitions"]], method)
                same = plan.to_json() == data
            elif same:
                assignment = [
                    (int(p["group"]), {int(i): Share(*map(int, s))
                                       for i, s in zip(p["sub_metatrees"], p["shares"])})
                    for p in data["partitions"]
                ]
                trees = sub_metatrees(schema, targets, hops, paths)
                same = _covered(assignment, len(trees))
                if same:
                    plan = derive_plan(schema, tuple(targets), hops, method, tuple(paths),
                                   tuple(trees), assignment)
                    same = plan.to_json() == data
        except KeyError as error:
            raise InputError(f"plan {origin} is damaged: it lacks the field {error}") from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError):
            raise InputError(f"plan {origin} is damaged: a field has the wrong type") from None
        if not same:
            raise InputError(
                f"plan {origin} was edited: its fields do not follow from its assignment; "
                "make it again with `dgl-heta partition`"
            )
        return plan


def longest_processing_time(weights: Sequence[int], parts: int) -> list[list[int]]:
    """LPT: heaviest first to the lightest partition; ties to the lower index (Algorithm 2).

    Never worse than 4/3 of the best possible heaviest partition (Graham 1969).
    """
    heap = [(0, part) for part in range(parts)]
    assigned: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(weights)), key=lambda i: -weights[i]):
        load, part = heapq.heappop(heap)
        assigned[part].append(index)
        heapq.heappush(heap, (load + weights[index], part))
    return assigned


MOST_PARTS = 65536


def check_parts(parts: int) -> None:
    """Refuse a number of partitions that no cluster has.

    Raises
    ------
    InputError
        It is less than 1 or more than :data:`MOST_PARTS`.
    """
    if not 1 <= parts <= MOST_PARTS:
        raise InputError(f"the number of partitions is {parts}; it must be 1 to {MOST_PARTS}")


def group_sizes(parts: int, trees: int) -> list[int]:
    """Partitions of every model-parallel group, for so many sub-metatrees (Heta §5, Fig. 7)."""
    groups = max(1, parts // trees)
    return [parts // groups + (group < parts % groups) for group in range(groups)]


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
        See :func:`dgl_heta.planning.metatree.sub_metatrees`; `parts` < 1.
    """
    check_parts(parts)
    targets = (target,) if isinstance(target, str) else tuple(target)
    hops = check_hops(hops, metapaths)
    trees = tuple(sub_metatrees(schema, targets, hops, metapaths))
    weights = [tree.weight for tree in trees]
    assignment: list[tuple[int, dict[int, Share]]] = []
    if parts <= len(trees):
        assigned = _checked(assign(weights, parts), len(trees), parts, method)
        assignment = [(0, {i: Share() for i in sorted(part)}) for part in assigned]
    else:
        for group, size in enumerate(group_sizes(parts, len(trees))):
            assignment += [(group, {i: share}) for i, share in _spread(weights, size)]
    return derive_plan(schema, targets, hops, method, tuple(metapaths or ()), trees, assignment)


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
    check_parts(parts)
    targets = (target,) if isinstance(target, str) else tuple(target)
    trees = tuple(sub_metatrees(schema, targets, hops))
    order = {relation: i for i, relation in enumerate(schema.relations)}
    used = sorted({r for tree in trees for r in tree.relations}, key=order.__getitem__)
    dealt = [list(pieces) for pieces in deal(schema, used, parts)]
    _check_pieces(dealt, used, schema, parts, method)
    roots = {tree.root for tree in trees}
    inner = {layer: inner_relations(trees, hops, layer) for layer in range(1, hops + 1)}
    partitions = []
    for index, pieces in enumerate(dealt):
        own = sorted((r for r, _, _ in pieces), key=order.__getitem__)
        types = {t for r in own for t in (r.src, r.dst)} | set(targets)
        ranges = {r: (low, high) for r, low, high in sorted(pieces, key=lambda p: order[p[0]])
                  if (low, high) != (0, schema.node_counts[r.dst])}
        edges = sum(schema.edge_counts[r] * (high - low) // max(schema.node_counts[r.dst], 1)
                    for r, low, high in pieces)
        nodes = sum(schema.node_counts[t] for t in types)
        partitions.append(Partition(
            index=index, group=0, sub_metatrees={}, relations=tuple(own),
            node_types=tuple(t for t in schema.node_counts if t in types),
            inner={layer: tuple(r for r in own if r in found) for layer, found in inner.items()},
            layers={layer: tuple(r for r in own if r in found or r in roots)
                    for layer, found in inner.items()},
            num_nodes=nodes, num_edges=edges, weight=nodes + edges, ranges=ranges))
    return Plan(schema, targets, hops, method, (), trees, tuple(partitions), "none")


def _pieces(partition: dict[str, Any], schema: Schema) -> list[Piece]:
    """The pieces of a partition from its JSON."""
    ranges = {Relation(*r): (int(low), int(high)) for r, low, high in partition["ranges"]}
    found = []
    for names in partition["relations"]:
        relation = schema.find_relation(names)
        low, high = ranges.get(relation, (0, schema.node_counts[relation.dst]))
        found.append((relation, low, high))
    return found


def _check_pieces(dealt: Sequence[Sequence[Piece]], used: Sequence[Relation], schema: Schema,
                  parts: int, method: str) -> None:
    """Raise an :class:`InputError` unless every destination of every relation was dealt once."""
    if len(dealt) != parts:
        raise InputError(f"partition method '{method}' dealt relations to {len(dealt)} partitions "
                         f"instead of {parts}")
    held: dict[Relation, list[tuple[int, int]]] = {r: [] for r in used}
    for index, pieces in enumerate(dealt):
        if len({r for r, _, _ in pieces}) != len(pieces):
            raise InputError(f"partition method '{method}' gave partition {index} two pieces of "
                             "one relation; join them, or give them to different partitions")
        for relation, low, high in pieces:
            if relation not in held:
                raise InputError(f"partition method '{method}' dealt relation '{relation}', which "
                                 "no layer needs")
            held[relation].append((low, high))
    for relation, pieces_of in held.items():
        count, reached = schema.node_counts[relation.dst], 0
        for low, high in sorted(pieces_of):
            if low != reached or high < low:
                break
            reached = high
        if reached != count or not pieces_of:
            raise InputError(
                f"partition method '{method}' dealt relation '{relation}' as destinations "
                f"{sorted(pieces_of)}; they must be all of 0 … {count - 1}, each once")


def deal_whole(weights: Callable[[Relation], int]) -> Deal:
    """Deal whole relations, heaviest first to the lightest partition."""

    def deal(schema: Schema, relations: Sequence[Relation], parts: int) -> list[list[Piece]]:
        if parts > len(relations):
            raise InputError(
                f"{parts} partitions are too many for replication = none: the model needs "
                f"{len(relations)} relations, and each is on one partition; use at most "
                f"{len(relations)}, or a memory limit, by which relations are cut")
        dealt = longest_processing_time([weights(r) for r in relations], parts)
        return [[(relations[i], 0, schema.node_counts[relations[i].dst]) for i in sorted(part)]
                for part in dealt]

    return deal


def balanced(weights: Sequence[int], parts: int) -> list[list[int]]:
    """LPT, made better where it can be: never heavier than LPT's heaviest partition.

    Single sub-metatrees move and pairs change places while that relieves the heaviest
    partition; up to 12 sub-metatrees, the best assignment is searched for.
    """
    assigned = longest_processing_time(weights, parts)
    loads = [sum(weights[i] for i in part) for part in assigned]
    while (change := _relief(weights, assigned, loads)) is not None:
        source, target, out, back = change
        for origin, place, moved in ((source, target, out), (target, source, back)):
            if moved is not None:
                assigned[origin].remove(moved)
                assigned[place].append(moved)
                loads[origin] -= weights[moved]
                loads[place] += weights[moved]
    if len(weights) <= 12:
        best = _search(weights, parts, max(loads))
        assigned = best or assigned
    return assigned


def _relief(weights: Sequence[int], assigned: Sequence[Sequence[int]], loads: Sequence[int]
            ) -> tuple[int, int, int, int | None] | None:
    """A move or exchange that lightens the heaviest partition most: from, to, what, for what."""
    source = max(range(len(loads)), key=lambda p: (loads[p], -p))
    best, found = loads[source], None
    for target in range(len(loads)):
        for out in assigned[source] if target != source else ():
            for back in (None, *assigned[target]):
                shift = weights[out] - (weights[back] if back is not None else 0)
                heavier = max(loads[source] - shift, loads[target] + shift)
                if shift > 0 and heavier < best:
                    best, found = heavier, (source, target, out, back)
    return found


def _search(weights: Sequence[int], parts: int, bound: int) -> list[list[int]] | None:
    """The assignment with the lightest heaviest partition, if one is below `bound`."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    loads, chosen = [0] * parts, [0] * len(order)
    best: list[int] | None = None
    least = max(-(-sum(weights) // parts), max(weights, default=0))

    def place(depth: int) -> None:
        nonlocal best, bound
        if bound <= least:
            return
        if depth == len(order):
            best, bound = chosen.copy(), max(loads)
            return
        tried = set()
        for part in range(parts):
            load = loads[part] + weights[order[depth]]
            if load >= bound or loads[part] in tried:
                continue
            tried.add(loads[part])
            loads[part], chosen[depth] = load, part
            place(depth + 1)
            loads[part] -= weights[order[depth]]

    place(0)
    if best is None:
        return None
    return [[i for i, part in zip(order, best) if part == p] for p in range(parts)]


def _spread(weights: Sequence[int], machines: int) -> list[tuple[int, Share]]:
    """Give each sub-metatree at least one machine and the rest where they relieve most."""
    counts = [1] * len(weights)
    for _ in range(machines - len(weights)):
        counts[max(range(len(weights)), key=lambda i: (weights[i] / counts[i], -i))] += 1
    return [(i, Share(k, count)) for i, count in enumerate(counts) for k in range(count)]


def _checked(assigned: Sequence[Sequence[int]], trees: int, parts: int,
             method: str) -> list[list[int]]:
    """What a backend dealt, or an :class:`InputError` unless it dealt everything once."""
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


def _covered(assignment: Sequence[tuple[int, dict[int, Share]]], trees: int) -> bool:
    """Whether the shares of every sub-metatree make a whole in every group."""
    held: dict[int, list[list[Share]]] = {}
    for group, shares in assignment:
        by_tree = held.setdefault(group, [[] for _ in range(trees)])
        for index, share in shares.items():
            if not 0 <= index < trees:
                return False
            by_tree[index].append(share)
    return set(held) == set(range(len(held))) and all(
        _whole(shares) for by_tree in held.values() for shares in by_tree)


def _whole(shares: Sequence[Share]) -> bool:
    """Whether shares follow each other from the first part to the last."""
    reached = 0
    for share in sorted(shares, key=lambda s: s.index):
        if share.count != shares[0].count or share.index != reached or share.width < 1:
            return False
        reached += share.width
    return shares != [] and reached == shares[0].count


def derive_plan(
    schema: Schema, targets: tuple[str, ...], hops: int, method: str,
    metapaths: tuple[Metapath, ...], trees: tuple[SubMetatree, ...],
    assignment: Sequence[tuple[int, dict[int, Share]]],
) -> Plan:
    """The plan that follows from an assignment: per partition its group and its shares."""
    order = {relation: i for i, relation in enumerate(schema.relations)}
    by_dst: dict[tuple[int, str], list[Relation]] = {}
    for layer in range(1, hops + 1):
        for relation in inner_relations(trees, hops, layer):
            by_dst.setdefault((layer, relation.dst), []).append(relation)

    # Partitions mostly reach the same node types, so this is worked out once per set of them.
    @cache
    def inner_at(layer: int, reached: frozenset[str]) -> _Inner:
        found = frozenset(r for t in reached for r in by_dst.get((layer, t), ()))
        return _Inner(tuple(sorted(found, key=order.__getitem__)), found,
                      reached | {r.src for r in found},
                      sum(schema.edge_counts[r] for r in found))

    partitions = []
    for index, (group, shares) in enumerate(assignment):
        roots = {trees[i].root for i in shares}
        sources = {r.src for r in roots}
        # Node types whose rows have a state below a layer. A type that two sub-metatrees
        # reach (metapaths alone can continue differently from it) is one set of rows, so
        # it gets the relations of both: every partition then computes the same state.
        reached: frozenset[str] = frozenset()
        inner: dict[int, tuple[Relation, ...]] = {}
        layers: dict[int, tuple[Relation, ...]] = {}
        for layer in range(hops, 0, -1):
            below = inner_at(layer, reached)
            on_seeds = roots - below.unique
            inner[layer] = below.relations
            layers[layer] = with_relations(below.relations, on_seeds, order)
            reached = below.reached | sources
        types = reached | set(targets)
        partitions.append(Partition(
            index=index, group=group, sub_metatrees=shares,
            relations=layers[1],  # a layer runs all that the layers above it run, and more
            node_types=tuple(t for t in schema.node_counts if t in types),
            inner=dict(sorted(inner.items())), layers=dict(sorted(layers.items())),
            num_nodes=sum(schema.node_counts[t] for t in types),
            num_edges=below.edges + sum(schema.edge_counts[r] for r in on_seeds),
            weight=sum(trees[i].weight for i in shares),
        ))
    return Plan(schema, targets, hops, method, metapaths, trees, tuple(partitions))


class _Inner(NamedTuple):
    """Relations that a layer runs on rows that are not seeds."""

    relations: tuple[Relation, ...]
    unique: frozenset[Relation]
    reached: frozenset[str]
    edges: int
