"""This worker's batches of steps: sampled for its group, with their static rows, on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.sampled_rows import delivery
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import Deliver
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.sampling.stages import Making
from dgl_heta.training.fetching import Fetching
from dgl_heta.training.tasks import Step
from dgl_heta.training.worker_partition import WorkerPartition

STAGES_AHEAD = ("sample", "fetch")


class Sampler(Protocol):
    """Makes the blocks of a step; see :meth:`NeighborSampler.sample`."""

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: Mapping[Relation, np.ndarray] | None = None,
               deliver: Deliver | None = None) -> MiniBatch: ...


class Seeds(Protocol):
    """Whose seeds a step has; see :class:`dgl_heta.training.tasks.TrainingTask`."""

    def seeds(self, step: Any, worker: int, workers: int) -> dict[str, np.ndarray]: ...
    def without(self, step: Any) -> Mapping[Relation, np.ndarray] | None: ...


class Batches:
    """Makes the batches of steps, by the partition's source of batches.

    Parameters
    ----------
    part : the partition that they are sampled from.
    of : whose seeds the steps have.
    """

    def __init__(self, part: WorkerPartition, of: Seeds) -> None:
        self._part, self._of = part, of
        self._fetching = Fetching(part.static, part.precomputed, part.device)
        self.making = Making(STAGES_AHEAD)

    def of_steps(self, sampler: Sampler, steps: Sequence[Step], first: int) -> Iterator[MiniBatch]:
        """The batches of some steps, whose numbers start from `first`."""
        part = self._part
        batches = self.making.start(
            # Where sampling is a collective, batches are sampled in their order, by one thread.
            part.source, len(steps), part.plan.exchanges_while_sampling,
            {"sample": lambda index: self.sampled(sampler, steps[index], first + index),
             "fetch": self._fetching.fetch})
        with self._fetching.of_pass(), closing(batches):
            for _ in steps:
                batch: MiniBatch | None = self.making.next(batches)
                if batch is None:
                    raise HetaError(f"batch source '{part.source.name}' gave fewer batches than "
                                    "there are steps; it must give one for each")
                yield self._fetching.arrive(batch)

    def of_step(self, sampler: Sampler, step: Step, number: int) -> MiniBatch:
        """The blocks of one step, now; `number` differs from step to step."""
        return self.sampled(sampler, step, number).to(self._part.device)

    def again(self, sampler: Sampler, parts: Sequence[Mapping[str, np.ndarray]], step: Step,
              number: int, group: Comm) -> MiniBatch:
        """The blocks of a step for other seeds, those of each worker of the group, by process
        groups that no batch is made with meanwhile."""
        part = self._part
        return sampler.sample(
            *join_seeds(parts, group.rank), number, self._of.without(step),
            delivery(part.store, group) if part.plan.offloaded else None).to(part.device)

    def rows(self, batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        """Input features of a batch; learnable ones are leaves when training.

        Called when the step before has updated them: they are read now, static ones maybe earlier.
        """
        rows = self._fetching.rows(batch)
        if self._part.precomputed is not None:
            return rows
        rows.update(self._part.learnable.read(batch.input_nodes, self._part.device, train))
        if batch.places is None:
            return {t: rows[t] for t in batch.input_nodes}
        return {t: rows[t][torch.from_numpy(places).to(rows[t].device)]
                for t, places in batch.places.items()}

    def sampled(self, sampler: Sampler, step: Step, number: int) -> MiniBatch:
        """The blocks of this worker's group's part of a step."""
        part = self._part
        shares = ([part.share(step)] if part.group.size == 1 else
                  [(rank, part.world.size) for rank in part.group.ranks])
        seeds, sharing = join_seeds([self._of.seeds(step, *share) for share in shares],
                                    part.group.rank)
        return sampler.sample(seeds, sharing, number, self._of.without(step))


@contextmanager
def closing(batches: Iterator[Any]) -> Iterator[None]:
    """Let a source clean up at the end, if it is a generator."""
    try:
        yield
    finally:
        getattr(batches, "close", lambda: None)()
