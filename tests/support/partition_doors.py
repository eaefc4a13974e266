"""The two doors of `partition_graph`, and a small graph to call them with."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.distributed
import torch

import dgl_heta
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from tests.support.graphs import academic

GRAPH = to_dgl_graph(academic())
MASK = GRAPH.nodes["paper"].data["train_mask"]
CITES = ("paper", "cites", "paper")


def direct(*args: Any, **kwargs: Any) -> Any:
    """The door of dgl-heta, which needs nothing enabled."""
    return dgl_heta.partition_graph(*args, **kwargs)


def patched(*args: Any, **kwargs: Any) -> Any:
    """DGL's own door, without a word in the settings."""
    dgl_heta.enable()
    try:
        return dgl.distributed.partition_graph(*args, **kwargs)
    finally:
        dgl_heta.disable()


DOORS = (direct, patched)


def graph(edge_data: bool = False) -> Any:
    """A copy, since DGL writes into the graph that it partitions."""
    made = GRAPH.clone()
    if edge_data:
        made.edges[CITES].data["weight"] = torch.arange(float(made.num_edges(CITES)))
        made.edges[CITES].data[dgl.EID] = torch.arange(made.num_edges(CITES))
        made.edges["writes"].data[dgl.EID] = torch.arange(made.num_edges("writes"))
    return made
