"""Which nodes the rows of a tensor in a script are of: matched by their number with a block's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dgl
import numpy as np
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.features.deferred import LazyRows, peek


@dataclass(frozen=True)
class Side:
    """The nodes of a type on one side of a block.

    Attributes
    ----------
    ids : (rows,) int64.
    whole : (rows,) bool, which rows' states are complete here; None for all. The states of other
        trainers' seeds that no edge reads on this machine may have any values.
    """

    ntype: str
    ids: np.ndarray
    whole: np.ndarray | None = None

    def rows_of(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are complete, and their ids."""
        return (values, self.ids) if self.whole is None else (
            values[self.whole], self.ids[self.whole])


def layer_of(block: Any) -> int:
    """The layer of a block that a loader made, 1 … number of layers; 0 for any other block."""
    layer = getattr(block, "layer", None)
    if layer is not None:
        return int(layer.block.layer)
    return int(getattr(block, "heta_layer", 0))


def sources(block: DGLBlock) -> list[Side]:
    """The source side of a block, type by type."""
    return _sides(block, block.srctypes, block.srcnodes, _whole_sources)


def destinations(block: DGLBlock) -> list[Side]:
    """The destination side of a block, type by type."""
    return _sides(block, block.dsttypes, block.dstnodes, _whole_destinations)


def node_data(block: DGLBlock) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """What a script has put on the source nodes of a block, by type and name."""
    for t in block.srctypes:
        for name, column in block.srcnodes[t].data.items():
            if name not in (dgl.NID, "_N"):
                yield (t, name), column


def side_of(path: Sequence[Any], rows: int, sides: Sequence[Side]) -> Side | None:
    """The first side of so many rows, of the node type that the path to a tensor names, if any."""
    named = [side for side in sides if side.ntype in path]
    for side in named or sides:
        if len(side.ids) == rows:
            return side
    return None


def numbers(tensor: Tensor) -> np.ndarray:
    """The values of a tensor as it is now; rows that wait for their values go on waiting."""
    value = tensor.detach()
    if isinstance(tensor, LazyRows) and tensor.waits:
        value = peek(tensor)
    value = (value.to_dense() if value.layout != torch.strided else value).cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    if isinstance(value, LazyRows):
        value = value.value(keep=False)
    found: np.ndarray = value.numpy()
    return found.copy()


def dtype_name(tensor: Tensor) -> str:
    """The dtype of a tensor, as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _sides(block: DGLBlock, ntypes: Sequence[str], nodes: Any,
           whole: Callable[[Any, str, int], np.ndarray | None]) -> list[Side]:
    """Those of one side that have nodes with ids."""
    found = {t: _ids(nodes[t].data) for t in ntypes}
    return [Side(t, ids, whole(block, t, len(ids))) for t, ids in found.items()
            if ids is not None and len(ids)]


def _ids(data: Any) -> np.ndarray | None:
    if dgl.NID not in data:
        return None
    ids: np.ndarray = data[dgl.NID].cpu().numpy()
    return ids


def _whole_destinations(block: Any, ntype: str, rows: int) -> np.ndarray | None:
    layer = getattr(block, "layer", None)
    if layer is None or layer.block.last:
        return None
    reads = layer.block.reads.get(ntype)
    if reads is None:
        return None
    shares = layer.block.seeds[ntype]
    whole = np.ones(rows, bool)
    whole[shares.own:shares.total] = False
    whole[reads.rows.numpy()] = True
    return whole


def _whole_sources(block: Any, ntype: str, rows: int) -> np.ndarray | None:
    layer = getattr(block, "layer", None)
    if layer is None or not layer.block.own_states or ntype not in layer.block.seeds:
        return None
    shares = layer.block.seeds[ntype]
    whole = np.ones(rows, bool)
    whole[shares.own:shares.total] = False
    for edges in layer.block.edges:
        if edges.relation.src == ntype:
            whole[edges.indices.cpu().numpy()] = True
    return whole
