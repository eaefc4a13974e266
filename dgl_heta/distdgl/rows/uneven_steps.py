"""Steps of DistEmbedding's optimizers where trainers take different numbers of steps.

A step of DGL's sparse optimizers is an exchange among all trainers, so one that has no batch left
would leave the others waiting. Under a module wrapper with `uneven_steps` it takes the others'
steps with them, without gradients of its own, until all have ended the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import HetaError

Step = Callable[[Any], None]


class Optimizers:
    """The sparse optimizers that the script has made, in the same order on all trainers.

    Attributes
    ----------
    optimizers : in the order in which they were made.
    apart : whether trainers take different numbers of steps.
    """

    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        self._world: Comm | None = None

    @property
    def apart(self) -> bool:
        return self._world is not None

    def step_apart(self, world: Comm, step: Step) -> None:
        """Let trainers take different numbers of steps from now on.

        `world` are all of them, who agree on each step in a message of 8 bytes; `step` is DGL's.
        """
        self._world, self._step = world, step

    def step(self, optimizer: Any) -> None:
        """A step of this trainer's.

        Raises
        ------
        HetaError
            Another trainer takes a step of another optimizer.
        """
        number = next(i for i, o in enumerate(self.optimizers, 1) if o is optimizer)
        if (other := self._agree(number)) != number:
            raise HetaError(f"trainers step the sparse optimizers {number} and {other} at the same "
                            "time; step them in the same order on all trainers")
        self._step(optimizer)

    def join(self) -> None:
        """Take the others' steps until all are here."""
        while self.optimizers and (number := self._agree(0)):
            optimizer = self.optimizers[number - 1]
            for embedding in optimizer._params:
                embedding.reset_trace()
            self._step(optimizer)

    def _agree(self, number: int) -> int:
        """The optimizer that is stepped; 0 where all trainers have ended the epoch."""
        assert self._world is not None
        return int(self._world.all_reduce(torch.tensor([number]), "max", "control"))
