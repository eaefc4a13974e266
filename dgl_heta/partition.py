"""Partition backends: from a graph to a plan over a relation store, or to DistDGL's parts.

A partition directory holds DistDGL's `<graph_name>.json` (graph_name, num_parts, node_map,
edge_map, ntypes, etypes, part-i), the plan, and the store or a pointer to it. Nothing is
rewritten per partition (docs/format.md).
"""

from __future__ import annotations

import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dgl_heta.cost import Workload, step_work
from dgl_heta.errors import InputError
from dgl_heta.graph import GraphSource
from dgl_heta.hookspecs import hookimpl
from dgl_heta.memory import deal_within, within
from dgl_heta.metatree import Metapath, check_hops
from dgl_heta.plan import (
    Partition,
    Piece,
    Plan,
    balanced,
    deal_whole,
    group_sizes,
    make_plan,
    plan_without_replication,
)
from dgl_heta.schema import Relation, Schema
from dgl_heta.shared_plan import make_shared_plan
from dgl_heta.store import Store
from dgl_heta.store.directory import new_directory
from dgl_heta.store.writer import Progress, check_source, fill_store, safe_name

PLAN_FILE = "plan.json"
STORE_DIR = "store"


@dataclass(frozen=True)
class PartitionRequest:
    """What the user asks of a partition backend."""

    parts: int
    target: tuple[str, ...] = ()
    hops: int | None = None
    metapaths: Sequence[Metapath] = ()
    seed: int = 0
    edge_ids: bool = False
    """Whether a store that is written keeps the edges' positions in the source."""
    replication: str | None = None
    """`full`, `none`, or the backend's own."""
    memory_limit: int | None = None
    """Bytes that a partition may hold, as predicted for `workload`."""
    workload: Workload = field(default_factory=Workload)


class PartitionBackend(Protocol):
    """A provider of hook `dgl_heta_partition_backends`."""

    name: str
    description: str

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        """Plan from the schema alone, or raise an :class:`InputError` that it cannot."""

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> Path:
        """Write a partition directory; returns the path of its part_config JSON."""


class MetatreeBackend(ABC):
    """A backend that deals sub-metatrees to partitions; subclasses say how.

    Subclasses set `name` and `description` and define :meth:`assign`; those with their own way
    to deal relations without replication define :meth:`deal`.
    """

    name = ""
    description = ""
    replication = "full"
    """What is meant where the request does not say."""

    @abstractmethod
    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        """For each of `parts` partitions the indices of its sub-metatrees.

        `weights` are those of the sub-metatrees, heaviest first; there are at least `parts`.
        """

    def deal(self, schema: Schema, relations: Sequence[Relation], parts: int,
             request: PartitionRequest) -> Sequence[Sequence[Piece]]:
        """For each partition its pieces of the relations, where nothing is replicated.

        Whole relations, heaviest first to the lightest partition; with a memory limit, those
        that are too large are cut by destination.
        """
        if request.memory_limit is not None:
            return deal_within(schema, relations, request.target, parts, request.memory_limit,
                               request.workload)
        return deal_whole(lambda r: schema.edge_counts[r] + schema.node_counts[r.dst])(
            schema, relations, parts)

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        if (request.replication or self.replication) == "none":
            if request.metapaths:
                raise InputError(
                    "metapaths need replication = full: without it a seed and a neighbour of one "
                    "node share a row, but metapaths let them follow different relations")
            plan = plan_without_replication(
                schema, request.target, check_hops(request.hops, None), request.parts,
                lambda schema, relations, parts: self.deal(schema, relations, parts, request),
                self.name)
        else:
            plan = make_plan(
                schema, request.target, request.hops, request.parts, request.metapaths or None,
                assign=lambda weights, parts: self.assign(weights, parts, request.seed),
                method=self.name)
        if request.memory_limit is not None:
            plan = within(plan, request.memory_limit, request.workload)
        return plan

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> Path:
        schema = source.schema if isinstance(source, Store) else source.schema()
        plan = self.plan(schema, request)
        return write_partition(source, plan, out, overwrite=overwrite, progress=progress,
                               edge_ids=request.edge_ids)


class Meta(MetatreeBackend):
    """Meta-partitioning with LPT (Heta §5)."""

    name = "meta"
    description = "meta-partitioning: sub-metatrees to the lightest partition, heaviest first"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        return balanced(weights, parts)


