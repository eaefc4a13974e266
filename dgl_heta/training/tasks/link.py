"""Link prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.linked import decoded
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store
from dgl_heta.store.structure import check_range
from dgl_heta.training.metrics import RankTally, Tally
from dgl_heta.training.tasks.base import SPLITS, Owned, Step, share_of
from dgl_heta.training.tasks.given_links import Ends, read_links


@dataclass(frozen=True)
class LinkStep:
    """Edges to predict, with a key for their negative samples.

    Positions are those of the relation's CSC, or in the list of the split if one is given.
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


class LinkPrediction:
    """Which of some destinations a source is joined to by a relation: dot product or DistMult
    (see :class:`dgl_heta.models.linked.Linked`), MRR.

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
        self._heads = schema.node_counts[self.relation.src]
        self._tails = schema.node_counts[self.relation.dst]
        self._given: dict[str, Ends] = {}
        held = np.empty(0, np.int64)
        if task.links is not None:
            self._given = read_links(task.links, store, self.relation)
            held = np.unique(np.concatenate([self._pairs(*self._given[split])
                                             for split in ("val", "test")]))
        self.held_out = HeldOut(self.relation, reverse, self._tails,
                                0.0 if self._given else 2 * task.held_out, seed, held)

    @cached_property
    def _splits(self) -> dict[str, np.ndarray]:
        """Positions of each split."""
        given = {name: np.arange(len(ends[0])) for name, ends in self._given.items()}
        return given if given.keys() == SPLITS.keys() else {**self._of_graph(), **given}

    def _of_graph(self) -> dict[str, np.ndarray]:
        """Positions of each split of the graph's edges; where some are given, the others."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
        share = self._task.held_out
        for low in range(0, len(self._csc.indices), 2**22):
            positions = np.arange(low, min(low + 2**22, len(self._csc.indices)))
            pairs = self._pairs(*self._edges(positions))
            if self._given:
                found["train"].append(positions[~np.isin(pairs, self.held_out.pairs)])
                continue
            chance = self.held_out.draw(pairs)
            found["test"].append(positions[chance < share])
            found["val"].append(positions[(chance >= share) & (chance < 2 * share)])
            found["train"].append(positions[chance >= 2 * share])
        return {name: np.concatenate(parts) if parts else np.empty(0, np.int64)
                for name, parts in found.items()}

    def provider(self, of: ModelProvider) -> ModelProvider:
        return decoded(of, self._task.decoder, self.relation.src, self.relation.dst)

    def steps(self, split: str, epoch: int, size: int, owned: Owned | None = None) -> list[Step]:
        positions = self._splits[split].copy()
        if owned is not None:
            positions = np.array(owned(positions))
        if split == "train":
            np.random.default_rng([self._seed, epoch]).shuffle(positions)
        kind = list(SPLITS).index(split)
        return [LinkStep(positions[low:low + size], (self._seed, kind, epoch, low), split,
                         owned is not None)
                for low in range(0, len(positions), size)]

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        sources, destinations, negatives = self._share(step, worker, workers)
        found: dict[str, list[np.ndarray]] = {t: [] for t in self.targets}
        found[self.relation.src].append(sources)
        found[self.relation.dst] += [destinations, negatives.ravel()]
        return {t: np.unique(np.concatenate(parts)) for t, parts in found.items()}

    def without(self, step: Step) -> np.ndarray | None:
        assert isinstance(step, LinkStep)
        return self._pairs(*self.ends(step, step.positions)) if step.training else None

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        right, wrong, ranks = self._scores(outputs, step, worker, workers)
        summed = F.softplus(-right).sum() + F.softplus(wrong).sum() / max(wrong.shape[1], 1)
        reciprocal = float((1 / ranks.double()).sum())
        statistics = torch.tensor([float(summed.detach()), len(right), reciprocal],
                                  dtype=torch.float64)
        return summed * (workers / max(step.size, 1)), statistics

    def score(self, statistics: Tensor) -> tuple[float, float]:
        loss, count, reciprocal = statistics.tolist()
        return (reciprocal / count, loss / count) if count else (float("nan"), float("nan"))

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        return {str(self.relation): RankTally(self._task.eval_negatives)}

    def observe(self, tallies: Mapping[str, Tally], outputs: Mapping[str, Tensor], step: Step,
                worker: int, workers: int) -> None:
        tally = tallies[str(self.relation)]
        assert isinstance(tally, RankTally)
        tally.add(self._scores(outputs, step, worker, workers)[2].cpu().numpy())

    def _scores(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
                ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of a worker's edges and of their negatives (edges, negatives), and ranks."""
        sources, destinations, negatives = self._share(step, worker, workers)
        ids = self.seeds(step, worker, workers)
        width = self.outputs[self.relation.src]
        left = outputs[self.relation.src][_places(ids[self.relation.src], sources), :width]
        rows, known = outputs[self.relation.dst][:, -width:], ids[self.relation.dst]
        right = (left * rows[_places(known, destinations)]).sum(1)
        others = rows[_places(known, negatives.ravel())].view(*negatives.shape, width)
        wrong = (left.unsqueeze(1) * others).sum(2)
        ranks = 1 + (wrong > right.unsqueeze(1)).sum(1) + (
            (wrong == right.unsqueeze(1)) & torch.as_tensor(
                negatives != destinations[:, None]).to(wrong.device)).sum(1)
        return right, wrong, ranks

    def _share(self, step: Step, worker: int, workers: int
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A worker's edges: sources, destinations, negative destinations (edges, negatives)."""
        assert isinstance(step, LinkStep)
        count = self._task.negatives if step.training else self._task.eval_negatives
        generator = np.random.default_rng(step.key)
        negatives = generator.integers(0, self._tails, (step.size, count))
        sources, destinations = self.ends(step, share_of(step.positions, worker, workers))
        return sources, destinations, share_of(negatives, worker, workers)

    def ends(self, step: LinkStep, positions: np.ndarray) -> Ends:
        """Sources and destinations of some links of a step, by their positions."""
        if step.split in self._given:
            sources, destinations = self._given[step.split]
            return sources[positions], destinations[positions]
        return self._edges(positions)

    def _edges(self, positions: np.ndarray) -> Ends:
        destinations = np.searchsorted(self._csc.indptr, positions, side="right") - 1
        sources = self._csc.indices[positions].astype(np.int64)
        check_range(self.relation, self._csc, sources, self._heads)
        check_range(self.relation, self._csc, destinations, self._tails)
        return sources, destinations

    def _pairs(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        return sources * self._tails + destinations


def _places(known: np.ndarray, ids: np.ndarray) -> Tensor:
    return torch.from_numpy(np.searchsorted(known, ids))
