"""Local neighbour sampling by plan (Heta §4): all edges that a worker samples are on its disk.

Sampling is stateless: which neighbours a node draws is a hash of (seed, step, layer,
relation, node). So P workers together draw exactly the edges that one worker would, and a
partitioned run can be compared with an unpartitioned one edge by edge.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError, several
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock, RemoteDestinations
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.moments import Moments, TimeDraws, from_rows
from dgl_heta.sampling.relation_samples import LayerSampling, OnCores, Sample
from dgl_heta.sampling.rows import NodeRows
from dgl_heta.sampling.sampling_scope import HubPieces, SamplingScope, by_destination
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.settings import check_layers, wrong_fanout
from dgl_heta.store import CSC, Store
from dgl_heta.system.hashing import hash_key

Fanout = int | Mapping[Relation, int]
"""In-edges to sample of a node by each relation, or by one that is named; -1 for all."""
Agree = Callable[[Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""Given this worker's new nodes per type, those of all workers that hold the type in common, in
rank order. Every worker of the group calls it alike."""
Deliver = Callable[[Mapping[str, np.ndarray], Mapping[str, Sequence[int]]],
                   Mapping[str, Sequence[np.ndarray]]]
"""Given this worker's rows per type, and per type the workers of the group that aggregate them,
what each worker of the group sends this one, in rank order. Every worker calls it alike."""


class _Call(NamedTuple):
    """How a batch is sampled, as :meth:`NeighborSampler.sample` was told."""

    step: int
    moments: Moments
    without: Mapping[Relation, np.ndarray] = {}
    excluded: Mapping[Relation, np.ndarray] = {}
    deliver: Deliver | None = None
    agree: Agree | None = None


