"""Links of a graph with times: each is predicted at its own, from what is there before it.

An edge's time is the latest of its own and of its ends' rows, so that neither the edge that a link
is, nor another one of its time, reaches it. A store says less of edges to rows that are later than
they are; samplers go by the row, too, where a relation has such links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.splits import WORDS
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.readers.times import column_seconds
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS
from dgl_heta.sampling.held_out import HeldOut, SameLinks
from dgl_heta.sampling.same_links import MOST, NOTED, Overlap, overlaps, said
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store
from dgl_heta.store.structure import edge_ends
from dgl_heta.training.tasks.given_links import Links, link_ends
from dgl_heta.training.tasks.timed_seeds import check_seeds, seed_files, split_by_time, split_of

_PIECE = 2**22  # edges
TOLD = 0.6
"""AUC by numbers of edges, or by what is new, from which it is said."""
_COLUMNS = ["src", "dst", "time"]


def read_timed_links(store: Store, relations: Sequence[Relation], task: TaskSettings
                     ) -> dict[str, Links]:
    """The links of `task.table` by their split: source, destination (or a list of them) and time
    in each row.

    Raises
    ------
    InputError
        The file is no such table; an end that no node has; a time before the row of an end or
        before all data; nothing that says what is for training.
    """
    src, dst, time = _COLUMNS if task.columns == TaskSettings().columns else task.columns
    whole = ColumnTable(Path(str(task.table)), seed_files(str(task.table)))
    table, rows = whole.unnested(dst, " for the destinations of task.table")
    places, sources, destinations = link_ends(table, store, relations, "task.table", src, dst)
    times, _ = column_seconds(table, time)
    part = split_of(whole)
    part = split_by_time(None if part is None else part[rows], times, task)
    used = np.flatnonzero(part >= 0)
    for ntype, nodes in ((relations[0].src, sources), (relations[0].dst, destinations)):
        check_seeds(np.stack([nodes, times], 1)[used], store, ntype,
                    lambda row: table.at(int(used[row])))
    links = Links(places, sources, destinations, times)
    return {word: links.at(part == number) for number, word in enumerate(WORDS)}


class EdgeTimes:
    """When the edges of a relation are there, by their positions in its CSC.

    An edge's time is the latest of its own and of its ends' rows; the store's is without that of
    its destination.
    """

    def __init__(self, store: Store, relation: Relation) -> None:
        self._store, self._relation = store, relation
        self._csc, self._times = store.relation(relation), store.times(relation)
        self._rows = [store.row_times(t) for t in (relation.src, relation.dst)]

    def _look(self, positions: np.ndarray
              ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
        """The ends of some edges, the latest times of the ends' rows, and the store's times."""
        ends = edge_ends(self._relation, self._csc, positions, self._store.schema.node_counts)
        none = np.full(len(positions), ALWAYS)
        rows = np.max([none, *(times[nodes] for times, nodes in zip(self._rows, ends)
                               if times is not None)], 0)
        return ends, rows, none if self._times is None else np.asarray(self._times[positions])

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sources, destinations and times of some edges, int64; :data:`ALWAYS` for no time."""
        ends, rows, stored = self._look(positions)
        return *ends, np.maximum(rows, stored)

    def some(self) -> Links:
        """At most :data:`MOST` edges, drawn evenly; their relation is at place 0."""
        edges = len(self._csc.indices)
        chosen = (np.arange(edges) if edges <= MOST else
                  np.random.default_rng(0).integers(0, edges, MOST))
        return Links(np.zeros(len(chosen), np.int64), *self.at(chosen))

    @cached_property
    def _counts(self) -> list[int]:
        """How many edges are later than the rows of their ends, how many the store has from before
        these, and how many have no time."""
        edges, counts = len(self._csc.indices), np.zeros(3, np.int64)
        for low in range(0, edges, _PIECE):
            _, rows, stored = self._look(np.arange(low, min(low + _PIECE, edges)))
            counts += [np.count_nonzero(x) for x in (
                stored > rows, stored < rows, np.maximum(rows, stored) == ALWAYS)]
        return counts.tolist()

    @property
    def dated(self) -> float:
        """The share of edges that are later than the rows of their ends."""
        return self._counts[0] / max(len(self._csc.indices), 1)

    def lacks(self, other: EdgeTimes) -> bool:
        """Return whether edges have no times where those of another relation have some."""
        return self.dated < other.dated - NOTED * (self.dated > 0)

    def older(self) -> bool:
        """Return whether an edge is sampled before its destination's row is there."""
        return self._counts[1] > 0

    def timeless(self) -> list[str]:
        """A line where some edges have no time. Raise an :class:`InputError` if none has."""
        edges, count = len(self._csc.indices), self._counts[2]
        if edges and count == edges:
            raise InputError(f"edges of '{self._relation}' have no times, so links would be seen "
                             "before they are there; write the store with their times, or without "
                             "them, and predict links of a table (task.table)")
        return [f"{count:,} of {edges:,} edges of '{self._relation}' have no time: they are always "
                "there, and are predicted at none"] * bool(count)


