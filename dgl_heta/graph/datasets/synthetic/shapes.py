"""The shape of a synthetic graph: types, relations, what they tell, and the task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.schema import Relation, Schema

MIN_NODES = 8
MIN_LABELLED = 5_000
NODES_PER_CLASS = 50
COMMUNITIES = 512        # aimed at in total; a class has at least one


@dataclass(frozen=True)
class NodeShape:
    """A node type: `count` nodes with `dim` features (0: none).

    `strength` says how much features tell of the class; at 1 a class can just be told from
    the others by features alone.
    """

    count: int
    dim: int = 0
    strength: float = 0.5


@dataclass(frozen=True)
class RelationShape:
    """A relation and what it tells.

    Parameters
    ----------
    src, etype, dst : the relation.
    edges : number of edges; of a symmetric relation, both directions together.
    hub : `"src"` or `"dst"`: the end that is picked by popularity.
    signal, related : shares of edges within a community and to the confusable community.
    skew : popularity of the k-th node of a community falls as `k ** -skew`, 0 <= skew < 1;
        the tail exponent of the degree distribution is `1 + 1 / skew`.
    spread : sigma of the log-normal degrees at the other end.
    reverse : name of the reverse relation, or None.
    symmetric : holds both directions of every edge; `src` and `dst` are the same type.
    """

    src: str
    etype: str
    dst: str
    edges: int
    hub: str = "dst"
    signal: float = 0.3
    related: float = 0.1
    skew: float = 0.6
    spread: float = 0.7
    reverse: str | None = None
    symmetric: bool = False

    @property
    def forward(self) -> Relation:
        return Relation(self.src, self.etype, self.dst)

    @property
    def ends(self) -> tuple[str, str]:
        """The node types at the other end and at the hub."""
        return (self.src, self.dst) if self.hub == "dst" else (self.dst, self.src)

    def relations(self) -> Iterator[Relation]:
        """The relation, and its reverse if it has one."""
        yield self.forward
        if self.reverse:
            yield Relation(self.dst, self.reverse, self.src)


@dataclass(frozen=True)
class Shape:
    """Types, relations and task of a data set.

    `labelled` target nodes are in one of the masks, in the shares `split` of training,
    validation and test; all target nodes have a label. Where a graph is scaled down, a class has at
    least `nodes_per_class` of them. `correlation` is that of the logarithms of a node's degrees in
    relations where it is not at the hub, through an activity that the node has in all of them; with
    it the most active nodes are the most popular ones at hubs, too.
    """

    name: str
    nodes: dict[str, NodeShape]
    relations: tuple[RelationShape, ...]
    target: str
    num_classes: int
    labelled: int
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    dtype: str = "float32"
    nodes_per_class: int = NODES_PER_CLASS
    correlation: float = 0.0

    @property
    def communities_per_class(self) -> int:
        room = self.nodes[self.target].count // (20 * self.num_classes)
        return max(1, min(round(COMMUNITIES / self.num_classes), room))

    def scaled(self, scale: float) -> Shape:
        """This shape with all counts multiplied by `scale` (see the package's docstring)."""
        if isinstance(scale, bool) or not isinstance(scale, int | float) \
                or not math.isfinite(scale) or not 0 < scale <= 1e6:
            raise InputError(f"scale is {quoted(scale)}; it must be a number above 0, such as "
                             "0.01, and at most 1e6")
        nodes = {t: replace(n, count=max(MIN_NODES, round(n.count * scale)))
                 for t, n in self.nodes.items()}
        relations = []
        for relation in self.relations:
            other, hub = (nodes[t].count for t in relation.ends)
            edges = max(1, round(relation.edges * scale / (1 + relation.symmetric)))
            edges = min(edges, other * degree_cap(hub, relation.symmetric))
            relations.append(replace(relation, edges=edges * (1 + relation.symmetric)))
        target = nodes[self.target].count
        labelled = min(target, max(round(self.labelled * scale), MIN_LABELLED))
        classes = min(self.num_classes, max(2, labelled // self.nodes_per_class))
        return replace(self, nodes=nodes, relations=tuple(relations), labelled=labelled,
                       num_classes=classes)

    def correlated(self, correlation: float) -> Shape:
        """This shape with degrees of a node that are alike in all its relations, 0 … 1."""
        return replace(self, correlation=_share("correlation", correlation))

    def cohesive(self, share: float) -> Shape:
        """This shape with at least this share of every relation's edges within communities, 0 … 1.

        What is taken from other communities is taken from all of them in proportion. At the
        published shapes' own shares (0) METIS finds parts that are little better than random ones.
        """
        _share("cohesion", share)
        return replace(self, relations=tuple(
            r if r.signal >= share else replace(
                r, signal=share, related=r.related * (1 - share) / (1 - r.signal))
            for r in self.relations))

    def schema(self) -> Schema:
        edges = {name: r.edges for r in self.relations for name in r.relations()}
        width = np.dtype(self.dtype).itemsize
        return Schema({t: n.count for t, n in self.nodes.items()}, edges,
                      {t: n.dim * width for t, n in self.nodes.items() if n.dim})


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {quoted(value)}; it must be a number from 0 to 1")
    return value


def degree_cap(hub_nodes: int, symmetric: bool) -> int:
    """Most edges of one node, so that enough distinct partners are left to choose from."""
    return max(1, hub_nodes // (4 if symmetric else 2))
