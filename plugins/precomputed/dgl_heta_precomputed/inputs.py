"""Inputs of SeHGNN and NARS: their part of the averages, and the rows of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta import (
    InputError,
    InputReader,
    InputsContext,
    ModelInputs,
    ModelSpec,
    Plan,
    Relation,
    Store,
)
from dgl_heta.tools import (
    Comm,
    MiniBatch,
    PeerLostError,
    RelationBlock,
    StaticFeatures,
    initial_rows,
)
from dgl_heta_precomputed.averages import (
    Averages,
    Metapath,
    common_width,
    path_averages,
    paths_into,
    relation_subsets,
    subset_averages,
)


def part_key(edges: RelationBlock, *numbers: int) -> str:
    """Return the name among a model's inputs of the rows that belong to a part of its block.

    No node type is named so: a schema refuses names with a NUL.
    """
    return "\0".join([edges.relation.dst, *map(str, (edges.place, edges.start, *numbers))])


def paths_of(plan: Plan, width: int, static: Mapping[str, int]
             ) -> dict[str, tuple[tuple[Metapath, int], ...]]:
    """Return the metapaths of a plan per target, with the widths of their averages.

    They are the plan's own, or all that are as long as its hops at most.
    """
    paths_by_target = {}
    for target in plan.targets:
        paths = ([p for p in plan.metapaths if p[-1].dst == target] if plan.metapaths
                 else paths_into(plan.schema, target, plan.hops))
        paths_by_target[target] = tuple((p, static.get(p[0].src, width)) for p in paths)
    return paths_by_target


class AverageReader(InputReader):
    """Reads a worker's averages and the own features of its seeds.

    Workers of one partition share their arrays, which the first of them computes. Types without
    features have fixed random rows.
    """

    def __init__(self, context: InputsContext) -> None:
        self._context, self._plan = context, context.plan
        self._roots = context.plan.roots(context.rank)
        train = context.settings.train
        self._double = train.dtype == "float64"
        self._dtype = torch.float64 if self._double else torch.float32
        self._static = StaticFeatures(context.store, context.plan.targets, self._dtype,
                                      torch.device("cpu"))
        self._random: dict[str, Tensor] = {}
        self._averages: dict[str, Sequence[Averages]] = {}
        # The first trainer of each partition computes, the others then read what is there.
        for first in (True, False):
            computes = first == (context.rank % train.trainers == 0)
            _in_step(self._compute if computes else lambda: None, context.world)

    def _compute(self) -> None:
        context, train = self._context, self._context.settings.train
        schema = self._plan.schema
        folder = context.directory / f"partition-{context.rank // train.trainers}"
        for target in self._plan.targets:
            out = folder / f"target-{schema.node_types.index(target):03d}"
            self._averages[target] = self._open(
                target, out, memory_mb=train.precompute_mb, double=self._double, seed=train.seed,
                width=context.settings.model.hidden)
            if not context.store.has_array(target, "feat"):
                self._random[target] = initial_rows(
                    train.seed, target, 0, schema.node_counts[target],
                    context.spec.input_dims[target], self._dtype)

    @abstractmethod
    def _open(self, target: str, out: Path, **options: Any) -> Sequence[Averages]:
        """Compute or open the averages of a target that this partition has."""

    @abstractmethod
    def _read_part(self, edges: RelationBlock, averages: Sequence[Averages], ids: np.ndarray
                   ) -> dict[str, Tensor]:
        """Read the rows of one part of a block, by :func:`part_key`."""

    def read(self, batch: MiniBatch, device: torch.device) -> dict[str, Tensor]:
        """Return the own features of the seeds by type, and averages by :func:`part_key`."""
        rows = self._static.read(batch.own_seeds)
        for target, table in self._random.items():
            rows[target] = table[torch.from_numpy(batch.own_seeds[target])]
        for edges in batch.blocks[0].edges:
            target = edges.relation.dst
            ids = batch.seeds[target][edges.start:edges.stop]
            rows.update(self._read_part(edges, self._averages[target], ids))
        return {name: array.to(device, self._dtype) for name, array in rows.items()}


class PathReader(AverageReader):
    """Reads averages of metapaths, a part for each that ends with one of the worker's roots."""

    def _numbers(self, target: str) -> list[int]:
        paths = self._context.spec.paths[target]
        return [i for i, (path, _) in enumerate(paths) if path[-1] in self._roots]

    def parts(self, target: str) -> Sequence[tuple[int, Relation, Any]]:
        roots = {i: self._context.spec.paths[target][i][0][-1] for i in self._numbers(target)}
        return [(i, root, self._roots[root]) for i, root in roots.items()]

    def _open(self, target: str, out: Path, **options: Any) -> Sequence[Averages]:
        paths = [self._context.spec.paths[target][i][0] for i in self._numbers(target)]
        return [path_averages(self._context.store, paths, out, **options)]

    def _read_part(self, edges: RelationBlock, averages: Sequence[Averages], ids: np.ndarray
                   ) -> dict[str, Tensor]:
        index = self._numbers(edges.relation.dst).index(edges.place)
        return {part_key(edges): averages[0].read(index, ids)}


