"""A part as a worker trains on it: a graph of its nodes, their rows, what to train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.tools import optional
from dgl_heta_catgnn.replicas import mixed
from dgl_heta_catgnn.training.parts import TrainingParts

TRAIN, VAL, TEST = 1, 2, 4
"""Bits of `split`."""


@dataclass(frozen=True)
class LocalPart:
    """A part in memory.

    Attributes
    ----------
    graph : a homogeneous DGLGraph of the part's nodes, its own first. Node data: `feat` (width),
        `label` (int64), `train` (bool: own nodes to train on), `split`, `in_norm` and `out_norm`
        (d^-1/2 with degrees of the whole graph, a self-loop counted), `in_degree` (edges here).
    own : nodes that the part owns.
    nodes : ids of the nodes, int64 (nodes,).
    """

    graph: Any
    own: int
    nodes: np.ndarray

    @property
    def train(self) -> Any:
        """The nodes to train on, int64."""
        return self.graph.ndata["train"].nonzero().view(-1)


def load_part(parts: TrainingParts, index: int, *, loops: bool, full: bool = True,
              dtype: Any = None) -> LocalPart:
    """Read a part.

    Parameters
    ----------
    loops : whether every node has a self-loop, as GCN, GAT and SGC want it; none has one without.
    full : whether own nodes have all their neighbours. If not, an edge between two parts is in
        one of them alone, drawn by a hash (CATGNN, §5.5, Fig. 12).
    dtype : of features; default: float32.
    """
    import torch

    dgl = optional("dgl", "training on parts", "dgl")
    own, nodes = parts.parts[index].own, parts.part(index, "nodes")
    src, dst = parts.part(index, "src"), parts.part(index, "dst")
    kept = src != dst
    if not full:
        kept &= _drawn(nodes, src, dst, own)
    src, dst = src[kept], dst[kept]
    if not full:  # halo nodes without an edge are of no use
        used = np.zeros(len(nodes), bool)
        used[:own] = used[src] = used[dst] = True
        row_of = np.cumsum(used) - 1
        nodes, src, dst = nodes[used], row_of[src], row_of[dst]
    if loops:
        src, dst = (np.concatenate([side, np.arange(len(nodes))]) for side in (src, dst))
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=len(nodes))
    split = torch.from_numpy(parts.array("split")[nodes])
    split[own:] = 0
    graph.ndata.update({
        "feat": torch.from_numpy(parts.array("feat")[nodes]).to(dtype or torch.float32),
        "label": torch.from_numpy(parts.array("label")[nodes]), "split": split,
        "train": (split & TRAIN) != 0, **_norms(parts, nodes, dtype or torch.float32),
        "in_degree": graph.in_degrees()})
    return LocalPart(graph, own, nodes)


def whole_lists(parts: TrainingParts, index: int, *, loops: bool, dtype: Any = None
                ) -> tuple[Any, np.ndarray]:
    """All in-edges of a part's own nodes as a block, and the ids of its sources, own nodes first.

    The block has `in_norm` and `out_norm`, and no features.
    """
    import torch

    dgl = optional("dgl", "training on parts", "dgl")
    own, nodes = parts.parts[index].own, parts.part(index, "nodes")
    src, dst = parts.part(index, "src"), parts.part(index, "dst")
    kept = (dst < own) & (src != dst)
    src, dst = src[kept], dst[kept]
    if loops:
        src, dst = (np.concatenate([side, np.arange(own)]) for side in (src, dst))
    block = dgl.create_block((torch.from_numpy(src), torch.from_numpy(dst)), len(nodes), own)
    norms = _norms(parts, nodes, dtype or torch.float32)
    block.srcdata["out_norm"], block.dstdata["in_norm"] = norms["out_norm"], norms["in_norm"][:own]
    block.dstdata["in_degree"] = block.in_degrees()
    return block, nodes


def _norms(parts: TrainingParts, nodes: np.ndarray, dtype: Any) -> dict[str, Any]:
    import torch

    return {f"{side}_norm": torch.from_numpy(
        1 / np.sqrt(1.0 + parts.array(f"{side}_degree")[nodes])).to(dtype)
        for side in ("in", "out")}


def _drawn(nodes: np.ndarray, src: np.ndarray, dst: np.ndarray, own: int) -> np.ndarray:
    """Which edges stay where an edge between two parts is in one of them.

    The hash is of both ends, whatever the direction, and says whose part it is.
    """
    ends = nodes[src], nodes[dst]
    low, high = np.minimum(*ends).astype(np.uint64), np.maximum(*ends).astype(np.uint64)
    draw = mixed(low * np.uint64(0x9E3779B97F4A7C15) + high) & np.uint64(1)
    whose = np.where(draw == 1, high, low)
    inside = (src < own) & (dst < own)
    owned = np.where(ends[0] == whose, src < own, dst < own)
    kept: np.ndarray = inside | (owned & ((src < own) | (dst < own)))
    return kept
