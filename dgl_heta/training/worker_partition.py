"""One worker's partition, open: its rows, its share of the sampling, the workers beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dgl_heta.cache.policies import CachePolicy
from dgl_heta.comm.collectives import CPU, Comm, Traffic, everyone, init_workers, make_comms
from dgl_heta.comm.exchange_dtype import wire_dtype
from dgl_heta.comm.machines import join_machine, machine_name
from dgl_heta.comm.sampled_rows import agreement, delivery
from dgl_heta.errors import InputError
from dgl_heta.features import LearnableFeatures, StaticFeatures
from dgl_heta.features.disk_tables import DiskTables, memory_tables
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.graph.labels import NodeLabels
from dgl_heta.hooks.batch_protocol import BatchSource
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import InputReader
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.moments import TimeDraws
from dgl_heta.sampling.sampler import Fanout, NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.sources import Auto
from dgl_heta.settings import Settings, TaskSettings
from dgl_heta.store import Store
from dgl_heta.system.memory import fit_in_memory
from dgl_heta.training.device import SHARED, choose_device
from dgl_heta.training.resumed_identity import check_alike
from dgl_heta.training.tasks import (
    SPLITS,
    LinkPrediction,
    Step,
    chosen,
    labels_of,
    make_task,
    resolve,
)
from dgl_heta.training.tasks.timed_seeds import SeedTable

log = logging.getLogger("dgl_heta")


@dataclass(frozen=True)
class Workers:
    """The workers of a run, as one of them sees them.

    Attributes
    ----------
    rank, local : this worker, and the number of workers on its machine.
    world, group : all workers, and those of this worker's model-parallel group.
    sampling : the group with process groups of its own, for what workers agree on when they
        sample: another thread may do so while this one trains.
    traffic : what was sent over `world` and `group`, and over `sampling`.
    """

    rank: int
    local: int
    device: torch.device
    world: Comm
    group: Comm
    sampling: Comm
    traffic: tuple[Traffic, Traffic]


@dataclass(frozen=True)
class Rows:
    """Where a batch's input features come from.

    Attributes
    ----------
    static, learnable : rows of types with features and of the others.
    precomputed : what some models read instead of both.
    fits : whether all that is in files fits into memory.
    """

    static: StaticFeatures
    learnable: LearnableFeatures
    precomputed: InputReader | None
    fits: bool


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


class WorkerPartition:
    """A partition as the worker that trains on it sees it.

    Attributes
    ----------
    plan : the one that the workers follow, each its partition of its rank.
    source : makes batches, ahead of time or not.
    rank, local, device, world, group, sampling, traffic : as of :class:`Workers`.
    static, learnable, precomputed, fits : as of :class:`Rows`.
    caches : of the rows, where there are any.
    cache_policy : of caches that are to be made before training.
    """

    caches: Caches | None = None
    cache_policy: CachePolicy | None = None

    def __init__(self, store: Store, plan: Plan, settings: Settings, source: BatchSource,
                 workers: Workers, rows: Rows) -> None:
        self.store, self.plan, self.settings, self.source = store, plan, settings, source
        self.rank, self.local, self.device = workers.rank, workers.local, workers.device
        self.world, self.group, self.sampling = workers.world, workers.group, workers.sampling
        self.traffic = workers.traffic
        self.static, self.learnable = rows.static, rows.learnable
        self.precomputed, self.fits = rows.precomputed, rows.fits
        self._labels: dict[str, NodeLabels] = {}

    @cached_property
    def task(self) -> TaskSettings:
        """What is predicted, as the settings and the graph say."""
        known = self.store.manifest.task
        return resolve(self.settings.task, known, self.store.schema, self.store.manifest.info)

    @cached_property
    def link_task(self) -> LinkPrediction:
        """The links that are predicted: those of each split, and which carry no messages.

        Raises
        ------
        InputError
            Nodes are predicted.
        """
        if self.task.kind != "link":
            raise InputError("no links are predicted; name a relation when the partition is opened "
                             "('task.relation=writes')")
        task = make_task(self.store, self.settings)
        assert isinstance(task, LinkPrediction)
        for note in task.notes if self.rank == 0 else ():
            log.warning("%s", note)
        return task

    def labels(self, ntype: str) -> NodeLabels:
        """The labels of a target type; in a graph with times those of its seeds.

        Raises
        ------
        InputError
            It has none, or they are not of the task's kind.
        """
        if ntype not in self._labels:
            self._labels[ntype] = labels_of(self.store, ntype, self.task)
        return self._labels[ntype]

    def split(self, ntype: str, name: str) -> np.ndarray:
        """The nodes of a target type that a mask chooses, ascending, int64: of those that have
        labels, where there are any. In a graph with times the task's seeds, nodes and times (n, 2).

        Parameters
        ----------
        name : "train", "val" or "test".

        Raises
        ------
        InputError
            There is no such mask.
        """
        labels = self.labels(ntype) if self.store.manifest.timed else None
        if isinstance(labels, SeedTable):
            return labels.pairs[labels.used(name)]
        if not self.store.has_array(ntype, SPLITS[name]):
            raise InputError(f"node type '{ntype}' has no array '{SPLITS[name]}'; give the ids of "
                             "nodes in place of a split")
        nodes = chosen(self.store.array(ntype, SPLITS[name]))
        known = self.store.has_array(ntype, str(self.task.label))
        return self.labels(ntype).labelled(nodes) if known else nodes

    def share(self, step: Step) -> tuple[int, int]:
        """Which worker of how many this one is in a step."""
        return (0, 1) if step.own else (self.rank, self.world.size)

    def sampler(self, fanouts: Sequence[Fanout], held_out: HeldOut | None = None,
                reads_remote: bool = True, seed: int | None = None, apart: Comm | None = None
                ) -> NeighborSampler:
        """A sampler of this partition's part of neighbourhoods.

        Parameters
        ----------
        fanouts, held_out, seed, reads_remote : as for :class:`NeighborSampler`; the seed is by
            default that of the settings.
        apart : the group by which workers agree, in place of `sampling`.
        """
        train, comm = self.settings.train, apart or self.sampling
        sampler = NeighborSampler(
            self.store, SamplingScope.of(self.plan, self.rank), list(fanouts),
            train.seed if seed is None else seed, train.seed_states, agreement(self.store, comm),
            held_out, train.sampling_threads or self._sampling_threads(),
            delivery(self.store, comm), reads_remote,
            time=TimeDraws(train.latest, self.settings.strictly_before))
        layers = self.source.layers(sampler, self.device)
        return sampler if layers is None else sampler.on(layers)

    def _sampling_threads(self) -> int:
        """How many threads sample a batch that is sampled alone."""
        return (min(own_cores(), MOST_THREADS) if self.device.type == "cuda"
                else torch.get_num_threads())

    @property
    def one_thread_each(self) -> bool:
        """Whether one thread samples a batch: others sample others at the same time, and on a GPU,
        where training needs a core's Python alone, more of them wait for Python's lock."""
        return self.device.type == "cuda" and not self.settings.train.sampling_threads and (
            self.source.side_by_side(self.plan.exchanges_while_sampling) > 1)


MOST_THREADS = 4
"""That sample a batch's relations for a GPU, if settings do not say how many: of synthetic mag ×
0.1 a batch took 28, 17 and 18 ms with 1, 4 and 16 threads (docs/measurements/gpu-step.md)."""


def own_cores() -> int:
    """How many cores of the machine are this worker's."""
    return max(cores() // local_workers(), 1)


def local_workers() -> int:
    """The number of workers on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def join(store: Store, plan: Plan, settings: Settings, plugins: Plugins) -> Workers:
    """Meet the other workers, who must train the same, and form the plan's groups."""
    train = settings.train
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size != plan.num_parts:
        raise InputError(f"{size} workers were started for {plan.num_parts} "
                         "partitions and trainers; start one worker for each trainer of each "
                         "partition")
    torch.set_num_threads(train.threads or own_cores())
    init_workers("gloo", settings.run.timeout_s)
    training, sampling = Traffic(), Traffic()
    check_alike(everyone(training), store, plan, settings, plugins)
    device = choose_device(train.device, everyone(training))
    if device.type == "cuda" and not train.threads:
        # What is left to CPUs then is short: of more threads all but one would wait for it busily
        # (OpenMP's way), on the cores that sample and launch kernels.
        torch.set_num_threads(1)
    world, group = make_comms(plan, training, settings.run.timeout_s,
                              wire=wire_dtype(settings.train.exchange_dtype),
                              device=CPU if train.device == SHARED else device)
    if world.size > 1 and train.learnable == "exact":
        join_machine(world, world.all_gather_json(machine_name(), "control"),
                     settings.run.timeout_s)
    apart = (make_comms(plan, sampling, settings.run.timeout_s, apart=True)[1]
             if plan.exchanges_while_sampling else group)
    return Workers(int(os.environ.get("RANK", "0")), local_workers(), device, world, group, apart,
                   (training, sampling))


def rows_of(store: Store, plan: Plan, settings: Settings, workers: Workers,
            repeated: Collection[str] = (), reader: InputReader | None = None,
            scratch: Path | None = None, trained: Mapping[str, torch.Tensor] | None = None
            ) -> Rows:
    """The rows that a worker reads, once it has joined the others.

    Parameters
    ----------
    repeated : node types of which a batch can name a node twice.
    reader : reads what a model has computed before training.
    scratch : directory for tables on disk.
    trained : learnable features that are only read, by node type.
    """
    train, width, dtype = settings.train, settings.model.hidden, dtype_of(settings)
    if scratch is None and settings.cache.tables == "disk":
        raise InputError("cache.tables = disk needs a directory for the tables")
    own = plan.partitions[workers.rank].node_types
    used = {t for p in plan.partitions for t in p.node_types}
    featureless = [t for t in store.schema.node_types
                   if t in used and not store.has_array(t, "feat") and reader is None]
    tables = 0  # bytes on disk, at most
    if settings.cache.tables == "disk" and trained is None:
        tables = 3 * width * dtype.itemsize * sum(
            store.schema.node_counts[t] for t in featureless if t in own)
    rows = sum(store.features(t)[0].nbytes for t in own if store.has_array(t, "feat"))
    fits = fit_in_memory(workers.local * (rows + tables))  # all that is in files
    make: Callable[[str, int, int, torch.dtype], RowTable] = memory_tables
    if tables and scratch is not None:
        make = DiskTables(scratch, fits)
    static = StaticFeatures(store, own, dtype, workers.device, settings.cache.reads, fits)
    if trained is not None:  # without moments, as nothing is updated
        learnable = LearnableFeatures({}, {}, width, dtype, workers.world)
        learnable.local.update({t: RowTable(rows, rows, rows) for t, rows in trained.items()})
    else:
        learnable = LearnableFeatures(
            {t: store.schema.node_counts[t] for t in featureless},
            {t: plan.users(t) for t in featureless},
            width, dtype, workers.world, train.learnable, AdamSettings(train.sparse_lr),
            train.seed, sorted({*repeated, *(r.dst for r in plan.offloaded)}), make,
            {t: plan.keepers(t) for t in featureless})
    return Rows(static, learnable, reader, fits)


def batch_source(plugins: Plugins, name: str, plan: Plan, device: torch.device) -> BatchSource:
    """The source of a name; of "auto" on a GPU, one that serves GPUs, if any does."""
    source: BatchSource = plugins.get("batch source", name)
    # Where workers agree on batches, a source that one machine lacks would keep the others waiting.
    if name == Auto.name and device.type == "cuda" and not plan.exchanges_while_sampling:
        source = plugins.serving_gpus("batch source") or source
    return source


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dtype_of(settings: Settings) -> torch.dtype:
    """The dtype of parameters and rows."""
    return torch.float64 if settings.train.dtype == "float64" else torch.float32
