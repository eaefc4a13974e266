"""Steps of DistEmbedding's optimizers where trainers take different numbers of steps.

A step of DGL's sparse optimizers is an exchange among all trainers, so one that has no batch left
would leave the others waiting. Under a module wrapper with `uneven_steps` it takes the others'
steps with them, without gradients of its own, until all have ended the epoch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import HetaError

Step = Callable[[Any], None]


class Optimizers:
    """The sparse optimizers that the script has made, in the same order on all trainers.

    They are known by numbers, in the order in which they were made, and not kept: with an optimizer
    the script lets its states and tables go.

    Attributes
    ----------
    apart : whether trainers take different numbers of steps.
    """

    def __init__(self) -> None:
        self._made = 0
        self._optimizers: Any = weakref.WeakValueDictionary()
        self._world: Comm | None = None

    def add(self, optimizer: Any) -> None:
        """Note a new one."""
        self._made += 1
        self._optimizers[self._made] = optimizer

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
        number = next(i for i, o in self._optimizers.items() if o is optimizer)
        if (other := self._agree(number)) != number:
            raise HetaError(f"trainers step the sparse optimizers {number} and {other} at the same "
                            "time; step them in the same order on all trainers")
        self._step(optimizer)

    def join(self) -> None:
        """Take the others' steps until all are here."""
        # Whether any was made, not whether one is left: memory is freed at other times elsewhere.
        while self._made and (number := self._agree(0)):
            optimizer = self._optimizers.get(number)
            if optimizer is None:
                raise HetaError(f"another trainer steps the sparse optimizer {number}, which this "
                                "one has let go; keep it until the epoch has ended on all trainers")
            for embedding in optimizer._params:
                embedding.reset_trace()
            self._step(optimizer)

    def _agree(self, number: int) -> int:
        """The optimizer that is stepped; 0 where all trainers have ended the epoch."""
        assert self._world is not None
        return int(self._world.all_reduce(torch.tensor([number]), "max", "control"))
