"""Draws the parts of a synthetic graph block by block: communities, labels, features, edges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic.shapes import RelationShape, Shape, degree_cap
from dgl_heta.graph.source import MASKS

LABEL_NOISE = 0.05
CLASS_SKEW = 0.3         # class sizes fall as rank ** -CLASS_SKEW
LATENT = 48              # dimensions that features are mixed from
BLOCK_EDGES = 1 << 20    # edges made at a time
BLOCK_VALUES = 1 << 24   # feature values made at a time


@dataclass(frozen=True)
class _Members:
    """Communities of the nodes of one type.

    `order` lists the nodes by community, the most popular first; the nodes of community `c`
    are `order[first[c]:first[c] + size[c]]`. A type with few nodes has communities without
    any: those take nodes of the communities around them (mostly of the same class).
    """

    community: np.ndarray
    order: np.ndarray
    first: np.ndarray
    size: np.ndarray


class Maker:
    """Makes the parts of one graph, each from a random stream of its own."""

    def __init__(self, shape: Shape, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed is {seed!r}; it must be a whole number, 0 or more")
        self.shape = shape
        self.seed = int(seed)
        self.per_class = shape.communities_per_class
        self.communities = shape.num_classes * self.per_class
        self._members: dict[str, _Members] = {}

    def stream(self, *part: str) -> np.random.Generator:
        key = " ".join((self.shape.name, *part)).encode()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *key])))

    def id_dtype(self, relation: RelationShape) -> type[np.signedinteger[Any]]:
        most = max(self.shape.nodes[t].count for t in (relation.src, relation.dst))
        return np.int32 if most <= np.iinfo(np.int32).max else np.int64

    @cached_property
    def class_ends(self) -> np.ndarray:
        """Upper ends of the classes' shares of [0, 1), the same in every type."""
        weights = np.arange(1, self.shape.num_classes + 1) ** -CLASS_SKEW
        ends = np.cumsum(self.stream("classes").permutation(weights))
        return ends / ends[-1]

    def draw_classes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.searchsorted(self.class_ends[:-1], rng.random(count), side="right")

    def members(self, ntype: str) -> _Members:
        if ntype not in self._members:
            rng = self.stream("members", ntype)
            count = self.shape.nodes[ntype].count
            small = np.int32 if count <= np.iinfo(np.int32).max else np.int64
            community = self.draw_classes(rng, count) * self.per_class
            community += rng.integers(self.per_class, size=count)
            community = community.astype(np.int32)
            shuffled = rng.permutation(np.arange(count, dtype=small))
            if self.shape.correlation:
                shuffled = np.argsort(-self.activity(ntype)).astype(small)
            order = shuffled[np.argsort(community[shuffled], kind="stable")]
            size = np.bincount(community, minlength=self.communities)
            first = np.cumsum(size) - size
            least = min(count, 4)
            few = size < least
            first[few] = np.clip(first[few] - (least - size[few]) // 2, 0, count - least)
            size[few] = least
            self._members[ntype] = _Members(community, order, first, size)
        return self._members[ntype]

    def activity(self, ntype: str) -> np.ndarray:
        """What degrees of a node have in common: normal, (nodes,)."""
        return self.stream("activity", ntype).standard_normal(self.shape.nodes[ntype].count)

    def target_arrays(self) -> dict[str, np.ndarray]:
        """Label and masks of the target type."""
        shape = self.shape
        rng = self.stream("labels")
        label = self.members(shape.target).community.astype(np.int64) // self.per_class
        wrong = np.flatnonzero(rng.random(len(label), dtype=np.float32) < LABEL_NOISE)
        label[wrong] = self.draw_classes(rng, len(wrong))
        arrays = {"label": label}
        chosen = rng.permutation(len(label))[:shape.labelled]
        val_from = round(shape.labelled * shape.split[0])
        test_from = round(shape.labelled * (shape.split[0] + shape.split[1]))
        parts = np.split(chosen, [val_from, test_from])
        for name, rows in zip(MASKS, parts):
            arrays[name] = np.zeros(len(label), bool)
            arrays[name][rows] = True
        return arrays

    def features(self, ntype: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield `(first node, float32 rows)` of features with mean about 0, variance about 1.

        A latent vector, prototype plus unit noise, is mixed into all dimensions, as in text
        embeddings, whose dimensions are far from independent.
        """
        node = self.shape.nodes[ntype]
        rng = self.stream("features", ntype)
        latent = min(LATENT, node.dim)
        unit = 1 / math.sqrt(latent)
        classes = rng.normal(0, unit, (self.shape.num_classes, latent))
        own = rng.normal(0, unit, (self.communities, latent))
        prototypes = np.repeat(classes, self.per_class, axis=0) + (
            0.5 * own if self.per_class > 1 else 0.0)
        # Unit noise hides one of C random unit vectors when they are shorter than this.
        length = node.strength * math.sqrt(2 * math.log(self.shape.num_classes))
        prototypes = (prototypes * length).astype(np.float32)
        mixing = rng.normal(0, unit, (latent, node.dim)).astype(np.float32)
        community = self.members(ntype).community
        rows = max(1, BLOCK_VALUES // node.dim)
        for start in range(0, node.count, rows):
            chosen = prototypes[community[start:start + rows]]
            chosen += rng.standard_normal(chosen.shape, dtype=np.float32)
            block = chosen @ mixing
            noise = rng.random(block.shape, dtype=np.float32)
            noise -= 0.5
            block += noise
            yield start, block

    def edges(self, relation: RelationShape) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield `(position of the first edge, sources, destinations)`."""
        start = 0
        for other, hub in self.edge_blocks(relation):
            src, dst = (other, hub) if relation.hub == "dst" else (hub, other)
            yield start, src, dst
            if relation.symmetric:
                yield relation.edges // 2 + start, dst, src
            start += len(src)

    def degrees(self, relation: RelationShape, rng: np.random.Generator) -> np.ndarray:
        """Edges per node of the end that is not the hub; they sum up exactly."""
        other, hub = (self.shape.nodes[t].count for t in relation.ends)
        edges = relation.edges // (1 + relation.symmetric)
        least = min(1, edges // other)
        common = self.shape.correlation
        weights = rng.lognormal(0, relation.spread * math.sqrt(1 - common), other)
        if common:
            weights *= np.exp(relation.spread * math.sqrt(common)
                              * self.activity(relation.ends[0]))
        degrees = least + _shares(np.cumsum(weights), edges - least * other)
        cap = degree_cap(hub, relation.symmetric)
        surplus = int(np.maximum(degrees - cap, 0).sum())
        if surplus:
            degrees = np.minimum(degrees, cap)
            degrees += _shares(np.cumsum(cap - degrees, dtype=np.float64), surplus)
        return degrees

    def edge_blocks(self, relation: RelationShape) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Distinct pairs (other end, hub) in order of the other end, block by block."""
        rng = self.stream("edges", *relation.forward)
        ends = np.cumsum(self.degrees(relation, rng))
        # The confusable community is always of another class.
        shift = int(rng.integers(1, self.shape.num_classes)) * self.per_class
        first = done = 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, done + BLOCK_EDGES, side="right")))
            degrees = np.diff(ends[first:last], prepend=done)
            keys = self.distinct_pairs(relation, rng, shift, first, degrees)
            hubs = self.shape.nodes[relation.ends[1]].count
            other = keys // hubs
            yield other + first, keys - other * hubs
            first, done = last, int(ends[last - 1])

    def distinct_pairs(self, relation: RelationShape, rng: np.random.Generator, shift: int,
                       first: int, degrees: np.ndarray) -> np.ndarray:
        """Sorted keys `(node - first) * hubs + hub`, `degrees[i]` of node `first + i`.

        Pairs that occur already are drawn again, in the end without regard to communities,
        and by trying all nodes where even that does not find enough.
        """
        hubs = self.shape.nodes[relation.ends[1]].count
        rows = np.arange(len(degrees))
        keys = np.empty(0, np.int64)
        missing = degrees
        for attempt in range(16):
            nodes = np.repeat(rows, missing)
            if not len(nodes):
                return keys
            if attempt < 10:
                drawn = self.draw_hubs(relation, rng, shift, nodes + first)
            else:
                drawn = rng.integers(hubs, size=len(nodes))
            if relation.symmetric:
                fits = _oriented(nodes + first, drawn)
                nodes, drawn = nodes[fits], drawn[fits]
            new = np.unique(nodes * hubs + drawn)
            if len(keys):
                at = np.minimum(np.searchsorted(keys, new), len(keys) - 1)
                new = new[keys[at] != new]
            missing = missing - np.bincount(new // hubs, minlength=len(degrees))
            keys = np.sort(np.concatenate([keys, new]), kind="stable")
        everyone = np.arange(hubs)
        for row in np.flatnonzero(missing):
            free = everyone[_oriented(first + row, everyone)] if relation.symmetric else everyone
            low, high = np.searchsorted(keys, [row * hubs, (row + 1) * hubs])
            free = np.setdiff1d(free, keys[low:high] - row * hubs, assume_unique=True)
            chosen = rng.choice(free, missing[row], replace=False)
            keys = np.insert(keys, low, row * hubs + chosen)
            keys[low:high + len(chosen)].sort()
        return keys

    def draw_hubs(self, relation: RelationShape, rng: np.random.Generator, shift: int,
                  nodes: np.ndarray) -> np.ndarray:
        """A hub for each of the nodes, by community and popularity."""
        other, hub = (self.members(t) for t in relation.ends)
        wanted = other.community[nodes]
        kind = rng.random(len(nodes), dtype=np.float32)
        related = np.flatnonzero((kind >= relation.signal)
                                 & (kind < relation.signal + relation.related))
        wanted[related] = (wanted[related] + shift) % self.communities
        noise = np.flatnonzero(kind >= relation.signal + relation.related)
        wanted[noise] = hub.community[rng.integers(len(hub.community), size=len(noise))]
        size = hub.size[wanted]
        rank = rng.random(len(nodes), dtype=np.float32) ** np.float32(1 / (1 - relation.skew))
        return hub.order[hub.first[wanted] + np.minimum((rank * size).astype(np.int64), size - 1)]


def _oriented(node: np.ndarray | int, other: np.ndarray) -> np.ndarray:
    """Return whether each pair (`node`, `other`) is to be drawn from `node`.

    Of (a, b) and (b, a) exactly one is, and about half of all partners are left to every
    node. So no edge is drawn from both ends, although the blocks do not know of each other.
    """
    return np.where((node + other) % 2 == 1, other < node, other > node)


def _shares(ends: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the steps of the cumulative weights, adding to `total`."""
    return np.diff(np.floor(ends / ends[-1] * total).astype(np.int64), prepend=0)
