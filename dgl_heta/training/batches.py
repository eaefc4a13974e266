"""This worker's batches of steps: sampled for its group, with their static rows, on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.sampled_rows import delivery
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.features.row_files import move
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.sampling.sampler import Deliver, NeighborSampler
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.sampling.stages import Making
from dgl_heta.training.fetching import Fetching
from dgl_heta.training.tasks import LinkEnds, LinkStep, Step
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


class Place(NamedTuple):
    """Where a batch is in training: the epoch, from 0; its step there; the steps of the epoch."""

    epoch: int
    step: int
    steps: int


class Batch:
    """What this worker has of a step: its seeds, their neighbourhood, its input rows, its labels.

    Attributes
    ----------
    blocks : the message flow, input side first; see :class:`dgl_heta.sampling.blocks.Block`.
    input_nodes : ids of the nodes whose features are read, int64, per node type.
    seeds : ids of this worker's own seeds, int64, per target type; in a graph with times ids and
        times (seeds, 2). What the model returns is for them, in this order.
    step, number, place : the seeds of all workers; what the draws were keyed by; None outside of
        epochs.
    reads : how many reads of learnable rows there were, up to its own.
    """

    def __init__(self, source: Batches, sampler: Sampler, mini: MiniBatch, step: Any, number: int,
                 place: Place | None = None) -> None:
        self.part, self._source, self._sampler, self._mini = source.part, source, sampler, mini
        self.step, self.number, self.place = step, number, place
        self.reads = 0
        self.blocks: list[Block] = mini.blocks
        self.input_nodes, self.seeds = mini.input_nodes, mini.own_seeds

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """The labels of the own seeds, per target type, on the model's device."""
        return {t: move(torch.from_numpy(self.part.labels(t).rows(ids)), self.part.device)
                for t, ids in self.seeds.items()}

    @cached_property
    def links(self) -> list[LinkEnds]:
        """This worker's own links, for each pair of node types that they join; of a loader of
        links. One relation has one pair: `(links,) = batch.links`."""
        task, step = self.part.link_task, self.step
        return task.ends(step, *self.part.share(step), self.part.device)

    def inputs(self, train: bool) -> dict[str, Tensor]:
        """The rows of the input nodes, per node type: those with features, and learnable ones,
        which with `train` are leaves that collect gradients.

        All workers must call it in every step, once the step before has updated learnable rows.
        :class:`DistributedModel` does.

        Raises
        ------
        HetaError
            Learnable rows of an earlier batch have gradients that no step has taken.
        """
        if train and self.part.learnable.pending:
            raise HetaError("learnable rows of the batch before have gradients that nothing took; "
                            "call step() of part.row_optimizer() after each backward pass")
        rows = self._source.rows(self._mini, train)
        self.reads = self.part.learnable.reads
        return rows

    def mean(self, losses: Tensor, ntype: str | None = None) -> Tensor:
        """This worker's part of the mean of a step's losses, over the seeds (or links) of all
        workers.

        The mean of the workers' parts, which is what gradients are averaged to, is that mean,
        whatever number of seeds each worker has.

        Parameters
        ----------
        losses : one for each own seed of the type, (own seeds, …), or for each own link, whatever
            their order; may be empty.
        ntype : the target type; needed where there are several.
        """
        if isinstance(self.step, LinkStep):
            own = sum(len(ends.sources) for ends in self.links)
            return self.mean_of(losses, own, self.step.size, "links")
        sizes = {t: len(nodes) for t, nodes in self.step.nodes.items()}
        if ntype is None and len(sizes) == 1:
            (ntype,) = sizes
        if ntype is None or ntype not in sizes:
            raise InputError(f"a batch has seeds of {listing(sizes)}; say of which the "
                             "losses are, as in batch.mean(losses, 'paper')")
        return self.mean_of(losses, len(self.seeds[ntype]), sizes[ntype], f"seeds of '{ntype}'")

    def mean_of(self, losses: Tensor, own: int, of_all: int, what: str) -> Tensor:
        """This worker's part of a mean over `of_all` things, of which it has `own` losses."""
        if losses.dim() == 0 or len(losses) != own:
            raise InputError(f"{losses.numel()} losses for {own} own {what}; give one for each "
                             "(reduction='none')")
        each = losses[0].numel() if len(losses) else 1
        return losses.sum() * (self.part.world.size / max(of_all * each, 1))

    def mini_batch(self) -> MiniBatch:
        """The batch as models of this package take it."""
        return self._mini

    def again(self, seeds: Sequence[Mapping[str, np.ndarray]], group: Comm) -> MiniBatch:
        """The same draws for other seeds, those of each worker of the group, by process groups that
        no batch is made with meanwhile."""
        return self._source.again(self._sampler, seeds, self.step, self.number, group)


