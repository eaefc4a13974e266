"""Node prediction: classification, regression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgl_heta.errors import InputError, several
from dgl_heta.features.row_files import move
from dgl_heta.graph.labels import NodeLabels, in_mask
from dgl_heta.graph.readers.arrays import class_labels
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store
from dgl_heta.store.structure import file_of
from dgl_heta.training.metrics import ClassTally, LabelTally, Tally, ValueTally, coefficient
from dgl_heta.training.tasks.task import SPLITS, Owned, Step, in_memory, share_of
from dgl_heta.training.tasks.timed_seeds import SeedTable, seed_table


@dataclass(frozen=True)
class NodeStep:
    """Nodes of each target type."""

    nodes: Mapping[str, np.ndarray]
    own: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.nodes.values()))


def node_steps(ids: Mapping[str, np.ndarray], size: int, shuffle: tuple[int, int] | None,
               own: bool = False) -> list[Step]:
    """Steps over the nodes of some types, `size` of all types together in each.

    Parameters
    ----------
    shuffle : the seed and the epoch that an order follows from; None leaves the nodes as they are.
    own : whether they are one worker's own steps.
    """
    if shuffle is not None:
        ids = {t: np.array(nodes) for t, nodes in ids.items()}
        for index, nodes in enumerate(ids.values()):
            np.random.default_rng([*shuffle] + [index] * (index > 0)).shuffle(nodes)
    count = -(-sum(map(len, ids.values())) // size)
    if len(ids) == 1:
        ((ntype, nodes),) = ids.items()
        return [NodeStep({ntype: nodes[i * size:(i + 1) * size]}, own) for i in range(count)]
    # Every type has its part in every step, and every node is a seed once an epoch.
    return [NodeStep({t: n[len(n) * i // count:len(n) * (i + 1) // count]
                      for t, n in ids.items()}, own) for i in range(count)]


class NodePrediction:
    """Classification (single or multi label) or regression of nodes of one or several types.

    Nodes of a mask that have no label, and entries of those that have some, count in no loss and
    no score.
    """

    held_out = None
    def __init__(self, store: Store, task: TaskSettings, seed: int,
                 class_weights: str | list[float] | None = None) -> None:
        self.targets = tuple(task.targets or ())
        self._seed, self._store = seed, store
        self.notes: list[str] = []
        self._labels = {t: labels_of(store, t, task) for t in self.targets}
        self._heads = {t: _HEADS[labels.kind](labels.outputs) for t, labels in self._labels.items()}
        self.outputs = {t: labels.outputs for t, labels in self._labels.items()}
        self.metric = next(iter(self._heads.values())).metric
        for ntype, labels in self._labels.items():
            masks = {name: store.array(ntype, name) for name in MASKS
                     if store.has_array(ntype, name) and not isinstance(labels, SeedTable)}
            for name, mask in masks.items():
                labels.check(chosen(mask), name)
            self.notes += [
                f"{several(both, 'node')} of '{ntype}' in {one} and in {other}, too: a score of "
                "nodes that are trained on says nothing of others" if one == "train_mask" else
                f"{several(both, 'node')} of '{ntype}' in {one} and in {other}, too"
                for one, other in combinations(masks, 2)
                if (both := int(np.count_nonzero(np.logical_and(masks[one], masks[other]))))]
            head = self._heads[ntype]
            if class_weights is not None and isinstance(head, Classification):
                head.weigh(class_weights, labels, self._nodes(ntype, "train"))

    def provider(self, of: ModelProvider) -> ModelProvider:
        return of

    def use(self, model: nn.Module) -> None:
        pass

    def steps(self, split: str, epoch: int, size: int, owned: Owned | None = None) -> list[Step]:
        ids = {t: self._nodes(t, split) for t in self.targets}
        if owned is not None:
            self._store.check_untimed("workers that own seeds (train.wrapper) go")
            ids = {t: np.array(owned(nodes)) for t, nodes in ids.items()}
        return node_steps(ids, size, (self._seed, epoch) if split == "train" else None,
                          owned is not None)

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        assert isinstance(step, NodeStep)
        return {t: share_of(nodes, worker, workers) for t, nodes in step.nodes.items()}

    def without(self, step: Step) -> Mapping[Relation, np.ndarray] | None:
        return None

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        assert isinstance(step, NodeStep)
        total, statistics = torch.zeros(()), []  # moved to a GPU by what is added
        for ntype, ids in self.seeds(step, worker, workers).items():
            head, labels = self._heads[ntype], self._labels[ntype]
            values = labels.rows(ids)
            summed, counts = head.loss(outputs[ntype], values)
            whole = head.weight(labels.rows(step.nodes[ntype]))
            total = total + summed * (workers / whole if whole else 0.0)
            statistics.append(in_memory([summed.detach(), head.weight(values), *counts]))
        return total, torch.cat(statistics)

    def score(self, statistics: Tensor) -> tuple[float, float]:
        scores, losses, start = [], 0.0, 0
        for head in self._heads.values():
            loss, weight, *counts = statistics[start:start + head.statistics + 2].tolist()
            start += head.statistics + 2
            if not any(head.counted(counts)):
                continue
            scores.append(head.score(counts))
            losses += loss / weight if weight else 0.0
        return (sum(scores) / len(scores), losses) if scores else (float("nan"), float("nan"))

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        return {ntype: head.tally(tuple(names)) for ntype, head in self._heads.items()}

    def observe(self, tallies: Mapping[str, Any], outputs: Mapping[str, Tensor], step: Step,
                worker: int, workers: int) -> None:
        for ntype, ids in self.seeds(step, worker, workers).items():
            tallies[ntype].add(outputs[ntype].detach(), self._labels[ntype].rows(ids))

    def untrained(self) -> list[str]:
        return [t for t in self.targets if not len(self._nodes(t, "train"))]

    def _nodes(self, ntype: str, split: str) -> np.ndarray:
        """The nodes of a split that have a label, ascending; of a table nodes and times."""
        name, labels = SPLITS[split], self._labels[ntype]
        if isinstance(labels, SeedTable):
            return labels.pairs[labels.used(split)]
        if not self._store.has_array(ntype, name):
            return np.empty(0, np.int64)
        return labels.labelled(chosen(self._store.array(ntype, name)))


def labels_of(store: Store, ntype: str, task: TaskSettings) -> NodeLabels:
    """The labels of a task's target: of nodes, or in a graph with times of nodes at times.

    Raises
    ------
    InputError
        As :func:`stored_labels` and :func:`seed_table`.
    """
    own = None if task.table is not None else stored_labels(store, ntype, task)
    return own if own is not None and not store.manifest.timed else seed_table(
        store, ntype, task, own)


def stored_labels(store: Store, ntype: str, task: TaskSettings) -> NodeLabels:
    """The labels of a node type in a store, as a task reads them.

    Raises
    ------
    InputError
        They are not of its kind.
    """
    label, known = str(task.label), store.manifest.task
    array = store.array(ntype, label)
    own = known is not None and (known.target, known.label) == (ntype, task.label)
    what = f"array '{label}' of node type '{ntype}' ({file_of(store.held_array(ntype, label))})"
    if task.kind == "classification" and label in store.manifest.given.get(ntype, {}):
        array = class_labels(array, what, task.unlabelled)
    return NodeLabels(array, str(task.kind), known.num_classes if known and own else None,
                      task.unlabelled, what)


def chosen(mask: np.ndarray) -> np.ndarray:
    """The nodes of a mask, ascending.

    Raises
    ------
    InputError
        A truth value in a file is neither 0 nor 1.
    """
    if mask.dtype == np.bool_ and mask.view(np.uint8).max(initial=0) > 1:
        raise InputError(f"store file {file_of(mask)} cannot be of a graph: it holds truth values "
                         "other than 0 and 1; write the store again")
    return in_mask(mask)


class Head(Protocol):
    """The prediction of one node type.

    `values` are what :meth:`dgl_heta.graph.labels.NodeLabels.rows` gives of some nodes.
    """

    metric: str
    statistics: int

    def loss(self, outputs: Tensor, values: np.ndarray) -> tuple[Tensor, list[float | Tensor]]:
        """The sum of the nodes' losses, and `statistics` numbers that add up; those that are on a
        GPU stay there."""

    def weight(self, values: np.ndarray) -> float:
        """The divisor of the sum of these nodes' losses: their number as a rule."""

    def counted(self, sums: list[float]) -> list[float]:
        """Of summed statistics, how many labels there were."""

    def score(self, sums: list[float]) -> float:
        """The score of summed statistics."""

    def tally(self, names: Iterable[str]) -> Tally:
        """An empty tally for metrics of these names."""


