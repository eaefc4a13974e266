"""Metrics by name, from what is counted of all workers' nodes and edges in one pass.

Counts are whole numbers and are added up; what ranks nodes by their scores (AUROC, average
precision) gathers the scores of one class after another. So any number of workers has the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError, listing, nearest

_AVERAGED = tuple(f"{what}_{how}" for what in ("f1", "precision", "recall")
                  for how in ("macro", "micro", "weighted"))
_RANKING = ("auroc", "average_precision")
KINDS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "balanced_accuracy", "mcc", "topK_accuracy", *_AVERAGED,
                       *_RANKING),
    "multilabel": ("exact_match", *_AVERAGED, *_RANKING),
    "regression": ("mae", "mse", "rmse", "r2"),
    "link": ("mrr", "mean_rank", "hits@K")}
"""`task.kind` → the names of its metrics; K stands for a number."""
_SMALLER = {"mae", "mse", "rmse", "mean_rank"}
_PATTERNS = {"topK_accuracy": re.compile(r"top([1-9]\d{0,8})_accuracy"),
             "hits@K": re.compile(r"hits@([1-9]\d{0,8})")}


def check_names(names: Iterable[str], kind: str, most: int) -> None:
    """Check names of metrics for a kind of task.

    Parameters
    ----------
    most : K must be below it for `topK_accuracy` and `hits@K` to say anything.

    Raises
    ------
    InputError
        A name is unknown, is of another kind of task, or its K is too large.
    """
    for name in names:
        if not _known(name, kind):
            others = [other for other in KINDS if _known(name, other)]
            raise InputError(
                (f"metric '{name}' is for task.kind = {' or '.join(map(repr, others))}, and this "
                 f"task is '{kind}'" if others else f"unknown metric '{name}' in train.metrics or "
                 f"train.monitor, for task.kind = '{kind}'")
                + f"; its metrics: {listing(KINDS[kind], 40)}"
                + ("" if others else nearest(name, KINDS[kind])))
        if (k := _number(name)) is not None and k >= most:
            raise InputError(f"metric '{name}' is 1 whatever is predicted: "
                             + (f"edges are ranked among {most - 1} negatives; set "
                                f"task.eval_negatives to {k} or more" if kind == "link" else
                                f"there are {most} classes") + ", or take a smaller number")


def smaller_is_better(name: str | None) -> bool:
    """Return whether a metric is an error, or a rank; None stands for the task's own score."""
    return name in _SMALLER


class Tally(Protocol):
    """Counts of the nodes of a type, or of edges, in a pass over a split."""

    def gather(self, comm: Comm) -> None:
        """Add up what all workers counted; each of them calls it, once."""

    @property
    def count(self) -> int:
        """How many nodes or edges there were, of all workers."""

    def value(self, name: str) -> float:
        """A metric; NaN where it is not defined."""


def values(tallies: Mapping[str, Tally], names: Iterable[str]) -> dict[str, float | None]:
    """Metrics after the pass: the mean over types that have nodes; None where not defined."""
    values_of: dict[str, float | None] = {}
    for name in names:
        each = [tally.value(name) for tally in tallies.values() if tally.count]
        mean = sum(each) / len(each) if each else math.nan
        values_of[name] = mean if math.isfinite(mean) else None
    return values_of


