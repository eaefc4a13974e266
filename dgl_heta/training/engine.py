"""One worker's training steps: sample, fetch, forward, backward, update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext
from dgl_heta.models import ModelSpec
from dgl_heta.nn.precision import mixed_precision, widened
from dgl_heta.raf.wrapper import RafModule
from dgl_heta.report.epoch_records import STAGES
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampling_kernels import hash_key
from dgl_heta.system.device_seconds import DeviceSeconds
from dgl_heta.training.batches import Batches, Sampler, closing
from dgl_heta.training.metrics import Tally
from dgl_heta.training.optimizers import Schedule, make_optimizer
from dgl_heta.training.tasks import Step, TrainingTask
from dgl_heta.training.worker_partition import WorkerPartition

_EVAL_STEPS = 1 << 40  # step numbers of evaluation, far from those of training


class Caches(Protocol):
    """Caches of input features; see :class:`dgl_heta.training.caches.FeatureCaches`."""

    policy: str
    capacity: int
    seconds: float
    notes: list[str]
    penalties: dict[str, float]

    def count(self, nodes: Mapping[str, np.ndarray]) -> None:
        """Count the input nodes of a batch."""

    def reset(self) -> None:
        """Count from zero."""

    def counted(self) -> dict[str, dict[str, int]]:
        """Per type what was read, and what of it was cached; all workers call it."""


class Prover(Protocol):
    """Compares steps with the plain way; see :class:`dgl_heta.training.step_proof.StepProof`."""

    proved: int
    seconds: float
    told: str | None

    def due(self, number: int, steps: int) -> bool:
        """Return whether to prove a step of an epoch of so many."""

    def prove(self, step: Step, number: int, batch: MiniBatch, inputs: dict[str, Tensor],
              loss: Tensor) -> None:
        """Compare a step with the plain way, before its backward pass."""


class Engine:
    """Trains one model on one worker, in step with the others.

    :func:`dgl_heta.training.setup.build_engine` makes one from a store, a plan and settings.

    Parameters
    ----------
    part : the partition that this worker trains on.
    samplers : of training and of evaluation.
    wrapper : keeps the model's parameters equal on all workers.
    """

    not_finite = 0
    caches: Caches | None = None
    proof: Prover | None = None

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
        self.wrapped = wrapper.wrap(RafModule(model, self.group),
                                    WrapContext(self.world, self.group, self.owned))
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
        if self.caches is not None:
            self.caches.reset()

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

    def batches(self, steps: Sequence[Step], first: int, evaluate: bool = False
                ) -> Iterator[MiniBatch]:
        """This worker's batches of some steps, whose numbers start from `first`."""
        sampler = self._eval_sampler if evaluate else self._sampler
        making = self.loading.making
        before = dict(making.waited)
        batches = self.loading.of_steps(sampler, steps, first)
        with closing(batches):
            for batch in batches:
                for stage, seconds in making.waited.items():
                    self._spent[stage].add(seconds - before[stage])
                before = dict(making.waited)
                yield batch

    def train(self, steps: Sequence[Step], first: int, done: int = 0) -> Iterator[Tensor]:
        """Take optimizer steps, with numbers from `first` on, but the `done` ones at their
        beginning; yields the statistics of each."""
        left = steps[done:]
        batches = self.batches(left, first + done)
        with closing(batches):
            for number, (step, batch) in enumerate(zip(left, batches), first + done):
                due = self.proof is not None and self.proof.due(number, len(steps))
                yield self.train_step(step, batch, number if due else None)

    def train_step(self, step: Step, batch: MiniBatch, prove: int | None = None) -> Tensor:
        """One optimizer step; returns this worker's statistics of it.

        `prove` is the step's number if it is to be compared with the plain way.
        """
        self.model.train()
        with self.timed("fetch"):
            inputs = self.inputs(batch, train=True)
        with self.timed("forward"):
            loss, statistics = self.loss(self.forward(batch, inputs), step)
        if prove is not None and self.proof is not None:
            self.proof.prove(step, prove, batch, inputs, loss)
        with self.timed("backward"):
            # None, not zeros: whether a worker has a gradient tells who alone has a parameter
            # (`comm/gradient_average.py`).
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            # After the exchanges' adjoints, which are in the backward pass, and before the
            # optimizer: every worker comes here in every step, also one whose seeds gave no
            # gradient.
            self.wrapped.after_backward()
        with self.timed("update"):
            if self.settings.train.clip_grad_norm is not None:
                # Averaged gradients are the same on all workers, and so is their norm.
                nn.utils.clip_grad_norm_(self.model.parameters(),
                                         self.settings.train.clip_grad_norm)
            self.optimizer.step()
            self.learnable.update()
        return statistics

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of the model, per target type, in mixed precision if the settings say so."""
        mixed = self.settings.train.autocast == "bfloat16"
        with mixed_precision(self.device, mixed):
            return {t: widened(rows) for t, rows in self.wrapped(batch, inputs).items()}

    def sample(self, step: Step, number: int) -> MiniBatch:
        """This worker's blocks for a step; `number` differs from step to step."""
        return self.loading.of_step(self._sampler, step, number)

    def sample_again(self, parts: Sequence[Mapping[str, np.ndarray]], step: Step, number: int,
                     group: Comm) -> MiniBatch:
        """The blocks of a step for other seeds, those of each worker of the group, by process
        groups that no batch is made with meanwhile."""
        return self.loading.again(self._sampler, parts, step, number, group)

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
            for step, batch in zip(steps, batches):
                outputs = self.forward(batch, self.inputs(batch, train=False))
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

    def inputs(self, batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        """Input features of a batch, see :meth:`Batches.rows`; caches count them."""
        if self.caches is not None and self.precomputed is None:
            self.caches.count(batch.input_nodes)
        return self.loading.rows(batch, train)

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
