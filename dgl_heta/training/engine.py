"""One worker's training engine: the seam between plan, store, sampler, reducer and model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Traffic, init_workers, make_comms
from dgl_heta.errors import InputError
from dgl_heta.features import LearnableFeatures, StaticFeatures
from dgl_heta.features.averages import common_width
from dgl_heta.features.disk_tables import DiskTables, memory_tables
from dgl_heta.features.sparse_adam import AdamSettings, RowTable
from dgl_heta.hooks.manager import Plugins
from dgl_heta.models import ModelProvider, ModelSpec, find_model
from dgl_heta.nn import use_kernel
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.kernels import hash_key
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.memory import fit_in_memory
from dgl_heta.training.average_inputs import AverageInputs, paths_of
from dgl_heta.training.tasks import Step, TrainingTask, make_task

if TYPE_CHECKING:
    from dgl_heta.training.caches import FeatureCaches

STAGES = ("sample", "fetch", "forward", "backward", "update")
_EVAL_STEPS = 1 << 40  # step numbers of evaluation, far from those of training


class Sampler(Protocol):
    """Makes the blocks of a step; see :meth:`NeighborSampler.sample`."""

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: np.ndarray | None = None) -> MiniBatch: ...


class Engine:
    """Trains one model on one worker, in step with the others.

    Parameters
    ----------
    store, plan : the graph and the partition backend's plan; the module wrapper may replace
        the plan. With T trainers per partition, worker `rank` runs partition `rank // T`.
    settings, plugins : which providers, with which settings.
    scratch : directory for neighbour averages, which some models compute first, and for tables
        on disk.

    Raises
    ------
    InputError
        The store has no task, the plan has other targets or layers than the model, a model
        that the settings or the plan do not fit.
    """

    def __init__(self, store: Store, plan: Plan, settings: Settings, plugins: Plugins,
                 scratch: Path | None = None) -> None:
        train, model = settings.train, settings.model
        self.task, self.spec, provider = check(store, plan, settings, plugins)
        wrapper = plugins.get("module wrapper", train.wrapper)
        use_kernel(plugins.get("aggregation kernel", train.kernel))
        self.device = _device(train.device)
        self.dtype = torch.float64 if train.dtype == "float64" else torch.float32
        self.rank = int(os.environ.get("RANK", "0"))
        workers = int(os.environ.get("WORLD_SIZE", "1"))
        self.plan = with_trainers(wrapper.plan(plan), train.trainers)
        if workers != self.plan.num_parts:
            raise InputError(f"{workers} workers were started for {self.plan.num_parts} "
                             "partitions and trainers; start one worker for each trainer of each "
                             "partition")
        local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(train.threads or max(_cores() // local_workers, 1))
        init_workers("nccl" if self.device.type == "cuda" else "gloo", settings.run.timeout_s)
        self.traffic = Traffic()
        self.world, self.group = make_comms(self.plan, self.traffic, settings.run.timeout_s)

        self.settings, self.store = settings, store
        partition = self.plan.partitions[self.rank]
        scope = SamplingScope.of(self.plan, self.rank)

        def sampler(fanouts: list[int]) -> NeighborSampler:
            return NeighborSampler(store, scope, fanouts, train.seed, train.seed_states,
                                   self._agree, self.task.held_out)

        self.averages: AverageInputs | None = None
        if kind := getattr(provider, "precomputed", None):
            if scratch is None:
                raise InputError(f"model '{model.name}' needs a directory for its averages")
            self.averages = AverageInputs(kind, store, self.plan, self.rank, settings,
                                          scratch / "averages", self.world, self.spec.paths)
            self._sampler: Sampler = self.averages
            self._eval_sampler: Sampler = self.averages
        else:
            self._sampler = sampler(train.fanouts)
            self._eval_sampler = (self._sampler if train.eval_fanouts is None
                                  else sampler(train.eval_fanouts))
        used = {t for p in self.plan.partitions for t in p.node_types}
        featureless = [t for t in store.schema.node_types
                       if t in used and not store.has_array(t, "feat") and not self.averages]
        make: Callable[[str, int, int, torch.dtype], RowTable] = memory_tables
        tables = 0  # bytes on disk, at most
        if settings.cache.learnable == "disk":
            if scratch is None:
                raise InputError("cache.learnable = disk needs a directory for the tables")
            tables = 3 * model.hidden * self.dtype.itemsize * sum(
                store.schema.node_counts[t] for t in featureless if t in partition.node_types)
        rows = sum(store.array(t, "feat").nbytes for t in partition.node_types
                   if store.has_array(t, "feat"))
        self.fits = fit_in_memory(local_workers * (rows + tables))  # all that is in files
        if tables and scratch is not None:
            make = DiskTables(scratch, self.fits)
        self.static = StaticFeatures(store, partition.node_types, self.dtype, self.device,
                                     settings.cache.reads, self.fits)
        twice = self.plan.targets if scope.seeds_apart or self.task.held_out else ()
        self.learnable = LearnableFeatures(
            {t: store.schema.node_counts[t] for t in featureless},
            {t: self.plan.users(t) for t in featureless},
            model.hidden, self.dtype, self.world, train.learnable, AdamSettings(train.sparse_lr),
            train.seed, twice, make)
        torch.manual_seed(train.seed % 2**63)
        self.model = provider.build(self.spec).to(self.device, self.dtype)
        self.wrapped = wrapper.wrap(self.model, self.world, self.group)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=train.lr,
                                          weight_decay=train.weight_decay)
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.own_epochs: list[tuple[float, float, float]] = []  # seconds, waiting, bytes sent
        self.local_workers = local_workers
        self.caches: FeatureCaches | None = None  # see dgl_heta.training.caches

    def start_epoch(self, epoch: int) -> None:
        """Reset counters, and the generator of dropout, which each worker has its own of."""
        torch.manual_seed(hash_key(self.settings.train.seed, epoch, self.rank) % 2**63)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.traffic.reset()
        if self.caches is not None:
            self.caches.reset()

    def steps(self, split: str, epoch: int = 0) -> list[Step]:
        """The steps of an epoch over a split, the same on all workers."""
        return self.task.steps(split, epoch, self.settings.train.batch_size * self.world.size)

    def train_step(self, step: Step, number: int) -> Tensor:
        """One optimizer step; returns this worker's statistics of it."""
        batch = self.sample(step, number)
        self.model.train()
        with self.timed("fetch"):
            inputs = self.inputs(batch, train=True)
        with self.timed("forward"):
            loss, statistics = self.loss(self.wrapped(batch, inputs), step)
        with self.timed("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.wrapped.synchronize_gradients()
        with self.timed("update"):
            self.optimizer.step()
            self.learnable.update()
        return statistics

    def sample(self, step: Step, number: int) -> MiniBatch:
        """This worker's blocks for a step; `number` differs from step to step."""
        return self._batch(self._sampler, step, number)

    def loss(self, outputs: dict[str, Tensor], step: Step) -> tuple[Tensor, Tensor]:
        """`(loss, statistics)` of this worker's share of a step.

        The loss is scaled so that averaging gradients over workers gives the gradient of one
        process whatever the workers' shares are.
        """
        return self.task.loss(outputs, step, self.rank, self.world.size)

    @torch.no_grad()
    def evaluate(self, split: str) -> tuple[float, float]:
        """`(score, mean loss)` over a split, by all workers together; NaN if it is empty."""
        self.model.eval()
        totals = None
        for index, step in enumerate(self.steps(split)):
            batch = self._batch(self._eval_sampler, step, _EVAL_STEPS + index)
            _, statistics = self.loss(self.wrapped(batch, self.inputs(batch, train=False)), step)
            totals = statistics if totals is None else totals + statistics
        return self.score(totals)

    def score(self, statistics: Tensor | None) -> tuple[float, float]:
        """`(score, mean loss)` of all workers' statistics, or NaN if there are none."""
        if statistics is None:
            return float("nan"), float("nan")
        return self.task.score(self.world.all_reduce(statistics, cause="control"))

    def sum_over_workers(self, totals: Tensor) -> list[float]:
        """Sums of a small vector over all workers."""
        return self.world.all_reduce(totals, cause="control").tolist()

    def inputs(self, batch: MiniBatch, train: bool) -> dict[str, Tensor]:
        """Input features of a batch; learnable ones are leaves when training."""
        if self.averages is not None:
            return self.averages.fetch(batch, self.device)
        if self.caches is not None:
            self.caches.read(batch.input_nodes)
        rows = self.static.fetch(batch.input_nodes)
        rows.update(self.learnable.fetch(batch.input_nodes, self.device, train))
        return {t: rows[t] for t in batch.input_nodes}

    def _batch(self, sampler: Sampler, step: Step, number: int) -> MiniBatch:
        """The blocks of this worker's group's part of a step."""
        with self.timed("sample"):
            ranks = self.group.ranks if self.world.size > 1 else (0,)
            parts = [self.task.seeds(step, rank, self.world.size) for rank in ranks]
            seeds, shares = join_seeds(parts, self.group.rank)
            return sampler.sample(seeds, shares, number, self.task.without(step)).to(self.device)

    def _agree(self, found: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        """All holders' new nodes of the types that this worker holds in common with others."""
        group, types = self.group, self.store.schema.node_types
        counts = torch.tensor([[len(found.get(t, ())) for t in types]])
        every = group.all_gather_rows(counts, [1] * group.size, "sampling")
        united = {}
        for ntype, ids in found.items():
            holders = group.holders(ntype)
            column = types.index(ntype)
            sizes = [int(every[group.ranks.index(rank), column]) for rank in holders.ranks]
            rows = holders.all_gather_rows(torch.from_numpy(ids), sizes, "sampling")
            united[ntype] = [part.numpy() for part in rows.split(sizes)]
        return united

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of the body to a stage."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds[stage] += time.perf_counter() - start


def check(store: Store, plan: Plan, settings: Settings, plugins: Plugins
          ) -> tuple[TrainingTask, ModelSpec, ModelProvider]:
    """Everything about a run that can be wrong before a worker starts.

    Returns the task, what the model is built from, and its provider.
    """
    train, model = settings.train, settings.model
    task = make_task(store, settings)
    if set(plan.targets) != set(task.targets):
        raise InputError(
            f"the plan is for target {', '.join(plan.targets)}, but the task is about "
            f"{', '.join(task.targets)}; plan with "
            f"{' '.join(f'--target {t}' for t in task.targets)}"
        )
    if plan.hops != model.layers:
        raise InputError(f"the plan has {plan.hops} hops, but model.layers is {model.layers}; "
                         "they must be equal")
    provider = find_model(plugins, model.name)
    precomputed = getattr(provider, "precomputed", None)
    if precomputed and task.held_out is not None:
        raise InputError(f"model '{model.name}' averages over all edges beforehand, so it cannot "
                         "leave out those that link prediction asks for; use a model that samples "
                         "(rgcn, rgat, hgt, han)")
    if precomputed and plan.replication != "full":
        raise InputError(f"model '{model.name}' reads averages over whole metapaths, which a plan "
                         "without replication has on no partition; use partition.replication = "
                         "full")
    spec = model_spec(store, settings, task.outputs, plan, precomputed)
    with torch.random.fork_rng(devices=[]):
        built = provider.build(spec)
    if not train.seed_states and any(getattr(m, "reads_state", False) for m in built.modules()):
        raise InputError(f"model '{model.name}' reads the destination's state, which "
                         "train.seed_states = false leaves out; set it to true")
    return task, spec, provider


def with_trainers(plan: Plan, trainers: int) -> Plan:
    """The plan for several workers per partition: rank p T + t is trainer t of partition p.

    Trainers of equal t make a model-parallel group, so trainers of one partition share its
    files and nothing else.
    """
    if trainers == 1:
        return plan
    return replace(plan, partitions=tuple(
        replace(p, index=p.index * trainers + t, group=p.group * trainers + t)
        for p in plan.partitions for t in range(trainers)))


def model_spec(store: Store, settings: Settings, outputs: Mapping[str, int], plan: Plan,
               precomputed: str | None = None) -> ModelSpec:
    """What the model is built from: the store's types, the task's outputs, the settings."""
    model = settings.model
    widths = {t: store.array(t, "feat").shape[1] for t in store.schema.node_types
              if store.has_array(t, "feat")}
    other = common_width(store, model.hidden) if precomputed == "subsets" else model.hidden
    dims = {t: widths.get(t, other) for t in store.schema.node_types}
    paths = paths_of(plan, model.hidden, widths) if precomputed == "paths" else {}
    return ModelSpec(store.schema, dims, frozenset(widths), dict(outputs), paths=paths,
                     **model.model_dump(exclude={"name"}))


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