class ClassTally:
    """One class per node: how often a class was predicted for another, and scores if needed.

    Attributes
    ----------
    pairs : (different pairs,) int64, true class times the number of classes, plus predicted one.
    counts : (different pairs,) int64, how many nodes have them.
    """

    def __init__(self, classes: int, names: Iterable[str] = ()) -> None:
        self.classes = classes
        self.pairs, self.counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._top = {k: 0 for name in names if (k := _number(name)) is not None}
        self._scores = _Scores(names, range(classes) if classes != 2 else (1,))

    def add(self, outputs: Tensor, labels: np.ndarray) -> None:
        """Count nodes: their outputs (nodes, classes), and their classes, int64."""
        wants = torch.from_numpy(labels).to(outputs.device)
        codes = labels * self.classes + outputs.argmax(1).cpu().numpy()
        self._merge(np.concatenate([self.pairs, codes]),
                    np.concatenate([self.counts, np.ones(len(codes), np.int64)]))
        if self._top:
            own = outputs.gather(1, wants.unsqueeze(1))
            places = torch.arange(self.classes, device=outputs.device)
            before = ((outputs > own) | ((outputs == own) & (places < wants.unsqueeze(1)))).sum(1)
            for k in self._top:
                self._top[k] += int((before < k).sum())
        if self._scores:
            self._scores.add(outputs.double().softmax(1), labels)

    def gather(self, comm: Comm) -> None:
        pairs, counts = (_gathered(comm, array) for array in (self.pairs, self.counts))
        self._merge(pairs, counts)
        if self._top:
            totals = comm.all_reduce(torch.tensor(list(self._top.values())), cause="control")
            self._top = dict(zip(self._top, totals.tolist()))
        self._scores.gather(comm, lambda labels, label: labels == label)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def per_class(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes predicted rightly, predicted at all, and there, of each class: int64 (classes,)."""
        true, predicted = np.divmod(self.pairs, self.classes)
        right = np.where(true == predicted, self.counts, 0)
        return tuple(_summed(places, weights, self.classes) for places, weights in (
            (true, right), (predicted, self.counts), (true, self.counts)))  # type: ignore[return-value]

    def value(self, name: str) -> float:
        right, predicted, support = self.per_class()
        total = self.count
        if not total:
            return math.nan
        if name in _RANKING:
            return self._scores.value(name)
        if (k := _number(name)) is not None:
            return self._top[k] / total
        if name == "accuracy":
            return float(right.sum() / total)
        if name == "balanced_accuracy":
            return float((right[support > 0] / support[support > 0]).mean())
        if name == "mcc":
            spread = [float(total) ** 2 - float((side.astype(np.float64) ** 2).sum())
                      for side in (predicted, support)]
            both = float((predicted.astype(np.float64) * support).sum())
            most = math.sqrt(spread[0]) * math.sqrt(spread[1])
            return (float(right.sum()) * total - both) / most if most else 0.0
        return averaged(name, right, predicted, support, (predicted + support) > 0)

    def _merge(self, pairs: np.ndarray, counts: np.ndarray) -> None:
        self.pairs, places = np.unique(pairs, return_inverse=True)
        self.counts = _summed(places, counts, len(self.pairs))


class LabelTally:
    """Any number of labels per node."""

    def __init__(self, labels: int, names: Iterable[str] = ()) -> None:
        self._counts = np.zeros((3, labels), np.int64)
        self._nodes = np.zeros(2, np.int64)
        self._scores = _Scores(names, range(labels))

    def add(self, outputs: Tensor, labels: np.ndarray) -> None:
        """Count nodes: outputs (nodes, labels), positive where a label is predicted, and zeros
        and ones alike, NaN where a node has no such label."""
        known, want = ~np.isnan(labels), labels > 0
        got = (outputs > 0).cpu().numpy() & known
        self._counts += np.stack([got & want, got, want]).sum(1)
        self._nodes += len(got), int((got == want).all(1).sum())
        if self._scores:
            self._scores.add(outputs.double(), labels)

    def gather(self, comm: Comm) -> None:
        self._counts, self._nodes = (
            comm.all_reduce(torch.from_numpy(array), cause="control").numpy()
            for array in (self._counts, self._nodes))
        self._scores.gather(comm, lambda labels, label: labels[:, label])

    @property
    def count(self) -> int:
        return int(self._nodes[0])

    def per_class(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes with a label rightly predicted, predicted at all, and there: int64 (labels,)."""
        return self._counts[0], self._counts[1], self._counts[2]

    def value(self, name: str) -> float:
        if not self.count:
            return math.nan
        if name in _RANKING:
            return self._scores.value(name)
        if name == "exact_match":
            return float(self._nodes[1] / self._nodes[0])
        return averaged(name, *self.per_class(), np.ones(self._counts.shape[1], bool))


class ValueTally:
    """Numbers per node."""

    def __init__(self, outputs: int) -> None:
        self._sums = np.zeros((5, outputs))

    def add(self, outputs: Tensor, labels: np.ndarray) -> None:
        """Count nodes: what is predicted of them, and what is right, both (nodes, outputs); NaN
        where it is not known."""
        known = ~np.isnan(labels)
        wants = np.where(known, labels, 0.0)
        wrong = np.where(known, outputs.double().cpu().numpy() - wants, 0.0)
        self._sums += np.stack([known, np.abs(wrong), wrong ** 2, wants, wants ** 2]).sum(1)

    def gather(self, comm: Comm) -> None:
        self._sums = comm.all_reduce(torch.from_numpy(self._sums), cause="control").numpy()

    @property
    def count(self) -> int:
        return int(self._sums[0].max())

    def value(self, name: str) -> float:
        count, absolute, squares, sums, sums_of_squares = self._sums[:, self._sums[0] > 0]
        if not self.count:
            return math.nan
        if name == "r2":
            return coefficient(np.stack([squares, count, sums, sums_of_squares]))
        mean = float(((absolute if name == "mae" else squares) / count).mean())
        return math.sqrt(mean) if name == "rmse" else mean


class RankTally:
    """Ranks of edges among their negatives, the best is 1, by relation."""

    def __init__(self, negatives: int, relations: Sequence[str]) -> None:
        self.relations = relations
        self._counts = np.zeros((len(relations), negatives + 2), np.int64)

    def add(self, ranks: np.ndarray, places: np.ndarray) -> None:
        """Count edges by their ranks and the places of their relations, int64 (edges,)."""
        np.add.at(self._counts, (places, ranks), 1)

    def gather(self, comm: Comm) -> None:
        self._counts = comm.all_reduce(torch.from_numpy(self._counts), cause="control").numpy()

    def of_each(self) -> dict[str, RankTally]:
        """Relation → what was counted of it."""
        tallies = {name: RankTally(0, [name]) for name in self.relations}
        for i, tally in enumerate(tallies.values()):
            tally._counts = self._counts[i:i + 1]
        return tallies

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def value(self, name: str) -> float:
        if not self.count:
            return math.nan
        counts = self._counts.sum(0)
        ranks = np.arange(len(counts))
        if (k := _number(name)) is not None:
            return float(counts[:k + 1].sum() / self.count)
        weights = ranks.astype(float) if name == "mean_rank" else 1 / np.maximum(ranks, 1)
        return float((counts * weights).sum() / self.count)


class _Scores:
    """Scores of nodes for each class, kept where a metric ranks by them."""

    def __init__(self, names: Iterable[str], places: Sequence[int]) -> None:
        self._names = [name for name in dict.fromkeys(names) if name in _RANKING]
        self._places = places
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._values: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, scores: Tensor, labels: np.ndarray) -> None:
        self._scores.append(scores.cpu().numpy())
        self._labels.append(labels)

    def gather(self, comm: Comm, is_of) -> None:  # type: ignore[no-untyped-def]
        """Rank the nodes of all workers for one class after another; the mean over those classes
        that some nodes have and others not."""
        if not self._names:
            return
        scores_of: dict[str, list[float]] = {name: [] for name in self._names}
        scores = np.concatenate(self._scores) if self._scores else None
        labels = np.concatenate(self._labels) if self._labels else None
        for label in self._places:
            own = np.empty(0) if scores is None else scores[:, label]
            true = np.empty(0) if labels is None else is_of(labels, label).astype(np.float64)
            known = ~np.isnan(true)
            all_of, all_true = _gathered(comm, own[known]), _gathered(comm, true[known]) > 0
            if all_true.any() and not all_true.all():
                for name in self._names:
                    scores_of[name].append(RANKINGS[name](all_of, all_true))
        self._values = {name: float(np.mean(each)) if each else math.nan
                        for name, each in scores_of.items()}
        self._scores, self._labels = [], []

    def value(self, name: str) -> float:
        return self._values[name]


