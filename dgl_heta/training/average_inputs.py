"""Batches of models over precomputed neighbour averages: rows of arrays, nothing to sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm, PeerLostError
from dgl_heta.features import StaticFeatures, initial_rows
from dgl_heta.features.averages import (
    Averages,
    common_width,
    path_averages,
    paths_into,
    relation_subsets,
    subset_averages,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.models.sehgnn import part_key
from dgl_heta.planning.assignment import Share
from dgl_heta.planning.metatree import Metapath
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.sampler import Deliver
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.settings import Settings
from dgl_heta.store import Store


def paths_of(plan: Plan, width: int, static: Mapping[str, int]
             ) -> dict[str, tuple[tuple[Metapath, int], ...]]:
    """The metapaths of a plan per target, with the widths of their averages.

    The plan's own, or all that are as long as its hops at most.
    """
    found = {}
    for target in plan.targets:
        paths = ([p for p in plan.metapaths if p[-1].dst == target] if plan.metapaths
                 else paths_into(plan.schema, target, plan.hops))
        found[target] = tuple((p, static.get(p[0].src, width)) for p in paths)
    return found


class AverageInputs:
    """What a worker reads of neighbour averages: its part of the block and the rows.

    Parameters
    ----------
    kind : "paths" or "subsets".
    part : the worker's partition; the arrays are those of its root relations.
    directory : for the arrays; one per partition is made in it.
    world : all workers; those of one partition share their arrays, which the first computes.
    paths : per target, as :func:`paths_of` has them.
    """

    def __init__(self, kind: str, store: Store, plan: Plan, part: int, settings: Settings,
                 directory: Path, world: Comm,
                 paths: Mapping[str, Sequence[tuple[Metapath, int]]]) -> None:
        self._kind, self._store, self._plan, self._paths = kind, store, plan, paths
        self._roots, self._settings = plan.roots(part), settings
        self._dtype = torch.float64 if settings.train.dtype == "float64" else torch.float32
        self._static = StaticFeatures(store, plan.targets, self._dtype, torch.device("cpu"))
        self._own: dict[str, Tensor] = {}
        self._averages: dict[str, Averages] = {}
        trainers = settings.train.trainers
        folder = directory / f"partition-{part // trainers}"
        started = time.perf_counter()
        for first in (True, False):
            if first == (part % trainers == 0):
                _together(lambda: self._compute(folder), world)
            else:
                _together(lambda: None, world)
        self.seconds = time.perf_counter() - started
        self.bytes = sum(found.bytes for found in self._averages.values())

    def _compute(self, folder: Path) -> None:
        model, train = self._settings.model, self._settings.train
        for target in self._plan.targets:
            out = folder / f"target-{self._plan.schema.node_types.index(target):03d}"
            double = train.dtype == "float64"
            if self._kind == "paths":
                self._averages[target] = path_averages(
                    self._store, [self._paths[target][i][0] for i in self._own_paths(target)], out,
                    width=model.hidden, memory_mb=train.precompute_mb, double=double,
                    seed=train.seed)
            else:
                subsets = relation_subsets(self._plan.schema, target, model.subsets, train.seed)
                self._averages[target] = subset_averages(
                    self._store, target, subsets, self._plan.hops,
                    [r for r in self._roots if r.dst == target], out, width=model.hidden,
                    memory_mb=train.precompute_mb, double=double, seed=train.seed)
            if not self._store.has_array(target, "feat"):
                width = (model.hidden if self._kind == "paths"
                         else common_width(self._store, model.hidden))
                self._own[target] = initial_rows(
                    train.seed, target, 0, self._plan.schema.node_counts[target], width,
                    self._dtype)

    def _own_paths(self, target: str) -> list[int]:
        return [i for i, (path, _) in enumerate(self._paths[target]) if path[-1] in self._roots]

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: Mapping[Relation, np.ndarray] | None = None,
               deliver: Deliver | None = None) -> MiniBatch:
        """The block of one step, as a :class:`NeighborSampler` would give it."""
        shares = shares or join_seeds([seeds])[1]
        ordered = {t: shares[t].local(torch.as_tensor(ids, dtype=torch.int64)).numpy()
                   for t, ids in seeds.items()}
        parts = []
        for target in ordered:
            for place, root, share in self._columns(target):
                for low, high in share_of(shares[target], share):
                    parts.append(RelationBlock(root, low, torch.zeros(high - low + 1).long(),
                                               torch.empty(0, dtype=torch.int32), place))
        counts = {t: len(ids) for t, ids in ordered.items()}
        return MiniBatch([Block(1, counts, counts, parts, dict(shares), True, {}, {})],
                         ordered, ordered,
                         {t: ids[:shares[t].own] for t, ids in ordered.items()})

    def read(self, batch: MiniBatch, device: torch.device) -> dict[str, Tensor]:
        """The rows that a model reads: own features by type, averages by :func:`part_key`."""
        rows = self._static.read(batch.own_seeds)
        for target, table in self._own.items():
            rows[target] = table[torch.from_numpy(batch.own_seeds[target])]
        for edges in batch.blocks[0].edges:
            target = edges.relation.dst
            ids, averages = batch.seeds[target][edges.start:edges.stop], self._averages[target]
            if self._kind == "paths":
                index = self._own_paths(target).index(edges.place)
                rows[part_key(edges)] = averages.read(index, ids)
            else:
                for k in range(self._settings.model.subsets):
                    for hop in range(self._plan.hops):
                        rows[part_key(edges, k, hop)] = averages.read(k * self._plan.hops + hop,
                                                                       ids)
        return {name: found.to(device, self._dtype) for name, found in rows.items()}

    def _columns(self, target: str) -> list[tuple[int, Relation, Share]]:
        """This worker's parts: place, root relation, share of the group's seeds."""
        if self._kind == "paths":
            roots = {i: self._paths[target][i][0][-1] for i in self._own_paths(target)}
            return [(i, root, self._roots[root]) for i, root in roots.items()]
        # A partition with a share of the seeds has one sub-metatree, so all shares are equal.
        return [(0, r, share) for r, share in self._roots.items() if r.dst == target][:1]


def share_of(shares: SeedShares, share: Share) -> list[tuple[int, int]]:
    """The rows of a share of the group's seeds, as ranges; one that is empty if there are none."""
    return shares.local_ranges(*share.rows(shares.total)) or [(0, 0)]


def _together(work: Callable[[], None], world: Comm) -> None:
    """Do work that takes longer than a collective may wait, in step with the other workers."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        while True:
            done, _ = wait([future], timeout=0.2)
            failed = bool(done) and future.exception() is not None
            flags = torch.tensor([float(not done), float(failed)])
            pending, broken = world.all_reduce(flags, "max", "control").tolist()
            if failed or not (pending or broken):
                future.result()
                return
            if broken and done:
                # Not a cause: that is what the other one says, which may end after this one.
                raise PeerLostError("another worker could not compute its neighbour averages")