class MetaShared(Meta):
    """Meta-partitioning where partitions have equal work in a step.

    A graph can have fewer heavy root relations than partitions: in MAG240M one of two has most of
    the edges. Here the heaviest sub-metatrees are shared by target nodes, at the price that several
    partitions have their relations. What is equal is the work that :func:`dgl_heta.cost.step_work`
    expects, not what is stored.
    """

    name = "meta-shared"
    description = "meta-partitioning, heavy sub-metatrees shared by seeds for equal work in a step"

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        if (request.replication or self.replication) == "none":
            return super().plan(schema, request)
        paths = request.metapaths or None
        hops = check_hops(request.hops, paths)

        def work(plan: Plan, partition: Partition) -> float:
            group = max(group_sizes(request.parts, len(plan.sub_metatrees)))
            batch = request.workload.batch_size * group
            return step_work(plan, partition, replace(request.workload, batch_size=batch))

        plan = make_shared_plan(schema, request.target, hops, request.parts, paths, work, self.name)
        if request.memory_limit is not None:
            plan = within(plan, request.memory_limit, request.workload)
        return plan


class RelationRandom(MetatreeBackend):
    """Relations at random to partitions, none replicated (Heta §8.5, Fig. 14)."""

    name = "relation-random"
    description = "relations to partitions at random, none on two (RAF without meta-partitioning)"
    replication = "none"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        order = random.Random(seed).sample(range(len(weights)), len(weights))
        return [sorted(order[part::parts]) for part in range(parts)]

    def deal(self, schema: Schema, relations: Sequence[Relation], parts: int,
             request: PartitionRequest) -> Sequence[Sequence[Piece]]:
        if request.memory_limit is not None or parts > len(relations):
            return super().deal(schema, relations, parts, request)
        generator = random.Random(request.seed)
        order = generator.sample(range(len(relations)), len(relations))
        # One relation each first, so that no partition is without.
        places = [*range(parts), *(generator.randrange(parts) for _ in order[parts:])]
        return [[(relations[i], 0, schema.node_counts[relations[i].dst])
                 for i in sorted(i for i, place in zip(order, places) if place == part)]
                for part in range(parts)]


class DistDGL:
    """The methods of `dgl.distributed.partition_graph`, for comparison."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = f"dgl.distributed.partition_graph, part_method='{name}'"

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        raise InputError(f"method '{self.name}' assigns nodes and not relations, so there is no "
                         "plan to show; use meta, or `dgl-heta partition` without --dry-run")

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> Path:
        from dgl_heta.dgl_partition import partition_with_dgl

        for name, given in (("replication", request.replication),
                            ("a memory limit", request.memory_limit)):
            if given is not None:
                raise InputError(f"method '{self.name}' is DistDGL's own and knows no {name}; "
                                 "leave it out, or use method meta")

        return partition_with_dgl(source, self.name, request, out, overwrite=overwrite)


@hookimpl
def dgl_heta_partition_backends() -> list[PartitionBackend]:
    return [Meta(), MetaShared(), RelationRandom(), DistDGL("metis"), DistDGL("random")]


def write_partition(source: GraphSource | Store, plan: Plan, out: str | Path, *,
                    graph_name: str | None = None, overwrite: bool = False,
                    progress: Progress | None = None, memory_mb: int = 512,
                    edge_ids: bool = False) -> Path:
    """Write a partition directory for a plan; returns the path of its part_config JSON.

    A source is written as a store inside the directory; an existing store is referred to, by
    its relative path, so that the two can be moved together.

    Raises
    ------
    InputError
        The plan is for another graph, a name that part_config cannot hold, or as
        :func:`dgl_heta.store.write_store`.
    """
    out = Path(out)
    if isinstance(source, Store):
        schema, name = source.schema, graph_name or source.manifest.name
        store = source.directory.resolve()
        place = Path(os.path.realpath(out))
        if place in (store, *store.parents):
            raise InputError(f"the store {source.directory} lies in {out}, which would be "
                             "overwritten; choose another directory for the partition")
        location = os.path.relpath(store, place)
    else:
        check_source(source)
        schema, name, location = source.schema(), graph_name or source.name, STORE_DIR
    if not _same(schema, plan.schema):
        raise InputError("the plan was made for another graph: node types, relations, counts or "
                         "feature sizes differ; make it again with `dgl-heta partition`")
    config = part_config(plan, name, location)
    file = config_name(name)
    with new_directory(out, overwrite=overwrite, kind=PLAN_FILE) as directory:
        if not isinstance(source, Store):
            (directory / STORE_DIR).mkdir()
            fill_store(source, directory / STORE_DIR, memory_mb=memory_mb, edge_ids=edge_ids,
                       progress=progress)
        plan.save(directory / PLAN_FILE)
        (directory / file).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return out / file


def config_name(graph_name: str) -> str:
    """DistDGL's `<graph_name>.json`, made safe as a file name and different from the plan's."""
    file = (safe_name(graph_name) or "graph") + ".json"
    return f"graph-{file}" if file.lower() == PLAN_FILE else file


def _same(one: Schema, other: Schema) -> bool:
    """Equal, also in the order of types and relations, from which DistDGL's ids follow."""
    return one == other and (one.node_types, one.relations) == (other.node_types, other.relations)


