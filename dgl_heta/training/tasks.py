"""What is trained for: which seeds a step has, its loss, its score.

A task speaks of global steps, the same on all workers, and of each worker's share of one; so
P workers compute together what one worker computes with a batch P times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import MASKS, Task
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.settings import Settings, TaskSettings
from dgl_heta.store import Store

SPLITS = dict(zip(("train", "val", "test"), MASKS))


class Step(Protocol):
    """What all workers together process in one step."""

    @property
    def size(self) -> int:
        """Number of nodes or edges to predict."""


class TrainingTask(Protocol):
    """A task: node classification, regression, link prediction.

    Statistics are float64 vectors that add up over steps and workers; the first two entries
    are a sum of losses and what it is to be divided by.
    """

    targets: tuple[str, ...]
    outputs: dict[str, int]
    metric: str
    held_out: HeldOut | None

    def steps(self, split: str, epoch: int, size: int) -> list[Step]:
        """The steps of an epoch with `size` nodes or edges each; shuffled for training."""

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        """The seeds of a worker's share of a step, per target type; unique."""

    def without(self, step: Step) -> np.ndarray | None:
        """Pairs of nodes whose edges must not carry messages in this step, if any."""

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        """A worker's loss, scaled so that the workers' mean is the step's, and statistics."""

    def score(self, statistics: Tensor) -> tuple[float, float]:
        """`(score, mean loss)` of summed statistics; NaN if there is nothing in them."""


def resolve(task: TaskSettings, known: Task | None, schema: Schema) -> TaskSettings:
    """The task settings, completed by the graph's own task and checked against the schema.

    Raises
    ------
    InputError
        Nothing says what to train for; an unknown type or relation.
    """
    if task.kind == "link" or (task.kind is None and task.relation):
        if task.relation is None:
            raise InputError("link prediction needs task.relation, the relation to predict; "
                             f"relations: {listing(schema.relations)}")
        relation = schema.find_relation(task.relation)
        reverse = schema.find_relation(task.reverse) if task.reverse else None
        if reverse is not None and (reverse.src, reverse.dst) != (relation.dst, relation.src):
            raise InputError(f"task.reverse '{reverse}' does not go from '{relation.dst}' back to "
                             f"'{relation.src}' as the reverse of '{relation}' does")
        if reverse is None and task.reverse is None:
            back = [r for r in schema.relations if (r.src, r.dst) == (relation.dst, relation.src)
                    and r != relation and schema.edge_counts[r] == schema.edge_counts[relation]]
            if back:
                raise InputError(
                    f"'{back[0]}' may be the reverse of '{relation}': it goes back and has as many "
                    "edges; its edges would give the answer away. Name the reverse relation by "
                    "task.reverse, or set task.reverse to '' if there is none")
        targets = list(dict.fromkeys((relation.src, relation.dst)))
        return task.model_copy(update={"kind": "link", "targets": targets})
    for name in ("relation", "reverse"):
        if getattr(task, name):
            raise InputError(f"task.{name} is for link prediction; set task.kind = 'link', or "
                             "leave it out")
    targets = task.targets or ([known.target] if known else [])
    if not targets:
        raise InputError("the graph has no task (target, labels, masks), so there is nothing to "
                         "train for; name the node types by task.targets, or a relation to "
                         "predict by task.relation")
    for ntype in targets:
        schema.check_node_type(ntype, "target node type")
    kind = task.kind or (known.kind if known else "classification")
    label = task.label or (known.label if known else "label")
    return task.model_copy(update={"kind": kind, "targets": targets, "label": label})


def make_task(store: Store, settings: Settings) -> TrainingTask:
    """The training task that the settings ask for, on a store.

    Raises
    ------
    InputError
        As :func:`resolve`; labels or masks that are missing or do not fit the kind of task.
    """
    task = resolve(settings.task, store.manifest.task, store.schema)
    if task.kind == "link":
        return LinkPrediction(store, task, settings.model.hidden, settings.train.seed)
    return NodePrediction(store, task, settings.train.seed)


@dataclass(frozen=True)
class NodeStep:
    """Nodes of each target type."""

    nodes: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        return sum(map(len, self.nodes.values()))


