"""Local neighbour sampling by plan (Heta §4): all edges that a worker samples are on its disk.

Sampling is stateless: which neighbours a node draws is a hash of (seed, step, layer,
relation, node). So P workers together draw exactly the edges that one worker would, and a
partitioned run can be compared with an unpartitioned one edge by edge.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError, several
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock, RemoteDestinations
from dgl_heta.sampling.held_out import HeldOut
from dgl_heta.sampling.moments import Moments, TimeDraws, TimedRows, from_rows
from dgl_heta.sampling.relation_samples import LayerSampling, OnCores, Sample
from dgl_heta.sampling.rows import NodeRows
from dgl_heta.sampling.sampling_kernels import hash_key
from dgl_heta.sampling.sampling_scope import HubPieces, SamplingScope, by_destination
from dgl_heta.sampling.seeds import SeedShares, join_seeds
from dgl_heta.settings import check_layers, wrong_fanout
from dgl_heta.store import CSC, Store

Fanout = int | Mapping[Relation, int]
"""In-edges to sample of a node by each relation, or by one that is named; -1 for all."""
Agree = Callable[[Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""Given this worker's new nodes per type, those of all workers that hold the type in common, in
rank order. Every worker of the group calls it alike."""
Deliver = Callable[[Mapping[str, np.ndarray], Mapping[str, Sequence[int]]],
                   Mapping[str, Sequence[np.ndarray]]]
