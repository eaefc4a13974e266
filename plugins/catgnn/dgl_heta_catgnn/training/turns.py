"""Workers train parts in turn, and average the models (CATGNN, §3.3).

Of p parts, worker i of w has parts i, i + w, i + 2w, … All workers begin a round with one model.
For each of its parts in turn a worker copies that model, trains it on the part for `sync_every`
epochs, and adds the result to the average, with the part's training nodes as its weight.

Whose optimizer state: the part's. Each part's copy has its own moments, which are kept from round
to round and are never averaged, as if each part had a worker to itself. So the result does not
depend on the number of workers, up to the order of sums; nor do random numbers, whose seeds
follow from seed, part and epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from dgl_heta import InputError
from dgl_heta.tools import Comm
from dgl_heta_catgnn.averaging import ModelAverage
from dgl_heta_catgnn.training.batches import PartBatches, loss_of
from dgl_heta_catgnn.training.local import LocalPart, load_part
from dgl_heta_catgnn.training.models import ModelShape, build
from dgl_heta_catgnn.training.parts import TrainingParts


@dataclass(frozen=True)
class TrainChoices:
    """How parts are trained.

    Attributes
    ----------
    model : a name of :data:`~dgl_heta_catgnn.training.models.MODELS`, or module:attribute.
    batches : makes the algorithm for a part.
    epochs, sync_every : epochs, and after how many of them models are averaged.
    full : whether own nodes have all their neighbours (`load_part`).
    keep : whether parts stay in memory between turns.
    """

    model: str
    shape: ModelShape
    batches: Callable[[], PartBatches]
    epochs: int
    sync_every: int = 1
    lr: float = 0.01
    weight_decay: float = 0.0
    seed: int = 0
    full: bool = True
    keep: bool = True
    dtype: torch.dtype = torch.float32


@dataclass
class Round:
    """A round of training up to an average: the epoch, the mean loss since the last one."""

    epoch: int
    loss: float
    steps: int = 0


@dataclass
class Turns:
    """One worker's part of a training.

    Attributes
    ----------
    world : all workers.
    state : the averaged model's state, the same on all workers.
    """

    parts: TrainingParts
    choices: TrainChoices
    world: Comm
    state: dict[str, Tensor] = field(init=False)
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        _seed(self.choices.seed, 0, 0)
        self.model = build(self.choices.model, self.choices.shape).to(self.choices.dtype)
        self.state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._batches: dict[int, PartBatches] = {}
        self._kept: dict[int, LocalPart] = {}
        self.own = [part for part in range(self.world.rank, len(self.parts.parts), self.world.size)
                    if self.parts.parts[part].train]

    def rounds(self) -> Iterator[Round]:
        """Train; yields after each average, when `state` is that of all workers.

        Raises
        ------
        InputError
            Training diverged: on all workers alike, as loss and state are those of all.
        """
        done = 0
        while done < self.choices.epochs:
            epochs = min(self.choices.sync_every, self.choices.epochs - done)
            average, sums = ModelAverage(self.state), torch.zeros(3, dtype=torch.float64)
            for part in self.own:
                sums += self._turn(part, range(done, done + epochs))
                average.add(self.model.state_dict(), self.parts.parts[part].train)
            self.state = average.over(self.world)
            done += epochs
            total, count, steps = self.world.all_reduce(sums, cause="control").tolist()
            loss = total / max(count, 1)
            finite = all(bool(value.isfinite().all()) for value in self.state.values())
            if not (math.isfinite(loss) and finite):
                what = "parameters are NaN or infinite" if math.isfinite(loss) else (
                    f"the loss is {loss}")
                raise InputError(f"{what} after epoch {done}: training diverged; lower "
                                 "plugins.catgnn.lr, or check the features")
            yield Round(done, loss, int(steps))

    def averaged(self) -> Any:
        """The model with the averaged state, for evaluation."""
        self.model.load_state_dict(self.state)
        return self.model.eval()

    def _turn(self, part: int, epochs: range) -> Tensor:
        """Train the model on a part from the averaged state on; sums of losses, nodes, steps."""
        choices, sums = self.choices, torch.zeros(3, dtype=torch.float64)
        graph = self._part(part).graph
        batches = self._batches.get(part)
        if batches is None:
            batches = self._batches[part] = choices.batches()
        self.model.load_state_dict(self.state)
        self.model.train()
        optimizer = torch.optim.Adam(self.model.parameters(), choices.lr,
                                     weight_decay=choices.weight_decay)
        if part in self._optimizers:
            optimizer.load_state_dict(self._optimizers[part])
        for epoch in epochs:
            rng = _seed(choices.seed, part + 1, epoch)
            for batch in batches.batches(graph, rng):
                loss, count = loss_of(self.model, batch)
                if not count:
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sums += torch.tensor([float(loss) * count, count, 1], dtype=torch.float64)
        self._optimizers[part] = optimizer.state_dict()
        return sums

    def _part(self, part: int) -> LocalPart:
        if part in self._kept:
            return self._kept[part]
        local = load_part(self.parts, part, loops=getattr(self.model, "loops", False),
                          full=self.choices.full, dtype=self.choices.dtype)
        if self.choices.keep:
            self._kept[part] = local
        return local


def _seed(*numbers: int) -> np.random.Generator:
    """Seed torch and DGL; a generator for what else is drawn."""
    rng = np.random.default_rng(numbers)
    torch.manual_seed(int(rng.integers(2**62)))
    dgl.seed(int(rng.integers(2**31)))
    return rng