class NodePrediction:
    """Classification (single or multi label) or regression of nodes of one or several types."""

    held_out = None

    def __init__(self, store: Store, task: TaskSettings, seed: int) -> None:
        self.targets = tuple(task.targets or ())
        self._seed, self._store = seed, store
        self._heads = {t: _HEADS[str(task.kind)](store, t, str(task.label)) for t in self.targets}
        self.outputs = {t: head.outputs for t, head in self._heads.items()}
        self.metric = next(iter(self._heads.values())).metric

    def steps(self, split: str, epoch: int, size: int) -> list[Step]:
        ids = {}
        for index, ntype in enumerate(self.targets):
            name = SPLITS[split]
            found = (np.flatnonzero(self._store.array(ntype, name))
                     if self._store.has_array(ntype, name) else np.empty(0, np.int64))
            if split == "train":
                key = [self._seed, epoch] + [index] * (index > 0)
                np.random.default_rng(key).shuffle(found)
            ids[ntype] = found
        total = sum(map(len, ids.values()))
        count = -(-total // size)
        if len(ids) == 1:
            ((ntype, all_of),) = ids.items()
            return [NodeStep({ntype: all_of[i * size:(i + 1) * size]}) for i in range(count)]
        # Every type has its part in every step, and every node is a seed once an epoch.
        return [NodeStep({t: n[len(n) * i // count:len(n) * (i + 1) // count]
                          for t, n in ids.items()}) for i in range(count)]

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        assert isinstance(step, NodeStep)
        return {t: _own(nodes, worker, workers) for t, nodes in step.nodes.items()}

    def without(self, step: Step) -> np.ndarray | None:
        return None

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        assert isinstance(step, NodeStep)
        total, statistics = torch.zeros(()), []
        for ntype, ids in self.seeds(step, worker, workers).items():
            summed, found = self._heads[ntype].loss(outputs[ntype], ids)
            total = total.to(summed) + summed * (workers / max(len(step.nodes[ntype]), 1))
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
            losses += loss / count
        return (sum(scores) / len(scores), losses) if scores else (float("nan"), float("nan"))


class Head(Protocol):
    """What is predicted of one node type."""

    metric: str
    statistics: int
    outputs: int

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        """The sum of the nodes' losses, and `statistics` numbers that add up."""

    def score(self, loss: float, count: float, found: list[float]) -> float:
        """The score of summed statistics."""


class Classification:
    """One class per node: cross-entropy, accuracy."""

    metric, statistics = "accuracy", 1

    def __init__(self, store: Store, ntype: str, label: str) -> None:
        self._labels = store.array(ntype, label)
        if self._labels.ndim != 1 or self._labels.dtype.kind not in "iub":
            raise _unfit(ntype, label, self._labels, "classification", "whole numbers (nodes,)")
        known = store.manifest.task
        if known is not None and (known.target, known.label) == (ntype, label):
            self.outputs = known.num_classes
        else:
            self.outputs = int(self._labels.max(initial=0)) + 1

    def loss(self, outputs: Tensor, ids: np.ndarray) -> tuple[Tensor, list[float]]:
        labels = torch.from_numpy(np.asarray(self._labels[ids], np.int64)).to(outputs.device)
        right = float((outputs.argmax(1) == labels).sum())
        return F.cross_entropy(outputs, labels, reduction="sum"), [right]

    def score(self, loss: float, count: float, found: list[float]) -> float:
        return found[0] / count


class MultiLabel:
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


class Regression:
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


_HEADS: dict[str, Callable[[Store, str, str], Head]] = {
    "classification": Classification, "multilabel": MultiLabel, "regression": Regression}


def _unfit(ntype: str, label: str, array: np.ndarray, kind: str, wanted: str) -> InputError:
    return InputError(f"array '{label}' of node type '{ntype}' is {array.dtype}"
                      f"{list(array.shape)}, but task.kind = '{kind}' needs {wanted}; set "
                      "task.kind or task.label")


@dataclass(frozen=True)
class LinkStep:
    """Edges to predict, by their positions, with a key for their negative samples."""

    positions: np.ndarray
    key: tuple[int, ...]
    training: bool

    @property
    def size(self) -> int:
        return len(self.positions)


class LinkPrediction:
    """Which of some destinations a source is joined to by a relation: dot product, MRR.

    One more case of several target types: the ends of edges and of negative samples are the
    seeds. The edges of a step carry no messages in it, in neither direction, and those held
    out for validation and test never do (see :class:`dgl_heta.sampling.held_out.HeldOut`),
    so that no answer is given away. Negatives have a destination drawn evenly in place of the
    true one.
    The loss of an edge is that of logistic regression, the negatives averaged.
    """

    metric = "MRR"

    def __init__(self, store: Store, task: TaskSettings, width: int, seed: int) -> None:
        schema = store.schema
        self.relation = schema.find_relation(str(task.relation))
        reverse: Relation | None = schema.find_relation(task.reverse) if task.reverse else None
        self.targets = tuple(task.targets or ())
        self.outputs = dict.fromkeys(self.targets, width)
        self._task, self._seed = task, seed
        self._csc = store.relation(self.relation)
        self._tails = schema.node_counts[self.relation.dst]
        self.held_out = HeldOut(self.relation, reverse, self._tails, 2 * task.held_out, seed)

    @cached_property
    def _splits(self) -> dict[str, np.ndarray]:
        """Edge positions of each split."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
        share = self._task.held_out
        for low in range(0, len(self._csc.indices), 2**22):
            positions = np.arange(low, min(low + 2**22, len(self._csc.indices)))
            chance = self.held_out.draw(self._pairs(*self._ends(positions)))
            found["test"].append(positions[chance < share])
            found["val"].append(positions[(chance >= share) & (chance < 2 * share)])
            found["train"].append(positions[chance >= 2 * share])
        return {name: np.concatenate(parts) if parts else np.empty(0, np.int64)
                for name, parts in found.items()}

    def steps(self, split: str, epoch: int, size: int) -> list[Step]:
        positions = self._splits[split].copy()
        if split == "train":
            np.random.default_rng([self._seed, epoch]).shuffle(positions)
        kind = list(SPLITS).index(split)
        return [LinkStep(positions[low:low + size], (self._seed, kind, epoch, low), kind == 0)
                for low in range(0, len(positions), size)]

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        sources, destinations, negatives = self._share(step, worker, workers)
        found: dict[str, list[np.ndarray]] = {t: [] for t in self.targets}
        found[self.relation.src].append(sources)
        found[self.relation.dst] += [destinations, negatives.ravel()]
        return {t: np.unique(np.concatenate(parts)) for t, parts in found.items()}

    def without(self, step: Step) -> np.ndarray | None:
        assert isinstance(step, LinkStep)
        return self._pairs(*self._ends(step.positions)) if step.training else None

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        sources, destinations, negatives = self._share(step, worker, workers)
        ids = self.seeds(step, worker, workers)
        left = outputs[self.relation.src][_places(ids[self.relation.src], sources)]
        rows, known = outputs[self.relation.dst], ids[self.relation.dst]
        right = (left * rows[_places(known, destinations)]).sum(1)
        others = rows[_places(known, negatives.ravel())].view(*negatives.shape, rows.shape[1])
        wrong = (left.unsqueeze(1) * others).sum(2)
        summed = F.softplus(-right).sum() + F.softplus(wrong).sum() / max(negatives.shape[1], 1)
        ranks = 1 + (wrong > right.unsqueeze(1)).sum(1) + (
            (wrong == right.unsqueeze(1)) & torch.as_tensor(
                negatives != destinations[:, None]).to(wrong.device)).sum(1)
        reciprocal = float((1 / ranks.double()).sum())
        statistics = torch.tensor([float(summed.detach()), len(sources), reciprocal],
                                  dtype=torch.float64)
        return summed * (workers / max(step.size, 1)), statistics

    def score(self, statistics: Tensor) -> tuple[float, float]:
        loss, count, reciprocal = statistics.tolist()
        return (reciprocal / count, loss / count) if count else (float("nan"), float("nan"))

    def _share(self, step: Step, worker: int, workers: int
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A worker's edges: sources, destinations, negative destinations (edges, negatives)."""
        assert isinstance(step, LinkStep)
        count = self._task.negatives if step.training else self._task.eval_negatives
        generator = np.random.default_rng(step.key)
        negatives = generator.integers(0, self._tails, (step.size, count))
        sources, destinations = self._ends(_own(step.positions, worker, workers))
        return sources, destinations, _own(negatives, worker, workers)

    def _ends(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        destinations = np.searchsorted(self._csc.indptr, positions, side="right") - 1
        return self._csc.indices[positions].astype(np.int64), destinations

    def _pairs(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        return sources * self._tails + destinations


def _own(rows: np.ndarray, worker: int, workers: int) -> np.ndarray:
    share = SeedShares.even(len(rows), workers, worker)
    return rows[share.before:share.before + share.own]


def _places(known: np.ndarray, ids: np.ndarray) -> Tensor:
    return torch.from_numpy(np.searchsorted(known, ids))
