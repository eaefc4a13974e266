"""PyG's heterogeneous models on several workers: data, batches, and models that are merged.

A name is loaded when it is first used, as dgl-heta asks for the reader alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from dgl_heta import Reader, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from dgl_heta import GraphSource
    from dgl_heta_pyg.data import PartitionData, open_partition
    from dgl_heta_pyg.distributed import DistributedPyG, distribute
    from dgl_heta_pyg.links import LinkNeighborLoader
    from dgl_heta_pyg.loader import Batch, NeighborLoader
    from dgl_heta_pyg.reader import read_hetero_data

__all__ = ["Batch", "DistributedPyG", "LinkNeighborLoader", "NeighborLoader", "PartitionData",
           "distribute", "open_partition", "read_hetero_data"]
_LAZY = {"PartitionData": "data", "open_partition": "data", "DistributedPyG": "distributed",
         "distribute": "distributed", "LinkNeighborLoader": "links", "Batch": "loader",
         "NeighborLoader": "loader", "read_hetero_data": "reader"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"dgl_heta_pyg.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'dgl_heta_pyg' has no attribute '{name}'")


class SavedHeteroData(Reader):
    """A file of `torch.save` with a HeteroData."""

    name = "pyg"
    description = "a HeteroData of PyG that torch.save wrote (.pt, .pth)"

    class Options(BaseModel):
        """Options of a HeteroData."""

        target: str | None = Field(None, description="node type to predict; default: the only one "
                                   "with y and train_mask")
        kind: Literal["classification", "multilabel", "regression"] | None = Field(
            None, description="of the task; default: what follows from y")
        unlabelled: float | None = Field(None, description="a value of labels that stands for "
                                         "none, besides NaN, such as -1")
        fold: int | None = Field(None, description="which column of masks with one for each fold, "
                                 "from 0")
        time_attr: str | None = Field(None, description="array with the time of each row or edge, "
                                      "in whole seconds")

    options = Options()

    def matches(self, path: Path) -> bool:
        return path.suffix in (".pt", ".pth") and path.is_file()

    def read(self, path: Path, **options: Any) -> GraphSource:
        from dgl_heta_pyg.reader import read_saved_hetero_data

        return read_saved_hetero_data(path, **options)


@hookimpl
def dgl_heta_readers() -> list[Reader]:
    return [SavedHeteroData()]
