"""Layer by layer, with all neighbours: every state is computed once, and kept in mapped files.

Target nodes are a model-parallel group's business as in training: a worker aggregates its root
relations, partial aggregations are merged. States of other types are complete on every
partition that has the type, so these partitions share its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import HetaError
from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.graph.schema import Relation
from dgl_heta.models import HGNN, slot
from dgl_heta.nn.cross import CrossRelation
from dgl_heta.planning.plan import Plan
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.sampling.blocks import Block, RelationBlock
from dgl_heta.sampling.moments import Moments, TimeDraws
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store
from dgl_heta.store.structure import in_edges
from dgl_heta.system.disk import new_array

Inputs = Callable[[str, int, int], Tensor]
"""Input features of nodes `low … high - 1` of a type."""


class Layerwise:
    """Inference for the one target of a plan.

    Parameters
    ----------
    inputs : reads input features.
    scratch : directory that all workers see, for the states.
    chunk : nodes to compute at a time.
    report : receives progress: layer, node type, nodes done, nodes in all.
    time, strict : of a graph with times, the one at which all nodes are seen, seconds since 1970,
        and whether they see only what is there before.

    Raises
    ------
    InputError
        As :meth:`Store.check_time`.
    """

    def __init__(self, store: Store, plan: Plan, model: HGNN, inputs: Inputs, world: Comm,
                 scratch: Path, chunk: int, report: Callable[[dict[str, Any]], None],
                 time: int | None = None, strict: bool = False) -> None:
        store.check_time(time)
        self._moments = Moments(np.array([time or 0]), store.schema.node_counts,
                                TimeDraws(strict=strict))
        self._store, self._plan, self._model, self._inputs = store, plan, model, inputs
        self._world, self._scratch, self._chunk, self._report = world, scratch, chunk, report
        (self._target,) = plan.targets
        self._part = plan.partitions[world.rank]
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._width = next(iter(model.heads.values())).in_features  # type: ignore[union-attr]
        self._exchange = GroupExchange(world)
        for module in model.modules():
            if isinstance(module, CrossRelation):
                module.exchange = self._exchange
        self._needed = self._plan_layers()

    def _plan_layers(self) -> list[list[str]]:
        """Node types whose states are needed: after layer 0 (the inputs), 1, …, the last."""
        schema = self._store.schema
        needed = {self._target}
        levels = [needed]
        for _ in range(self._plan.hops):
            needed = needed | {r.src for t in needed for r in schema.into[t]}
            levels.append(needed)
        return [[t for t in schema.node_types if t in types] for types in levels[::-1]]

    @torch.no_grad()
    def run(self, write: Callable[[np.ndarray, Tensor], None]) -> None:
        """Compute the last layer's states of the target; `write(node ids, states)` per chunk."""
        self._model.eval()
        states = self._files(0)
        for ntype in self._needed[0]:
            for low, high in self._own_ranges(ntype, self._plan.users(ntype)):
                rows = self._inputs(ntype, low, high).to(self._device, self._dtype)
                states[ntype][low:high] = self._model.inputs(ntype, rows).cpu().numpy()
        self._world.barrier()
        for number, layer in enumerate(self._model.layers, 1):
            last = number == self._plan.hops
            after = {} if last else self._files(number)

            def keep(ntype: str, ids: np.ndarray, rows: Tensor,
                     after: dict[str, np.ndarray] = after) -> None:
                after[ntype][ids] = rows.cpu().numpy()

            for ntype in self._needed[number]:
                total = self._store.schema.node_counts[ntype]
                for ids, rows in self._states(layer, number, ntype, states):
                    if last:
                        write(ids, rows)
                    else:
                        keep(ntype, ids, rows)
                    self._report({"event": "progress", "layer": number, "ntype": ntype,
                                  "done": int(ids[-1]) + 1 if len(ids) else 0, "total": total})
            self._world.barrier()
            states = after

    def _states(self, layer: torch.nn.Module, number: int, ntype: str,
                states: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, Tensor]]:
        """This worker's part of a type's states after a layer."""
        schema, plan = self._store.schema, self._plan
        if ntype == self._target:
            # All workers add up, and each runs its relations on all nodes: so one alone of those
            # that share a sub-metatree, or have it in another group, may run its root.
            own = [r for r, share in plan.roots(self._part.index).items()
                   if r.dst == ntype and share.index == 0 and self._part.group == 0]
            for low in range(0, schema.node_counts[ntype], self._chunk):
                high = min(low + self._chunk, schema.node_counts[ntype])
                shares = SeedShares.even(high - low, self._world.size, self._world.rank)
                self._exchange.begin()
                ids = shares.local(torch.arange(low, high)).numpy()
                yield (ids[:shares.own], self._run(layer, number, ntype, ids, own, states, shares))
            return
        into = schema.into[ntype]
        holders = [p.index for p in plan.partitions
                   if ntype in p.node_types and set(into) <= set(p.inner[number])]
        if not holders:
            raise HetaError(f"no partition has all relations into '{ntype}' at layer {number}")
        for low, high in self._own_ranges(ntype, tuple(holders)):
            ids = np.arange(low, high)
            yield ids, self._run(layer, number, ntype, ids, list(into), states, None)

    def _run(self, layer: torch.nn.Module, number: int, ntype: str, ids: np.ndarray,
             relations: list[Relation], states: Mapping[str, np.ndarray],
             shares: SeedShares | None) -> Tensor:
        """One layer for some nodes of a type, with all their neighbours."""
        order = {r: i for i, r in enumerate(self._store.schema.relations)}
        parts, sources = [], {ntype: [ids]}
        for relation in sorted(relations, key=order.__getitem__):
            csc, times = self._store.relation(relation), self._store.times(relation)
            until = self._moments.seen(relation, csc, times, ids, np.uint64(0))["until"]
            indptr, neighbours = in_edges(relation, csc, ids, self._store.schema.node_counts[
                relation.src], until and until[0])
            parts.append((relation, indptr, neighbours))
        rows, edges = {}, []
        for source in {r.src for r, _, _ in parts}:
            neighbour_lists = [n for r, _, n in parts if r.src == source]
            unique, inverse = np.unique(np.concatenate(neighbour_lists), return_inverse=True)
            offset = len(ids) if source == ntype else 0
            sources.setdefault(source, []).append(unique)
            start = 0
            for r, indptr, neighbours in parts:
                if r.src == source:
                    indices = inverse[start:start + len(neighbours)] + offset
                    start += len(neighbours)
                    edges.append(RelationBlock(r, 0, torch.from_numpy(indptr),
                                               torch.from_numpy(indices.astype(np.int32)),
                                               order[r]))
        for source, lists in sources.items():
            nodes = np.concatenate(lists).astype(np.int64)
            rows[source] = torch.from_numpy(gather_rows(states[source], nodes)).to(self._device)
        edges.sort(key=lambda one: one.place)
        into = {ntype: tuple(self._store.schema.into[ntype])}
        block = Block(number, {t: len(x) for t, x in rows.items()}, {ntype: len(ids)}, edges,
                      {ntype: shares} if shares else {}, shares is not None, into, into)
        out: Tensor = layer(block, rows)[ntype]
        return out

    def _own_ranges(self, ntype: str, holders: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Chunks of this worker's even part of a type's nodes; none if it is no holder."""
        if self._world.rank not in holders:
            return
        share = SeedShares.even(self._store.schema.node_counts[ntype], len(holders),
                                holders.index(self._world.rank))
        for low in range(share.before, share.before + share.own, self._chunk):
            yield low, min(low + self._chunk, share.before + share.own)

    def _files(self, number: int) -> dict[str, np.ndarray]:
        """Mapped files for the states after a layer, made by the first worker."""
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        types = self._needed[number]
        paths = {t: self._scratch / f"layer-{number}-type-{i:03d}.npy"
                 for i, t in enumerate(types)}
        if self._world.rank == 0:
            for ntype, path in paths.items():
                shape = (max(self._store.schema.node_counts[ntype], 1), self._width)
                new_array(path, dtype, shape)
            for old in self._scratch.glob(f"layer-{number - 2}-*.npy"):
                old.unlink()
        self._world.barrier()
        return {t: np.lib.format.open_memmap(path, "r+") for t, path in paths.items()}


def head(model: HGNN, ntype: str) -> torch.nn.Module:
    """Return the module that turns the last states of a target type into its outputs.

    Raises
    ------
    HetaError
        The model was not trained to predict anything of the type.
    """
    if slot(ntype) not in model.heads:
        raise HetaError(f"the model has no head for '{ntype}'")
    return model.heads[slot(ntype)]
