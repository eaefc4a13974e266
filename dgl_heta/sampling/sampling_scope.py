"""The scope of one worker's sampling, from the plan: relations, on which rows, at which layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.seeds import SeedShares


class HubPieces(NamedTuple):
    """Destination nodes of a relation whose in-edges are cut, int64 arrays (hubs,) each.

    Attributes
    ----------
    nodes : ascending ids.
    low, high : this worker has in-edges `low … high - 1` of each; none where these are equal.
    degree : all in-edges of each.
    own : bool, whether this worker's partition owns the node.
    """

    nodes: np.ndarray
    low: np.ndarray
    high: np.ndarray
    degree: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, ownership: Ownership, part: int) -> HubPieces:
        """Those of a partition."""
        nodes = np.array([hub.node for hub in ownership.hubs], np.int64)
        pieces = np.array([hub.of(part) for hub in ownership.hubs], np.int64).reshape(-1, 2)
        return cls(nodes, pieces[:, 0].copy(), pieces[:, 1].copy(),
                   np.array([hub.degree for hub in ownership.hubs], np.int64),
                   ownership.owner[nodes] == part)

    def at(self, chosen: np.ndarray) -> HubPieces:
        """Some of them, by their positions."""
        return HubPieces(*(values[chosen] for values in self))

    def find(self, ids: np.ndarray, order_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some nodes are hubs: their positions, and those of the hubs, in the order of the
        hubs, and for one hub that of `order_of` (an entry per node)."""
        at = np.minimum(np.searchsorted(self.nodes, ids), len(self.nodes) - 1)
        are_hubs = np.flatnonzero(self.nodes[at] == ids)
        order = np.lexsort((order_of[are_hubs], at[are_hubs]))
        return are_hubs[order], at[are_hubs][order]


@dataclass(frozen=True)
class Offloading:
    """Layer 1 where some relations are run by one worker for all of its group.

    Attributes
    ----------
    roots : relations that this worker runs on seeds at layer 1, with its share of the seeds.
    served : those that it runs on the other workers' rows that are no seeds.
    reaching : those that reach rows that are no seeds, whoever runs them on whosever rows.
    asked : node type → workers (places in the group) that are sent this worker's rows of the type.
    asking : node type → workers that send theirs.
    types : those of which any worker of the group sends rows.
    """

    roots: dict[Relation, Share]
    served: tuple[Relation, ...]
    reaching: tuple[Relation, ...]
    asked: dict[str, tuple[int, ...]]
    asking: dict[str, tuple[int, ...]]
    types: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, part: int) -> Offloading:
        """That of a partition."""
        own = plan.partitions[part]
        group = [plan.partitions[index] for index in plan.groups[own.group]]
        types = plan.schema.node_types

        def owners(partition: Partition, ntype: str) -> set[int]:
            return {plan.offloaded[r] for r in partition.asks if r.dst == ntype}

        asked = {t: tuple(sorted(owners(own, t))) for t in types}
        asking = {t: tuple(worker for worker, p in enumerate(group)
                           if group.index(own) in owners(p, t)) for t in types}
        every = {r for p in group for r in (*p.inner[1], *p.asks)}
        return cls(plan.roots_at_first(part), own.served,
                   tuple(r for r in plan.schema.relations if r in every),
                   {t: workers for t, workers in asked.items() if workers},
                   {t: workers for t, workers in asking.items() if workers},
                   tuple(t for t in types if any(owners(p, t) for p in group)))


@dataclass(frozen=True)
class SamplingScope:
    """The relations that one worker samples, and on which rows.

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
    owner : the same by an array, (destination nodes,): the partition that holds each one's
        in-edges; `part` is this worker's.
    hubs : of these relations, those with nodes whose in-edges are cut, too.
    offloading : at layer 1, where relations are offloaded; None where none are.
    """

    targets: tuple[str, ...]
    hops: int
    roots: dict[Relation, Share]
    inner: dict[int, tuple[Relation, ...]]
    seed_relations: dict[str, tuple[Relation, ...]]
    seeds_apart: bool = False
    """True if a seed that is also a neighbour is two rows. With metapaths a neighbour is followed
    by other relations than a seed; with hops by the same ones, and it is one row."""
    replicated: bool = True
    common: frozenset[str] = frozenset()
    on_common: dict[int, tuple[Relation, ...]] = field(default_factory=dict)
    merged: dict[int, dict[str, tuple[Relation, ...]]] = field(default_factory=dict)
    ranges: dict[Relation, tuple[int, int]] = field(default_factory=dict)
    owner: dict[Relation, np.ndarray] = field(default_factory=dict)
    hubs: dict[Relation, HubPieces] = field(default_factory=dict)
    part: int = 0
    offloading: Offloading | None = None

    def roots_at(self, layer: int) -> dict[Relation, Share]:
        """The relations that it runs on seeds at a layer."""
        return self.offloading.roots if self.offloading and layer == 1 else self.roots

    def reaching(self, layer: int) -> Iterable[Relation]:
        """The relations that reach rows that are no seeds, whoever runs them."""
        if self.offloading is None or layer > 1:
            return self.inner[layer]
        return self.offloading.reaching

    def ranges_of(self, layer: int, relation: Relation, rows: int, shares: SeedShares | None
                  ) -> list[tuple[int, int]]:
        """Destination rows, of so many, that `relation` is run for at a layer, as half-open ranges.
        The first ones are seeds where there are `shares`."""
        seeds, roots = shares.total if shares else 0, self.roots_at(layer)
        ranges: list[tuple[int, int]] = []
        if shares and relation in roots:
            ranges = shares.local_ranges(*roots[relation].rows(seeds)) or [(0, 0)]
        if relation in self.inner[layer]:
            # Where the seeds' range ends at the last seed, the other rows join it: one call of the
            # kernel.
            if ranges and ranges[-1][1] == seeds:
                ranges[-1] = (ranges[-1][0], rows)
            else:
                ranges.append((seeds, rows))
        return ranges

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
            offloading = Offloading.of(plan, part) if plan.offloaded and not skipped else None
            return cls(plan.targets, hops, plan.roots(part), inner, roots, apart,
                       offloading=offloading)
        every = {layer: [r for p in plan.partitions if p.group == own.group
                         for r in p.layers[layer + skipped]] for layer in range(1, hops + 1)}
        # Arrays name partitions as they were cut; each may have several trainers by now, in turn.
        trainers = max((plan.num_parts // len(o.rows) for o in plan.ownership.values()), default=1)
        return cls(
            plan.targets, hops, {}, inner, roots, apart, replicated=False,
            common=frozenset(t for t in own.node_types if len(plan.users(t, own.group)) > 1),
            on_common={layer: own.layers[layer + skipped] for layer in range(1, hops + 1)},
            merged={layer: by_destination(sorted(set(relations), key=order.__getitem__))
                    for layer, relations in every.items()},
            ranges=dict(own.ranges),
            owner={r: plan.ownership[r].owner for r in own.owned},
            hubs={r: HubPieces.of(plan.ownership[r], part // trainers) for r in own.owned
                  if plan.ownership[r].hubs},
            part=part // trainers)


def by_destination(relations: Iterable[Relation]) -> dict[str, tuple[Relation, ...]]:
    """Relations by the node type that they end at."""
    by_type: dict[str, tuple[Relation, ...]] = {}
    for relation in relations:
        by_type[relation.dst] = (*by_type.get(relation.dst, ()), relation)
    return by_type