class SubsetReader(AverageReader):
    """Reads averages over subsets of relations, a part for all the roots of one share."""

    def _by_share(self, target: str) -> dict[Any, list[Relation]]:
        """The worker's roots into a target by its share of the seeds that they are run for."""
        roots: dict[Any, list[Relation]] = {}
        for root, share in self._roots.items():
            if root.dst == target:
                roots.setdefault(share, []).append(root)
        return roots

    def parts(self, target: str) -> Sequence[tuple[int, Relation, Any]]:
        return [(i, roots[0], share)
                for i, (share, roots) in enumerate(self._by_share(target).items())]

    def _open(self, target: str, out: Path, **options: Any) -> Sequence[Averages]:
        subsets = relation_subsets(self._plan.schema, target, self._context.settings.model.subsets,
                                   options["seed"])
        return [subset_averages(self._context.store, target, subsets, self._plan.hops, roots,
                                out.with_name(f"{out.name}-share-{i}") if i else out, **options)
                for i, roots in enumerate(self._by_share(target).values())]

    def _read_part(self, edges: RelationBlock, averages: Sequence[Averages], ids: np.ndarray
                   ) -> dict[str, Tensor]:
        hops = self._plan.hops
        return {part_key(edges, k, hop): averages[edges.place].read(k * hops + hop, ids)
                for k in range(self._context.settings.model.subsets) for hop in range(hops)}


class PathInputs(ModelInputs):
    """Averages per metapath, as SeHGNN reads them."""

    name = "paths"

    def complete(self, spec: ModelSpec, store: Store, plan: Plan) -> ModelSpec:
        static = {t: spec.input_dims[t] for t in spec.static}
        return replace(spec, paths=paths_of(plan, spec.hidden, static))

    def open(self, context: InputsContext) -> InputReader:
        return PathReader(context)


class SubsetInputs(ModelInputs):
    """Averages per subset of relations and hop, as NARS reads them."""

    name = "subsets"

    def complete(self, spec: ModelSpec, store: Store, plan: Plan) -> ModelSpec:
        if plan.metapaths:  # a partition then runs their last relations alone into a target
            raise InputError("averages over subsets of the relations (model nars) follow all "
                             "relations, but the plan has those of metapaths alone; leave "
                             "partition.metapaths out, or use model sehgnn, which follows them")
        width = common_width(store, spec.hidden)
        return replace(spec, input_dims=dict.fromkeys(spec.input_dims, width))

    def open(self, context: InputsContext) -> InputReader:
        return SubsetReader(context)


def _in_step(work: Callable[[], None], world: Comm) -> None:
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
