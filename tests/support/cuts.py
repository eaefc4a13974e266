"""Plans without replication whose relations are cut, unevenly."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.cutters import in_degrees
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.planning.hubs import share_hubs
from dgl_heta.planning.making import Deal, plan_without_replication, with_ownership
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.partition_shares import Piece
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store


def cut_partition(config: Path, how: str, out: Path) -> Path:
    """Partition the graph of a partition without replication; returns the part_config.

    `how` is "whole", for relations on one partition each; "ranges", for every second one cut in
    ranges of destinations; or as of :func:`cut_by_array`.
    """
    store, plan = open_partition(config.parent)
    plan = plan_without_replication(plan.schema, plan.targets, plan.hops, plan.num_parts,
                                    deal_pieces(how != "whole"), "test")
    if how not in ("whole", "ranges"):
        plan = cut_by_array(plan, store, how, out.with_name("plan"))
    return write_partition(store, plan, out, graph_name=config.stem)


def cut_by_array(plan: Plan, store: Store, how: str, directory: Path) -> Plan:
    """The plan read back from files, its relations cut anew.

    `how` is "permuted", for as many destinations at random; "hubs", for the same with the in-edges
    of three nodes of each relation cut at random; or a cutter, as `module:attribute`.
    """
    generator, ownership = np.random.default_rng(5), {}
    source = store.source()
    for relation in plan.schema.relations:
        pieces = {p.index: p.ranges[relation] for p in plan.partitions if relation in p.ranges}
        if not pieces:
            continue
        sizes, hubs = [high - low for low, high in pieces.values()], {}
        degrees = in_degrees(source, relation)
        if how in ("permuted", "hubs"):
            chosen = generator.permutation(np.repeat(np.arange(len(pieces)), sizes))
        else:
            module, _, name = how.partition(":")
            chosen = getattr(importlib.import_module(module), name)().cut(source, relation, sizes)
            hubs = share_hubs(chosen, degrees, sizes, 0.3)
        if how == "hubs":
            for node in np.argsort(-degrees)[:3].tolist():
                ends = np.sort(generator.integers(1, degrees[node], len(pieces) - 1)).tolist()
                bounds = [0, *ends, int(degrees[node])]
                order = generator.permutation(len(pieces)).tolist()
                hubs[node] = [(piece, low, high) for piece, low, high in
                              zip(order, bounds, bounds[1:]) if low < high]
        ownership[relation] = Ownership.of(chosen, relation, plan.schema, list(pieces),
                                           plan.num_parts, "test", degrees, hubs)
    assert ownership
    assert how != "hubs" or all(own.hubs for own in ownership.values())
    directory.mkdir(exist_ok=True)
    with_ownership(plan, ownership).save(directory / "plan.json")
    read = Plan.load(directory / "plan.json")
    assert read.ownership == ownership
    assert not any(p.ranges for p in read.partitions)
    read.verify()
    return read


def deal_pieces(cut: bool | str, drawn: int | None = None) -> Deal:
    """Relations in turn to the partitions; with `cut`, every second one is cut in uneven parts.

    With `drawn`, the seed of a generator, it draws who has each relation, and the bounds of those
    that are cut, about half.
    """

    def deal(schema: Schema, relations: Sequence[Relation], parts: int) -> list[list[Piece]]:
        dealt: list[list[Piece]] = [[] for _ in range(parts)]
        rng = np.random.default_rng(drawn)
        for i, relation in enumerate(relations):
            count = schema.node_counts[relation.dst]
            bounds = [count * (p + 1) * p // (parts * (parts + 1)) for p in range(parts + 1)]
            order, divided = [*range(parts)], cut and i % 2
            if drawn is not None:
                order, divided = rng.permutation(parts).tolist(), cut and rng.random() < 0.5
                bounds[1:-1] = np.sort(rng.choice(
                    np.arange(1, count), parts - 1, replace=False)).tolist()
            if divided:
                for part, low, high in zip(order, bounds, bounds[1:]):
                    dealt[part].append((relation, low, high))
            else:
                dealt[order[i % parts]].append((relation, 0, count))
        return dealt

    return deal
