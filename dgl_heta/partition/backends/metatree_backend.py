"""The base of partition backends that deal sub-metatrees."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.protocols import PartitionBackend
from dgl_heta.partition.arguments import warn_once
from dgl_heta.partition.cutters import check_hub, in_degrees, warn_of_ranges
from dgl_heta.partition.directory import write_partition
from dgl_heta.partition.request import PartitionRequest, PartitionResult
from dgl_heta.planning.hubs import share_hubs
from dgl_heta.planning.limit import deal_within, within
from dgl_heta.planning.making import (
    deal_whole,
    make_plan,
    plan_without_replication,
    with_ownership,
)
from dgl_heta.planning.metatree import check_hops
from dgl_heta.planning.ownership import Ownership, checked_cut
from dgl_heta.planning.partition_shares import Piece
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.shared_rows import share_rows
from dgl_heta.store import Store
from dgl_heta.store.reader import as_source
from dgl_heta.store.writer import Progress


def check_divided(plan: Plan, request: PartitionRequest) -> None:
    """Refuse a homogeneous graph whose partitions would be copies that nobody asked for.

    A graph of one relation has nothing to deal. Where partitions are copies because every
    sub-metatree leads to all of the graph, as in a knowledge graph of one node type, that is a
    warning. Where a request says `replication = "full"`, copies are meant: workers then train on
    the same graph, each on its share of the seeds.

    Raises
    ------
    InputError
        The graph's only relation joins the target to itself.
    """
    if plan.num_parts == 1 or plan.replication != "full" or request.replication == "full":
        return
    schema = plan.schema
    if any((len(p.relations), len(p.node_types)) != (
            len(schema.relations), len(schema.node_counts)) for p in plan.partitions):
        return
    roots = [tree.root for tree in plan.sub_metatrees]
    why = (f"'{roots[0]}' is the only one into '{roots[0].dst}'" if len(roots) == 1 else
           f"each of the {len(roots)} into {listing(map(repr, plan.targets))} leads to all of it")
    text = (f"{plan.num_parts} partitions by '{plan.method}' would each hold the whole graph: it "
            f"divides by relation, and {why}; divide the nodes instead, by partition.method = "
            '"metis" (or "spring" of dgl-heta-catgnn), where DistDGL scripts run as in plain DGL; '
            'if every machine is to have a copy, say partition.replication = "full"')
    if len(schema.relations) == 1 and roots[0].src == roots[0].dst:
        raise InputError(text)
    warn_once(text + "; they are made as asked for")


class MetatreeBackend(PartitionBackend):
    """A backend that deals sub-metatrees to partitions; subclasses say how.

    Subclasses set `name` and `description` and define :meth:`assign`; those with their own way
    to deal relations without replication define :meth:`deal`, to cut a relation :meth:`cut`.
    """

    name = ""
    description = ""
    replication = "full"
    """The replication where the request does not say."""

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
        return deal_whole(schema, relations, parts)

    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]
            ) -> np.ndarray | None:
        """As :meth:`dgl_heta.Cutter.cut`, where the user has not named a cutter."""
        return None

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        replicates = (request.replication or self.replication) != "none"
        if request.cutter is not None and replicates:
            raise InputError(f"cutter '{request.cutter.name}' has nothing to cut: relations are "
                             "cut where nothing is replicated; ask for replication = none and a "
                             "memory limit, or leave the cutter out")
        if not replicates:
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
                  overwrite: bool = False, progress: Progress | None = None) -> PartitionResult:
        schema = source.schema if isinstance(source, Store) else source.schema()
        plan = self.plan(schema, request)
        check_divided(plan, request)
        plan, _ = share_rows(self._cut_by_edges(plan, source, request), request.workload,
                             request.shared, request.shared_origin, request.memory_limit)
        config = write_partition(source, plan, out, overwrite=overwrite, progress=progress,
                                 edge_ids=request.edge_ids, builders=request.builders)
        return PartitionResult(config, plan.num_parts, statistics={
            "nodes": [p.num_nodes for p in plan.partitions],
            "edges": [p.num_edges for p in plan.partitions],
            "replication_factor": plan.replication_factor()})

    def _cut_by_edges(self, plan: Plan, graph: GraphSource | Store, request: PartitionRequest
                      ) -> Plan:
        """The plan with arrays for those relations that a cutter, or :meth:`cut`, has cut."""
        ownership, cutter = {}, request.cutter or self
        for relation in plan.schema.relations:
            pieces = {p.index: p.ranges[relation] for p in plan.partitions if relation in p.ranges}
            if not pieces:
                continue
            source, parts = as_source(graph), [high - low for low, high in pieces.values()]
            degrees = in_degrees(source, relation)  # ids are checked before a cutter sees them
            chosen = cutter.cut(source, relation, tuple(parts))
            if chosen is None:
                warn_of_ranges(plan, relation, degrees, request)
                continue
            by = f"{'cutter' if request.cutter else 'partition method'} '{cutter.name}'"
            chosen = checked_cut(chosen, relation, plan.schema, len(parts), by)
            ownership[relation] = Ownership.of(
                chosen, relation, plan.schema, list(pieces), plan.num_parts, by, degrees,
                share_hubs(chosen, degrees, parts, request.hubs))
            if not request.hubs:
                check_hub(with_ownership(plan, ownership), relation, degrees, request)
        if request.cutter is not None and not any(p.ranges for p in plan.partitions):
            warn_once(f"cutter '{request.cutter.name}' had nothing to cut: every relation is whole "
                      "on one partition; a lower limit (--memory-mb) cuts those that are larger")
        if not ownership:
            return plan
        plan = with_ownership(plan, ownership)
        if request.memory_limit is not None:
            plan = within(plan, request.memory_limit, request.workload)
        return plan
