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
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dgl_heta.errors import InputError
from dgl_heta.metatree import (
    Metapath,
    SubMetatree,
    check_hops,
    inner_relations,
    parse_metapaths,
    sub_metatrees,
    with_relations,
)
from dgl_heta.schema import Relation, Schema, read_json

Assign = Callable[[Sequence[int], int], Sequence[Sequence[int]]]
"""`assign(weights, parts)` returns for each partition the indices of its sub-metatrees."""


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` equal parts of the group's target nodes, in seed order."""

    index: int = 0
    count: int = 1

    def rows(self, total: int) -> tuple[int, int]:
        """The half-open range of this share in `total` rows."""
        return total * self.index // self.count, total * (self.index + 1) // self.count


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
    weight : sum of the weights of its sub-metatrees, before de-duplication.
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


@dataclass(frozen=True)
class Plan:
    """An assignment of sub-metatrees to partitions, with all that follows from it."""

    schema: Schema
    targets: tuple[str, ...]
    hops: int
    method: str
    metapaths: tuple[Metapath, ...]
    sub_metatrees: tuple[SubMetatree, ...]
    partitions: tuple[Partition, ...]

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

    def users(self, ntype: str) -> tuple[int, ...]:
        """Partitions that need the features of a node type."""
        return tuple(p.index for p in self.partitions if ntype in p.node_types)

    @property
    def boundary_nodes(self) -> int:
        """Nodes with neighbours in more than one partition of a group: the target nodes.

        None where every group is a single partition, which has all sub-metatrees.
        """
        if all(len(group) == 1 for group in self.groups):
            return 0
        return sum(self.schema.node_counts[t] for t in self.targets)

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
            "metapaths": [[listed[r] for r in path] for path in self.metapaths] or None,
            "sub_metatrees": [
                {"root_relation": list(tree.root), "weight": tree.weight,
                 "relations": [listed[r] for r in tree.relations],
                 "node_types": list(tree.node_types)}
                for tree in self.sub_metatrees
            ],
            "partitions": [
                {"sub_metatrees": list(p.sub_metatrees),
                 "shares": [[s.index, s.count] for s in p.sub_metatrees.values()],
                 "group": p.group,
                 "relations": [listed[r] for r in p.relations],
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
            assignment = [
                (int(p["group"]), {int(i): Share(int(s[0]), int(s[1]))
                                   for i, s in zip(p["sub_metatrees"], p["shares"])})
                for p in data["partitions"]
            ]
            hops, method = data["hops"], data["method"]
            # First of all, because what follows takes time in proportion to the number of hops.
            same = bool(assignment) and all(len(p["layers"]) == hops for p in data["partitions"])
            if same:
                trees = sub_metatrees(schema, targets, hops, paths)
                same = _covered(assignment, len(trees))
            if same:
                plan = _derive(schema, tuple(targets), hops, method, tuple(paths), tuple(trees),
                               assignment)
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
        See :func:`dgl_heta.metatree.sub_metatrees`; `parts` < 1.
    """
    if parts < 1:
        raise InputError(f"the number of partitions is {parts}; it must be 1 or more")
    targets = (target,) if isinstance(target, str) else tuple(target)
    hops = check_hops(hops, metapaths)
    trees = tuple(sub_metatrees(schema, targets, hops, metapaths))
    weights = [tree.weight for tree in trees]
    assignment: list[tuple[int, dict[int, Share]]] = []
    if parts <= len(trees):
        assigned = _checked(assign(weights, parts), len(trees), parts, method)
        assignment = [(0, {i: Share() for i in sorted(part)}) for part in assigned]
    else:
        num_groups = parts // len(trees)
        for group in range(num_groups):
            size = parts // num_groups + (group < parts % num_groups)
            assignment += [(group, {i: share}) for i, share in _spread(weights, size)]
    return _derive(schema, targets, hops, method, tuple(metapaths or ()), trees, assignment)


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
        sorted(s.index for s in shares) == list(range(len(shares)))
        and all(s.count == len(shares) for s in shares) and shares != []
        for by_tree in held.values() for shares in by_tree)


def _derive(
    schema: Schema, targets: tuple[str, ...], hops: int, method: str,
    metapaths: tuple[Metapath, ...], trees: tuple[SubMetatree, ...],
    assignment: Sequence[tuple[int, dict[int, Share]]],
) -> Plan:
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
