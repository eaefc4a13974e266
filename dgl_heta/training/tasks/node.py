"""Node prediction: classification, regression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store
from dgl_heta.store.structure import file_of
from dgl_heta.training.metrics import ClassTally, LabelTally, Tally, ValueTally
from dgl_heta.training.tasks.base import SPLITS, Owned, Step, share_of


@dataclass(frozen=True)
class NodeStep:
    """Nodes of each target type."""

    nodes: Mapping[str, np.ndarray]
    own: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.nodes.values()))


class NodePrediction:
    """Classification (single or multi label) or regression of nodes of one or several types."""

    held_out = None
    notes: Sequence[str] = ()

    def __init__(self, store: Store, task: TaskSettings, seed: int,
                 class_weights: str | list[float] | None = None) -> None:
        self.targets = tuple(task.targets or ())
        self._seed, self._store = seed, store
        self._heads = {t: _HEADS[str(task.kind)](store, t, str(task.label)) for t in self.targets}
        self.outputs = {t: head.outputs for t, head in self._heads.items()}
        self.metric = next(iter(self._heads.values())).metric
        for ntype, head in self._heads.items():
            for name in SPLITS.values():
                if isinstance(head, Classification) and store.has_array(ntype, name):
                    head.check(chosen(store.array(ntype, name)), name)
            if isinstance(head, Classification) and class_weights is not None:
                head.weigh(class_weights, chosen(store.array(ntype, SPLITS["train"]))
                           if store.has_array(ntype, SPLITS["train"]) else np.empty(0, np.int64))

    def provider(self, of: ModelProvider) -> ModelProvider:
        return of

    def use(self, model: nn.Module) -> None:
        pass

    def steps(self, split: str, epoch: int, size: int, owned: Owned | None = None) -> list[Step]:
        ids, own = {}, owned is not None
        for index, ntype in enumerate(self.targets):
            name = SPLITS[split]
            nodes = (chosen(self._store.array(ntype, name))
                     if self._store.has_array(ntype, name) else np.empty(0, np.int64))
            if owned is not None:
                nodes = np.array(owned(nodes))
            if split == "train":
                key = [self._seed, epoch] + [index] * (index > 0)
                np.random.default_rng(key).shuffle(nodes)
            ids[ntype] = nodes
        total = sum(map(len, ids.values()))
        count = -(-total // size)
        if len(ids) == 1:
            ((ntype, all_of),) = ids.items()
            return [NodeStep({ntype: all_of[i * size:(i + 1) * size]}, own) for i in range(count)]
        # Every type has its part in every step, and every node is a seed once an epoch.
        return [NodeStep({t: n[len(n) * i // count:len(n) * (i + 1) // count]
                          for t, n in ids.items()}, own) for i in range(count)]

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        assert isinstance(step, NodeStep)
        return {t: share_of(nodes, worker, workers) for t, nodes in step.nodes.items()}

    def without(self, step: Step) -> Mapping[Relation, np.ndarray] | None:
        return None

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        assert isinstance(step, NodeStep)
        total, statistics = torch.zeros(()), []
        for ntype, ids in self.seeds(step, worker, workers).items():
            summed, found = self._heads[ntype].loss(outputs[ntype], ids)
            whole = self._heads[ntype].weight(step.nodes[ntype])
            total = total.to(summed) + summed * (workers / whole if whole else 0.0)
            statistics.append(torch.tensor([float(summed.detach()), len(ids), *found],
                                           dtype=torch.float64))
        return total, torch.cat(statistics)

    def score(self, statistics: Tensor) -> tuple[float, float]:
        scores, losses, start = [], 0.0, 0
        for head in self._heads.values():
            loss, count, *found = statistics[start:start + head.statistics + 2].tolist()
            start += head.statistics + 2
            if not count:
                continue
            scores.append(head.score(loss, count, found))
            losses += head.mean_loss(loss, count, found)
        return (sum(scores) / len(scores), losses) if scores else (float("nan"), float("nan"))

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        return {ntype: head.tally(tuple(names)) for ntype, head in self._heads.items()}

    def observe(self, tallies: Mapping[str, Any], outputs: Mapping[str, Tensor], step: Step,
                worker: int, workers: int) -> None:
        for ntype, ids in self.seeds(step, worker, workers).items():
            tallies[ntype].add(outputs[ntype].detach(), self._heads[ntype].labels(ids))


def chosen(mask: np.ndarray) -> np.ndarray:
    """The nodes of a mask, ascending.

    Raises
    ------
    InputError
        A truth value in a file is neither 0 nor 1.
    """
    numbers = mask.view(np.uint8) if mask.dtype == np.bool_ else mask
    if mask.dtype == np.bool_ and numbers.max(initial=0) > 1:
        raise InputError(f"store file {file_of(mask)} cannot be of a graph: it holds truth values "
                         "other than 0 and 1; write the store again")
    return np.flatnonzero(numbers)


class Head(Protocol):
    """What is predicted of one node type."""

    metric: str
    statistics: int
    outputs: int

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        """The sum of the nodes' losses, and `statistics` numbers that add up."""

    def score(self, loss: float, count: float, found: list[float]) -> float:
        """The score of summed statistics."""

    def weight(self, ids: np.ndarray) -> float:
        """What the sum of these nodes' losses is divided by: their number, or their weight."""

    def mean_loss(self, loss: float, count: float, found: list[float]) -> float:
        """The mean loss of summed statistics."""

    def tally(self, names: Iterable[str]) -> Tally:
        """An empty tally for metrics of these names."""

    def labels(self, ids: np.ndarray) -> np.ndarray:
        """What is to be predicted of some nodes, as the tally counts it."""


