"""Metagraph, metatree and sub-metatrees (Heta §5, technical report Algorithm 2, lines 1-9).

The metatree is rooted at the target node type. A relation `(src, etype, dst)` is followed
from `dst` to `src`, so a child of a vertex is a relation *into* the vertex's node type.
Every relation into the target is a child of its own, also when two relations join the same
node types; the sub-metatree of a child holds, level by level, the relations into the node
types reached so far.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgl_heta.errors import InputError, listing, quoted, several
from dgl_heta.graph.schema import Relation, Schema, read_json

if TYPE_CHECKING:
    import networkx as nx

Metapath = tuple[Relation, ...]
"""Relations in edge direction: the last one ends at the target node type."""


MOST_HOPS = 100
"""Layers of a model, levels of a metatree."""


@dataclass(frozen=True)
class SubMetatree:
    """One child of the metatree's root with its descendants.

    `levels[0]` is the root relation alone, `levels[d]` holds the relations of depth d + 1,
    each level in canonical order. `relations` and `node_types` are unique over all levels;
    `weight` is the edges of the former plus the nodes of the latter (Heta §5, step 2).

    Only `below` is kept, because a schema can have thousands of sub-metatrees that each lead to
    most of its relations: relations are listed when they are asked for.
    """

    root: Relation
    below: Below
    weight: int

    @property
    def target(self) -> str:
        return self.root.dst

    @property
    def levels(self) -> tuple[tuple[Relation, ...], ...]:
        return ((self.root,), *self.below.levels)

    @property
    def relations(self) -> tuple[Relation, ...]:
        # The root may come again below itself, as `cites` does with two hops.
        return with_relations(self.below.relations, [self.root], self.below.schema.order)

    @property
    def node_types(self) -> tuple[str, ...]:
        types = {t for relation in self.relations for t in (relation.src, relation.dst)}
        return tuple(t for t in self.below.schema.node_counts if t in types)


@dataclass(frozen=True, eq=False)
class Below:
    """What lies below a child of the metatree's root; those of one node type share it.

    `steps` has for each level the node types of which it holds all relations into them; with
    metapaths, the relations themselves.
    """

    schema: Schema = field(repr=False)
    steps: tuple[frozenset[str] | tuple[Relation, ...], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Below) and (
            self.steps == other.steps or self.levels == other.levels)

    @cached_property
    def levels(self) -> tuple[tuple[Relation, ...], ...]:
        return tuple(_in_order(self.schema, [step]) for step in self.steps)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        return _in_order(self.schema, self.steps)


def _in_order(schema: Schema, steps: Iterable[frozenset[str] | tuple[Relation, ...]]
              ) -> tuple[Relation, ...]:
    """All relations of some steps of :class:`Below`, in canonical order."""
    types = {t for step in steps if isinstance(step, frozenset) for t in step}
    unique = {r for t in types for r in schema.into[t]}.union(
        *(step for step in steps if not isinstance(step, frozenset)))
    return tuple(sorted(unique, key=schema.order.__getitem__))


def metagraph(schema: Schema) -> nx.MultiDiGraph:
    """The metagraph (Heta §5, step 1): a vertex per node type, an edge per relation.

    Vertices have `weight`, their number of nodes; edges, whose key is the etype, have `weight`,
    their number of edges, and `relation`.
    """
    import networkx as nx

    graph = nx.MultiDiGraph()
    for ntype, count in schema.node_counts.items():
        graph.add_node(ntype, weight=count)
    for relation, edges in schema.edge_counts.items():
        graph.add_edge(relation.src, relation.dst, key=relation.etype, weight=edges,
                       relation=relation)
    return graph


def sub_metatrees(
    schema: Schema,
    targets: Sequence[str],
    hops: int | None = None,
    metapaths: Sequence[Metapath] | None = None,
) -> list[SubMetatree]:
    """All sub-metatrees of the targets, heaviest first; equal weights in canonical order.

    Parameters
    ----------
    targets : target node types, one metatree each.
    hops : depth of the metatree, the number of layers of the model; with `metapaths` it
        defaults to the longest metapath.
    metapaths : restrict the metatree to these (Algorithm 2, line 2).

    Raises
    ------
    InputError
        Unknown target, no relation into a target, `hops` < 1, a bad metapath.
    """
    if not targets:
        raise InputError("no target node type given; node types: " + listing(schema.node_counts))
    if len(set(targets)) != len(targets):
        raise InputError(f"a target node type is named twice: {', '.join(targets)}")
    for target in targets:
        schema.check_node_type(target, "target node type")
        if not schema.into[target]:
            raise InputError(
                f"no relation ends at target node type '{target}', so nothing would be "
                f"aggregated; types with incoming relations: "
                f"{listing(t for t, rs in schema.into.items() if rs)} "
                "(add the reverse relations of the target's outgoing ones)"
            )
    depth = check_hops(hops, metapaths)
    if metapaths:
        trees = _from_metapaths(schema, targets, metapaths, depth)
    else:
        trees = _from_hops(schema, targets, depth)
    return sorted(trees, key=lambda tree: -tree.weight)


def check_hops(hops: int | None, metapaths: Sequence[Metapath] | None) -> int:
    """The depth of the metatree, from `hops` or the longest metapath."""
    if metapaths and not all(metapaths):
        raise InputError("a metapath is empty; it needs at least one relation")
    longest = max((len(path) for path in metapaths), default=0) if metapaths else 0
    if hops is None:
        if longest > MOST_HOPS:
            raise InputError(f"a metapath has {longest} relations; it can have {MOST_HOPS}")
        if not longest:
            raise InputError("give the number of hops (layers of the model) or metapaths")
        return longest
    if hops < 1:
        raise InputError(f"the number of hops is {quoted(hops)}; it must be 1 or more")
    if hops > MOST_HOPS:
        raise InputError(f"the number of hops is {quoted(hops)}; it must be at most {MOST_HOPS}")
    if longest > hops:
        raise InputError(
            f"a metapath has {several(longest, 'relation')}, but the number of hops is {hops}; "
            f"use {several(longest, 'hop')} (model layers) or shorter metapaths"
        )
    return hops


def _from_hops(schema: Schema, targets: Sequence[str], depth: int) -> list[SubMetatree]:
    nodes, edges = schema.node_counts, schema.edge_counts
    # A schema can have many more relations than pairs of node types that they join.
    sources = {t: frozenset(r.src for r in into) for t, into in schema.into.items()}
    edges_into = {t: sum(edges[r] for r in into) for t, into in schema.into.items()}

    # What lies below a child depends on its node type alone.
    @cache
    def below(ntype: str, target: str) -> tuple[Below, bool, int]:
        """What is below, whether the root is among it, the weight (without a root that is not)."""
        steps, reached = [], frozenset([ntype])
        for _ in range(depth - 1):
            steps.append(reached)
            reached = frozenset().union(*(sources[t] for t in reached))
        # A relation of several levels is stored once, so it weighs once.
        expanded = frozenset[str]().union(*steps)
        types = {ntype, target}.union(expanded, *(sources[t] for t in expanded))
        weight = sum(edges_into[t] for t in expanded) + sum(nodes[t] for t in types)
        return Below(schema, tuple(steps)), target in expanded, weight

    def tree(root: Relation) -> SubMetatree:
        under, again, weight = below(root.src, root.dst)
        return SubMetatree(root, under, weight if again else weight + edges[root])

    return [tree(root) for target in targets for root in schema.into[target]]


def with_relations(relations: tuple[Relation, ...], more: Iterable[Relation],
                   order: Mapping[Relation, int]) -> tuple[Relation, ...]:
    """`relations`, which are in canonical `order`, with those of `more` that are not among them in
    their places."""
    merged: list[Relation] = []
    start = 0
    for relation in sorted(more, key=order.__getitem__):
        place = bisect_left(relations, order[relation], start, key=order.__getitem__)
        if relations[place:place + 1] != (relation,):
            merged += (*relations[start:place], relation)
            start = place
    return (*merged, *relations[start:]) if merged else relations


def _from_metapaths(
    schema: Schema, targets: Sequence[str], metapaths: Sequence[Metapath], depth: int
) -> list[SubMetatree]:
    levels: dict[Relation, list[set[Relation]]] = {}
    for path in metapaths:
        check_metapath(schema, targets, path)
        by_level = levels.setdefault(path[-1], [set() for _ in range(depth)])
        for level, relation in zip(by_level, reversed(path)):
            level.add(relation)
    reached = {root.dst for root in levels}
    for target in targets:
        if target not in reached:
            raise InputError(f"no metapath ends at target node type '{target}'")
    return [_tree(schema, root, levels[root][1:])
            for root in sorted(levels, key=schema.order.__getitem__)]


def _tree(schema: Schema, root: Relation, levels: Sequence[set[Relation]]) -> SubMetatree:
    below = Below(schema, tuple(tuple(sorted(level, key=schema.order.__getitem__))
                                for level in levels))
    unlisted = SubMetatree(root, below, 0)
    return replace(unlisted, weight=sum(schema.edge_counts[r] for r in unlisted.relations)
                   + sum(schema.node_counts[t] for t in unlisted.node_types))


def check_metapath(schema: Schema, targets: Sequence[str], path: Metapath) -> None:
    """Raise an :class:`InputError` unless `path` is a chain of relations into a target."""
    shown = " → ".join([path[0].src, *(f"({r.etype}) {r.dst}" for r in path)])
    for relation in path:
        schema.find_relation(relation)
    for before, after in itertools.pairwise(path):
        if before.dst != after.src:
            raise InputError(
                f"metapath {shown} is broken: '{before}' ends at '{before.dst}', but "
                f"'{after}' starts at '{after.src}'"
            )
    if path[-1].dst not in targets:
        raise InputError(
            f"metapath {shown} ends at '{path[-1].dst}', not at the target "
            f"{' or '.join(repr(t) for t in targets)}; write it in edge direction, "
            "the relation into the target last"
        )


def parse_metapaths(data: Any, schema: Schema, origin: str = "metapaths") -> list[Metapath]:
    """Metapaths from JSON: a list of lists of relations.

    A relation is `[src, etype, dst]`, `"src etype dst"`, or an etype that is unique in the
    graph.
    """
    if not isinstance(data, list) or not data or not all(isinstance(p, list) for p in data):
        raise InputError(
            f"{origin} must be a list of metapaths, each a list of relations in edge "
            'direction, for example [["writes"], [["field", "rev-has_topic", "paper"]]]'
        )
    paths = []
    for path in data:
        for item in path:
            if not isinstance(item, str | list | tuple):
                raise InputError(f"{origin}: a relation is {quoted(item)}; write [src, etype, dst]")
        paths.append(tuple(schema.find_relation(item) for item in path))
    return list(dict.fromkeys(paths))


def load_metapaths(path: str | Path, schema: Schema) -> list[Metapath]:
    """Read metapaths from a JSON file (see :func:`parse_metapaths`)."""
    return parse_metapaths(read_json(path, "metapaths"), schema, origin=str(path))


def inner_relations(trees: Iterable[SubMetatree], hops: int, layer: int) -> set[Relation]:
    """Relations that layer `layer` (1 … hops) runs on rows that are not seeds.

    A row first reached at depth d of the metatree has a state after every layer up to
    hops - d, computed from the relations of level d + 1, so layer l needs levels
    2 … hops - l + 1.
    """
    last = hops - layer + 1
    # Sub-metatrees share what is below them, so look at each only once.
    every = {id(tree.below): tree.below for tree in trees}.values()
    steps = {step for below in every for step in below.steps[:last - 1]}
    return set(_in_order(next(iter(every)).schema, steps) if steps else ())