def averaged(name: str, right: np.ndarray, predicted: np.ndarray, support: np.ndarray,
             counted: np.ndarray) -> float:
    """F1, precision or recall: of all nodes (micro), the mean over classes `counted` (macro), or
    weighted by how many nodes there are. A class without any counts 0."""
    what, _, how = name.partition("_")
    if how == "micro":
        right, predicted, support = (np.array([side.sum()]) for side in (right, predicted, support))
    each = of_classes(right, predicted, support)[what]
    if how == "weighted":
        return float((each * support).sum() / support.sum()) if support.any() else 0.0
    return float(each.mean() if how == "micro" else each[counted].mean())


def coefficient(sums: np.ndarray) -> float:
    """R², its mean over outputs that some nodes have; of one value alone 1 if it is met, else 0.

    Parameters
    ----------
    sums : (4, outputs), over nodes: squared errors, their number, what is right, its squares.
    """
    squares, count, right, right_squared = sums[:, sums[1] > 0]
    spread = right_squared - right ** 2 / count
    varied = spread > 1e-12 * right_squared  # by more than rounding
    return float(np.mean(np.where(varied, 1 - squares / np.where(varied, spread, 1), squares == 0)))


def of_classes(right: np.ndarray, predicted: np.ndarray, support: np.ndarray
               ) -> dict[str, np.ndarray]:
    """Precision, recall and F1 of each class, float64 (classes,); 0 where nothing is counted."""
    return {"precision": right / np.maximum(predicted, 1), "recall": right / np.maximum(support, 1),
            "f1": 2 * right / np.maximum(predicted + support, 1)}


