"""Process groups of the trainers that sample and step together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dgl_heta.comm.collectives import Comm


class SamplingGroups:
    """Process groups for what the trainers of a group agree on when they sample.

    Each pass that is under way has its own: passes over several loaders may be sampled side by
    side, on threads, in an order that differs from trainer to trainer.

    Parameters
    ----------
    make : makes one more process group for the trainers of this one's group.
    """

    def __init__(self, make: Callable[[], Comm]) -> None:
        self._make = make
        self._groups: list[Comm] = []
        self._taken: set[int] = set()

    @contextmanager
    def one(self, world: Comm) -> Iterator[Comm]:
        """One that no trainer uses; all trainers enter alike, and leave when they like."""
        free = torch.tensor([int(n not in self._taken) for n in range(len(self._groups) + 1)])
        number = world.all_reduce(free, "min", "control").tolist().index(1)
        if number == len(self._groups):
            self._groups.append(self._make())
        self._taken.add(number)
        try:
            yield self._groups[number]
        finally:
            self._taken.discard(number)
