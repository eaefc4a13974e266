"""Streaming partitioners for dgl-heta, after CATGNN (Huang et al., 2024): SPRING and its peers.

For graphs that are homogeneous or have one huge relation, and machines with little memory: edges
are read in a stream, several times, and never held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgl_heta import hookimpl
from dgl_heta_catgnn.dbh import Dbh
from dgl_heta_catgnn.hdrf import Hdrf
from dgl_heta_catgnn.partitioner import (
    Assignment,
    EdgePartitioner,
    NodePartitioner,
    StreamPartitioner,
    StreamSettings,
)
from dgl_heta_catgnn.powergraph import PowerGraph
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.spring import Spring
from dgl_heta_catgnn.streams import Chunk, EdgeStream
from dgl_heta_catgnn.two_phase import TwoPhase

if TYPE_CHECKING:
    from dgl_heta import ModuleWrapper

__all__ = ["Assignment", "Chunk", "Dbh", "EdgePartitioner", "EdgeStream", "Hdrf",
           "NodePartitioner", "PowerGraph", "Replicas", "Spring", "StreamPartitioner",
           "StreamSettings", "TwoPhase", "built_in"]


@hookimpl
def dgl_heta_partition_backends() -> list[StreamPartitioner]:
    return built_in()


@hookimpl
def dgl_heta_module_wrappers() -> list[ModuleWrapper]:
    from dgl_heta_catgnn.wrapper import ModelAveraging  # with torch, which partitioning needs not

    return [ModelAveraging()]


def built_in() -> list[StreamPartitioner]:
    """The partitioners of this distribution."""
    return [Spring(), Hdrf(), Dbh(), PowerGraph(), TwoPhase()]