def part_config(plan: Plan, graph_name: str, store: str) -> dict[str, Any]:
    """DistDGL's partition JSON for a plan.

    Every part claims the nodes and edges that it owns: target nodes in even contiguous
    ranges, another type by the partition that uses it, or evenly by those that do. The parts
    name no `part_graph`, so that plain DGL refuses them instead of training on a graph that
    lacks edges.
    """
    schema, everyone = plan.schema, tuple(range(plan.num_parts))
    for name in (*schema.node_types, *(r.etype for r in schema.relations)):
        if ":" in name:
            raise InputError(f"'{name}' has a colon, by which DistDGL's part_config separates "
                             "names; rename the node type or edge type")
    node_map = _tile(everyone, {
        t: (n, everyone if t in plan.targets else plan.users(t) or everyone)
        for t, n in schema.node_counts.items()})
    edge_map = _tile(everyone, {
        ":".join(r): (n, tuple(p.index for p in plan.partitions if r in p.relations) or everyone)
        for r, n in schema.edge_counts.items()})
    return {
        "graph_name": graph_name,
        "num_nodes": sum(schema.node_counts.values()),
        "num_edges": sum(schema.edge_counts.values()),
        "num_parts": plan.num_parts,
        "part_method": plan.method,
        "halo_hops": plan.hops,
        "node_map": node_map,
        "edge_map": edge_map,
        "ntypes": {t: i for i, t in enumerate(schema.node_types)},
        "etypes": {":".join(r): i for i, r in enumerate(schema.relations)},
        **{f"part-{i}": {"dgl_heta_store": store, "dgl_heta_plan": PLAN_FILE} for i in everyone},
    }


def _tile(parts: Sequence[int],
          owned: dict[str, tuple[int, Sequence[int]]]) -> dict[str, list[list[int]]]:
    """Per name and part the half-open range of ids, even among the name's owners.

    `owned` is name → (count, owners). Ids go through the parts and in a part through the
    names, as DistDGL numbers them.
    """
    ranges: dict[str, list[list[int]]] = {name: [] for name in owned}
    offset = 0
    for part in parts:
        for name, (count, owners) in owned.items():
            size = 0
            if part in owners:
                place = list(owners).index(part)
                size = count * (place + 1) // len(owners) - count * place // len(owners)
            ranges[name].append([offset, offset + size])
            offset += size
    return ranges


def is_partition(path: Path) -> bool:
    """Whether a directory was written by :func:`write_partition`."""
    return (path / PLAN_FILE).is_file()


def open_partition(path: str | Path) -> tuple[Store, Plan]:
    """The store and the plan of a partition directory.

    Raises
    ------
    InputError
        Not such a directory, or the plan is for a graph with another schema.
    """
    path = Path(path)
    try:
        plan = Plan.load(path / PLAN_FILE)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"plan {path / PLAN_FILE} is damaged: {error!r}") from None
    configs = [c for c in path.glob("*.json") if c.name != PLAN_FILE]
    if len(configs) != 1:
        raise InputError(f"{path} holds {len(configs)} part_config files beside {PLAN_FILE}; "
                         "there must be one")
    try:
        config = json.loads(configs[0].read_text(encoding="utf-8"))
        location = config["part-0"]["dgl_heta_store"]
        name = config["graph_name"]
        if not isinstance(location, str) or not isinstance(name, str):
            raise TypeError("dgl_heta_store and graph_name must be text")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"part_config {configs[0]} is damaged: {error!r}") from None
    if part_config(plan, name, location) != config:
        raise InputError(f"part_config {configs[0]} was edited: it does not follow from "
                         f"{PLAN_FILE}; make the partition again")
    store = Store(path / location)
    if not _same(store.schema, plan.schema):
        raise InputError(f"the plan in {path} was made for another graph than the store "
                         f"{store.directory}: node types, relations, counts or feature sizes "
                         "differ")
    return store, plan
