"""Link prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.features.row_files import move
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import ALWAYS
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.link_model import Linked, decoded
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.moments import Moments, TimeDraws
from dgl_heta.sampling.same_links import between, same_links
from dgl_heta.settings import TaskSettings
from dgl_heta.settings.sections import by_commas
from dgl_heta.store import Store
from dgl_heta.training.metrics import RankTally, Tally
from dgl_heta.training.tasks.given_links import Links, read_links
from dgl_heta.training.tasks.task import SPLITS, Owned, Step, in_memory, share_of
from dgl_heta.training.tasks.timed_links import TOLD, EdgeTimes, Present, history, read_timed_links
from dgl_heta.training.tasks.timed_seeds import split_by_time

_PIECE = 2**22  # edges
ALL = "*"
"""The value of `task.relation` that stands for all relations."""
NONE = ("none", "")
"""Values of `task.reverse` without which relations are looked for that have the same links."""


def predicted(task: TaskSettings, schema: Schema) -> tuple[Relation, ...]:
    """The relations whose links are predicted.

    Raises
    ------
    InputError
        There is no such relation, or it is named twice.
    """
    if task.relation == ALL:
        return schema.relations
    relations = tuple(_named(name, task, schema) for name in _names(task.relation, schema))
    if twice := [r for r in relations if relations.count(r) > 1]:
        raise InputError(f"task.relation names '{twice[0]}' twice; name each relation once")
    return relations


def _named(name: str, task: TaskSettings, schema: Schema) -> Relation:
    """A relation of the graph; with `task.table` also one that only the table has."""
    parts = name.replace(":", " ").split()
    if task.table is not None and len(parts) == 3 and {parts[0], parts[2]} <= {*schema.node_types}:
        return Relation(*parts)
    return schema.find_relation(name)


def named_reverses(task: TaskSettings, schema: Schema) -> list[Relation]:
    """The relations that `task.reverse` names.

    Raises
    ------
    InputError
        There is no such relation, or it does not join the ends of one that is predicted.
    """
    relations = predicted(task, schema)
    reverses = [schema.find_relation(name) for name in _names(task.reverse, schema)
             if name not in NONE]
    for each in reverses:
        if not between([r for r in relations if r != each or r.src == r.dst], each):
            raise InputError(f"task.reverse '{each}' does not go from '{relations[0].dst}' back to "
                             f"'{relations[0].src}', as the reverse of '{relations[0]}' does, nor "
                             "does it join the ends of another relation of task.relation")
    return reverses


def _names(value: str | list[str] | None, schema: Schema) -> list[str]:
    """Names of relations, from a list or a text with commas that is no name itself."""
    if isinstance(value, str) and not any(value in (r.etype, str(r)) for r in schema.relations):
        value = by_commas(value)
    return [value] if isinstance(value, str) else list(value or ())


@dataclass(frozen=True)
class LinkStep:
    """Edges to predict, with a key for their negative samples.

    Positions are those of the relation's CSC, of several relations one after the other, or in the
    list of the split if one is given.
    """

    positions: np.ndarray
    key: tuple[int, ...]
    split: str
    own: bool = False

    @property
    def training(self) -> bool:
        return self.split == "train"

    @property
    def size(self) -> int:
        return len(self.positions)


class LinkEnds(NamedTuple):
    """A worker's own links between nodes of two types, and their negative destinations.

    Attributes
    ----------
    src, dst : the node types.
    relations : int64 (links,), the places of their relations among those that are predicted.
    sources, destinations, negatives : int64 (links,), (links,), (links, negatives), where the ends
        are among the worker's seeds of their types, and so in what the model returns.
    """

    src: str
    dst: str
    relations: Tensor
    sources: Tensor
    destinations: Tensor
    negatives: Tensor


class LinkPrediction:
    """Which of some destinations a source is joined to by a relation, or by several: dot product or
    DistMult (see :class:`dgl_heta.models.link_model.Linked`), MRR.

    One more case of several target types: the ends of edges and of negative samples are the
    seeds. The edges of a step carry no messages in it, and those held out for validation and test
    never do: in no direction, and by no relation that has the same links
    (:mod:`dgl_heta.sampling.same_links`), so that no answer is given away. Negatives have a
    destination drawn evenly in place of the true one.
    The loss of an edge is that of logistic regression, the negatives averaged.

    In a graph with times each link has one (:mod:`dgl_heta.training.tasks.timed_links`). Its ends
    and negatives, of nodes that are there then, are seeds at it, which see what is before. Splits
    are by time. Links that were are history for later ones, so none is held out for good.
    """

    metric = "MRR"

    def __init__(self, store: Store, task: TaskSettings, width: int, seed: int) -> None:
        self.relations = predicted(task, store.schema)
        self.targets = tuple(task.targets or ())
        self.outputs = dict.fromkeys(self.targets, width)
        self._store, self._task, self._seed = store, task, seed
        self._counts, self._timed = store.schema.node_counts, store.manifest.timed
        self._present = {r.dst: Present(store, r.dst) for r in self.relations}
        self._in_graph = {r: EdgeTimes(store, r) for r in self.relations
                          if r in store.schema.edge_counts}
        self._starts = np.cumsum([0, *(store.schema.edge_counts.get(r, 0) for r in self.relations)])
        self._types = list(dict.fromkeys((r.src, r.dst) for r in self.relations))
        self._type_of = np.array([self._types.index((r.src, r.dst)) for r in self.relations])
        self._vectors: Tensor | None = None
        self._given: dict[str, Links] = {}
        if task.links is not None:
            store.check_untimed("task.links (task.table has links with times) goes")
            self._given = read_links(task.links, store, self.relations)
        elif task.table is not None:
            self._given = read_timed_links(store, self.relations, task)

    @property
    def held_out(self) -> HeldOut:
        return self._held_out[0]

    @property
    def notes(self) -> list[str]:
        return self._held_out[1]

    @cached_property
    def _held_out(self) -> tuple[HeldOut, list[str]]:
        """The edges that are held out, and notes on them."""
        schema = self._store.schema
        groups, notes = same_links(
            self._store, [*self._in_graph], named_reverses(self._task, schema),
            find=not any(name in NONE for name in _names(self._task.reverse, schema))
        ) if self._in_graph else ([], [])
        if self._timed:
            return history(self._store, self._in_graph, groups, self._present, self.relations,
                           self._given)
        held_out = HeldOut(groups, 0.0 if self._given else 2 * self._task.held_out, self._seed,
                        [edges for split in ("val", "test") if split in self._given
                         for _, edges in self._given[split].by_relation(self.relations)])
        return held_out, notes + self._missing_edges() + self._leave_out_of_training(held_out)

    def _missing_edges(self) -> list[str]:
        """Where the edge that is left out of a link tells it from others by itself: a line."""
        notes = []
        for relation in () if self._given else self.relations:
            edges = np.bincount(np.minimum(np.diff(self._store.pointers(relation)), 1 << 16))
            numbers = np.arange(len(edges))
            of_links = np.append((edges * numbers)[1:], 0) / max((edges * numbers).sum(), 1)
            drawn = edges / max(edges.sum(), 1)
            fewer = float((of_links * (1 - np.cumsum(drawn) + drawn / 2)).sum())
            if fewer > TOLD:
                notes.append(
                    f"destinations of '{relation}' have much the same number of its edges, so the "
                    f"one that is left out tells a link from others (AUC {fewer:.2f} by it alone): "
                    "a score beyond chance may be that; predict the other direction, or compare "
                    "with random links")
        return notes

    def _leave_out_of_training(self, held_out: HeldOut) -> list[str]:
        """Leave out of given links for training what others ask for in another direction."""
        if "train" not in self._given:
            return []
        links = self._given["train"]
        asked = np.zeros(len(links.places), bool)
        for own, edges in links.by_relation(self.relations):
            asked[own] = held_out.lists(edges)
        self._given["train"] = links.at(~asked)
        return [f"{asked.sum():,} of {len(asked):,} links that task.links has for training are the "
                "opposite or a copy of one for val or test; they are left out"] * bool(asked.any())

    @cached_property
    def splits(self) -> dict[str, np.ndarray]:
        """Positions of each split."""
        held_out = self.held_out
        given = {name: np.arange(len(links.places)) for name, links in self._given.items()}
        return given if given.keys() == SPLITS.keys() else {**self._of_graph(held_out), **given}

    def _of_graph(self, held_out: HeldOut) -> dict[str, np.ndarray]:
        """Positions of each split of the graph's edges; where some are given, the others."""
        edges_of: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int64)] for name in SPLITS}
        share = self._task.held_out
        for relation, start, end in zip(self.relations, self._starts, self._starts[1:]):
            for low in range(start, end, _PIECE):
                positions = np.arange(low, min(low + _PIECE, end))
                *ends, times = self._in_graph[relation].at(positions - start)
                if self._timed:
                    part = split_by_time(None, times, self._task)
                    for number, split in enumerate(SPLITS):
                        edges_of[split].append(positions[(part == number) & (times != ALWAYS)])
                    continue
                edges = (relation, ends[0], ends[1])
                if self._given:
                    edges_of["train"].append(positions[~held_out.lists(edges)])
                    continue
                chance = held_out.chances(edges)
                edges_of["test"].append(positions[chance < share])
                edges_of["val"].append(positions[(chance >= share) & (chance < 2 * share)])
                edges_of["train"].append(positions[chance >= 2 * share])
        return {name: np.concatenate(parts) for name, parts in edges_of.items()}

    def provider(self, of: ModelProvider) -> ModelProvider:
        return decoded(of, self._task.decoder, list(map(str, self.relations)))

    def use(self, model: nn.Module) -> None:
        self._vectors = model.relation if isinstance(model, Linked) else None

    def steps(self, split: str, epoch: int, size: int, owned: Owned | None = None,
              shuffle: bool | None = None) -> list[Step]:
        positions = self.splits[split].copy()
        if owned is not None:
            self._store.check_untimed("workers that own seeds (train.wrapper) go")
            positions = np.array(owned(positions))
        if split == "train" if shuffle is None else shuffle:
            np.random.default_rng([self._seed, epoch]).shuffle(positions)
        kind = list(SPLITS).index(split)
        return [LinkStep(positions[low:low + size], (self._seed, kind, epoch, low), split,
                         owned is not None)
                for low in range(0, len(positions), size)]

    def untrained(self) -> list[str]:
        if self._task.decoder == "dot":  # which has no weights for each relation
            return []
        positions, given = self.splits["train"], self._given.get("train")
        counts = (np.histogram(positions, self._starts)[0] if given is None else
                  np.bincount(given.places, minlength=len(self.relations)))
        return [str(r) for r, count in zip(self.relations, counts) if not count]

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        moments, ids, _ = self._ids(*self._share(step, worker, workers))
        return {t: moments.pairs(t, own) for t, own in ids.items()} if self._timed else ids

    def _ids(self, links: Links, negatives: np.ndarray) -> tuple[
            Moments, dict[str, np.ndarray], list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """The moments of some links; the ids there of their ends and negatives, ascending; for each
        pair of node types, maybe none, the positions of its links, and the ids of their sources and
        of their destinations beside negatives (links, 1 + negatives)."""
        moments = Moments(np.unique(links.times), self._counts, TimeDraws())
        ends = np.column_stack([links.destinations, negatives])
        ids_of: dict[str, list[np.ndarray]] = {t: [] for t in self.targets}
        found = []
        for i, (src, dst) in enumerate(self._types):
            own = np.flatnonzero(self._type_of[links.places] == i)
            times = links.times[own]
            found.append((own, moments.ids(src, links.sources[own], times),
                          moments.ids(dst, ends[own], times[:, None])))
            ids_of[src].append(found[-1][1])
            ids_of[dst].append(found[-1][2].ravel())
        return moments, {t: np.unique(np.concatenate(ids)) for t, ids in ids_of.items()}, found

    def without(self, step: Step) -> Mapping[Relation, np.ndarray] | None:
        assert isinstance(step, LinkStep)
        if not step.training or self._timed:
            return None
        return self.held_out.pairs(edges for _, edges in self.links(
            step, step.positions).by_relation(self.relations))

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        right, wrong, ranks, _ = self._scores(outputs, step, worker, workers)
        summed = F.softplus(-right).sum() + F.softplus(wrong).sum() / max(wrong.shape[1], 1)
        statistics = in_memory([summed.detach(), len(right), (1 / ranks.double()).sum()])
        return summed * (workers / max(step.size, 1)), statistics

    def score(self, statistics: Tensor) -> tuple[float, float]:
        loss, count, reciprocal = statistics.tolist()
        return (reciprocal / count, loss / count) if count else (float("nan"), float("nan"))

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        return {"links": RankTally(self._task.eval_negatives, list(map(str, self.relations)))}

    def observe(self, tallies: Mapping[str, Tally], outputs: Mapping[str, Tensor], step: Step,
                worker: int, workers: int) -> None:
        tally = tallies["links"]
        assert isinstance(tally, RankTally)
        _, _, ranks, places = self._scores(outputs, step, worker, workers)
        tally.add(ranks.cpu().numpy(), places.cpu().numpy())

    def _scores(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
                ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a worker's edges: scores, those of their negatives (edges, negatives), ranks, and the
        places of their relations."""
        device, scored = next(iter(outputs.values())).device, []
        for ends in self.ends(step, worker, workers, device):
            # by embedding: `x[numbers]` adds its gradients in any order on several threads
            left, rows = F.embedding(ends.sources, outputs[ends.src]), outputs[ends.dst]
            if self._vectors is not None:
                left = left * F.embedding(ends.relations, self._vectors)
            right = (left * F.embedding(ends.destinations, rows)).sum(1)
            wrong = (left.unsqueeze(1) * F.embedding(ends.negatives, rows)).sum(2)
            ranks = 1 + (wrong > right.unsqueeze(1)).sum(1) + (
                (wrong == right.unsqueeze(1))
                & (ends.negatives != ends.destinations.unsqueeze(1))).sum(1)
            scored.append((right, wrong, ranks, ends.relations))
        right, wrong, ranks, places = map(torch.cat, zip(*scored))
        return right, wrong, ranks, places

    def ends(self, step: Step, worker: int, workers: int, device: torch.device) -> list[LinkEnds]:
        """A worker's links of a step, on a device, for each pair of node types that are joined."""
        links, negatives = self._share(step, worker, workers)
        _, seeds, by_types = self._ids(links, negatives)
        found = []
        for (src, dst), (own, sources, others) in zip(self._types, by_types):
            others = np.searchsorted(seeds[dst], others)
            places = (links.places[own], np.searchsorted(seeds[src], sources), others[:, 0],
                      others[:, 1:])
            found.append(LinkEnds(src, dst, *(move(torch.from_numpy(x), device) for x in places)))
        return found

    def _share(self, step: Step, worker: int, workers: int) -> tuple[Links, np.ndarray]:
        """A worker's edges, and their negative destinations (edges, negatives)."""
        assert isinstance(step, LinkStep)
        count = self._task.negatives if step.training else self._task.eval_negatives
        links = self.links(step, step.positions)
        most = np.empty((step.size, 1), np.int64)
        kinds = [(links.places == i, self._present[r.dst]) for i, r in enumerate(self.relations)]
        for own, present in kinds:
            most[own, 0] = present.counts(links.times[own])
        negatives = np.random.default_rng(step.key).integers(0, most, (step.size, count))
        for own, present in kinds:
            negatives[own] = present.nodes(negatives[own])
        return (links.at(share_of(np.arange(step.size), worker, workers)),
                share_of(negatives, worker, workers))

    def links(self, step: LinkStep, positions: np.ndarray) -> Links:
        """Some links of a step, by their positions."""
        if step.split in self._given:
            return self._given[step.split].at(positions)
        links = Links(np.searchsorted(self._starts, positions, side="right") - 1,
                      *np.empty((3, len(positions)), np.int64))
        for i in np.unique(links.places):
            own = links.places == i
            links.sources[own], links.destinations[own], links.times[own] = self._in_graph[
                self.relations[i]].at(positions[own] - self._starts[i])
        return links
