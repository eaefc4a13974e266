"""The interface of a task to the training loop.

A task speaks of global steps, the same on all workers, and of each worker's share of one; so
P workers compute together what one worker computes with a batch P times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.training.metrics import Tally

SPLITS = dict(zip(("train", "val", "test"), MASKS))
Owned = Callable[[np.ndarray], np.ndarray]


class Step(Protocol):
    """The seeds that all workers together process in one step."""

    @property
    def own(self) -> bool:
        """Return whether it is one worker's own step, which the others have no share of."""

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

    @property
    def held_out(self) -> HeldOut | None:
        """The edges that never carry messages, because they are to be predicted."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user on the task, before it is trained."""

    def provider(self, of: ModelProvider) -> ModelProvider:
        """The provider of the model to train, given that of the model which gives the states."""

    def use(self, model: nn.Module) -> None:
        """Take what losses need of the model that is trained."""

    def steps(self, split: str, epoch: int, size: int, owned: Owned | None = None) -> list[Step]:
        """The steps of an epoch with `size` nodes or edges each; shuffled for training.

        With `owned` they are a worker's own steps, through what it returns of a type's nodes (or
        of the edges), given their ids in ascending order.
        """

    def untrained(self) -> list[str]:
        """What the model has weights for alone that no node or edge is to train: they would stay as
        they were drawn."""

    def seeds(self, step: Step, worker: int, workers: int) -> dict[str, np.ndarray]:
        """The seeds of a worker's share of a step, per target type; unique."""

    def without(self, step: Step) -> Mapping[Relation, np.ndarray] | None:
        """Edges that must not carry messages in this step, if any, by their pairs of nodes (see
        :meth:`HeldOut.pairs`)."""

    def loss(self, outputs: Mapping[str, Tensor], step: Step, worker: int, workers: int
             ) -> tuple[Tensor, Tensor]:
        """A worker's loss, scaled so that the workers' mean is the step's, and statistics."""

    def score(self, statistics: Tensor) -> tuple[float, float]:
        """`(score, mean loss)` of summed statistics; NaN if there is nothing in them."""

    def tallies(self, names: Iterable[str]) -> dict[str, Tally]:
        """Empty tallies for metrics of these names, by target type or relation."""

    def observe(self, tallies: Mapping[str, Tally], outputs: Mapping[str, Tensor], step: Step,
                worker: int, workers: int) -> None:
        """Add a worker's share of a step to what :meth:`tallies` made."""


def share_of(rows: np.ndarray, worker: int, workers: int) -> np.ndarray:
    """A worker's share of a step's nodes or edges: even, contiguous."""
    share = SeedShares.even(len(rows), workers, worker)
    return rows[share.before:share.before + share.own]


def in_memory(numbers: Sequence[float | Tensor]) -> Tensor:
    """Numbers as one tensor, float64; those on a GPU come in one copy."""
    moved = iter(torch.stack([x.double() for x in numbers if isinstance(x, Tensor)]).tolist())
    return torch.tensor([next(moved) if isinstance(x, Tensor) else x for x in numbers],
                        dtype=torch.float64)
