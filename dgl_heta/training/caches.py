"""Caches of a worker's input features: count visits, measure misses, choose rows, count hits.

Heta §6: rows stay where they were put before training; which ones is decided by a policy from
pre-sampled visits and measured miss penalties.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dgl_heta.cache.cached_rows import CPU, CachedRows
from dgl_heta.cache.cached_table import CachedTable
from dgl_heta.cache.device_tables import DeviceTables
from dgl_heta.cache.penalties import (
    SAMPLE_BYTES,
    Access,
    Penalty,
    finish,
    measure,
    measure_reads,
    ungated,
)
from dgl_heta.cache.policies import CachePolicy, choose
from dgl_heta.cache.visit_profile import ProfileFiles, Visits, hardware
from dgl_heta.features.row_kernels import count_ids
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.settings.sections import ON_GPUS
from dgl_heta.store.structure import check_range
from dgl_heta.system.memory import capacity_bytes
from dgl_heta.training.batches import Batch
from dgl_heta.training.device import SHARED
from dgl_heta.training.tasks import Step
from dgl_heta.training.worker_partition import WorkerPartition

_STEPS = 1 << 41  # step numbers of pre-sampling, far from those of training and evaluation
_EPOCH = 1 << 30

Report = Callable[[dict[str, Any]], None]


class Training(Protocol):
    """What visits are counted of: an engine, or the loader of a loop of one's own."""

    part: WorkerPartition

    def steps(self, split: str, epoch: int) -> Sequence[Step]:
        """The steps of an epoch of training, in the order of that epoch."""

    def sample(self, step: Any, number: int) -> Batch:
        """This worker's batch of a step; `number` differs from step to step."""


