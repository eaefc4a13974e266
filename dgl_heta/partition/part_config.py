"""DistDGL's partition JSON, derived from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.planning.partition_shares import holders
from dgl_heta.planning.plan import Plan
from dgl_heta.store.writer import safe_name

PLAN_FILE = "plan.json"


def config_name(graph_name: str) -> str:
    """DistDGL's `<graph_name>.json`, made safe as a file name and different from the plan's."""
    file = (safe_name(graph_name) or "graph") + ".json"
    return f"graph-{file}" if file.lower() == PLAN_FILE else file


def part_config(plan: Plan, graph_name: str, store: str) -> dict[str, Any]:
    """DistDGL's partition JSON for a plan.

    Every part claims the nodes and edges that it owns: a type by the partition that uses it, evenly
    by those that do, or by the one that aggregates it for the others; target nodes otherwise in
    even contiguous ranges. The parts name no `part_graph`, so that plain DGL refuses
    them instead of training on a graph that lacks edges.
    """
    schema, everyone = plan.schema, tuple(range(plan.num_parts))
    for name in (*schema.node_types, *(r.etype for r in schema.relations)):
        if ":" in name:
            raise InputError(f"'{name}' has a colon, by which DistDGL's part_config separates "
                             "names; rename the node type or edge type")
    aggregated = {r.src for r in plan.offloaded}
    kept = {t for t in schema.node_types
            if plan.keepers(t) and (t in aggregated or t not in plan.targets)}
    node_map = _tile(everyone, {
        t: (n, plan.keepers(t) if t in kept else everyone) for t, n in schema.node_counts.items()})
    having = holders(p.relations for p in plan.partitions)
    edge_map = _tile(everyone, {
        ":".join(r): (n, having.get(r, everyone))
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
    sizes = np.zeros((len(parts), len(owned)), np.int64)
    for column, (count, owners) in enumerate(owned.values()):
        sizes[list(owners), column] = np.diff(count * np.arange(len(owners) + 1) // len(owners))
    ends = sizes.cumsum().reshape(sizes.shape)
    return dict(zip(owned, np.stack([ends - sizes, ends], 2).swapaxes(0, 1).tolist()))
