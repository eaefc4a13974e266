"""Local neighbour sampling by plan (Heta §4): all edges that a worker samples are on its disk.

Sampling is stateless: which neighbours a node draws is a hash of (seed, step, layer,
relation, node). So P workers together draw exactly the edges that one worker would, and a
partitioned run can be compared with an unpartitioned one edge by edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgl_heta.block import Block, MiniBatch, RelationBlock, SeedShares
from dgl_heta.errors import InputError
from dgl_heta.jit import kernel
from dgl_heta.plan import Plan, Share
from dgl_heta.schema import Relation
from dgl_heta.store import CSC, Store

Fanout = int | Mapping[Relation, int]


@dataclass(frozen=True)
class SamplingScope:
    """What one worker samples.

    Attributes
    ----------
    roots : relations into the targets that it runs on seeds, with its share of the seeds.
    inner : layer → relations that it runs on other rows.
    seed_relations : target → number of relations on seeds over all workers of the group.
    """

    targets: tuple[str, ...]
    hops: int
    roots: dict[Relation, Share]
    inner: dict[int, tuple[Relation, ...]]
    seed_relations: dict[str, int]
    seeds_apart: bool = False
    """Whether a seed that is also a neighbour is two rows. With metapaths a neighbour is followed
    by other relations than a seed; with hops by the same ones, and it is one row."""

    @classmethod
    def of(cls, plan: Plan, part: int, layers: int | None = None) -> SamplingScope:
        """The scope of a partition, for a model of `layers` layers (default: the plan's hops).

        A model with fewer layers runs the upper ones of the plan.
        """
        counts = {t: sum(tree.target == t for tree in plan.sub_metatrees) for t in plan.targets}
        hops = plan.hops if layers is None else layers
        if not 1 <= hops <= plan.hops:
            raise InputError(f"the model has {hops} layers, but the plan has {plan.hops} hops; "
                             f"plan with {hops} hops")
        inner = {layer: plan.partitions[part].inner[layer + plan.hops - hops]
                 for layer in range(1, hops + 1)}
        return cls(plan.targets, hops, plan.roots(part), inner, counts, bool(plan.metapaths))


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
    """

    def __init__(self, store: Store, scope: SamplingScope, fanouts: Sequence[Fanout], seed: int = 0,
                 seed_states: bool = True) -> None:
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
        self._seed_states = seed_states
        self._types = store.schema.node_types
        self._counts = dict(store.schema.node_counts)
        self._order = {r: i for i, r in enumerate(store.schema.relations)}
        used = set(scope.roots).union(*scope.inner.values())
        self._graph: dict[Relation, CSC] = {r: store.relation(r) for r in self._order if r in used}
        self._place = {}
        for ntype in {t for r in used for t in (r.src, r.dst)} | set(scope.targets):
            self._place[ntype] = np.full(self._counts[ntype], -1, dtype=np.int32)

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0) -> MiniBatch:
        """Sample the blocks of one step.

        Parameters
        ----------
        seeds : the group's seeds per target type in canonical order, unique ids, the same on
            all its workers.
        shares : per target type how the seeds are shared by the workers; default: this worker
            is alone.
        step : any number that differs from step to step, the same on all workers.
        """
        targets = self._scope.targets
        shares = shares or {t: SeedShares((len(seeds[t]),)) for t in targets}
        ordered = {t: shares[t].local(torch.as_tensor(seeds[t], dtype=torch.int64)).numpy()
                   for t in targets}
        rows = {t: _Rows(place) for t, place in self._place.items()}
        try:
            return self._sample(ordered, shares, step, rows)
        finally:
            for ntype, table in rows.items():
                self._place[ntype][table.ids()] = -1

    def _sample(self, seeds: dict[str, np.ndarray], shares: Mapping[str, SeedShares],
                step: int, rows: dict[str, _Rows]) -> MiniBatch:
        scope, hops = self._scope, self._scope.hops
        blocks = []
        if self._seed_states:
            for ntype in scope.targets:
                rows[ntype].add(seeds[ntype], findable=not scope.seeds_apart)
        for layer in range(hops, 0, -1):
            last = layer == hops
            on_seeds = last or self._seed_states
            # Types without a row stay in the block: a batch need not reach every type, and
            # a group need not have a seed, but models look types up by name.
            destinations = (dict(seeds) if last else
                            {t: table.ids() for t, table in rows.items()})
            destinations = {t: destinations[t] for t in self._types if t in destinations}
            sharing = {t: shares[t] for t in self._types if t in scope.targets and on_seeds}
            edges = []
            for relation, csc in self._graph.items():
                for low, high in self._ranges(layer, relation, destinations, sharing):
                    indptr, indices = self._neighbours(
                        csc, destinations[relation.dst][low:high], layer, relation, step,
                        rows[relation.src])
                    edges.append(RelationBlock(relation, low, torch.from_numpy(indptr),
                                               torch.from_numpy(indices),
                                               self._order[relation]))
            inner: dict[str, int] = {}
            for relation in scope.inner[layer]:
                inner[relation.dst] = inner.get(relation.dst, 0) + 1
            blocks.append(Block(
                layer=layer,
                num_src={t: len(rows[t]) for t in self._types if t in rows},
                num_dst={t: len(ids) for t, ids in destinations.items()},
                edges=edges,
                seeds=sharing, last=last,
                seed_relations=scope.seed_relations, inner_relations=inner,
                has_destinations=self._seed_states or not last,
            ))
        return MiniBatch(
            blocks=blocks[::-1],
            input_nodes={t: rows[t].ids().copy() for t in self._types if t in rows},
            seeds=seeds,
            own_seeds={t: seeds[t][:shares[t].own] for t in scope.targets},
        )

    def _ranges(self, layer: int, relation: Relation, destinations: Mapping[str, np.ndarray],
                sharing: Mapping[str, SeedShares]) -> list[tuple[int, int]]:
        """Destination rows that `relation` is run for at `layer`, as half-open ranges."""
        rows = len(destinations.get(relation.dst, ()))
        if not rows:
            return []
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
                    sources: _Rows) -> tuple[np.ndarray, np.ndarray]:
        key = np.uint64(hash_key(self._seed, step, layer, self._order[relation]))
        given = self._fanouts[layer - 1]
        fanout = given.get(relation, 0) if isinstance(given, Mapping) else given
        indptr = np.empty(len(nodes) + 1, np.int64)
        total = _count(csc.indptr, nodes, fanout, indptr)
        sources.reserve(total)
        indices = np.empty(total, np.int32)
        sources.size = _draw(csc.indptr, csc.indices, nodes, fanout, key, indptr, indices,
                             sources.place, sources.buffer, sources.size)
        return indptr, indices


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
def _draw(indptr, indices, nodes, fanout, key, out_ptr, out, place, rows, size):  # type: ignore[no-untyped-def]
    """Draw neighbours without replacement (Floyd's algorithm) and turn them into rows."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    positions = np.empty(max(fanout, 0), np.int64)
    for i in range(len(nodes)):
        node = nodes[i]
        begin = indptr[node]
        degree = indptr[node + 1] - begin
        base = out_ptr[i]
        drawn = out_ptr[i + 1] - base
        if drawn < degree:
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
