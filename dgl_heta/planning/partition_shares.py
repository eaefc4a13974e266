"""Who is given what, and what each partition runs because of it (Heta §5, steps 3 and 4).

With full replication a partition is given sub-metatrees, each whole or for a :class:`Share` of the
target nodes, and has every relation that these need (:func:`partitions_of_shares`). Without
replication it is given relations, in whole, for a range of destinations (:data:`Piece`) or for
those of an array (:class:`~dgl_heta.planning.ownership.Ownership`), and has nothing else
(:func:`partitions_of_pieces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.metatree import MOST_HOPS, SubMetatree, inner_relations, with_relations
from dgl_heta.planning.ownership import Ownership

Name = TypeVar("Name", str, Relation)
Piece = tuple[Relation, int, int]
"""The in-edges by a relation of destination nodes `low … high - 1`."""


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


Assignment = Sequence[tuple[int, dict[int, Share]]]
"""Per partition its model-parallel group, and its share of each of its sub-metatrees by index."""


@dataclass(frozen=True)
class Partition:
    """The relations and rows that one worker runs.

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
    owned : the relations that are cut by an array: how many destination nodes and edges of them
        this partition has, pieces of other partitions' hubs included.
    served : where relations are offloaded (:mod:`dgl_heta.planning.offloading`), those that it
        runs at layer 1 on rows of other partitions, too.
    asks : those that another partition runs at layer 1 on this one's rows that are no seeds; they
        are not in `inner`.
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
    owned: dict[Relation, tuple[int, int]] = field(default_factory=dict)
    served: tuple[Relation, ...] = ()
    asks: tuple[Relation, ...] = ()


def partitions_of_shares(schema: Schema, targets: Sequence[str], hops: int,
                         trees: Sequence[SubMetatree], assignment: Assignment
                         ) -> tuple[Partition, ...]:
    """The relations of every partition at every layer, with full replication.

    From the last layer down: a partition runs its root relations on the seeds, and on every other
    row whose state something above reads all relations that one process runs there.
    """
    order, edges = schema.order, [*schema.edge_counts.values()]
    every_inner = {layer: inner_relations(trees, hops, layer) for layer in range(1, hops + 1)}
    by_dst: dict[tuple[int, str], list[int]] = {}
    for layer, relations in every_inner.items():
        for relation in relations:
            by_dst.setdefault((layer, relation.dst), []).append(order[relation])

    # Partitions mostly reach the same node types, so this is worked out once per set of them.
    @cache
    def inner_at(layer: int, reached: frozenset[str]) -> _Inner:
        places = sorted(i for t in reached for i in by_dst.get((layer, t), ()))
        relations = tuple(schema.relations[i] for i in places)
        return _Inner(relations, reached | {r.src for r in relations},
                      sum(edges[i] for i in places))

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
            on_seeds = {r for r in roots
                        if r.dst not in reached or r not in every_inner[layer]}
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
    return tuple(partitions)


class _Inner(NamedTuple):
    """Relations that a layer runs on rows that are not seeds."""

    relations: tuple[Relation, ...]
    reached: frozenset[str]
    edges: int


def holders(names: Iterable[Iterable[Name]]) -> dict[Name, list[int]]:
    """Node type or relation → the partitions that have it, from the names that each has."""
    having: dict[Name, list[int]] = {}
    for index, own in enumerate(names):
        for name in own:
            having.setdefault(name, []).append(index)
    return having


def is_whole(assignment: Assignment, trees: int) -> bool:
    """Return whether the shares of each of so many sub-metatrees make a whole in every group."""
    by_group: dict[int, list[list[Share]]] = {}
    for group, shares in assignment:
        by_tree = by_group.setdefault(group, [[] for _ in range(trees)])
        for index, share in shares.items():
            if not 0 <= index < trees:
                return False
            by_tree[index].append(share)
    return set(by_group) == set(range(len(by_group))) and all(
        _follow(shares) for by_tree in by_group.values() for shares in by_tree)


