"""Streaming partitioners for dgl-heta, after CATGNN (Huang et al., 2024): SPRING and its peers.

For graphs that are homogeneous or have one huge relation, and machines with little memory: edges
are read in a stream, several times, and never held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgl_heta import Command, Cutter, Dataset, hookimpl
from dgl_heta_catgnn.communities import Communities
from dgl_heta_catgnn.cutting import SpringCutter
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
from dgl_heta_catgnn.training.job import TrainSettings
from dgl_heta_catgnn.two_phase import TwoPhase

if TYPE_CHECKING:
    from dgl_heta import ModuleWrapper, Patches

__all__ = ["Assignment", "Chunk", "Communities", "Dbh", "EdgePartitioner", "EdgeStream", "Hdrf",
           "NodePartitioner", "PartBatches", "PowerGraph", "Replicas", "Spring", "SpringCutter",
           "StreamPartitioner", "StreamSettings", "TwoPhase", "built_in"]


@hookimpl
def dgl_heta_partition_backends() -> list[StreamPartitioner]:
    return built_in()


@hookimpl
def dgl_heta_module_wrappers() -> list[ModuleWrapper]:
    from dgl_heta_catgnn.wrapper import ModelAveraging  # with torch, which partitioning needs not

    return [ModelAveraging()]


@hookimpl
def dgl_heta_patches() -> list[Patches]:
    from dgl_heta.tools import PatchTable

    return [PatchTable("local-partition", "dgl_heta_catgnn.local_partition")]


@hookimpl
def dgl_heta_datasets() -> list[Dataset]:
    return [Communities()]


@hookimpl
def dgl_heta_commands() -> list[Command]:
    return [Catgnn()]


class Catgnn(Command):
    """The command `dgl-heta catgnn`."""

    name = "catgnn"
    description = "training of homogeneous graphs on parts, with model averaging"
    settings = TrainSettings()

    def command(self) -> Any:
        from dgl_heta_catgnn.command import app

        return app


def __getattr__(name: str) -> Any:
    if name == "PartBatches":  # it needs torch and DGL
        from dgl_heta_catgnn.training.batches import PartBatches

        return PartBatches
    raise AttributeError(f"module 'dgl_heta_catgnn' has no attribute '{name}'")


@hookimpl
def dgl_heta_cutters() -> list[Cutter]:
    return [SpringCutter()]


def built_in() -> list[StreamPartitioner]:
    """The partitioners of this distribution."""
    return [Spring(), Hdrf(), Dbh(), PowerGraph(), TwoPhase()]
