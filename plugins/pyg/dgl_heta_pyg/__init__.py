"""PyG's heterogeneous models on several workers: batches, and models that are merged."""

from __future__ import annotations

from dgl_heta_pyg.data import PartitionData, open_partition
from dgl_heta_pyg.distributed import DistributedPyG, distribute
from dgl_heta_pyg.links import LinkNeighborLoader
from dgl_heta_pyg.loader import Batch, NeighborLoader

__all__ = ["Batch", "DistributedPyG", "LinkNeighborLoader", "NeighborLoader", "PartitionData",
           "distribute", "open_partition"]
