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
from dgl_heta.sampling.seeds import SeedShares


@dataclass(frozen=True)
class RowNodes:
    """The nodes of a type among a block's sources or destinations.

    Attributes
    ----------
    ids : (rows,) int64.
    complete : (rows,) bool, which rows' states are complete here; None for all. The states of other
        trainers' seeds that no edge reads on this machine may have any values.
    """

    ntype: str
    ids: np.ndarray
    complete: np.ndarray | None = None

    def rows_of(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that are complete, and their ids."""
        return (values, self.ids) if self.complete is None else (
            values[self.complete], self.ids[self.complete])


def layer_of(block: Any) -> int:
    """Return the layer of a block that a loader made, 1 …; 0 for any other block."""
    layer = getattr(block, "layer", None)
    return 0 if layer is None else int(layer.block.layer)


def sources(block: DGLBlock) -> list[RowNodes]:
    """Return the sources of a block, type by type."""
    return _with_ids(block, block.srctypes, block.srcnodes, _complete_sources)


def destinations(block: DGLBlock) -> list[RowNodes]:
    """Return the destinations of a block, type by type."""
    return _with_ids(block, block.dsttypes, block.dstnodes, _complete_destinations)


def node_data(block: DGLBlock) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield what a script has put on the source nodes of a block, by type and name."""
    for t in block.srctypes:
        for name, column in block.srcnodes[t].data.items():
            if name not in (dgl.NID, "_N"):
                yield (t, name), column


def nodes_of(path: Sequence[Any], rows: int, candidates: Sequence[RowNodes]) -> RowNodes | None:
    """Return the first candidate of so many rows, of the type that a tensor's path names, if any.
    """
    named = [nodes for nodes in candidates if nodes.ntype in path]
    for nodes in named or candidates:
        if len(nodes.ids) == rows:
            return nodes
    return None


def values_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor's values as they are now; rows that wait for theirs go on waiting."""
    value = tensor.detach()
    if isinstance(tensor, LazyRows) and tensor.waits:
        value = peek(tensor)
    value = (value.to_dense() if value.layout != torch.strided else value).cpu()
    # NumPy has no bfloat16, and float16 is compared by its own tolerance, in single precision.
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    if isinstance(value, LazyRows):
        value = value.value(keep=False)
    values: np.ndarray = value.numpy()
    return values.copy()  # the script may write to the tensor in place


def dtype_name(tensor: Tensor) -> str:
    """Return the dtype of a tensor, as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _with_ids(block: DGLBlock, ntypes: Sequence[str], nodes: Any,
              complete: Callable[[Any, str, int], np.ndarray | None]) -> list[RowNodes]:
    """Return the nodes of the types that have ids."""
    ids = {t: nodes[t].data[dgl.NID].cpu().numpy() for t in ntypes if dgl.NID in nodes[t].data}
    return [RowNodes(t, of_type, complete(block, t, len(of_type)))
            for t, of_type in ids.items() if len(of_type)]


def _complete_destinations(block: Any, ntype: str, rows: int) -> np.ndarray | None:
    layer = getattr(block, "layer", None)
    if layer is None or layer.block.last:
        return None
    reads = layer.block.reads.get(ntype)
    if reads is None:
        return None
    complete = _but_others_seeds(layer.block.seeds[ntype], rows)
    complete[reads.rows.numpy()] = True
    return complete


def _complete_sources(block: Any, ntype: str, rows: int) -> np.ndarray | None:
    layer = getattr(block, "layer", None)
    if layer is None or not layer.block.own_states or ntype not in layer.block.seeds:
        return None
    complete = _but_others_seeds(layer.block.seeds[ntype], rows)
    for edges in layer.block.edges:
        if edges.relation.src == ntype:
            complete[edges.indices.cpu().numpy()] = True
    return complete


def _but_others_seeds(shares: SeedShares, rows: int) -> np.ndarray:
    """Return bool (rows,), false for other trainers' seeds."""
    complete = np.ones(rows, bool)
    complete[shares.own:shares.total] = False
    return complete


def words_on(kind: str, path: tuple[Any, ...], nodes: RowNodes | None, layer: int) -> str:
    """Return words on which tensor it is, the same in both runs: the messages have them."""
    words = [f"layer {layer}"] if layer else []
    if nodes is not None:
        words.append(f"node type '{nodes.ntype}'")
    names = [repr(p) for p in path if isinstance(p, str) and (
        nodes is None or p != nodes.ntype)]
    words += [f"argument {' '.join(names)}"] if names and kind == "input" else names
    positions = [str(p) for p in path if isinstance(p, int)]
    if kind == "input" and positions:
        words.append(f"argument {positions[0]}" + (
            f", tensor {positions[1]}" if len(positions) > 1 else ""))
    elif positions:
        words.append(f"tensor {positions[0]}")
    return ", ".join(words)