class Batches:
    """Makes the batches of steps, by the partition's source of batches.

    Parameters
    ----------
    part : the partition that they are sampled from.
    of : whose seeds the steps have.
    """

    def __init__(self, part: WorkerPartition, of: Seeds) -> None:
        self.part, self._of = part, of
        self._fetching = Fetching(part.static, part.precomputed, part.device)
        self.making = Making(STAGES_AHEAD)

    def of_steps(self, sampler: Sampler, steps: Sequence[Step], first: int, epoch: int = 0,
                 done: int = 0) -> Iterator[Batch]:
        """The batches of the steps of an epoch, but of the `done` ones at their beginning.

        Parameters
        ----------
        first : number of the first of all steps.
        epoch : from 0.
        """
        part, left = self.part, steps[done:]
        # Where sampling is a collective, batches are sampled in their order, by one thread.
        in_order = part.plan.exchanges_while_sampling
        beside = part.source.side_by_side(in_order) > 1
        if part.one_thread_each and isinstance(sampler, NeighborSampler):
            sampler = sampler.on_one_thread()

        def sample(index: int) -> MiniBatch:
            mini = self.sampled(sampler, left[index], first + done + index)
            return mini.pack(part.device) if beside else mini

        batches = self.making.start(part.source, len(left), in_order,
                                    {"sample": sample, "fetch": self._fetching.fetch})
        with self._fetching.of_pass(), closing(batches):
            for at, step in enumerate(left, done):
                mini: MiniBatch | None = self.making.next(batches)
                if mini is None:
                    raise HetaError(f"batch source '{part.source.name}' gave fewer batches than "
                                    "there are steps; it must give one for each")
                yield Batch(self, sampler, self._fetching.arrive(mini), step, first + at,
                            Place(epoch, at, len(steps)))

    def of_step(self, sampler: Sampler, step: Step, number: int) -> Batch:
        """The batch of one step, now; `number` differs from step to step."""
        mini = self.sampled(sampler, step, number).to(self.part.device)
        return Batch(self, sampler, mini, step, number)

    def again(self, sampler: Sampler, parts: Sequence[Mapping[str, np.ndarray]], step: Step,
              number: int, group: Comm) -> MiniBatch:
        """The blocks of a step for other seeds, those of each worker of the group, by process
        groups that no batch is made with meanwhile."""
        part = self.part
        return sampler.sample(
            *join_seeds(parts, group.rank), number, self._of.without(step),
            delivery(part.store, group) if part.plan.offloaded else None).to(part.device)

    def rows(self, batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        """Input features of a batch; learnable ones are leaves when training.

        Called when the step before has updated them: they are read now, static ones maybe earlier.
        """
        rows = self._fetching.rows(batch)
        if self.part.precomputed is not None:
            return rows
        if self.part.caches is not None:
            self.part.caches.count(batch.input_nodes)
        rows.update(self.part.learnable.read(batch.input_nodes, self.part.device, train))
        if batch.places is None:
            return {t: rows[t] for t in batch.input_nodes}
        return {t: rows[t][torch.from_numpy(places).to(rows[t].device)]
                for t, places in batch.places.items()}

    def sampled(self, sampler: Sampler, step: Step, number: int) -> MiniBatch:
        """The blocks of this worker's group's part of a step."""
        part = self.part
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
