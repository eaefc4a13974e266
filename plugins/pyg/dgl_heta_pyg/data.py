"""What a script asks of its HeteroData, answered by a partition, whose arrays stay in their files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dgl_heta
from dgl_heta import InputError, Partition
from dgl_heta.tools import MASKS


class PartitionData:
    """An open partition, `part`, in the place of the HeteroData of a script.

    `data["paper"]` has `num_nodes`, `num_features` and, of target types, `train_mask`, `val_mask`
    and `test_mask`, bool (nodes,); not where seeds are of `task.table`, at times of their own.
    All else of a node is in the batches that read it.
    """

    def __init__(self, part: Partition) -> None:
        self.part = part
        self.node_types = list(part.schema.node_types)
        self.edge_types = [(r.src, r.etype, r.dst) for r in part.schema.relations]

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        return self.node_types, self.edge_types

    def __getitem__(self, ntype: str) -> _Nodes:
        self.part.schema.check_node_type(ntype)
        return _Nodes(self.part, ntype)


class _Nodes:
    def __init__(self, part: Partition, ntype: str) -> None:
        self._part, self._ntype = part, ntype
        self.num_nodes = part.schema.node_counts[ntype]
        self.num_features = self.num_node_features = part.spec(1).input_dims[ntype]

    def __getattr__(self, name: str) -> Tensor:
        part, ntype = self.__dict__["_part"], self.__dict__["_ntype"]
        if name in MASKS and ntype in part.targets:
            split = name.removesuffix("_mask")
            if part.store.manifest.timed and part.task.table is not None:
                raise InputError(f"seeds of '{ntype}' are those of task.table, nodes at times, and "
                                 f"{name} has no times; input_nodes='{split}' keeps them")
            ids = part.split(ntype, split)
            ids = ids if ids.ndim == 1 else ids[:, 0]  # a seed is at the time of its row
            mask = torch.zeros(self.num_nodes, dtype=torch.bool)
            mask[torch.from_numpy(ids)] = True
            return mask
        raise AttributeError(f"a partition has no '{name}' of all nodes of '{ntype}' in memory; "
                             "batches have that of their nodes")


def open_partition(directory: str | Path, settings: Iterable[str] = (),
                   config: str | Path | None = None) -> PartitionData:
    """Open a partition in the place of a HeteroData; arguments are as of
    :func:`dgl_heta.open_partition`, but that learnable rows are shared as rows."""
    own = [settings] if isinstance(settings, str) else settings
    return PartitionData(dgl_heta.open_partition(
        directory, ["partition.shared=rows", *own], config))


def part_of(data: Any) -> Partition:
    """The partition that is given; an InputError if it is something else."""
    part = data.part if isinstance(data, PartitionData) else data
    if not isinstance(part, Partition):
        raise InputError(f"a partition is needed, not {type(data).__name__}; write one of it "
                         "(docs/pyg.md), and give dgl_heta_pyg.open_partition(directory)")
    return part