class Classification:
    """One class per node: cross-entropy, accuracy."""

    metric, statistics = "accuracy", 2
    _weights: np.ndarray | None = None

    def __init__(self, outputs: int) -> None:
        self._classes = outputs

    def loss(self, outputs: Tensor, values: np.ndarray) -> tuple[Tensor, list[float | Tensor]]:
        labels = move(torch.from_numpy(values), outputs.device)
        weights = None if self._weights is None else move(
            torch.from_numpy(self._weights), outputs.device).to(outputs.dtype)
        right = (outputs.argmax(1) == labels).sum()
        return (F.cross_entropy(outputs, labels, weights, reduction="sum"),
                [right, float(len(values))])

    def weigh(self, weights: str | list[float], labels: NodeLabels, ids: np.ndarray) -> None:
        """Weigh classes: by a number for each, or "balanced" over the nodes `ids` of training,
        n / (k n_c) for n_c nodes of n in class c, with k classes that occur; 1 for the others.

        Raises
        ------
        InputError
            There is not one number for each class.
        """
        if isinstance(weights, str):
            counts = np.bincount(labels.rows(ids), minlength=self._classes)
            occurs = counts > 0
            self._weights = np.ones(self._classes)
            self._weights[occurs] = len(ids) / (occurs.sum() * counts[occurs])
        elif len(weights) != self._classes:
            raise InputError(f"train.class_weights has {len(weights)} numbers, but {labels.what} "
                             f"has {self._classes} classes; give one for each")
        else:
            self._weights = np.asarray(weights, np.float64)

    def weight(self, values: np.ndarray) -> float:
        return len(values) if self._weights is None else float(self._weights[values].sum())

    def counted(self, sums: list[float]) -> list[float]:
        return sums[1:]

    def score(self, sums: list[float]) -> float:
        return sums[0] / sums[1]

    def tally(self, names: Iterable[str]) -> Tally:
        return ClassTally(self._classes, names)