class Even:
    """A head to which all nodes count the same."""

    def weight(self, ids: np.ndarray) -> float:
        return len(ids)

    def mean_loss(self, loss: float, count: float, found: list[float]) -> float:
        return loss / count


class Classification(Even):
    """One class per node: cross-entropy, accuracy."""

    metric, statistics = "accuracy", 1
    _weights: np.ndarray | None = None

    def __init__(self, store: Store, ntype: str, label: str) -> None:
        self._labels = store.array(ntype, label)
        if self._labels.ndim != 1 or self._labels.dtype.kind not in "iub":
            raise _unfit(ntype, label, self._labels, "classification", "whole numbers (nodes,)")
        known = store.manifest.task
        if known is not None and (known.target, known.label) == (ntype, label):
            self.outputs = known.num_classes
        else:
            self.outputs = int(self._labels.max(initial=0)) + 1
        self._what = f"array '{label}' of node type '{ntype}' ({file_of(self._labels)})"

    def check(self, ids: np.ndarray, what: str) -> None:
        """Check the labels of some nodes.

        Raises
        ------
        InputError
            One is no class.
        """
        labels = np.asarray(self._labels[ids])
        wrong = np.flatnonzero((labels < 0) | (labels >= self.outputs))
        if len(wrong):
            raise InputError(f"{self._what}: node {ids[wrong[0]]}, which is in {what}, has label "
                             f"{labels[wrong[0]]}; labels go from 0 to {self.outputs - 1}")

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        self.check(ids, "a batch")
        labels = torch.from_numpy(np.asarray(self._labels[ids], np.int64)).to(outputs.device)
        right = float((outputs.argmax(1) == labels).sum())
        if self._weights is None:
            return F.cross_entropy(outputs, labels, reduction="sum"), [right]
        weights = torch.from_numpy(self._weights).to(outputs)
        return (F.cross_entropy(outputs, labels, weights, reduction="sum"),
                [right, self.weight(ids)])

    def weigh(self, weights: str | list[float], ids: np.ndarray) -> None:
        """Weigh classes: by a number for each, or "balanced" over the nodes `ids` of training,
        n / (k n_c) for n_c nodes of n in class c, with k classes that occur; 1 for the others.

        Raises
        ------
        InputError
            There is not one number for each class.
        """
        if isinstance(weights, str):
            counts = np.bincount(np.asarray(self._labels[ids], np.int64), minlength=self.outputs)
            occurs = counts > 0
            self._weights = np.ones(self.outputs)
            self._weights[occurs] = len(ids) / (occurs.sum() * counts[occurs])
        elif len(weights) != self.outputs:
            raise InputError(f"train.class_weights has {len(weights)} numbers, but {self._what} "
                             f"has {self.outputs} classes; give one for each")
        else:
            self._weights = np.asarray(weights, np.float64)
        self.statistics = 2

    def weight(self, ids: np.ndarray) -> float:
        if self._weights is None:
            return len(ids)
        return float(self._weights[np.asarray(self._labels[ids], np.int64)].sum())

    def mean_loss(self, loss: float, count: float, found: list[float]) -> float:
        if self._weights is None:
            return loss / count
        return loss / found[1] if found[1] else 0.0

    def score(self, loss: float, count: float, found: list[float]) -> float:
        return found[0] / count

    def tally(self, names: Iterable[str]) -> Tally:
        return ClassTally(self.outputs, names)

    def labels(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self._labels[ids], np.int64)


