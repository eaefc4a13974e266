"""Which relations hold the links of another one: copies, reverses, a relation in both directions.

Where messages run over such an edge, a link that is held out is given away. It is measured on some
edges of a relation, at most :data:`MOST` or all, drawn evenly: how many of their pairs of nodes
another relation joins, too, and how many it would by chance, with the destinations shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.held_out import SameLinks
from dgl_heta.store import Store
from dgl_heta.store.structure import changed, edge_ends
from dgl_heta.system.jit import kernel

MOST = 10_000
"""Edges of a relation that are looked at; of many relations fewer, but not below 1,000."""
MOSTLY, NOTED = 0.5, 0.05
"""Shares of links above chance from which on a relation counts as holding the same links, and is
worth a word."""
_SHOWN = 6


@dataclass(frozen=True)
class Overlap:
    """How many of a relation's links another one holds, or it itself in the opposite direction, or
    `parallel` to them.

    Attributes
    ----------
    share : of the links that were looked at.
    chance : the same with shuffled ends; not looked at where no share is worth a word.
    """

    relation: Relation
    other: Relation
    share: float
    chance: float
    parallel: bool = False

    @property
    def above_chance(self) -> float:
        """The share of those that would not be joined by chance, in [0, 1]."""
        if self.share >= 0.95:
            return self.share  # also where nearly all nodes are joined
        return max(self.share - self.chance, 0.0) / (1 - self.chance)

    def __str__(self) -> str:
        where = (f"'{self.other}'" if self.other != self.relation else
                 "parallel edges" if self.parallel else "the opposite direction")
        return (f"{self.share:.0%} of '{self.relation}' in {where}"
                + (f" ({self.chance:.0%} by chance)" if self.chance >= 0.01 else ""))


def same_links(store: Store, relations: Sequence[Relation], named: Sequence[Relation] = (),
               find: bool = True) -> tuple[list[SameLinks], list[str]]:
    """The groups of relations that have the links of `relations`, and what to say of them.

    Parameters
    ----------
    named : relations that go with each one of `relations` that joins the same node types.
    find : whether relations go with it that have most of its links; then links between nodes of one
        type are undirected. Without, they are where one is named for them.
    """
    together: dict[Relation, tuple[Relation, ...]] = {r: (r,) for r in relations}
    seen = overlaps(store, relations)
    pairs = [(one, other) for one in relations for other in between(named, one)]
    related = [each for each in seen if find and (each.other == each.relation
                                                or each.above_chance >= MOSTLY)]
    for one, other in [*pairs, *((each.relation, each.other) for each in related)]:
        whole = tuple(dict.fromkeys([*together.get(one, (one,)), *together.get(other, (other,))]))
        together |= dict.fromkeys(whole, whole)
    groups = []
    for whole in dict.fromkeys(together[relation] for relation in relations):
        first, *others = sorted(whole, key=lambda r: r not in relations)
        groups.append(SameLinks(
            (first, *others), store.schema.node_counts[first.dst],
            first.src == first.dst and (find or any(r in named for r in whole))))
    asked = {*pairs, *((each.relation, each.other) for each in related)}
    unasked = [each for each in related if (each.relation, each.other) not in pairs]
    left = [each for each in seen if (each.relation, each.other) not in asked]
    return groups, [*said("the same links are held out together", unasked,
                           "task.reverse = none leaves them in"),
                    *said("messages can give away links that are to be predicted", left,
                           "task.reverse = RELATION holds those of a relation out, too" if find
                           else "without task.reverse = none they are held out, too")]


def said(what: str, some: Iterable[Overlap], remedy: str) -> list[str]:
    """A line about overlaps, the largest first; none where none is worth a word."""
    worth = sorted((each for each in some if each.above_chance >= NOTED),
                   key=lambda each: -each.above_chance)
    shown = [*map(str, worth[:_SHOWN]),
             *([f"{len(worth) - _SHOWN} more"] if worth[_SHOWN:] else [])]
    return [f"{what}: {'; '.join(shown)}; {remedy}"] if worth else []


def overlaps(store: Store, relations: Sequence[Relation], given: Mapping[
        Relation, tuple[np.ndarray, np.ndarray]] = MappingProxyType({})) -> list[Overlap]:
    """The links that each relation has in common with every relation between its node types, and
    with itself in the opposite direction; without what has nothing in common. Relations that the
    graph has not are `given`: their sources and destinations."""
    alike = []
    most = max(MOST // len(relations), 1000)
    for src, dst in dict.fromkeys((r.src, r.dst) for r in relations):
        own = [r for r in relations if (r.src, r.dst) == (src, dst)]
        parts, generator = [], np.random.default_rng(0)
        for relation in own:
            ends = given.get(relation)
            edges = store.schema.edge_counts[relation] if ends is None else len(ends[0])
            positions = (np.arange(edges) if edges <= most else
                         np.sort(generator.integers(0, edges, most)))
            parts.append((ends[0][positions], ends[1][positions]) if ends else edge_ends(
                relation, store.relation(relation), positions, store.schema.node_counts))
        sources = np.concatenate([ends[0] for ends in parts])
        right = Joined(own[0], sources, np.concatenate([ends[1] for ends in parts]))
        shuffled = Joined(own[0], sources, np.concatenate(
            [generator.permutation(ends[1]) for ends in parts]))
        index = np.repeat(np.arange(len(own)), [len(ends[0]) for ends in parts])
        for other in between(store.schema.relations, own[0]):
            itself = np.array([other == relation for relation in own])[index]
            shares = _shares(right.counts(store, other), itself, index)
            chances = (_shares(shuffled.counts(store, other), itself, index)
                       if (shares >= NOTED).any() else np.zeros_like(shares))
            alike += [Overlap(relation, other, float(share), float(chance))
                      for relation, share, chance in zip(own, shares, chances) if share]
    return alike


def _shares(counts: np.ndarray, itself: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Of the pairs of each place, the share of those that edges join, with counts as of
    :meth:`Joined.counts`; where they are from the relation `itself`, in the opposite direction."""
    same, opposite = counts > 0
    shares: np.ndarray = np.bincount(index, opposite | (same & ~itself)) / np.bincount(index)
    return shares


