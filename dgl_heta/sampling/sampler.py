"""Local neighbour sampling by plan (Heta §4): all edges that a worker samples are on its disk.

Sampling is stateless: which neighbours a node draws is a hash of (seed, step, layer,
relation, node). So P workers together draw exactly the edges that one worker would, and a
partitioned run can be compared with an unpartitioned one edge by edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.assignment import Share
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock, SeedShares
from dgl_heta.store import CSC, Store
from dgl_heta.system.jit import kernel

Fanout = int | Mapping[Relation, int]


@dataclass(frozen=True)
class SamplingScope:
    """What one worker samples.

    Attributes
    ----------
    roots : relations into the targets that it runs on seeds, with its share of the seeds.
    inner : layer → relations that it runs on other rows.
    seed_relations : target → relations on seeds over all workers of the group.
    common : node types whose rows, all of them and not only the seeds, are held in common by
        several workers, because the plan replicates no relation.
    on_common : layer → relations that it runs on such rows and on seeds, where there is no
        replication; `merged` : layer → node type → those of all workers.
    ranges : relations of which it holds the in-edges of some destinations only.
    """

    targets: tuple[str, ...]
    hops: int
    roots: dict[Relation, Share]
    inner: dict[int, tuple[Relation, ...]]
    seed_relations: dict[str, tuple[Relation, ...]]
    seeds_apart: bool = False
    """Whether a seed that is also a neighbour is two rows. With metapaths a neighbour is followed
    by other relations than a seed; with hops by the same ones, and it is one row."""
    replicated: bool = True
    common: frozenset[str] = frozenset()
    on_common: dict[int, tuple[Relation, ...]] = field(default_factory=dict)
    merged: dict[int, dict[str, tuple[Relation, ...]]] = field(default_factory=dict)
    ranges: dict[Relation, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, part: int, layers: int | None = None) -> SamplingScope:
        """The scope of a partition, for a model of `layers` layers (default: the plan's hops).

        A model with fewer layers runs the upper ones of the plan.
        """
        order = {r: i for i, r in enumerate(plan.schema.relations)}
        roots = {t: tuple(sorted((tree.root for tree in plan.sub_metatrees if tree.target == t),
                                 key=order.__getitem__)) for t in plan.targets}
        hops = plan.hops if layers is None else layers
        if not 1 <= hops <= plan.hops:
            raise InputError(f"the model has {hops} layers, but the plan has {plan.hops} hops; "
                             f"plan with {hops} hops")
        own, skipped = plan.partitions[part], plan.hops - hops
        inner = {layer: own.inner[layer + skipped] for layer in range(1, hops + 1)}
        apart = bool(plan.metapaths)
        if plan.replication == "full":
            return cls(plan.targets, hops, plan.roots(part), inner, roots, apart)
        every = {layer: [r for p in plan.partitions if p.group == own.group
                         for r in p.layers[layer + skipped]] for layer in range(1, hops + 1)}
        return cls(
            plan.targets, hops, {}, inner, roots, apart, replicated=False,
            common=frozenset(t for t in own.node_types if len(plan.users(t, own.group)) > 1),
            on_common={layer: own.layers[layer + skipped] for layer in range(1, hops + 1)},
            merged={layer: by_destination(sorted(set(relations), key=order.__getitem__))
                    for layer, relations in every.items()},
            ranges=dict(own.ranges))


def by_destination(relations: Iterable[Relation]) -> dict[str, tuple[Relation, ...]]:
    """Relations by the node type that they end at."""
    found: dict[str, tuple[Relation, ...]] = {}
    for relation in relations:
        found[relation.dst] = (*found.get(relation.dst, ()), relation)
    return found


Agree = Callable[[Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""Given this worker's new nodes per type, those of all workers that hold the type in common, in
rank order. Every worker of the group calls it alike."""


@dataclass(frozen=True)
class HeldOut:
    """Edges that carry no messages, as they are what a link predictor is asked for.

    An edge of `relation`, and of `reverse`, is known by its pair of end nodes, so parallel edges
    and the two directions stay together: pair = source × (destinations of `relation`) +
    destination. A share of all pairs is held out by a hash, without a list of them.
    """

    relation: Relation
    reverse: Relation | None
    tails: int
    share: float
    seed: int = 0

    @property
    def salt(self) -> np.uint64:
        return np.uint64(hash_key(self.seed, 0x11))

    def draw(self, pairs: np.ndarray) -> np.ndarray:
        """For each pair (int64) a number in [0, 1); pairs below `share` are held out."""
        numbers = np.empty(len(pairs))
        _draw_pairs(pairs, self.salt, numbers)
        return numbers


class NeighborSampler:
    """Samples blocks from a store's relations.

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
    held_out : edges that are left out of every sample. They are drawn like others and dropped.
    """

    def __init__(self, store: Store, scope: SamplingScope, fanouts: Sequence[Fanout], seed: int = 0,
                 seed_states: bool = True, agree: Agree | None = None,
                 held_out: HeldOut | None = None) -> None:
        if len(fanouts) != scope.hops:
            raise InputError(
                f"{len(fanouts)} fanouts are given, but the plan has {scope.hops} hops; give one "
                "fanout per layer, input layer first"
            )
        for fanout in fanouts:
            for number in fanout.values() if isinstance(fanout, Mapping) else (fanout,):
                if number < 1 - isinstance(fanout, Mapping) and number != -1:
                    raise InputError(f"fanout {number} is wrong; it must be 1 or more, or -1 for "
                                     "all")
        self._scope, self._fanouts, self._seed = scope, tuple(fanouts), seed
        self._seed_states, self._agree, self._held_out = seed_states, agree, held_out
        self._types = store.schema.node_types
        self._counts = dict(store.schema.node_counts)
        self._order = {r: i for i, r in enumerate(store.schema.relations)}
        used = set(scope.roots).union(*scope.inner.values(), *scope.on_common.values())
        self._graph: dict[Relation, CSC] = {r: store.relation(r) for r in self._order if r in used}
        self._place = {}
        for ntype in {t for r in used for t in (r.src, r.dst)} | {*scope.targets, *scope.common}:
            self._place[ntype] = np.full(self._counts[ntype], -1, dtype=np.int32)

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: np.ndarray | None = None) -> MiniBatch:
        """Sample the blocks of one step.

        Parameters
        ----------
        seeds : the group's seeds per target type in canonical order, unique ids, the same on
            all its workers.
        shares : per target type how the seeds are shared by the workers; default: this worker
            is alone.
        step : any number that differs from step to step, the same on all workers.
        without : pairs (see :class:`HeldOut`) to leave out besides those held out, int64.
        """
        targets = self._scope.targets
        shares = shares or {t: SeedShares((len(seeds[t]),)) for t in targets}
        ordered = {t: shares[t].local(torch.as_tensor(seeds[t], dtype=torch.int64)).numpy()
                   for t in targets}
        rows = {t: _Rows(place) for t, place in self._place.items()}
        pairs = None if without is None else np.unique(without)
        try:
            return self._sample(ordered, shares, step, rows, pairs)
        finally:
            for ntype, table in rows.items():
                self._place[ntype][table.ids()] = -1

    def _sample(self, seeds: dict[str, np.ndarray], shares: Mapping[str, SeedShares],
                step: int, rows: dict[str, _Rows], without: np.ndarray | None) -> MiniBatch:
        scope, hops = self._scope, self._scope.hops
        blocks = []
        if self._seed_states:
            for ntype in scope.targets:
                rows[ntype].add(seeds[ntype], findable=not scope.seeds_apart)
        for layer in range(hops, 0, -1):
            last = layer == hops
            # Types without a row stay in the block: a batch need not reach every type, and
            # a group need not have a seed, but models look types up by name.
            destinations = (dict(seeds) if last else
                            {t: table.ids() for t, table in rows.items()})
            destinations = {t: destinations[t] for t in self._types if t in destinations}
            sharing = self._sharing(last, destinations, shares)
            before = {t: len(table) for t, table in rows.items()}
            edges = []
            for relation, csc in self._graph.items():
                for start, chosen, nodes in self._rows_of(layer, relation, destinations, sharing):
                    indptr, indices = self._neighbours(csc, nodes, layer, relation, step,
                                                       rows[relation.src], without)
                    edges.append(RelationBlock(relation, start, torch.from_numpy(indptr),
                                               torch.from_numpy(indices),
                                               self._order[relation], chosen))
            if not scope.replicated:
                self._settle(rows, before, edges)
            merged = scope.merged.get(layer)
            blocks.append(Block(
                layer=layer,
                num_src={t: len(rows[t]) for t in self._types if t in rows},
                num_dst={t: len(ids) for t, ids in destinations.items()},
                edges=edges,
                seeds=sharing, last=last,
                seed_relations=scope.seed_relations if merged is None else merged,
                inner_relations=by_destination(scope.inner[layer]) if merged is None else merged,
                has_destinations=self._seed_states or not last,
            ))
        return MiniBatch(
            blocks=blocks[::-1],
            input_nodes={t: rows[t].ids().copy() for t in self._types if t in rows},
            seeds=seeds,
            own_seeds={t: seeds[t][:shares[t].own] for t in scope.targets},
        )

    def _sharing(self, last: bool, destinations: Mapping[str, np.ndarray],
                 shares: Mapping[str, SeedShares]) -> dict[str, SeedShares]:
        """Which destination rows of a layer the workers hold in common."""
        sharing = {}
        for ntype, ids in destinations.items():
            if last:
                sharing[ntype] = shares[ntype]
            elif ntype in self._scope.common:
                seeds = shares[ntype] if ntype in shares and self._seed_states else SeedShares((0,))
                sharing[ntype] = replace(seeds, others=len(ids) - seeds.total)
            elif ntype in self._scope.targets and self._seed_states:
                sharing[ntype] = shares[ntype]
        return sharing

    def _rows_of(self, layer: int, relation: Relation, destinations: Mapping[str, np.ndarray],
                 sharing: Mapping[str, SeedShares]
                 ) -> Iterator[tuple[int, Tensor | None, np.ndarray]]:
        """Destination rows that `relation` is run for at `layer`: start, rows if chosen, nodes."""
        ids = destinations.get(relation.dst, _NONE)
        if not len(ids):
            return
        if self._scope.replicated:
            for low, high in self._ranges(layer, relation, len(ids), sharing):
                yield low, None, ids[low:high]
        elif relation in self._scope.on_common[layer]:
            if relation in self._scope.ranges:
                low, high = self._scope.ranges[relation]
                chosen = np.flatnonzero((ids >= low) & (ids < high))
                yield 0, torch.from_numpy(chosen), ids[chosen]
            else:
                yield 0, None, ids

    def _ranges(self, layer: int, relation: Relation, rows: int,
                sharing: Mapping[str, SeedShares]) -> list[tuple[int, int]]:
        """Destination rows that `relation` is run for at `layer`, as half-open ranges."""
        shares = sharing.get(relation.dst)
        seeds = shares.total if shares else 0
        ranges: list[tuple[int, int]] = []
        if shares and relation in self._scope.roots:
            ranges = shares.local_ranges(*self._scope.roots[relation].rows(seeds)) or [(0, 0)]
        if relation in self._scope.inner[layer]:
            if ranges and ranges[-1][1] == seeds:
                ranges[-1] = (ranges[-1][0], rows)
            else:
                ranges.append((seeds, rows))
        return ranges

    def _neighbours(self, csc: CSC, nodes: np.ndarray, layer: int, relation: Relation, step: int,
                    sources: _Rows, without: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        key = np.uint64(hash_key(self._seed, step, layer, self._order[relation]))
        given = self._fanouts[layer - 1]
        fanout = given.get(relation, 0) if isinstance(given, Mapping) else given
        indptr = np.empty(len(nodes) + 1, np.int64)
        total = _count(csc.indptr, nodes, fanout, indptr)
        sources.reserve(total)
        indices = np.empty(total, np.int32)
        held = self._held_out
        if held is not None and relation in (held.relation, held.reverse):
            sources.size, total = _draw_except(
                csc.indptr, csc.indices, nodes, fanout, key, indptr, indices, sources.place,
                sources.buffer, sources.size, _NONE if without is None else without, held.salt,
                held.share, held.tails, relation != held.relation)
            return indptr, indices[:total]
        sources.size = _draw(csc.indptr, csc.indices, nodes, fanout, key, indptr, indices,
                             sources.place, sources.buffer, sources.size)
        return indptr, indices

    def _settle(self, rows: dict[str, _Rows], before: Mapping[str, int],
                edges: Iterable[RelationBlock]) -> None:
        """Give the new nodes of common types the same rows on all workers that hold them."""
        assert self._agree is not None
        common = [t for t in self._types if t in self._scope.common]
        found = {t: rows[t].ids()[before[t]:].copy() for t in common}
        for ntype, everyone in self._agree(found).items():
            table, mine = rows[ntype], found[ntype]
            table.take_back(before[ntype])
            for ids in everyone:
                table.add(ids[table.place[ids] < 0])
            final = torch.from_numpy(table.place[mine])
            for part in edges:
                if part.relation.src == ntype:
                    new = part.indices >= before[ntype]
                    part.indices[new] = final[(part.indices[new] - before[ntype]).long()]


class _Rows:
    """Rows of one node type in order of first appearance; `place` maps node id to row."""

    def __init__(self, place: np.ndarray) -> None:
        self.place = place
        self.buffer = np.empty(0, np.int64)
        self.size = 0
        self.hidden = 0  # rows that `place` does not know

    def __len__(self) -> int:
        return self.size

    def ids(self) -> np.ndarray:
        return self.buffer[:self.size]

    def reserve(self, extra: int) -> None:
        most = len(self.place) + self.hidden
        need = min(self.size + extra, most)
        if need > len(self.buffer):
            grown = np.empty(max(need, min(2 * len(self.buffer), most)), np.int64)
            grown[:self.size] = self.ids()
            self.buffer = grown

    def add(self, ids: np.ndarray, findable: bool = True) -> None:
        """Append ids that are not yet rows; unless `findable`, their neighbours get new rows.

        An id given twice is two rows, of which its neighbours find the last.
        """
        start, rows = self.size, np.arange(self.size, self.size + len(ids), dtype=np.int32)
        if findable:
            self.place[ids] = rows
            self.hidden += int(np.count_nonzero(self.place[ids] != rows))
        else:
            self.hidden += len(ids)
        self.reserve(len(ids))
        self.buffer[start:start + len(ids)] = ids
        self.size += len(ids)


    def take_back(self, size: int) -> None:
        """Forget the rows from `size` on."""
        self.place[self.buffer[size:self.size]] = -1
        self.size = size


_NONE = np.empty(0, np.int64)
_MASK = (1 << 64) - 1


def hash_key(*numbers: int) -> int:
    """A 64-bit key of some numbers (SplitMix64 finaliser, chained)."""
    key = 0x9E3779B97F4A7C15
    for number in numbers:
        key = (key ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        key = (key ^ (key >> 31)) * 0x94D049BB133111EB & _MASK
        key ^= key >> 29
    return key


@kernel
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _count(indptr, nodes, fanout, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the CSC pointers of the sample; return the number of its edges."""
    total = 0
    out[0] = 0
    for i in range(len(nodes)):
        degree = indptr[nodes[i] + 1] - indptr[nodes[i]]
        if fanout >= 0 and degree > fanout:
            degree = fanout
        total += degree
        out[i + 1] = total
    return total


@kernel
def _choose(key, node, drawn, degree, positions):  # type: ignore[no-untyped-def]
    """Fill `positions` with `drawn` of `degree` numbers, without replacement (Floyd)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = _mix(key ^ (np.uint64(node) * golden))
    for k in range(drawn):
        top = degree - drawn + k
        state += golden
        position = np.int64(_mix(state) % np.uint64(top + 1))
        for j in range(k):
            if positions[j] == position:
                position = top
                break
        positions[k] = position


@kernel
def _draw(indptr, indices, nodes, fanout, key, out_ptr, out, place, rows, size):  # type: ignore[no-untyped-def]
    """Draw neighbours and turn them into rows."""
    positions = np.empty(max(fanout, 0), np.int64)
    for i in range(len(nodes)):
        node = nodes[i]
        begin = indptr[node]
        degree = indptr[node + 1] - begin
        base = out_ptr[i]
        drawn = out_ptr[i + 1] - base
        if drawn < degree:
            _choose(key, node, drawn, degree, positions)
        for k in range(drawn):
            source = indices[begin + (positions[k] if drawn < degree else k)]
            row = place[source]
            if row < 0:
                row = size
                place[source] = row
                rows[size] = source
                size += 1
            out[base + k] = row
    return size


@kernel
def _draw_except(indptr, indices, nodes, fanout, key, out_ptr, out, place, rows, size,  # type: ignore[no-untyped-def]
                 without, salt, share, tails, swapped):
    """As `_draw`, but drop the pairs that are held out or listed (ascending) in `without`."""
    positions = np.empty(max(fanout, 0), np.int64)
    total = 0
    low = out_ptr[0]
    for i in range(len(nodes)):
        node = nodes[i]
        begin = indptr[node]
        degree = indptr[node + 1] - begin
        drawn = out_ptr[i + 1] - low
        low = out_ptr[i + 1]
        if drawn < degree:
            _choose(key, node, drawn, degree, positions)
        for k in range(drawn):
            source = np.int64(indices[begin + (positions[k] if drawn < degree else k)])
            pair = node * tails + source if swapped else source * tails + node
            if _chance(salt, pair) < share:
                continue
            at = np.searchsorted(without, pair)
            if at < len(without) and without[at] == pair:
                continue
            row = place[source]
            if row < 0:
                row = size
                place[source] = row
                rows[size] = source
                size += 1
            out[total] = row
            total += 1
        out_ptr[i + 1] = total
    return size, total


@kernel
def _chance(salt, pair):  # type: ignore[no-untyped-def]
    mixed = _mix(salt ^ (np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)))
    return np.float64(mixed >> np.uint64(11)) / 9007199254740992.0


@kernel
def _draw_pairs(pairs, salt, out):  # type: ignore[no-untyped-def]
    for i in range(len(pairs)):
        out[i] = _chance(salt, pairs[i])
