"""Node data of a meta-partitioned graph: read from this machine's store, not over the network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgl_heta.distdgl.session import Session
from dgl_heta.errors import HetaError
from dgl_heta.features.rows import gather_rows


def read(session: Session, tensor: Any, index: Any) -> Tensor | None:
    """Rows of a DistTensor that holds an array of the graph; None if it is not stored here."""
    from dgl.distributed.utils import totensor

    array = session.rows(tensor._name)
    if array is None or tensor.dtype not in _known(array):
        return None
    ids = totensor(index)
    if ids.dtype == torch.bool or ids.dim() != 1:
        return None
    flat = array.reshape(len(array), -1)
    rows = torch.from_numpy(gather_rows(flat, ids.to(torch.int64).numpy()))
    return rows.view(len(ids), *array.shape[1:]).to(tensor.dtype)


def refuse_write(session: Session, tensor: Any) -> None:
    """Refuse to write what the trainers read from their stores.

    Raises
    ------
    HetaError
        The DistTensor holds an array of the graph.
    """
    if session.rows(tensor._name) is not None:
        raise HetaError(f"'{tensor.name}' belongs to the meta-partitioned graph and is read from "
                        "its store on every machine, so it cannot be written; create a "
                        "dgl.distributed.DistTensor for results")


def _known(array: Any) -> set[torch.dtype]:
    """Types under which the key-value store may hold an array: bool becomes uint8 there."""
    dtype = torch.from_numpy(array[:0].copy()).dtype
    return {dtype, torch.uint8} if dtype == torch.bool else {dtype}