def _auroc(scores: np.ndarray, true: np.ndarray) -> float:
    """The chance that a node of the class scores above one that is not; ties count half."""
    if not np.isfinite(scores).all():
        return math.nan
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    some = int(true.sum())
    return float((ranks[true].sum() - some * (some + 1) / 2) / (some * (len(true) - some)))


def _average_precision(scores: np.ndarray, true: np.ndarray) -> float:
    """The mean precision at each score, weighted by the recall that it adds."""
    if not np.isfinite(scores).all():
        return math.nan
    _, places = np.unique(-scores, return_inverse=True)
    added = _summed(places, true.astype(np.int64), int(places.max()) + 1)
    precision = np.cumsum(added) / np.cumsum(np.bincount(places))
    return float((precision * added).sum() / added.sum())


RANKINGS = {"auroc": _auroc, "average_precision": _average_precision}


def _known(name: str, kind: str) -> bool:
    return any(_PATTERNS[each].fullmatch(name) if each in _PATTERNS else each == name
               for each in KINDS[kind])


def _number(name: str) -> int | None:
    """K, of a name with one."""
    for pattern in _PATTERNS.values():
        if match := pattern.fullmatch(name):
            return int(match[1])
    return None


def _gathered(comm: Comm, array: np.ndarray) -> np.ndarray:
    """The rows of all workers, in the order of workers."""
    if comm.size == 1:
        return array
    sizes = comm.all_gather_rows(torch.tensor([len(array)]), [1] * comm.size, "control").tolist()
    rows = torch.from_numpy(np.ascontiguousarray(array))
    return comm.all_gather_rows(rows, sizes, "control").cpu().numpy()


def _summed(places: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """Sums of int64 counts by place, int64 (size,)."""
    total = np.zeros(size, np.int64)
    np.add.at(total, places.reshape(-1), counts)
    return total
