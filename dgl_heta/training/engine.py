"""One worker's training steps: sample, fetch, forward, backward, update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import ModuleWrapper
from dgl_heta.models import ModelSpec
from dgl_heta.report.epoch_records import STAGES
from dgl_heta.system.device_seconds import DeviceSeconds
from dgl_heta.system.hashing import hash_key
from dgl_heta.training.batches import Batch, Batches, Sampler, closing
from dgl_heta.training.distributed import DistributedModel
from dgl_heta.training.metrics import Tally
from dgl_heta.training.optimizers import Schedule, make_optimizer
from dgl_heta.training.tasks import Step, TrainingTask
from dgl_heta.training.worker_partition import WorkerPartition

_EVAL_STEPS = 1 << 40  # step numbers of evaluation, far from those of training


class Engine:
    """Trains one model on one worker, in step with the others.

    :func:`dgl_heta.training.setup.build_engine` makes one from a store, a plan and settings.

    Parameters
    ----------
    part : the partition that this worker trains on.
    samplers : of training and of evaluation.
    wrapper : keeps the model's parameters equal on all workers.

    Attributes
    ----------
    model, distributed : the model, and as it runs in step with the other workers.
    """

    not_finite = 0

    def __init__(self, part: WorkerPartition, task: TrainingTask, spec: ModelSpec,
                 samplers: tuple[Sampler, Sampler], model: nn.Module, wrapper: ModuleWrapper
                 ) -> None:
        self.part, self.store, self.plan, self.settings = part, part.store, part.plan, part.settings
        self.task, self.spec, self.model = task, spec, model
        task.use(model)
        self.rank, self.local_workers, self.device = part.rank, part.local, part.device
        self.world, self.group = part.world, part.group
        self.static, self.learnable = part.static, part.learnable
        self.precomputed, self.fits = part.precomputed, part.fits
        self._sampler, self._eval_sampler = samplers
        self.loading, self._wrapper = Batches(part, task), wrapper
        self.distributed = DistributedModel(  # `timed` of each call: who watches stages changes it
            model, part, wrapper, self.owned, timed=lambda stage: self.timed(stage))
        self.wrapped, self.proof = self.distributed.wrapped, self.distributed.proof
        self.optimizer = make_optimizer(model.parameters(), part.settings.train)
        self.schedule = (Schedule(self.optimizer, part.settings.train)
                         if part.settings.train.schedule is not None else None)
        self._spent = {stage: DeviceSeconds() for stage in STAGES}

    @property
    def in_step(self) -> bool:
        """True if all workers take the same number of steps, so that they may meet after each."""
        return not self._wrapper.uneven_steps

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds since the epoch began, by stage."""
        return {stage: spent.total for stage, spent in self._spent.items()}

    @property
    def ahead(self) -> dict[str, dict[str, float]] | None:
        """Of batches made ahead of time, per stage the seconds that it `worked` for them since the
        epoch began, and those that this worker `waited` for it; None if none are made ahead."""
        return self.loading.making.seconds if self.part.source.ahead else None

    @property
    def sent(self) -> Counter[str]:
        """Bytes that this worker has sent since the epoch began, by cause."""
        return sum((traffic.bytes for traffic in self.part.traffic), Counter())

    @property
    def waited(self) -> float:
        """Seconds that it has waited for others, while nothing else was done."""
        training, sampling = self.part.traffic
        ahead = self.part.source.ahead
        return training.waited.total + (0.0 if ahead else sampling.waited.total)

    def reset_traffic(self) -> None:
        """Count from zero."""
        for traffic in self.part.traffic:
            traffic.reset()

    def start_epoch(self, epoch: int, done: int = 0) -> None:
        """Reset counters, and the generator of dropout, which each worker has its own of, for an
        epoch or for what is left of it after the `done` steps of other workers."""
        # Of the epoch, not of what was drawn before: a run that goes on from a checkpoint draws the
        # same.
        begun = [done] if done else []
        torch.manual_seed(hash_key(self.settings.train.seed, epoch, self.rank, *begun) % 2**63)
        self._spent = {stage: DeviceSeconds() for stage in STAGES}
        self.loading.making.reset()
        self.reset_traffic()
        if self.part.caches is not None:
            self.part.caches.reset()

    def steps(self, split: str, epoch: int = 0) -> list[Step]:
        """The steps of an epoch over a split: the same on all workers, who have a share of each.

        With a module wrapper whose workers may take different numbers of steps, those of training
        are this worker's own.
        """
        train = self.settings.train
        if split == "train" and self._wrapper.uneven_steps:
            return self.task.steps(split, epoch, train.batch_size, self._owned)
        return self.task.steps(split, epoch, train.step_size(self.world.size))

    def owned(self) -> int:
        """The number of seeds that this worker has in an epoch."""
        rank, size = self.rank, self.world.size
        return sum(step.size if step.own else step.size * (rank + 1) // size
                   - step.size * rank // size for step in self.steps("train"))

    def batches(self, steps: Sequence[Step], first: int, evaluate: bool = False, done: int = 0
                ) -> Iterator[Batch]:
        """This worker's batches of some steps, whose numbers start from `first`, but of the `done`
        ones at their beginning."""
        sampler = self._eval_sampler if evaluate else self._sampler
        making = self.loading.making
        before = dict(making.waited)
        epoch = max((first >> 20) - 1, 0)  # numbers count epochs from 1
        batches = self.loading.of_steps(sampler, steps, first, epoch, done)
        with closing(batches):
            for batch in batches:
                for stage, seconds in making.waited.items():
                    self._spent[stage].add(seconds - before[stage])
                before = dict(making.waited)
                yield batch

    def train(self, steps: Sequence[Step], first: int, done: int = 0) -> Iterator[Tensor]:
        """Take optimizer steps, with numbers from `first` on, but the `done` ones at their
        beginning; yields the statistics of each."""
        batches = self.batches(steps, first, done=done)
        with closing(batches):
            for batch in batches:
                yield self.train_step(batch)

    def train_step(self, batch: Batch) -> Tensor:
        """One optimizer step; returns this worker's statistics of it."""
        self.model.train()
        outputs = self.distributed(batch)
        with self.timed("forward"):
            loss, statistics = self.loss(outputs, batch.step)
        with self.timed("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # at whose end gradients are averaged
        with self.timed("update"):
            if self.settings.train.clip_grad_norm is not None:
                # Averaged gradients are the same on all workers, and so is their norm.
                nn.utils.clip_grad_norm_(self.model.parameters(),
                                         self.settings.train.clip_grad_norm)
            self.optimizer.step()
            self.learnable.update()
        return statistics

    def sample(self, step: Step, number: int) -> Batch:
        """This worker's batch of a step; `number` differs from step to step."""
        return self.loading.of_step(self._sampler, step, number)

    def loss(self, outputs: dict[str, Tensor], step: Step) -> tuple[Tensor, Tensor]:
        """`(loss, statistics)` of this worker's share of a step.

        The loss is scaled so that averaging gradients over the step's workers gives the gradient
        of one process whatever the workers' shares are.
        """
        return self.task.loss(outputs, step, *self.part.share(step))

    @torch.no_grad()
    def evaluate(self, split: str, tallies: Mapping[str, Tally] | None = None
                 ) -> tuple[float, float]:
        """`(score, mean loss)` over a split, by all workers together; NaN if it is empty.

        `tallies`, empty ones of the task's, then hold what was counted of all workers' shares, and
        `not_finite` is the number of nodes with an output that is NaN or infinite.
        """
        self.model.eval()
        self.not_finite = 0
        totals, steps = None, self.task.steps(
            split, 0, self.settings.train.step_size(self.world.size))
        batches = self.batches(steps, _EVAL_STEPS, evaluate=True)
        with closing(batches):
            for batch in batches:
                outputs, step = self.distributed(batch), batch.step
                _, statistics = self.loss(outputs, step)
                wrong = float(sum(map(not_finite, outputs.values())))
                statistics = torch.cat([statistics, statistics.new_tensor([wrong])])
                totals = statistics if totals is None else totals + statistics
                if tallies:
                    self.task.observe(tallies, outputs, step, *self.part.share(step))
        for tally in (tallies or {}).values():
            tally.gather(self.world)
        if totals is None:
            return self.score(None)
        sums = self.sum_over_workers(totals)
        self.not_finite = int(sums[-1])
        return self.task.score(torch.tensor(sums[:-1], dtype=torch.float64))

    def score(self, statistics: Tensor | None) -> tuple[float, float]:
        """`(score, mean loss)` of all workers' statistics, or NaN if there are none."""
        if statistics is None:
            return float("nan"), float("nan")
        return self.task.score(self.world.all_reduce(statistics, cause="control"))

    def sum_over_workers(self, totals: Tensor) -> list[float]:
        """Sums of a small vector over all workers."""
        return self.world.all_reduce(totals, cause="control").tolist()

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Add the seconds of the body to a stage."""
        return self._spent[stage].timed(self.device)

    def _owned(self, nodes: np.ndarray) -> np.ndarray:
        ids = np.asarray(self._wrapper.owned(nodes, self.rank, self.world.size))
        if len(np.unique(ids)) != len(ids) or not np.isin(ids, nodes).all():
            raise InputError(f"module wrapper '{self._wrapper.name}' says that worker {self.rank} "
                             "owns other nodes than it was given, or one twice; owned() must "
                             "return some of its argument's ids, each once")
        return ids.astype(np.int64)


def not_finite(rows: Tensor) -> int:
    """Rows with a number that is NaN or infinite."""
    return int((~rows.isfinite().flatten(1).all(1)).sum())
