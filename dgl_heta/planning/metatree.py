"""Metagraph, metatree and sub-metatrees (Heta §5, technical report Algorithm 2, lines 1-9).

The metatree is rooted at the target node type. A relation `(src, etype, dst)` is followed
from `dst` to `src`, so a child of a vertex is a relation *into* the vertex's node type.
Every relation into the target is a child of its own, also when two relations join the same
node types; the sub-metatree of a child holds, level by level, the relations into the node
types reached so far.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """

    root: Relation
    levels: tuple[tuple[Relation, ...], ...]
    relations: tuple[Relation, ...]
    node_types: tuple[str, ...]
    weight: int

    @property
    def target(self) -> str:
        return self.root.dst


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
    order = {relation: i for i, relation in enumerate(schema.relations)}
    nodes, edges = schema.node_counts, schema.edge_counts

    # What lies below a child depends on its node type alone: it is worked out once per type,
    # because a schema can have thousands of relations between few types.
    @cache
    def below(ntype: str) -> _Below:
        levels, reached = [], {ntype}
        for _ in range(depth - 1):
            level = {r for t in reached for r in schema.into[t]}
            levels.append(tuple(sorted(level, key=order.__getitem__)))
            reached = {r.src for r in level}
        # A relation of several levels is stored once, so it weighs once.
        unique = frozenset(r for level in levels for r in level)
        types = frozenset({ntype}.union(*((r.src, r.dst) for r in unique)))
        return _Below(
            tuple(levels), unique, tuple(sorted(unique, key=order.__getitem__)), types,
            node_types=tuple(t for t in nodes if t in types),
            weight=sum(edges[r] for r in unique) + sum(nodes[t] for t in types),
        )

    def tree(root: Relation) -> SubMetatree:
        under = below(root.src)
        relations, node_types, weight = under.relations, under.node_types, under.weight
        # The root may come again below itself, as `cites` does with two hops.
        if root not in under.unique:
            relations = with_relations(relations, [root], order)
            weight += edges[root]
        if root.dst not in under.types:
            node_types = tuple(t for t in nodes if t in under.types or t == root.dst)
            weight += nodes[root.dst]
        return SubMetatree(root, ((root,), *under.levels), relations, node_types, weight)

    return [tree(root) for target in targets for root in schema.into[target]]


class _Below(NamedTuple):
    """The descendants of a child of the root, without the relation that leads to it."""

    levels: tuple[tuple[Relation, ...], ...]
    unique: frozenset[Relation]
    relations: tuple[Relation, ...]
    types: frozenset[str]
    node_types: tuple[str, ...]
    weight: int


def with_relations(relations: Sequence[Relation], more: Iterable[Relation],
                   order: Mapping[Relation, int]) -> tuple[Relation, ...]:
    """`relations`, which are in canonical `order`, with `more` put in their places."""
    merged = list(relations)
    for relation in more:
        insort(merged, relation, key=order.__getitem__)
    return tuple(merged)


def _from_metapaths(
    schema: Schema, targets: Sequence[str], metapaths: Sequence[Metapath], depth: int
) -> list[SubMetatree]:
    order = {relation: i for i, relation in enumerate(schema.relations)}
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
    return [
        _tree(schema, order, root,
              tuple(tuple(sorted(level, key=order.__getitem__)) for level in levels[root]))
        for root in sorted(levels, key=order.__getitem__)
    ]


def _tree(schema: Schema, order: dict[Relation, int], root: Relation,
          levels: tuple[tuple[Relation, ...], ...]) -> SubMetatree:
    unique = {relation for level in levels for relation in level}
    types = {t for relation in unique for t in (relation.src, relation.dst)}
    weight = (sum(schema.edge_counts[r] for r in unique)
              + sum(schema.node_counts[t] for t in types))
    return SubMetatree(
        root, levels,
        relations=tuple(sorted(unique, key=order.__getitem__)),
        node_types=tuple(t for t in schema.node_counts if t in types),
        weight=weight,
    )


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
    # Sub-metatrees share their levels, so look at each tuple of relations only once.
    levels = {id(level): level for tree in trees for level in tree.levels[1:last]}
    return {r for level in levels.values() for r in level}
