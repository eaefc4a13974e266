"""Partition backends: from a graph to a plan over a relation store, or to DistDGL's parts.

A partition directory holds DistDGL's `<graph_name>.json` (graph_name, num_parts, node_map,
edge_map, ntypes, etypes, part-i), the plan, and the store or a pointer to it. Nothing is
rewritten per partition (docs/format.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dgl_heta.errors import InputError
from dgl_heta.graph import GraphSource
from dgl_heta.hookspecs import hookimpl
from dgl_heta.metatree import Metapath
from dgl_heta.plan import Plan, longest_processing_time, make_plan
from dgl_heta.schema import Schema
from dgl_heta.store import Store, write_store
from dgl_heta.store.writer import Progress, new_directory

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


class PartitionBackend(Protocol):
    """A provider of hook `dgl_heta_partition_backends`."""

    name: str
    description: str

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        """Plan from the schema alone, or raise an :class:`InputError` that it cannot."""

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> Path:
        """Write a partition directory; returns the path of its part_config JSON."""


class MetatreeBackend:
    """A backend that deals sub-metatrees to partitions; subclasses say how.

    Subclasses set `name` and `description` and define :meth:`assign`.
    """

    name = ""
    description = ""

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        """For each of `parts` partitions the indices of its sub-metatrees.

        `weights` are those of the sub-metatrees, heaviest first; there are at least `parts`.
        """
        raise NotImplementedError

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        return make_plan(
            schema, request.target, request.hops, request.parts, request.metapaths or None,
            assign=lambda weights, parts: self.assign(weights, parts, request.seed),
            method=self.name)

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
        return longest_processing_time(weights, parts)


class DistDGL:
    """The methods of `dgl.distributed.partition_graph`, for comparison."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = f"dgl.distributed.partition_graph, part_method='{name}'"

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        raise InputError(f"method '{self.name}' assigns nodes and not relations, so there is no "
                         "plan to show; use meta, or `dgl-heta partition`")

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> Path:
        from dgl_heta.dgl_partition import partition_with_dgl

        return partition_with_dgl(source, self.name, request, out, overwrite=overwrite)


@hookimpl
def dgl_heta_partition_backends() -> list[PartitionBackend]:
    return [Meta(), DistDGL("metis"), DistDGL("random")]


def write_partition(source: GraphSource | Store, plan: Plan, out: Path, *,
                    graph_name: str | None = None, overwrite: bool = False,
                    progress: Progress | None = None, memory_mb: int = 512,
                    edge_ids: bool = False) -> Path:
    """Write a partition directory for a plan; returns the path of its part_config JSON.

    A source is written as a store inside the directory; an existing store is referred to.
    """
    with new_directory(out, overwrite=overwrite, kind=PLAN_FILE) as directory:
        if isinstance(source, Store):
            store_path = os.path.relpath(source.directory.resolve(), out.resolve())
            name = graph_name or source.manifest.name
        else:
            store_path = STORE_DIR
            name = graph_name or source.name
            write_store(source, directory / STORE_DIR, memory_mb=memory_mb, edge_ids=edge_ids,
                        progress=progress)
        plan.save(directory / PLAN_FILE)
        config = part_config(plan, name, store_path)
        (directory / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n",
                                                encoding="utf-8")
    return out / f"{name}.json"


def part_config(plan: Plan, graph_name: str, store: str) -> dict[str, Any]:
    """DistDGL's partition JSON for a plan.

    Every part claims the nodes and edges that it owns: target nodes in even contiguous
    ranges, another type by the partition that uses it, or evenly by those that do. The parts
    name no `part_graph`, so that plain DGL refuses them instead of training on a graph that
    lacks edges.
    """
    schema, everyone = plan.schema, tuple(range(plan.num_parts))
    node_map: dict[str, list[list[int]]] = {}
    offset = 0
    for ntype, count in schema.node_counts.items():
        users = everyone if ntype in plan.targets else plan.users(ntype) or everyone
        node_map[ntype] = _ranges(offset, count, users, plan.num_parts)
        offset += count
    edge_map: dict[str, list[list[int]]] = {}
    offset = 0
    for relation, count in schema.edge_counts.items():
        users = tuple(p.index for p in plan.partitions if relation in p.relations) or everyone
        edge_map[":".join(relation)] = _ranges(offset, count, users, plan.num_parts)
        offset += count
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


def _ranges(offset: int, count: int, owners: Sequence[int], parts: int) -> list[list[int]]:
    """Per partition the half-open range of ids that it owns, even among the owners."""
    ranges = []
    for part in range(parts):
        before = sum(owner < part for owner in owners)
        low = offset + count * before // len(owners)
        high = offset + count * (before + 1) // len(owners) if part in owners else low
        ranges.append([low, high])
    return ranges


def is_partition(path: Path) -> bool:
    """Whether a directory was written by :func:`write_partition`."""
    return (path / PLAN_FILE).is_file()


def open_partition(path: Path) -> tuple[Store, Plan]:
    """The store and the plan of a partition directory.

    Raises
    ------
    InputError
        Not such a directory, or the plan is for a graph with another schema.
    """
    plan = Plan.load(path / PLAN_FILE)
    configs = [c for c in path.glob("*.json") if c.name != PLAN_FILE]
    if len(configs) != 1:
        raise InputError(f"{path} holds {len(configs)} part_config files beside {PLAN_FILE}; "
                         "there must be one")
    try:
        config = json.loads(configs[0].read_text(encoding="utf-8"))
        location = config["part-0"]["dgl_heta_store"]
        name = config["graph_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"part_config {configs[0]} is damaged: {error!r}") from None
    if part_config(plan, name, location) != config:
        raise InputError(f"part_config {configs[0]} was edited: it does not follow from "
                         f"{PLAN_FILE}; make the partition again")
    store = Store(path / location)
    if store.schema != plan.schema:
        raise InputError(f"the plan in {path} was made for another graph than the store "
                         f"{store.directory}: their node types or relations differ")
    return store, plan