class MultiLabel(Even):
    """Any number of labels per node: binary cross-entropy (mean over labels), micro-F1."""

    metric, statistics = "micro-F1", 3

    def __init__(self, store: Store, ntype: str, label: str) -> None:
        self._labels = store.array(ntype, label)
        if self._labels.ndim != 2:
            raise _unfit(ntype, label, self._labels, "multilabel", "zeros and ones (nodes, labels)")
        self.outputs = self._labels.shape[1]

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        labels = torch.from_numpy(np.asarray(self._labels[ids], np.float64)).to(outputs)
        got, want = outputs > 0, labels > 0
        counts = [float(x.sum()) for x in (got & want, got & ~want, ~got & want)]
        loss = F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
        return loss / self.outputs, counts

    def score(self, loss: float, count: float, found: list[float]) -> float:
        right, false, missed = found
        return 2 * right / max(2 * right + false + missed, 1)

    def tally(self, names: Iterable[str]) -> Tally:
        return LabelTally(self.outputs, names)

    def labels(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self._labels[ids])


class Regression(Even):
    """Numbers per node: mean squared error, coefficient of determination R² (mean of outputs)."""

    metric = "R²"

    def __init__(self, store: Store, ntype: str, label: str) -> None:
        labels = store.array(ntype, label)
        if labels.dtype.kind not in "fiu" or labels.ndim > 2:
            raise _unfit(ntype, label, labels, "regression", "numbers (nodes,) or (nodes, outputs)")
        self._labels = labels.reshape(len(labels), -1)
        self.outputs = self._labels.shape[1]
        self.statistics = 3 * self.outputs

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        labels = torch.from_numpy(np.asarray(self._labels[ids], np.float64)).to(outputs)
        squares = ((outputs - labels) ** 2).sum(0)
        found = torch.cat([squares.detach(), labels.sum(0), (labels ** 2).sum(0)])
        return squares.sum() / self.outputs, found.tolist()

    def score(self, loss: float, count: float, found: list[float]) -> float:
        squares, sums, sums_of_squares = np.asarray(found).reshape(3, -1)
        spread = sums_of_squares - sums ** 2 / count
        return float(np.mean(1 - squares / np.maximum(spread, 1e-300)))

    def tally(self, names: Iterable[str]) -> Tally:
        return ValueTally(self.outputs)

    def labels(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self._labels[ids])


_HEADS: dict[str, Callable[[Store, str, str], Head]] = {
    "classification": Classification, "multilabel": MultiLabel, "regression": Regression}


def _unfit(ntype: str, label: str, array: np.ndarray, kind: str, wanted: str) -> InputError:
    return InputError(f"array '{label}' of node type '{ntype}' is {array.dtype}"
                      f"{list(array.shape)}, but task.kind = '{kind}' needs {wanted}; set "
                      "task.kind or task.label")
