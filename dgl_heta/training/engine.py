"""One worker's training engine: the seam between plan, store, sampler, reducer and model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dgl_heta.block import MiniBatch, SeedShares
from dgl_heta.errors import InputError
from dgl_heta.features import LearnableFeatures, StaticFeatures
from dgl_heta.features.sparse_adam import AdamSettings
from dgl_heta.models import ModelSpec
from dgl_heta.nn import use_kernel
from dgl_heta.plan import Plan
from dgl_heta.plugins import Plugins
from dgl_heta.raf.comm import Traffic, init_workers, make_comms
from dgl_heta.sampling import NeighborSampler, SamplingScope, hash_key
from dgl_heta.settings import Settings
from dgl_heta.store import Store

STAGES = ("sample", "fetch", "forward", "backward", "update")
SPLITS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}
_EVAL_STEPS = 1 << 40  # step numbers of evaluation, far from those of training


class Engine:
    """Trains one model on one worker, in step with the others.

    Parameters
    ----------
    store, plan : the graph and the partition backend's plan; the module wrapper may replace
        the plan. Worker `rank` runs partition `rank`.
    settings, plugins : which providers, with which settings.

    Raises
    ------
    InputError
        The store has no task, the plan has other targets or layers than the model.
    """

    def __init__(self, store: Store, plan: Plan, settings: Settings, plugins: Plugins) -> None:
        train, model = settings.train, settings.model
        task = store.manifest.task
        if task is None:
            raise InputError(f"store '{store.manifest.name}' has no task (target, labels, masks), "
                             "so there is nothing to train for")
        if plan.targets != (task.target,):
            raise InputError(
                f"the plan is for target {', '.join(plan.targets)}, but the store's task is to "
                f"classify '{task.target}'; plan with --target {task.target}"
            )
        if plan.hops != model.layers:
            raise InputError(f"the plan has {plan.hops} hops, but model.layers is {model.layers}; "
                             "they must be equal")
        wrapper = plugins.get("module wrapper", train.wrapper)
        provider = plugins.get("model", model.name)
        use_kernel(plugins.get("aggregation kernel", train.kernel))
        self.device = _device(train.device)
        self.dtype = torch.float64 if train.dtype == "float64" else torch.float32
        self.rank = int(os.environ.get("RANK", "0"))
        workers = int(os.environ.get("WORLD_SIZE", "1"))
        self.plan = wrapper.plan(plan)
        if workers != self.plan.num_parts:
            raise InputError(f"{workers} workers were started for {self.plan.num_parts} "
                             "partitions; start one worker per partition")
        local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(train.threads or max(_cores() // local_workers, 1))
        init_workers("nccl" if self.device.type == "cuda" else "gloo", settings.run.timeout_s)
        self.traffic = Traffic()
        self.world, self.group = make_comms(self.plan.groups, self.traffic,
                                            settings.run.timeout_s)

        self.settings, self.store, self.target = settings, store, task.target
        partition = self.plan.partitions[self.rank]
        scope = SamplingScope.of(self.plan, self.rank)
        self._sampler = NeighborSampler(store, scope, train.fanouts, train.seed, train.seed_states)
        self._eval_sampler = self._sampler if train.eval_fanouts is None else NeighborSampler(
            store, scope, train.eval_fanouts, train.seed, train.seed_states)
        self._static = StaticFeatures(store, partition.node_types, self.dtype, self.device)
        used = {t for p in self.plan.partitions for t in p.node_types}
        featureless = [t for t in store.schema.node_types
                       if t in used and not store.has_array(t, "feat")]
        self.learnable = LearnableFeatures(
            {t: store.schema.node_counts[t] for t in featureless},
            {t: self.plan.users(t) for t in featureless},
            model.hidden, self.dtype, self.world, train.learnable, AdamSettings(train.sparse_lr),
            train.seed, self.plan.targets if scope.seeds_apart else ())
        self._labels = store.array(task.target, task.label)
        self.spec = model_spec(store, settings)
        torch.manual_seed(train.seed % 2**63)
        self.model = provider.build(self.spec).to(self.device, self.dtype)
        self.wrapped = wrapper.wrap(self.model, self.world, self.group)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=train.lr,
                                          weight_decay=train.weight_decay)
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.own_epochs: list[tuple[float, float, float]] = []  # seconds, waiting, bytes sent

    def start_epoch(self, epoch: int) -> None:
        """Reset counters, and the generator of dropout, which each worker has its own of."""
        torch.manual_seed(hash_key(self.settings.train.seed, epoch, self.rank) % 2**63)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.traffic.reset()

    def steps(self, split_name: str, epoch: int = 0) -> list[np.ndarray]:
        """The seeds of all workers for each step; shuffled alike everywhere for training."""
        name = SPLITS[split_name]
        if not self.store.has_array(self.target, name):
            return []
        ids = np.flatnonzero(self.store.array(self.target, name))
        if split_name == "train":
            np.random.default_rng([self.settings.train.seed, epoch]).shuffle(ids)
        size = self.settings.train.batch_size * self.world.size
        return [ids[start:start + size] for start in range(0, len(ids), size)]

    def train_step(self, seeds: np.ndarray, step: int) -> tuple[float, int]:
        """One step on the global batch `seeds`.

        The loss is the mean over the whole batch, so that averaging gradients over workers
        gives the gradient of one process whatever the workers' shares are.

        Returns the sum of this worker's losses, and how many of its seeds it got right.
        """
        batch = self.sample(seeds, step)
        self.model.train()
        with self.timed("fetch"):
            inputs = self.inputs(batch, train=True)
        with self.timed("forward"):
            logits = self.wrapped(batch, inputs)[self.target]
            labels = self.labels(batch)
            total = F.cross_entropy(logits, labels, reduction="sum")
            loss = total * (self.world.size / len(seeds))
        with self.timed("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.wrapped.synchronize_gradients()
        with self.timed("update"):
            self.optimizer.step()
            self.learnable.update()
        return float(total.detach()), int((logits.argmax(1) == labels).sum())

    def sample(self, seeds: np.ndarray, step: int) -> MiniBatch:
        """This worker's blocks for the global batch `seeds`."""
        return self._batch(self._sampler, seeds, step)

    @torch.no_grad()
    def evaluate(self, split_name: str) -> tuple[float, float]:
        """`(accuracy, mean loss)` over a split, by all workers together; NaN if it is empty."""
        self.model.eval()
        totals = torch.zeros(3, dtype=torch.float64)
        for index, seeds in enumerate(self.steps(split_name)):
            batch = self._batch(self._eval_sampler, seeds, _EVAL_STEPS + index)
            logits = self.wrapped(batch, self.inputs(batch, train=False))[self.target]
            labels = self.labels(batch)
            totals += torch.tensor([float((logits.argmax(1) == labels).sum()),
                                    float(F.cross_entropy(logits, labels, reduction="sum")),
                                    len(labels)], dtype=torch.float64)
        right, loss, count = self.sum_over_workers(totals)
        return (right / count, loss / count) if count else (float("nan"), float("nan"))

    def sum_over_workers(self, totals: Tensor) -> list[float]:
        """Sums of a small vector over all workers."""
        return self.world.all_reduce(totals, cause="control").tolist()

    def own_count(self, total: int) -> int:
        """How many of `total` seeds of a step are this worker's own."""
        mine = self._group_range(total)
        return self._shares(mine[1] - mine[0]).own

    def inputs(self, batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        """Input features of a batch; learnable ones are leaves when training."""
        rows = self._static.fetch(batch.input_nodes)
        rows.update(self.learnable.fetch(batch.input_nodes, self.device, train))
        return {t: rows[t] for t in batch.input_nodes}

    def labels(self, batch: MiniBatch) -> Tensor:
        """Labels of the trainer's own seeds, int64."""
        ids = batch.own_seeds[self.target]
        return torch.from_numpy(np.asarray(self._labels[ids], np.int64)).to(self.device)

    def _batch(self, sampler: NeighborSampler, seeds: np.ndarray, step: int) -> MiniBatch:
        """This group's part of the global batch, sampled."""
        with self.timed("sample"):
            mine = seeds[slice(*self._group_range(len(seeds)))]
            return sampler.sample({self.target: mine}, {self.target: self._shares(len(mine))},
                                  step).to(self.device)

    def _shares(self, seeds: int) -> SeedShares:
        return SeedShares.even(seeds, self.group.size, self.group.rank)

    def _group_range(self, total: int) -> tuple[int, int]:
        """The group's contiguous range of `total` seeds."""
        ranks = self.group.ranks if self.world.size > 1 else (0,)
        low = SeedShares.even(total, self.world.size, ranks[0])
        high = SeedShares.even(total, self.world.size, ranks[-1])
        return low.before, high.before + high.own

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of the body to a stage."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds[stage] += time.perf_counter() - start


def model_spec(store: Store, settings: Settings) -> ModelSpec:
    """What the model is built from: the store's types and classes, the settings' sizes."""
    model, task = settings.model, store.manifest.task
    assert task is not None
    static = frozenset(t for t in store.schema.node_types if store.has_array(t, "feat"))
    dims = {t: store.array(t, "feat").shape[1] if t in static else model.hidden
            for t in store.schema.node_types}
    return ModelSpec(store.schema, dims, static, {task.target: task.num_classes}, model.layers,
                     model.hidden, model.bases, model.self_loop, model.layer_norm, model.dropout,
                     model.aggregate, model.reduce)


def _cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _device(choice: str) -> torch.device:
    """The device of this worker: a GPU of its own where there is one for every local worker."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cpu" or (choice == "auto" and gpus < workers):
        return torch.device("cpu")
    if gpus < workers:
        raise InputError(f"train.device is 'cuda', but this machine has {gpus} CUDA devices for "
                         f"{workers} workers; use train.device=cpu or fewer workers")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
