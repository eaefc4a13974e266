"""Offloaded relations: learnable types that several partitions use are aggregated by one of them.

In ogbn-mag both of two partitions read authors: `cites` reaches papers, whose authors are read at
layer 1. Where authors have learnable features, their rows would travel to who reads them, and their
gradients back. Instead the partition that has the rows, their owner partition, runs AGG_r on them
for all others: these send the ids of their destination rows, and get one partial aggregation for
each, summed over all relations that are offloaded there. That is Heta's Algorithm 1 one layer
deeper: what moves grows with the destination rows, not with their neighbours. Sampling is
stateless, so the owner partition samples the same neighbours.

Only layer 1 is offloaded, where sources are inputs. On seeds, whose ids all partitions have and
whose aggregations are partial anyway, the owner partition runs the relation at layer 1 instead of
the one that has it as a root.

Plans are changed by :meth:`Plan.with_owners <dgl_heta.planning.plan.Plan.with_owners>`; the setting
calls it `delegate`, and so does the plan's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.settings import Origin


@dataclass(frozen=True)
class SharingDecision:
    """How shared learnable features are trained, and why; a plan's `shared`.

    Attributes
    ----------
    asked : "rows", "delegate" or "auto".
    origin : who asked for it.
    owners : node type → partition that aggregates it for the others; of all other types rows move.
    reason : why, in one sentence.
    """

    asked: str
    origin: Origin
    owners: dict[str, int]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """One JSON object, as plans' files and runs' summaries have it."""
        return {"asked": self.asked, "origin": self.origin.value, "owners": self.owners,
                "reason": self.reason}

    @classmethod
    def from_json(cls, data: Any, where: str) -> SharingDecision | None:
        """The decision that :meth:`to_json` wrote; None where there is none.

        Raises
        ------
        InputError
            It is not what that writes.
        """
        if data is None:
            return None
        try:
            return cls(str(data["asked"]), Origin(data["origin"]), dict(data["owners"]),
                       str(data["reason"]))
        except (TypeError, ValueError, KeyError):
            raise InputError(f"plan {where} is damaged: what it says of partition.shared is not "
                             "what is written") from None


def partitions_with_owners(schema: Schema, targets: Collection[str], roots: Sequence[set[Relation]],
                           partitions: Sequence[Partition], owners: Mapping[Relation, int]
                           ) -> tuple[Partition, ...]:
    """The partitions of a plan in which some relations are offloaded at layer 1.

    Parameters
    ----------
    roots : each partition's root relations.
    partitions : those of the same plan where nothing is offloaded.
    owners : offloaded relation → its owner partition.
    """
    order = schema.order
    every_root = set().union(*roots)
    runs = Counter(r for p in partitions for r in p.inner[1])
    owned: list[list[Relation]] = [[] for _ in partitions]
    for relation, owner in owners.items():
        owned[owner].append(relation)

    def changed(own: Partition) -> Partition:
        before, kept = set(own.inner[1]), set(owned[own.index])
        inner = tuple(r for r in own.inner[1] if r in kept or r not in owners)
        asks = tuple(r for r in own.inner[1] if r in owners and r not in kept)
        served = tuple(r for r in owned[own.index] if runs[r] > (r in before))
        # On seeds a root that is offloaded is its owner's, whoever has the sub-metatree: so each
        # seed's aggregation is counted once.
        at_first = {*inner, *served, *(r for r in roots[own.index] if r not in owners),
                    *(r for r in kept if r in every_root)}
        layers = {**own.layers, 1: tuple(sorted(at_first, key=order.__getitem__))}
        relations = tuple(sorted({r for run in layers.values() for r in run},
                                 key=order.__getitem__))
        types = {*targets, *(t for r in relations for t in (r.src, r.dst))}
        return replace(
            own, inner={**own.inner, 1: inner}, layers=layers, relations=relations, served=served,
            asks=asks, node_types=tuple(t for t in schema.node_types if t in types),
            num_nodes=sum(schema.node_counts[t] for t in types),
            num_edges=sum(schema.edge_counts[r] for r in relations))

    return tuple(changed(p) for p in partitions)
