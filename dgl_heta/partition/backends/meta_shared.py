"""`meta-shared`: meta-partitioning for equal work in a step."""

from __future__ import annotations

from dataclasses import replace

from dgl_heta.graph.schema import Schema
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.compute import step_work
from dgl_heta.planning.dealing import group_sizes
from dgl_heta.planning.limit import within
from dgl_heta.planning.metatree import check_hops
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import make_shared_plan


class MetaShared(Meta):
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