def history(store: Store, in_graph: Mapping[Relation, EdgeTimes], groups: Sequence[SameLinks],
            present: Mapping[str, Present], relations: Sequence[Relation],
            given: Mapping[str, Links]) -> tuple[HeldOut, list[str]]:
    """The relations with edges that a store has before their link, which sampling goes by rows for,
    too; lines on what else gives links away. Raise an :class:`InputError` if one lacks the times of
    links that it has, so that seeds would see the future."""
    found = set()
    for group in groups:
        of = {relation: EdgeTimes(store, relation) for relation in group.relations}
        found |= {relation for relation, times in of.items() if times.older()}
        most = max(of, key=lambda relation: of[relation].dated)
        if wrong := [relation for relation, times in of.items() if times.lacks(of[most])]:
            raise InputError(
                f"relation '{wrong[0]}' has the links of '{most}', but not their times "
                f"({of[wrong[0]].dated:.0%} of its edges have one, {of[most].dated:.0%} of "
                "those), so it would show links before they are there; write the store with its "
                "times, or without it")
    return HeldOut((), 0.0, from_rows=found), [
        *(note for each in in_graph.values() for note in each.timeless()),
        *_shown_early(store, groups, in_graph, _others(in_graph, relations, given)),
        *_new_ends(in_graph, present, relations, given)]


def _others(in_graph: Mapping[Relation, EdgeTimes], relations: Sequence[Relation],
            given: Mapping[str, Links]) -> dict[Relation, tuple[np.ndarray, np.ndarray]]:
    """Sources and destinations of the links of relations that only the table has."""
    found: dict[Relation, list[tuple[np.ndarray, np.ndarray]]] = {}
    for links in given.values():
        for _, (relation, *ends) in links.by_relation(relations):
            if relation not in in_graph:
                found.setdefault(relation, []).append((ends[0], ends[1]))
    return {relation: (np.concatenate([src for src, _ in parts]),
                       np.concatenate([dst for _, dst in parts]))
            for relation, parts in found.items()}


def _shown_early(store: Store, groups: Sequence[SameLinks], in_graph: Mapping[Relation, EdgeTimes],
                 others: Mapping[Relation, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """A line where relations that are in no group have some of the links, of the graph's relations
    and of `others`, but not their times."""
    together = {relation for group in groups for relation in group.relations}
    relations = [*in_graph, *others]

    def early(each: Overlap) -> bool:
        times = EdgeTimes(store, each.other)
        if each.relation in others:
            return not times.dated
        return times.lacks(in_graph[each.relation]) or (not times.dated and times.older())

    return said("links are shown before they are there", (
        each for each in (overlaps(store, relations, others) if relations else ())
        if each.other not in together and each.above_chance >= NOTED and early(each)),
        "write the store with the times of such relations, or without them")


class Present:
    """The nodes of a type that are there at a time: the first ones of an order."""

    def __init__(self, store: Store, ntype: str) -> None:
        self._count, self._rows = store.schema.node_counts[ntype], store.row_times(ntype)
        if self._rows is not None:
            self._order = np.argsort(self._rows, kind="stable")
            self._times = self._rows[self._order]

    def counts(self, times: np.ndarray) -> np.ndarray:
        """How many there are at each of some times, int64."""
        return (np.full(len(times), self._count) if self._rows is None else
                np.searchsorted(self._times, times, side="right"))

    def newer(self, nodes: np.ndarray, times: np.ndarray) -> float:
        """The AUC by which nodes at some times are told from others by rows that are of this time.
        """
        if self._rows is None or not (dated := times != ALWAYS).any():
            return 0.5
        at, new = times[dated], (self._rows[nodes] == times)[dated]
        others = 1 - self.counts(at - 1) / self.counts(at)  # share of them that is as new
        return float((new + 1 - others).mean() / 2)

    def nodes(self, places: np.ndarray) -> np.ndarray:
        """The nodes of some places in the order."""
        return places if self._rows is None else self._order[places]


def _new_ends(in_graph: Mapping[Relation, EdgeTimes], present: Mapping[str, Present],
              relations: Sequence[Relation], given: Mapping[str, Links]) -> list[str]:
    """Lines where a destination that is new with its link is told from others by that alone."""
    notes = []
    for i, relation in enumerate(relations):
        parts = [links.at(links.places == i) for links in given.values()] or [
            in_graph[relation].some()]
        alone = present[relation.dst].newer(*map(np.concatenate, zip(*(
            (links.destinations, links.times) for links in parts))))
        if alone > TOLD:
            notes.append(
                f"many destinations of '{relation}' begin with their links, which tells them from "
                f"others (AUC {alone:.2f} by it alone): a score beyond chance may be that; predict "
                "the other direction")
    return notes
