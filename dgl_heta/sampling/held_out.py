"""Edges that carry no messages, as they are what a link predictor is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.sampling_kernels import pair_chances
from dgl_heta.system.hashing import hash_key

Edges = tuple[Relation, np.ndarray, np.ndarray]
"""Some edges of a relation: sources and destinations, int64."""


@dataclass(frozen=True)
class SameLinks:
    """Relations that have the same links, as they are or in the opposite direction.

    A link is known by its pair of end nodes, so parallel edges, copies and reverses stay together:
    pair = source × `tails` + destination, as the first relation has them. Where links are
    `undirected`, between nodes of one type, the smaller number stands for the source.

    Attributes
    ----------
    relations : the first one is of the links' direction.
    tails : number of destination nodes of the first relation.
    """

    relations: tuple[Relation, ...]
    tails: int
    undirected: bool = False

    def pairs(self, edges: Edges) -> np.ndarray:
        """The pairs of some edges, int64."""
        relation, sources, destinations = edges
        if self.swapped(relation):
            sources, destinations = destinations, sources
        if self.undirected:
            sources, destinations = (np.minimum(sources, destinations),
                                     np.maximum(sources, destinations))
        return sources * self.tails + destinations

    def swapped(self, relation: Relation) -> bool:
        """Return whether a relation goes from the links' destination type to their source type."""
        return relation.src != self.relations[0].src


class HeldOut:
    """Edges that are left out of every sample: a share of all links by a hash, without a list of
    them, and those that are listed.

    Parameters
    ----------
    groups : relations with the same links; a relation is in one group at most.
    share : of all pairs, in [0, 1).
    listed : held out whatever the hash says.
    from_rows : relations whose edges are there only from the times of their destinations' rows on,
        too, in a graph with times.
    """

    def __init__(self, groups: Sequence[SameLinks], share: float, seed: int = 0,
                 listed: Iterable[Edges] = (), from_rows: Collection[Relation] = ()) -> None:
        self.groups, self.share, self.from_rows = tuple(groups), share, from_rows
        self._salt = np.uint64(hash_key(seed, 0x11))
        self._group = {r: group for group in groups for r in group.relations}
        self._listed = self.pairs(listed)

    def chances(self, edges: Edges) -> np.ndarray:
        """For each edge a number in [0, 1), the same for edges of one pair; those below `share` are
        held out."""
        pairs = self._group[edges[0]].pairs(edges)
        numbers = np.empty(len(pairs))
        pair_chances(pairs, self._salt, numbers)
        return numbers

    def lists(self, edges: Edges) -> np.ndarray:
        """Return whether each edge is one of a pair that is listed, bool."""
        return np.isin(self._group[edges[0]].pairs(edges), self._listed.get(edges[0], _NONE))

    def pairs(self, links: Iterable[Edges]) -> dict[Relation, np.ndarray]:
        """Per relation the pairs of its edges, and of its group's, that have some links; they
        ascend, int64."""
        by_group: dict[SameLinks, list[np.ndarray]] = {}
        for edges in links:
            group = self._group[edges[0]]
            by_group.setdefault(group, []).append(group.pairs(edges))
        return {relation: pairs for group, parts in by_group.items()
                for pairs in [np.unique(np.concatenate(parts))] for relation in group.relations}

    def left_out(self, relation: Relation, without: np.ndarray | None) -> tuple[Any, ...] | None:
        """The argument `left_out` of the kernels that sample `relation`
        (:func:`dgl_heta.sampling.sampling_kernels.sample_neighbors`).

        `without` are more pairs to leave out, ascending. None for a relation of which none are.
        """
        group = self._group.get(relation)
        if group is None:
            return None
        return (_NONE if without is None else without, self._listed.get(relation, _NONE),
                self._salt, self.share, group.tails, group.swapped(relation), group.undirected)


_NONE = np.empty(0, np.int64)
