"""Meta-partitioning (Heta §5): whole sub-metatrees, heavy ones shared, or what is best of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dgl_heta.graph.schema import Schema
from dgl_heta.partition.backends.metatree_backend import MetatreeBackend
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.compute import step_work
from dgl_heta.planning.dealing import balanced, group_sizes
from dgl_heta.planning.limit import within
from dgl_heta.planning.metatree import check_hops
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import make_shared_plan, worth_sharing

MANY = 100, 1_000, 256
"""Sub-metatrees, relations and partitions. Of more sub-metatrees whole ones are dealt evenly
enough; to compare plans of more takes seconds."""


class MetaWhole(MetatreeBackend):
    """Meta-partitioning with LPT: every sub-metatree as a whole (Heta, Algorithm 2)."""

    name = "meta-whole"
    description = "meta-partitioning: whole sub-metatrees to the lightest partition, heaviest first"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        return balanced(weights, parts)


class MetaShared(MetaWhole):
    """Meta-partitioning where partitions have equal work in a step.

    A graph can have fewer heavy root relations than partitions: in MAG240M one of two has most of
    the edges. Here the heaviest sub-metatrees are shared by target nodes, at the price that several
    partitions have their relations. What is equal is the work that
    :func:`dgl_heta.planning.compute.step_work` expects, not what is stored.
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


class Meta(MetaWhole):
    """Meta-partitioning, the default: whole sub-metatrees, or heavy ones shared where that is worth
    it (:func:`dgl_heta.planning.sharing.worth_sharing`)."""

    name = "meta"
    description = "meta-partitioning: whole sub-metatrees, heavy ones shared where it is worth it"

    def plan(self, schema: Schema, request: PartitionRequest) -> Plan:
        plan = super().plan(schema, request)
        size = len(plan.sub_metatrees), len(schema.relations), plan.num_parts
        if (plan.replication == "none" or plan.num_parts == 1 or request.memory_limit is not None
                or any(count > most for count, most in zip(size, MANY))):
            return plan
        shared = replace(MetaShared().plan(schema, request), method=self.name)
        return shared if worth_sharing(plan, shared, request.workload, request.shared) else plan