class NeighborSampler:
    """Samples blocks from a store's relations.

    Several threads may sample at once: nothing is kept between calls. With `agree` all workers
    must make their calls in the same order.

    Parameters
    ----------
    store : the relation store; only the relations in scope are opened.
    scope : what this worker samples.
    fanouts : neighbours per node and relation for each layer, input layer first as in DGL;
        -1 takes all. A layer's can also be given per relation; one that is not named gets 0.
    seed : seed of the hash.
    seed_states : also complete the seeds' states below the last layer, for models that read
        the destination's state. Always right; without it one exchange per layer is saved.
    agree : how workers agree on the rows that they hold in common; needed where the scope's
        plan replicates nothing.
    held_out : edges that are left out of every sample; others are drawn in their place.
    threads : on how many threads relations are drawn side by side; blocks are the same.
    deliver : how rows come to the workers that aggregate them; needed where relations are
        offloaded.
    remote_states : whether the input features of such rows are read there, too; for models whose
        aggregations read the destination.
    together : whether every worker of the group has each node type of which any worker has such
        rows, maybe none.
    time : how edges with times are drawn.

    Attributes
    ----------
    scope, fanouts, held_out : as given.
    graph, weights : per relation that is run its in-edges, and the weights of its edges or None.
    counts : nodes per type.
    timed : whether the graph has times, so that seeds must have some.
    """

    def __init__(self, store: Store, scope: SamplingScope, fanouts: Sequence[Fanout], seed: int = 0,
                 seed_states: bool = True, agree: Agree | None = None,
                 held_out: HeldOut | None = None, threads: int = 1,
                 deliver: Deliver | None = None, remote_states: bool = True,
                 together: bool = False, time: TimeDraws = TimeDraws()) -> None:  # noqa: B008
        _check_fanouts(fanouts, scope.hops)
        self.scope, self.fanouts, self._seed = scope, tuple(fanouts), seed
        self._seed_states, self._agree, self.held_out = seed_states, agree, held_out
        self._deliver, self._remote_states = deliver, remote_states and seed_states
        self._together, self._time, self.timed = together, time, store.manifest.timed
        self._types = store.schema.node_types
        self._served = frozenset(scope.offloading.served if scope.offloading else ())
        self._order = {r: i for i, r in enumerate(store.schema.relations)}
        used = set(scope.roots).union(*scope.inner.values(), *scope.on_common.values())
        if scope.offloading is not None:
            used.update(scope.offloading.roots, scope.offloading.served)
        # Only relations that are run: opening one maps its files.
        self.graph: dict[Relation, CSC] = {
            r: store.relation(r, pieces=r in scope.ranges or r in scope.owner)
            for r in self._order if r in used}
        self.weights = {r: store.weights(r) for r in self.graph}
        self._times = {r: store.times(r, pieces=r in scope.ranges or (
            r in scope.owner and r not in scope.hubs)) for r in self.graph}
        for relation in self.graph.keys() & (held_out.from_rows if held_out else ()):
            self._times[relation] = from_rows(
                self._times[relation], store.row_times(relation.dst), self.graph[relation].indptr)
        for relation, hubs in scope.hubs.items():
            indptr = store.pointers(relation)
            if (indptr[hubs.nodes + 1] - indptr[hubs.nodes] != hubs.degree).any():
                raise InputError(f"the plan cuts the in-edges of nodes by '{relation}' that have "
                                 "another number of them in the store; make the partition again")
        types = {t for r in used for t in (r.src, r.dst)} | {*scope.targets, *scope.common}
        self.counts = {t: n for t, n in store.schema.node_counts.items() if t in types}
        self._one = Moments(np.zeros(1, np.int64), self.counts, time)  # where there are no others
        self._layers: LayerSampling = OnCores(self.counts, threads)

    def on(self, layers: LayerSampling) -> NeighborSampler:
        """A sampler of the same batches, whose layers are sampled by `layers`. Raise an
        :class:`InputError` if the graph has times, which only the CPU's cores sample by."""
        if self.timed:
            raise InputError("the graph has times, and train.batches samples in a way that does "
                             "not go by them; use train.batches = on-demand, or pipeline")
        other = copy.copy(self)
        other._layers = layers
        return other

    def on_one_thread(self) -> NeighborSampler:
        """A sampler of the same batches for callers of which several sample at once."""
        if not isinstance(self._layers, OnCores):
            return self
        other = copy.copy(self)
        other._layers = self._layers.on_one_thread()
        return other

    def with_fanouts(self, fanouts: Sequence[Fanout]) -> NeighborSampler:
        """A sampler of other fanouts, which samples layers as this one does."""
        _check_fanouts(fanouts, self.scope.hops)
        other = copy.copy(self)
        other.fanouts = tuple(fanouts)
        return other

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: Mapping[Relation, np.ndarray] | None = None,
               deliver: Deliver | None = None, agree: Agree | None = None,
               excluded: Mapping[Relation, np.ndarray] | None = None) -> MiniBatch:
        """Sample the blocks of one step.

        Parameters
        ----------
        seeds : the group's seeds per target type in canonical order, unique ids, the same on
            all its workers; of a graph with times (n, 2) ids and times, unique pairs.
        shares : per target type how the seeds are shared by the workers; default: this worker
            is alone.
        step : any number that differs from step to step, the same on all workers.
        without : relation → pairs to leave out besides those held out, as
            :meth:`HeldOut.edges_of` has them.
        deliver, agree : how rows come to the workers that aggregate them, and how workers agree on
            common ones, this time; default: as always.
        excluded : relation → positions in its CSC of edges that are drawn like others and dropped,
            ascending, int64; the same on all workers of the group.
        """
        shares = shares or join_seeds([seeds])[1]
        # Own seeds first, then the others': rows of a batch are numbered in this order on every
        # worker, and only their order differs between workers.
        pairs = {t: shares[t].local(torch.as_tensor(seeds[t], dtype=torch.int64)).numpy()
                 for t in self.scope.targets}
        moments, ids = self.moments(pairs)
        call = _Call(step, moments, without or {}, excluded or {}, deliver or self._deliver,
                     agree or self._agree)
        with self._layers.borrow() as of_nodes:
            blocks, inputs = self._blocks(ids, shares, of_nodes, call)
        return MiniBatch(
            blocks=blocks, seeds=pairs, own_seeds={t: x[:shares[t].own] for t, x in pairs.items()},
            excluded=call.excluded, moments=moments if self.timed else None, **inputs)

    def moments(self, seeds: dict[str, np.ndarray]) -> tuple[Moments, dict[str, np.ndarray]]:
        """Return the times of seeds, and the ids of these pairs, int64. Raise an
        :class:`InputError` if they have times and the graph has none, or the other way round."""
        for ntype, own in seeds.items():
            if (own.ndim == 2) != self.timed:
                raise InputError(f"seeds of '{ntype}' have {'no ' * self.timed}times, but the "
                                 f"graph has {'some' if self.timed else 'none'}")
        if not self.timed:
            return self._one, seeds
        times = np.unique(np.concatenate([pairs[:, 1] for pairs in seeds.values()]))
        moments = Moments(times, self.counts, self._time)  # counts: of what memory has an entry for
        return moments, {t: moments.ids(t, *np.ascontiguousarray(pairs.T))
                         for t, pairs in seeds.items()}

    def hop(self, layer: int, rows: Mapping[str, np.ndarray], shares: Mapping[str, SeedShares],
            step: int, moments: Moments) -> tuple[list[RelationBlock], dict[str, np.ndarray]]:
        """Sample the in-edges of some rows at a layer by themselves, where relations are
        replicated; the draws are those of :meth:`sample`.

        Parameters
        ----------
        rows : node type → the id of each row, int64.
        shares : target type → how the leading rows are shared, where these are the seeds.
        moments : of all seeds, as :meth:`moments` returns them.

        Returns
        -------
        The edges, and per node type the id of each row that their `indices` name, unique.
        """
        with self._layers.borrow() as of_nodes:
            below = moments.rows(of_nodes)
            edges = self._layers.sample(
                self._samples(layer, _Call(step, moments), rows, shares, {}), below)
            return edges, self._layers.nodes(below)

    def _blocks(self, seeds: dict[str, np.ndarray], shares: Mapping[str, SeedShares],
                of_nodes: dict[str, NodeRows], call: _Call
                ) -> tuple[list[Block], dict[str, Any]]:
        """The blocks of some seeds' ids, and what a batch says of their input rows."""
        scope, moments = self.scope, call.moments
        blocks: list[Block] = []
        rows = pairs = moments.rows(of_nodes)
        if self._seed_states:
            for ntype in scope.targets:
                # Seeds come first in every block, so that the leading rows are those whose
                # aggregation is partial.
                rows[ntype].add(seeds[ntype], findable=not scope.seeds_apart)
        for layer in range(scope.hops, 0, -1):
            last = layer == scope.hops
            # Types without a row stay in the block: a batch need not reach every type, and
            # a group need not have a seed, but models look types up by name.
            destinations = (dict(seeds) if last else
                            {t: table.ids() for t, table in rows.items()})
            destinations = {t: destinations[t] for t in self._types if t in destinations}
            sharing = self._sharing(last, destinations, shares)
            if layer == 1:
                rows = moments.inputs(pairs, of_nodes)
            remote: dict[str, RemoteDestinations] = {}
            if scope.offloading is not None and layer == 1:
                destinations, remote = self._with_remote(destinations, sharing, rows, call)
            before = {t: len(table) for t, table in rows.items()}
            edges = self._layers.sample(
                self._samples(layer, call, destinations, sharing, remote), rows)
            # Sources of the first layer are nobody's destinations, so each has those of its edges.
            if not scope.replicated and layer > 1:
                assert call.agree is not None
                self._settle(rows, before, edges, call.agree)
            merged = scope.merged.get(layer)
            blocks.append(Block(
                layer=layer,
                num_src={t: len(rows[t]) for t in self._types if t in rows},
                num_dst={t: len(ids) for t, ids in destinations.items()},
                edges=edges, seeds=sharing, last=last,
                seed_relations=scope.seed_relations if merged is None else merged,
                inner_relations=(by_destination(scope.reaching(layer)) if merged is None
                                 else merged),
                has_destinations=self._seed_states or not last,
                offloads=scope.offloading is not None and layer == 1,
                remote=remote, remote_states=self._remote_states,
                above=blocks[-1] if blocks else None,
            ))
        rows = {t: rows[t] for t in self._types if t in rows}
        return blocks[::-1], moments.once(rows, self._layers.nodes(rows), pairs)

    def _with_remote(self, destinations: Mapping[str, np.ndarray],
                     sharing: Mapping[str, SeedShares], rows: Mapping[str, NodeRows], call: _Call
                     ) -> tuple[dict[str, np.ndarray], dict[str, RemoteDestinations]]:
        """Destination rows of layer 1 with those of other workers after them."""
        offloading, deliver = self.scope.offloading, call.deliver
        assert offloading is not None
        assert deliver is not None
        # Without seeds: all workers of the group have their ids anyway.
        own = {t: ids[sharing[t].total if t in sharing else 0:]
               for t, ids in destinations.items()}
        arrived = deliver({t: own.get(t, _NONE) for t in offloading.asked}, offloading.asked)
        joined, remote = dict(destinations), {}
        for ntype in self._types:
            here = ntype in offloading.asked or ntype in offloading.asking
            if not here and not (self._together and ntype in offloading.types):
                continue
            of_workers = arrived[ntype]
            ids = np.concatenate(of_workers)
            joined[ntype] = np.concatenate([destinations.get(ntype, _NONE), ids])
            remote[ntype] = RemoteDestinations(
                tuple(map(len, of_workers)),
                tuple(len(own.get(ntype, _NONE)) if worker in offloading.asked.get(ntype, ()) else 0
                      for worker in range(len(of_workers))),
                call.moments.keys(ntype, ids))
            if self._remote_states and len(ids):
                rows[ntype].add(call.moments.nodes(ntype, ids), findable=False)
        return {t: joined[t] for t in self._types if t in joined}, remote

    def _sharing(self, last: bool, destinations: Mapping[str, np.ndarray],
                 shares: Mapping[str, SeedShares]) -> dict[str, SeedShares]:
        """Which destination rows of a layer the workers hold in common."""
        sharing = {}
        for ntype, ids in destinations.items():
            if last:
                sharing[ntype] = shares[ntype]
            elif ntype in self.scope.common:
                seeds = shares[ntype] if ntype in shares and self._seed_states else SeedShares((0,))
                sharing[ntype] = replace(seeds, others=len(ids) - seeds.total, common=True)
            elif ntype in self.scope.targets and self._seed_states:
                sharing[ntype] = shares[ntype]
        return sharing

    def _samples(self, layer: int, call: _Call, destinations: Mapping[str, np.ndarray],
                 sharing: Mapping[str, SeedShares], remote: Mapping[str, RemoteDestinations]
                 ) -> list[Sample]:
        """The samples of a layer, in the order of the block's edges."""
        samples = []
        for relation, csc in self.graph.items():
            parts = [*self._rows_of(layer, relation, destinations, sharing, remote, call.moments)]
            if not parts:
                continue
            number, given = self._order[relation], self.fanouts[layer - 1]
            # Of the step and the place, never of who samples: so any worker, and any thread,
            # samples the same neighbours.
            key = np.uint64(hash_key(self._seed, call.step, layer, number))
            fanout = given.get(relation, 0) if isinstance(given, Mapping) else given
            left_out = self.held_out.left_out(
                relation, call.without.get(relation)) if self.held_out else None
            samples += [
                Sample(relation, number, csc, start=start, chosen=chosen, fanout=fanout, key=key,
                       left_out=left_out, hubs=hubs, weights=self.weights[relation],
                       excluded=call.excluded.get(relation), **call.moments.seen(
                           relation, csc, self._times[relation], ids, key))
                for start, chosen, ids, hubs in parts]
        return samples

    def _rows_of(self, layer: int, relation: Relation, destinations: Mapping[str, np.ndarray],
                 sharing: Mapping[str, SeedShares], remote: Mapping[str, RemoteDestinations],
                 moments: Moments
                 ) -> Iterator[tuple[int, Tensor | None, np.ndarray, HubPieces | None]]:
        """Destination rows that `relation` is run for at `layer`: start, rows if chosen, ids, and
        of rows whose in-edges are cut, the pieces that are here. Those are the same on all workers
        that have the relation, in one order."""
        scope, ntype = self.scope, relation.dst
        ids = destinations.get(ntype, _NONE)
        if not len(ids) and not self._together:
            return
        if scope.replicated:
            own = len(ids) - (remote[ntype].total if ntype in remote else 0)
            for low, high in scope.ranges_of(layer, relation, own, sharing.get(ntype)):
                yield low, None, ids[low:high], None
            if ntype in remote and relation in self._served:
                yield own, None, ids[own:], None
        elif relation in scope.on_common[layer]:
            nodes = moments.nodes(ntype, ids)
            if relation in scope.ranges:
                low, high = scope.ranges[relation]
                chosen = np.flatnonzero((nodes >= low) & (nodes < high))
                yield 0, torch.from_numpy(chosen), ids[chosen], None
            elif relation in scope.owner:
                owned = scope.owner[relation][nodes] == scope.part
                hubs = scope.hubs.get(relation)
                rows, at = hubs.find(nodes, ids) if hubs else (_NONE, _NONE)
                owned[rows] = False
                chosen = np.flatnonzero(owned)
                yield 0, torch.from_numpy(chosen), ids[chosen], None
                if hubs and len(rows):
                    yield 0, torch.from_numpy(rows), ids[rows], hubs.at(at)
            else:
                yield 0, None, ids, None

    def _settle(self, rows: Mapping[str, NodeRows], before: Mapping[str, int],
                edges: Iterable[RelationBlock], agree: Agree) -> None:
        """Give the new nodes of common types the same rows on all workers that have them."""
        common = [t for t in self._types if t in self.scope.common]
        own = {t: rows[t].ids()[before[t]:].copy() for t in common}
        for ntype, of_workers in agree(own).items():
            table = rows[ntype]
            # New rows were numbered in the order in which this worker met them. They are taken back
            # and given out again in one order: that of the workers, each one's ids sorted.
            table.take_back(before[ntype])
            for ids in of_workers:
                table.add(ids[table.find(ids) < 0])
            final = torch.from_numpy(table.find(own[ntype]))
            for part in edges:
                if part.relation.src == ntype:
                    new = part.indices >= before[ntype]
                    part.indices[new] = final[(part.indices[new] - before[ntype]).long()]


def _check_fanouts(fanouts: Sequence[Fanout], hops: int) -> None:
    """Refuse what is no fanout, or another number of layers than a plan has hops."""
    check_layers(fanouts, hops, "fanouts", f"the plan has {several(hops, 'hop')}")
    for layer in fanouts:
        numbers, least = (layer.values(), 0) if isinstance(layer, Mapping) else ((layer,), 1)
        for number in numbers:
            if why := wrong_fanout(number, least):
                raise InputError(f"fanouts has {number}; {why}")


_NONE = np.empty(0, np.int64)
