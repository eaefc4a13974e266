"""The plan: which partition runs which (layer, relation) (Heta §5, steps 3 and 4).

A plan is made from a schema alone and only refers to data, so another number of partitions
is another plan. It is about (layer, relation) and not about relations: in ogbn-mag a
partition that owns `cites` runs `writes` at layer 1, because papers are the children of
`cites`, while at layer 2 `writes` belongs to another partition.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.metatree import (
    Metapath,
    SubMetatree,
    check_hops,
    inner_relations,
    parse_metapaths,
    sub_metatrees,
)
from dgl_heta.schema import Relation, Schema

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
        """Nodes with neighbours in more than one partition: the target nodes, if P > 1."""
        if self.num_parts == 1:
            return 0
        return sum(self.schema.node_counts[t] for t in self.targets)

    def replication_factor(self) -> float:
        """Nodes stored over all partitions, per node of the graph that any of them stores."""
        stored = sum(p.num_nodes for p in self.partitions)
        types = {t for p in self.partitions for t in p.node_types}
        return stored / sum(self.schema.node_counts[t] for t in types)

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the fields are listed in docs/format.md."""
        return {
            "target": self.targets[0] if len(self.targets) == 1 else list(self.targets),
            "hops": self.hops,
            "parts": self.num_parts,
            "method": self.method,
            "metapaths": [[list(r) for r in path] for path in self.metapaths] or None,
            "sub_metatrees": [
                {"root_relation": list(tree.root), "weight": tree.weight,
                 "relations": [list(r) for r in tree.relations],
                 "node_types": list(tree.node_types)}
                for tree in self.sub_metatrees
            ],
            "partitions": [
                {"sub_metatrees": list(p.sub_metatrees),
                 "shares": [[s.index, s.count] for s in p.sub_metatrees.values()],
                 "group": p.group,
                 "relations": [list(r) for r in p.relations],
                 "node_types": list(p.node_types),
                 "num_nodes": p.num_nodes, "num_edges": p.num_edges, "weight": p.weight,
                 "layers": {str(layer): [list(r) for r in relations]
                            for layer, relations in p.layers.items()}}
                for p in self.partitions
            ],
            "boundary_nodes": self.boundary_nodes,
        }

    def save(self, path: str | Path) -> None:
        """Write the plan and its schema as JSON."""
        data = {"format": "dgl-heta-plan", "version": 1, "schema": self.schema.to_json(),
                "plan": self.to_json()}
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan written by :meth:`save`."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read plan {path}: {error.strerror or error}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"plan {path} is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != "dgl-heta-plan":
            raise InputError(f"{path} is not a dgl-heta plan (no field format: dgl-heta-plan)")
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
            trees = sub_metatrees(schema, targets, data["hops"], paths)
            plan = _derive(schema, tuple(targets), data["hops"], data["method"], tuple(paths),
                           tuple(trees), assignment)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"plan {origin} is damaged: {error!r}") from None
        if plan.to_json() != data:
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
        assigned = assign(weights, parts)
        _check_assignment(assigned, len(trees), parts, method)
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


def _check_assignment(assigned: Sequence[Sequence[int]], trees: int, parts: int,
                      method: str) -> None:
    dealt = sorted(i for part in assigned for i in part)
    if len(assigned) != parts or dealt != list(range(trees)):
        raise InputError(
            f"partition method '{method}' dealt sub-metatrees {dealt} to {len(assigned)} "
            f"partitions; each of 0 … {trees - 1} must go to exactly one of {parts}"
        )


def _derive(
    schema: Schema, targets: tuple[str, ...], hops: int, method: str,
    metapaths: tuple[Metapath, ...], trees: tuple[SubMetatree, ...],
    assignment: Sequence[tuple[int, dict[int, Share]]],
) -> Plan:
    order = {relation: i for i, relation in enumerate(schema.relations)}
    inner_of_layer = {}
    for layer in range(1, hops + 1):
        by_dst: dict[str, list[Relation]] = {}
        for relation in inner_relations(trees, hops, layer):
            by_dst.setdefault(relation.dst, []).append(relation)
        inner_of_layer[layer] = by_dst

    def canonical(relations: set[Relation]) -> tuple[Relation, ...]:
        return tuple(sorted(relations, key=order.__getitem__))

    partitions = []
    for index, (group, shares) in enumerate(assignment):
        roots = {trees[i].root for i in shares}
        inner: dict[int, set[Relation]] = {}
        # Node types whose rows have a state below a layer. A type that two sub-metatrees
        # reach (metapaths alone can continue differently from it) is one set of rows, so
        # it gets the relations of both: every partition then computes the same state.
        reached: set[str] = set()
        for layer in range(hops, 0, -1):
            by_dst = inner_of_layer[layer]
            inner[layer] = {r for t in reached for r in by_dst.get(t, ())}
            reached |= {r.src for r in roots | inner[layer]}
        used = roots.union(*inner.values())
        types = {t for r in used for t in (r.src, r.dst)} | set(targets)
        layers = range(1, hops + 1)
        partitions.append(Partition(
            index=index, group=group, sub_metatrees=shares,
            relations=canonical(used),
            node_types=tuple(t for t in schema.node_counts if t in types),
            inner={layer: canonical(inner[layer]) for layer in layers},
            layers={layer: canonical(inner[layer] | roots) for layer in layers},
            num_nodes=sum(schema.node_counts[t] for t in types),
            num_edges=sum(schema.edge_counts[r] for r in used),
            weight=sum(trees[i].weight for i in shares),
        ))
    return Plan(schema, targets, hops, method, metapaths, trees, tuple(partitions))