class MultiLabel:
    """Any number of labels per node: binary cross-entropy (mean over labels), micro-F1."""

    metric, statistics = "micro-F1", 4

    def __init__(self, outputs: int) -> None:
        self._labels = outputs

    def loss(self, outputs: Tensor, values: np.ndarray) -> tuple[Tensor, list[float | Tensor]]:
        rows, labels, known = _known(outputs, values)
        got, want = rows > 0, labels > 0
        counts: list[float | Tensor] = [x.sum() for x in (got & want, got & ~want, ~got & want)]
        loss = F.binary_cross_entropy_with_logits(rows, labels, reduction="sum")
        return loss / self._labels, [*counts, float(known.sum())]

    def weight(self, values: np.ndarray) -> float:
        return float((~np.isnan(values)).sum()) / self._labels

    def counted(self, sums: list[float]) -> list[float]:
        return sums[3:]

    def score(self, sums: list[float]) -> float:
        right, false, missed, _ = sums
        return 2 * right / max(2 * right + false + missed, 1)

    def tally(self, names: Iterable[str]) -> Tally:
        return LabelTally(self._labels, names)


class Regression:
    """Numbers per node: mean squared error, coefficient of determination R² (mean of outputs)."""

    metric = "R²"

    def __init__(self, outputs: int) -> None:
        self._outputs, self.statistics = outputs, 4 * outputs

    def loss(self, outputs: Tensor, values: np.ndarray) -> tuple[Tensor, list[float | Tensor]]:
        rows, labels, known = _known(outputs, values)
        squares = (rows - labels) ** 2
        wrong = np.zeros(values.shape)
        wrong[known] = squares.detach().double().cpu().numpy().reshape(-1)
        want = np.where(known, values, 0.0)
        return squares.sum() / self._outputs, np.concatenate(
            [side.sum(0) for side in (wrong, known, want, want ** 2)]).tolist()

    def weight(self, values: np.ndarray) -> float:
        return float((~np.isnan(values)).sum()) / self._outputs

    def counted(self, sums: list[float]) -> list[float]:
        return sums[self._outputs:2 * self._outputs]

    def score(self, sums: list[float]) -> float:
        return coefficient(np.asarray(sums).reshape(4, -1))

    def tally(self, names: Iterable[str]) -> Tally:
        return ValueTally(self._outputs)


_HEADS: dict[str, Callable[[int], Head]] = {
    "classification": Classification, "multilabel": MultiLabel, "regression": Regression}


def _known(outputs: Tensor, values: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
    """Outputs and labels of the entries that have a label, and which these are."""
    known = ~np.isnan(values)
    labels = move(torch.from_numpy(values).to(outputs.dtype), outputs.device)
    if known.all():
        return outputs, labels, known
    there = torch.from_numpy(known).to(outputs.device)
    return outputs[there], labels[there], known