"""Given this worker's rows per type, and per type the workers of the group that aggregate them,
what each worker of the group sends this one, in rank order. Every worker calls it alike."""


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
            upper = [scope.inner[layer] for layer in range(2, scope.hops + 1)]
            used = set(scope.roots).union(*upper, scope.offloading.roots, scope.inner[1],
                                          scope.offloading.served)
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
        self._layers: LayerSampling = OnCores(self.counts, threads)

    def on(self, layers: LayerSampling) -> NeighborSampler:
        """A sampler of the same batches, whose layers are sampled by `layers`.

        Raises
        ------
        InputError
            The graph has times, which only the CPU's cores sample by.
        """
        if self.timed:
            raise InputError("the graph has times, and train.batches samples in a way that does "
                             "not go by them; use train.batches = on-demand, or pipeline")
        other = copy.copy(self)
        other._layers = layers
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
        targets = self.scope.targets
        shares = shares or join_seeds([seeds])[1]
        # Own seeds first, then the others': rows of a batch are numbered in this order on every
        # worker, and only their order differs between workers.
        pairs = {t: shares[t].local(torch.as_tensor(seeds[t], dtype=torch.int64)).numpy()
                 for t in targets}
        moments, ordered = self.moments(pairs)
        with self._layers.borrow() as rows:
            batch = self._sample(ordered, shares, step, rows, without or {},
                                 deliver or self._deliver, agree or self._agree, excluded or {},
                                 moments)
        return replace(batch, seeds=pairs, own_seeds={
            t: pairs[t][:shares[t].own] for t in targets}) if self.timed else batch

    def moments(self, seeds: dict[str, np.ndarray]
                ) -> tuple[Moments | None, dict[str, np.ndarray]]:
        """Return the times of seeds, and what stands for the seeds, int64: without times, None and
        their nodes.

        Raises
        ------
        InputError
            They have times where the graph has none, or the other way round.
        """
        for ntype, own in seeds.items():
            if (own.ndim == 2) != self.timed:
                raise InputError(f"seeds of '{ntype}' have {'no ' * self.timed}times, but the "
                                 f"graph has {'some' if self.timed else 'none'}")
        return Moments.of(seeds, self.counts, self._time) if self.timed else (None, seeds)

    def hop(self, layer: int, rows: Mapping[str, np.ndarray], shares: Mapping[str, SeedShares],
            step: int, moments: Moments | None = None
            ) -> tuple[list[RelationBlock], dict[str, np.ndarray]]:
        """Sample the in-edges of some rows at a layer by themselves, where relations are
        replicated; the draws are those of :meth:`sample`.

        Parameters
        ----------
        rows : node type → node of each row, int64; with `moments`, numbers of pairs.
        shares : target type → how the leading rows are shared, where these are the seeds.
        moments : of all seeds, as :meth:`moments` returns them.

        Returns
        -------
        The edges, and per node type what stands for each row that their `indices` name, unique.
        """
        with self._layers.borrow() as of_nodes:
            below: Mapping[str, Any] = of_nodes if moments is None else {
                t: TimedRows() for t in of_nodes}
            edges = self._layers.sample(
                self._samples(layer, step, rows, shares, {}, {}, {}, moments), below)
            return edges, self._layers.nodes(below)

    def _sample(self, seeds: dict[str, np.ndarray], shares: Mapping[str, SeedShares],
                step: int, rows: dict[str, NodeRows], without: Mapping[Relation, np.ndarray],
                deliver: Deliver | None, agree: Agree | None,
                excluded: Mapping[Relation, np.ndarray], moments: Moments | None) -> MiniBatch:
        scope, hops = self.scope, self.scope.hops
        blocks = []
        of_nodes = pairs = rows
        if moments is not None:
            rows = pairs = {t: TimedRows() for t in of_nodes}  # type: ignore[assignment]
        if self._seed_states:
            for ntype in scope.targets:
                # Seeds come first in every block, so that the leading rows are those whose
                # aggregation is partial.
                rows[ntype].add(seeds[ntype], findable=not scope.seeds_apart)
        for layer in range(hops, 0, -1):
            last = layer == hops
            # Types without a row stay in the block: a batch need not reach every type, and
            # a group need not have a seed, but models look types up by name.
            destinations = (dict(seeds) if last else
                            {t: table.ids() for t, table in rows.items()})
            destinations = {t: destinations[t] for t in self._types if t in destinations}
            sharing = self._sharing(last, destinations, shares)
            if moments is not None and layer == 1:  # sources are read from here on, at no time
                for ntype, table in of_nodes.items():
                    table.add(moments.nodes(ntype, rows[ntype].ids()))
                rows = of_nodes
            remote: dict[str, RemoteDestinations] = {}
            if scope.offloading is not None and layer == 1:
                destinations, remote = self._with_remote(
                    destinations, sharing, rows, deliver, moments)
            before = {t: len(table) for t, table in rows.items()}
            edges = self._layers.sample(self._samples(
                layer, step, destinations, sharing, without, remote, excluded, moments), rows)
            # Sources of the first layer are nobody's destinations, so each has those of its edges.
            if not scope.replicated and layer > 1:
                assert agree is not None
                self._settle(rows, before, edges, agree)
            merged = scope.merged.get(layer)
            blocks.append(Block(
                layer=layer,
                num_src={t: len(rows[t]) for t in self._types if t in rows},
                num_dst={t: len(ids) for t, ids in destinations.items()},
                edges=edges,
                seeds=sharing, last=last,
                seed_relations=scope.seed_relations if merged is None else merged,
                inner_relations=(by_destination(scope.reaching(layer)) if merged is None
                                 else merged),
                has_destinations=self._seed_states or not last,
                offloads=scope.offloading is not None and layer == 1,
                remote=remote, remote_states=self._remote_states,
            ))
        rows = {t: rows[t] for t in self._types if t in rows}
        nodes, places = (self._layers.nodes(rows), None) if moments is None else moments.once(
            rows, pairs)
        return MiniBatch(
            blocks=blocks[::-1],
            input_nodes=nodes,
            seeds=seeds,
            own_seeds={t: seeds[t][:shares[t].own] for t in scope.targets},
            excluded=excluded,
            places=places,
            moments=moments,
            pairs={} if moments is None else {t: pairs[t].ids() for t in rows},
        )

    def _with_remote(self, destinations: Mapping[str, np.ndarray],
                     sharing: Mapping[str, SeedShares], rows: Mapping[str, NodeRows],
                     deliver: Deliver | None, moments: Moments | None
                     ) -> tuple[dict[str, np.ndarray], dict[str, RemoteDestinations]]:
        """Destination rows of layer 1 with those of other workers after them."""
        offloading = self.scope.offloading
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
                ids if moments is None else moments.keys(ntype, ids))
            if self._remote_states and len(ids):
                rows[ntype].add(ids if moments is None else moments.nodes(ntype, ids),
                                findable=False)
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

    def _rows_of(self, layer: int, relation: Relation, destinations: Mapping[str, np.ndarray],
                 sharing: Mapping[str, SeedShares], remote: Mapping[str, RemoteDestinations],
                 moments: Moments | None) -> Iterator[tuple[int, Tensor | None, np.ndarray]]:
        """Destination rows that `relation` is run for at `layer`: start, rows if chosen, ids."""
        ids = destinations.get(relation.dst, _NONE)
        nodes = ids if moments is None else moments.nodes(relation.dst, ids)
        if not len(ids) and not self._together:
            return
        if self.scope.replicated:
            received = remote[relation.dst].total if relation.dst in remote else 0
            for low, high in self._ranges(layer, relation, len(ids) - received, sharing):
                yield low, None, ids[low:high]
            if (received or relation.dst in remote) and relation in self._served:
                yield len(ids) - received, None, ids[len(ids) - received:]
        elif relation in self.scope.on_common[layer]:
            if relation in self.scope.ranges:
                low, high = self.scope.ranges[relation]
                chosen = np.flatnonzero((nodes >= low) & (nodes < high))
                yield 0, torch.from_numpy(chosen), ids[chosen]
            elif relation in self.scope.owner:
                owned = self.scope.owner[relation][nodes] == self.scope.part
                if relation in self.scope.hubs:
                    # Hubs' in-edges are in pieces, so their rows follow below, on all workers.
                    owned[self.scope.hubs[relation].find(nodes, ids)[0]] = False
                chosen = np.flatnonzero(owned)
                yield 0, torch.from_numpy(chosen), ids[chosen]
            else:
                yield 0, None, ids

    def _ranges(self, layer: int, relation: Relation, rows: int,
                sharing: Mapping[str, SeedShares]) -> list[tuple[int, int]]:
        """Destination rows that `relation` is run for at `layer`, as half-open ranges."""
        shares = sharing.get(relation.dst)
        seeds = shares.total if shares else 0
        ranges: list[tuple[int, int]] = []
        roots = self.scope.roots_at(layer)
        if shares and relation in roots:
            ranges = shares.local_ranges(*roots[relation].rows(seeds)) or [(0, 0)]
        # Where the seeds' range ends at the last seed, the other rows join it: one call of the
        # kernel.
        if relation in self.scope.inner[layer]:
            if ranges and ranges[-1][1] == seeds:
                ranges[-1] = (ranges[-1][0], rows)
            else:
                ranges.append((seeds, rows))
        return ranges

    def _samples(self, layer: int, step: int, destinations: Mapping[str, np.ndarray],
               sharing: Mapping[str, SeedShares], without: Mapping[Relation, np.ndarray],
               remote: Mapping[str, RemoteDestinations], excluded: Mapping[Relation, np.ndarray],
               moments: Moments | None) -> list[Sample]:
        """The samples of a layer, in the order of the block's edges.

        Of destination rows whose in-edges are cut, those that are here: on all workers that have
        the relation, in one order.
        """
        samples = []
        for relation in self.graph:
            parts: list[_Part] = [
                (*part, None)
                for part in self._rows_of(layer, relation, destinations, sharing, remote, moments)]
            if relation in self.scope.hubs and relation in self.scope.on_common[layer]:
                hubs = self.scope.hubs[relation]
                ids = destinations.get(relation.dst, _NONE)
                rows, at = hubs.find(
                    ids if moments is None else moments.nodes(relation.dst, ids), ids)
                if len(rows):
                    parts.append((0, torch.from_numpy(rows), ids[rows], hubs.at(at)))
            if parts:
                samples += self._of_parts(relation, parts, layer, step, without.get(relation),
                                        excluded.get(relation), moments)
        return samples

    def _of_parts(self, relation: Relation, parts: list[_Part], layer: int, step: int,
                  without: np.ndarray | None, excluded: np.ndarray | None,
                  moments: Moments | None) -> list[Sample]:
        number, given = self._order[relation], self.fanouts[layer - 1]
        # Of the step and the place, never of who samples: so any worker, and any thread, samples
        # the same neighbours.
        key = np.uint64(hash_key(self._seed, step, layer, number))
        fanout = given.get(relation, 0) if isinstance(given, Mapping) else given
        left_out = self.held_out.left_out(relation, without) if self.held_out else None
        csc, times = self.graph[relation], self._times[relation]
        return [Sample(relation, number, csc, start=start, chosen=chosen, fanout=fanout, key=key,
                       left_out=left_out, hubs=hubs, weights=self.weights[relation],
                       excluded=excluded, **(
                           {"nodes": ids} if moments is None else
                           moments.seen(relation, csc, times, ids, key)))
                for start, chosen, ids, hubs in parts]

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
_Part = tuple[int, Tensor | None, np.ndarray, HubPieces | None]  # start, rows, ids, cut ones