def _follow(shares: Sequence[Share]) -> bool:
    """Return whether shares follow each other from the first part to the last."""
    reached = 0
    for share in sorted(shares, key=lambda s: s.index):
        if share.count != shares[0].count or share.index != reached or share.width < 1:
            return False
        reached += share.width
    return shares != [] and reached == shares[0].count


def partitions_of_pieces(schema: Schema, targets: Sequence[str], hops: int,
                         trees: Sequence[SubMetatree], pieces: Sequence[Sequence[Piece]],
                         ownership: Mapping[Relation, Ownership] | None = None
                         ) -> tuple[Partition, ...]:
    """The relations of every partition at every layer, where each has its pieces alone.

    Relations in `ownership` are cut by an array and not among the pieces.
    """
    order = schema.order
    roots = {tree.root for tree in trees}
    inner = {layer: inner_relations(trees, hops, layer) for layer in range(1, hops + 1)}
    partitions = []
    for index, own in enumerate(pieces):
        owned = {r: (o.rows[index], o.edges[index])
                 for r, o in (ownership or {}).items() if o.rows[index] or o.edges[index]}
        relations = tuple(sorted([*(r for r, _, _ in own), *owned], key=order.__getitem__))
        types = {t for r in relations for t in (r.src, r.dst)} | set(targets)
        # A range that is the whole type is none: such a relation is not cut, and nothing has to be
        # looked up.
        ranges = {r: (low, high) for r, low, high in sorted(own, key=lambda p: order[p[0]])
                  if (low, high) != (0, schema.node_counts[r.dst])}
        # In proportion, as a plan from counts alone does not know where the edges are.
        edges = sum(schema.edge_counts[r] * (high - low) // max(schema.node_counts[r.dst], 1)
                    for r, low, high in own) + sum(count for _, count in owned.values())
        nodes = sum(schema.node_counts[t] for t in types)
        partitions.append(Partition(
            index=index, group=0, sub_metatrees={}, relations=relations,
            node_types=tuple(t for t in schema.node_counts if t in types),
            inner={layer: tuple(r for r in relations if r in needed)
                   for layer, needed in inner.items()},
            layers={layer: tuple(r for r in relations if r in needed or r in roots)
                    for layer, needed in inner.items()},
            num_nodes=nodes, num_edges=edges, weight=nodes + edges, ranges=ranges, owned=owned))
    return tuple(partitions)


def used_relations(schema: Schema, trees: Sequence[SubMetatree]) -> list[Relation]:
    """All relations of the sub-metatrees, in canonical order."""
    used = {tree.root for tree in trees} | inner_relations(trees, MOST_HOPS, 1)
    return [relation for relation in schema.relations if relation in used]


def check_pieces(dealt: Sequence[Sequence[Piece]], used: Sequence[Relation], schema: Schema,
                 parts: int, method: str) -> None:
    """Raise an :class:`InputError` unless every destination of every relation was dealt once."""
    if len(dealt) != parts:
        raise InputError(f"partition method '{method}' dealt relations to {len(dealt)} partitions "
                         f"instead of {parts}")
    ranges_of: dict[Relation, list[tuple[int, int]]] = {r: [] for r in used}
    for index, pieces in enumerate(dealt):
        if len({r for r, _, _ in pieces}) != len(pieces):
            raise InputError(f"partition method '{method}' gave partition {index} two pieces of "
                             "one relation; join them, or give them to different partitions")
        for relation, low, high in pieces:
            if relation not in ranges_of:
                raise InputError(f"partition method '{method}' dealt relation '{relation}', which "
                                 "no layer needs")
            ranges_of[relation].append((low, high))
    for relation, ranges in ranges_of.items():
        count, reached = schema.node_counts[relation.dst], 0
        for low, high in sorted(ranges):
            if low != reached or high < low:
                break
            reached = high
        if reached != count or not ranges:
            raise InputError(
                f"partition method '{method}' dealt relation '{relation}' as destinations "
                f"{sorted(ranges)}; they must be all of 0 … {count - 1}, each once")