class Profiler:
    """Finds the numbers that a policy is given, for one worker.

    All workers must call it alike: shared types are counted together.

    Parameters
    ----------
    training : of this worker, before its first step.
    directory : of the profile's files; None: nothing is stored.
    counts : "visits", or "degree" for the edges that leave a node.
    fresh : count and measure, whatever is stored.
    """

    def __init__(self, training: Training, directory: Path | None, counts: str = "visits",
                 report: Report = lambda event: None, fresh: bool = False) -> None:
        self.part, self._training = training.part, training
        self._counts, self._report = counts, report
        self.notes: list[str] = []
        self._fresh = fresh
        given = self.part.settings.cache.profile or None
        profile_dir = Path(given) if given else directory
        self.sizes = self._sizes()
        self._files = None if profile_dir is None else ProfileFiles(
            profile_dir, self._sampling(), self._machine(), self.part.rank,
            given is not None and counts == "visits")  # degrees are counted in a moment

    def _sizes(self) -> dict[str, int]:
        """Rows of each type that this worker reads or owns: those that a cache can hold."""
        learnable = self.part.learnable
        return {**{t: rows.shape[0] for t, rows in self.part.static.sources.items()},
                **{t: table.shape[0] for t, table in learnable.local.items()},
                **{t: rows for t, (_, _, rows) in learnable.owned_ranges().items() if rows}}

    def _sampling(self) -> dict[str, Any]:
        part, train = self.part, self.part.settings.train
        together = {} if train.global_batch_size is None else {
            "global_batch_size": train.global_batch_size}
        return {
            "graph": _digest(part.store.manifest.checksum),
            "plan": _digest(part.plan.to_json()), "workers": part.world.size,
            "fanouts": train.fanouts, "batch_size": train.batch_size,
            "seed_states": train.seed_states, "learnable": train.learnable,
            "task": part.settings.task.model_dump(), "epochs": part.settings.cache.epochs,
            "counts": self._counts, **together,
        }

    def _machine(self) -> dict[str, Any]:
        part = self.part
        return {**hardware(part.device), "disk": os.stat(part.store.directory).st_dev,
                "graph": _digest(part.store.manifest.checksum),
                "workers": part.local, "reads": part.static.reads,
                "fits": part.fits, "learnable": part.settings.cache.tables,
                "dtype": part.settings.train.dtype, "width": part.learnable.width}

    def visits(self) -> Visits:
        """Stored visits if all workers have them; else counted, and stored."""
        stored = (self._files.load_visits(self.sizes) if self._files and not self._fresh
                  else None)
        everyone = torch.tensor([float(stored is not None)])
        if self.part.world.all_reduce(everyone, "min", "control").item() and stored is not None:
            return stored
        start = time.perf_counter()
        counts, batches = self._degrees() if self._counts == "degree" else self._presample()
        visits = Visits(self._together(counts), batches, time.perf_counter() - start)
        if self._files and not self._files.save_visits(visits):
            self.notes.append(f"the profile could not be stored in {self._files.directory}, so the "
                              "next run makes it again")
        return visits

    def _presample(self) -> tuple[dict[str, np.ndarray], int]:
        """Visits per node and type in some epochs, or a part of one."""
        part, store = self.part, self.part.store
        types = {*part.static.sources, *part.learnable.counts}
        visits = {t: np.zeros(store.schema.node_counts[t], np.int64) for t in sorted(types)}
        whole = len(self._training.steps("train", _EPOCH))
        batches = max(round(part.settings.cache.epochs * whole), 1)
        if not whole:
            return visits, 1  # training says that there is nothing to train on
        for done in range(batches):
            if done % whole == 0:
                steps = self._training.steps("train", _EPOCH + done // whole)
            batch = self._training.sample(steps[done % whole], _STEPS + done)
            for ntype, ids in batch.input_nodes.items():
                if ntype in visits:
                    count_ids(visits[ntype], ids)
            self._report({"event": "profile", "done": done + 1, "total": batches})
        return visits, batches

    def _degrees(self) -> tuple[dict[str, np.ndarray], int]:
        """Edges that leave each node by the relations of this worker's partition."""
        part, store = self.part, self.part.store
        types = {*part.static.sources, *part.learnable.counts}
        degrees = {t: np.zeros(store.schema.node_counts[t], np.int64) for t in sorted(types)}
        for relation in part.plan.partitions[part.rank].relations:
            if relation.src in degrees:
                csc, counts = store.relation(relation), degrees[relation.src]
                for start in range(0, len(csc.indices), 2**22):
                    ids = csc.indices[start:start + 2**22].astype(np.int64)
                    check_range(relation, csc, ids, len(counts))
                    count_ids(counts, ids)
        return degrees, 1

    def _together(self, visits: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Own visits; of types whose rows have owners, all workers' visits of the own rows."""
        learnable, world = self.part.learnable, self.part.world
        for ntype, (low, _, rows) in learnable.owned_ranges().items():
            total = world.all_reduce(torch.from_numpy(visits[ntype]), cause="control").numpy()
            visits[ntype] = total[low:low + rows]
        return {t: np.ascontiguousarray(visits[t]) for t in self.sizes}

    def row_bytes(self) -> dict[str, int]:
        """Bytes of a row in a cache: of learnable types with two moments."""
        learnable = self.part.learnable
        width = 3 * learnable.width * learnable.dtype.itemsize
        return {t: self.part.static.sources[t].shape[1]
                * self.part.static.sources[t].dtype.itemsize
                if t in self.part.static.sources else width for t in self.sizes}

    def penalties(self) -> dict[str, Penalty]:
        """Stored penalties if they are this machine's; else measured, and stored."""
        sizes = self.row_bytes()
        stored = (self._files.load_penalties(sizes) if self._files and not self._fresh
                  else None)
        if stored is not None:
            return stored
        measured = {t: self._measure(t, sizes[t]) for t in sizes}
        if self._files:
            self._files.save_penalties(measured)
        return measured

    def _measure(self, ntype: str, row_bytes: int) -> Penalty:
        part = self.part
        if ntype in part.static.sources:
            return measure_reads(part.static.sources[ntype], part.device)
        table = part.learnable.local.get(ntype, part.learnable.owned)
        assert isinstance(table, RowTable)
        low = part.learnable.owned_ranges().get(ntype, (0, 0, 0))[1]
        if self._device(ntype) == CPU and table.evict is None:
            return Penalty(row_bytes, {})  # where the cache would be
        rows = min(self.sizes[ntype], max(SAMPLE_BYTES // max(row_bytes, 1), 1))
        near = RowTable(torch.zeros((rows, part.learnable.width), dtype=table.dtype))
        copies = CachedTable(near, np.arange(rows), [self._device(ntype)])
        return measure(self.sizes[ntype], row_bytes, _use_rows(table, low, self._device(ntype)),
                       _use_rows(copies, 0, self._device(ntype)), rows, table.evict)

    def _device(self, ntype: str) -> torch.device:
        """Where copies of a type's rows live: those of shared types travel from memory."""
        return self.part.device if ntype not in self.part.learnable.owned_ranges() else CPU


class FeatureCaches:
    """The caches of one worker, and what is counted of them.

    Attributes
    ----------
    policy, capacity : name of the policy; bytes per device.
    seconds : spent on the profile, 0 if it was there.
    notes : what a user should know of them.
    """

    def __init__(self, part: WorkerPartition, policy: CachePolicy, profiler: Profiler) -> None:
        cache = part.settings.cache
        start = time.perf_counter()
        self._part, self.policy, self.notes = part, policy.name, profiler.notes
        alone = part.device != CPU and part.settings.train.device != SHARED
        sharers = 1 if alone else part.local
        self.capacity = capacity_bytes(cache.capacity_mb, part.device, sharers)
        self._types = part.store.schema.node_types
        self._cached: dict[str, tuple[CachedRows | CachedTable, int]] = {}
        self._rows = dict.fromkeys(self._types, 0)
        self._reads = dict.fromkeys(self._types, 0)
        self.penalties: dict[str, float] = {}
        self.row_bytes = profiler.row_bytes()
        self.seconds = 0.0
        if not self.capacity:
            self.notes.append("cache.capacity_mb is 0: nothing is cached")
            return
        whole = self._whole(policy, profiler)
        self._attach(self._chosen(policy, profiler) if whole is None else whole,
                     getattr(policy, "replacement", None))
        self.seconds = time.perf_counter() - start

    def _whole(self, policy: CachePolicy, profiler: Profiler) -> dict[str, np.ndarray] | None:
        """All rows that may be on the GPU, if all workers have room for theirs: then there is
        nothing to count, to measure and to choose."""
        part, cache = self._part, self._part.settings.cache
        if (part.device == CPU or policy.name != ON_GPUS or cache.profile
                or cache.tables == "disk"):
            return None
        shared = part.learnable.owned_ranges()
        rows = {t: 0 if t in shared else count for t, count in profiler.sizes.items()}
        fits = sum(count * self.row_bytes[t] for t, count in rows.items()) <= self.capacity
        # Together, as workers also count visits together.
        if not part.world.all_reduce(torch.tensor([float(fits)]), "min", "control").item():
            return None
        return {t: np.arange(count) for t, count in rows.items()}

    def _chosen(self, policy: CachePolicy, profiler: Profiler) -> Mapping[str, np.ndarray]:
        """The rows that the policy chooses by visits and penalties."""
        part, cache = self._part, self._part.settings.cache
        visits, penalties = profiler.visits(), profiler.penalties()
        self.penalties = {t: penalties[t].at(visits.per_batch(t)) for t in profiler.sizes}
        if not cache.gate:
            self.penalties = ungated(self.penalties)
        elif free := [t for t, p in self.penalties.items() if not p]:
            where = f" on worker {part.rank}" if part.world.size > 1 else ""
            self.notes.append(f"not cached{where}, because reading from the cache was measured to "
                              f"be no faster (cache.gate): {', '.join(free)}")
        return choose(policy, visits.counts, self.row_bytes, self.penalties, self.capacity)

    def _attach(self, chosen: Mapping[str, np.ndarray], replacement: str | None) -> None:
        part, learnable = self._part, self._part.learnable
        for ntype, source in part.static.sources.items():
            if len(chosen[ntype]):
                cached = CachedRows(source, chosen[ntype], [part.device], replacement)
                part.static.readers[ntype] = cached
                self._cached[ntype] = cached, 0
        tables = {t: table for t, table in learnable.local.items()
                  if len(chosen[t]) and isinstance(table, RowTable)}
        near = {t: table for t, table in tables.items()
                if part.device != CPU and len(chosen[t]) == table.shape[0]}
        cached_tables = {t: CachedTable(table, chosen[t], [part.device], replacement)
                         for t, table in tables.items() if t not in near}
        if near:
            learnable.near = whole = DeviceTables(near, part.device)
            cached_tables.update(whole.tables)
        learnable.local.update(cached_tables)
        self._cached.update((t, (table, 0)) for t, table in cached_tables.items())
        ranges = {t: owned for t, owned in learnable.owned_ranges().items() if owned[2]}
        ids = [chosen[t] + start for t, (_, start, _) in ranges.items()]
        if sum(map(len, ids)) and isinstance(learnable.owned, RowTable):
            # Rows of shared types travel to other workers from memory, so copies are there.
            learnable.owned = cached_table = CachedTable(
                learnable.owned, np.concatenate(ids), [CPU], replacement,
                [start for _, start, _ in ranges.values()])
            self._cached.update((t, (cached_table, i)) for i, t in enumerate(ranges))
        self._rows.update((t, len(ids)) for t, ids in chosen.items())

    def count(self, nodes: Mapping[str, np.ndarray]) -> None:
        """Count the input nodes of a batch as read, cached or not."""
        for ntype, ids in nodes.items():
            self._reads[ntype] += len(ids)

    def reset(self) -> None:
        """Count from zero."""
        self._reads = dict.fromkeys(self._types, 0)
        for cached, index in self._cached.values():
            if isinstance(cached, CachedRows):
                cached.rows = cached.hits = 0
            else:
                cached.rows[index] = cached.hits[index] = 0

    def counted(self) -> dict[str, dict[str, int]]:
        """Per type the rows that batches read and those found in a cache, on all workers.

        Also the bytes of both, and what is cached: `{type: {reads, hits, bytes, hit_bytes, rows,
        cached_bytes}}`. All workers must call it.
        """
        totals = np.zeros((len(self._types), 6))
        for row, ntype in enumerate(self._types):
            reads, hits, rows = self._reads[ntype], 0, self._rows[ntype]
            size = self.row_bytes.get(ntype, 0)
            if ntype in self._part.learnable.counts:
                size = self._part.learnable.row_bytes  # reads are of the value alone
            if ntype in self._cached:
                cached, index = self._cached[ntype]
                hits = cached.hits if isinstance(cached, CachedRows) else int(cached.hits[index])
            totals[row] = (reads, hits, reads * size, hits * size, rows,
                           rows * self.row_bytes.get(ntype, 0))
        whole = self._part.world.all_reduce(torch.from_numpy(totals), cause="control").tolist()
        names = ("reads", "hits", "bytes", "hit_bytes", "rows", "cached_bytes")
        return {t: {name: int(value) for name, value in zip(names, row)}
                for t, row in zip(self._types, whole) if row[0] or row[4]}


def attach(training: Training, directory: Path | None = None,
           report: Report = lambda event: None) -> FeatureCaches | None:
    """Give a partition the caches that its policy asks for, if it has none; returns them.

    Parameters
    ----------
    directory : of the profile's files; None: nothing is stored.

    Raises
    ------
    InputError
        The capacity is larger than the free memory, or the named profile does not fit.
    """
    part = training.part
    policy, part.cache_policy = part.cache_policy, None
    if policy is None or policy.name == "none":
        return None
    if part.precomputed is not None:
        report({"event": "note", "text": f"cache.policy = {policy.name} has no effect: model "
                f"'{part.settings.model.name}' reads inputs that were computed before, each "
                "row once"})
        return None
    profiler = Profiler(training, directory, getattr(policy, "counts", "visits"), report)
    part.caches = caches = FeatureCaches(part, policy, profiler)
    for note in caches.notes:
        report({"event": "note", "text": note})
    return caches


class _Still(AdamSettings):
    """A step that takes its time and changes nothing."""

    def constants(self, step: int, scale: float, dtype: torch.dtype) -> tuple[Any, ...]:
        _, *others, eps = super().constants(step, scale, dtype)
        return *(type(eps)(0) for _ in (scale, *others)), eps


def _use_rows(table: RowTable | CachedTable, low: int, device: torch.device) -> Access:
    """Read rows and update them by a step that changes nothing: they may be those of a checkpoint.
    """
    adam = _Still()

    def use(ids: np.ndarray) -> None:
        rows = table.read(ids + low, device)
        step = table.step
        table.update(ids + low, torch.zeros_like(rows), 1.0, adam)
        table.step = step
        finish(device)
    return use


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