def between(relations: Iterable[Relation], one: Relation) -> list[Relation]:
    """The relations that join the node types of one, in whatever direction."""
    return [r for r in relations if {r.src, r.dst} == {one.src, one.dst}]


class Joined:
    """Pairs of nodes of the types that `one` relation goes between, which others may join, too.

    Parameters
    ----------
    sources, destinations : int64 (pairs,).
    """

    def __init__(self, one: Relation, sources: np.ndarray, destinations: np.ndarray) -> None:
        self._one, self._ends = one, (sources, destinations)
        self._same, self._opposite = _Pairs(sources, destinations), _Pairs(destinations, sources)

    def counts(self, store: Store, relation: Relation) -> np.ndarray:
        """How many edges of a relation join each pair, int64 (2, pairs): in the direction of the
        pair, and in the opposite one, which a pair of one node has not."""
        return self._of(relation, lambda: self._same.count(store, relation),
                        lambda: self._opposite.count(store, relation))

    def are(self, relation: Relation, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """Return whether each pair is joined by the edge of a relation that is given for it, as
        :meth:`counts`."""
        left, right = self._ends
        return self._of(relation, lambda: (sources == left) & (destinations == right),
                        lambda: (sources == right) & (destinations == left))

    def _of(self, relation: Relation, same: Callable[[], np.ndarray],
            opposite: Callable[[], np.ndarray]) -> np.ndarray:
        left, right = self._ends
        counts, ends = np.zeros((2, len(left)), np.int64), (self._one.src, self._one.dst)
        if (relation.src, relation.dst) == ends:
            counts[0] = same()
        if (relation.dst, relation.src) == ends:
            counts[1] = opposite() * ((left != right) | (self._one.src != self._one.dst))
        return counts


class _Pairs:
    """Pairs of nodes, to be looked up among the edges of relations."""

    def __init__(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        self._order = np.lexsort((sources, destinations))
        self._sources = sources[self._order]
        self._nodes, starts = np.unique(destinations[self._order], return_index=True)
        self._pointers = np.append(starts, len(sources))

    def count(self, store: Store, relation: Relation) -> np.ndarray:
        """How many edges of a relation go from the source to the destination of each pair, int64.

        Raises
        ------
        InputError
            A number in the relation's files is out of range.
        """
        csc, in_order = store.relation(relation), np.zeros(len(self._order), np.int64)
        if not _count_edges(csc.indptr, csc.indices, self._nodes, self._pointers, self._sources,
                            in_order):
            raise changed(relation, csc)
        counts = np.empty_like(in_order)
        counts[self._order] = in_order
        return counts


@kernel
def _count_edges(indptr, indices, nodes, pointers, sources, out):  # type: ignore[no-untyped-def]
    """Add to `out` how many in-edges of each of `nodes` come from each of its `sources`
    (`pointers` are of a CSC over the nodes, sources ascend); False where a number is out of range.
    """
    for i in range(len(nodes)):
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return False
        begin = indptr[node]
        end = indptr[node + 1]
        if begin < 0 or end < begin or end > len(indices):
            return False
        low = pointers[i]
        high = pointers[i + 1]
        for k in range(begin, end):
            source = np.int64(indices[k])
            at = low + np.searchsorted(sources[low:high], source)
            while at < high and sources[at] == source:
                out[at] += 1
                at += 1
    return True
