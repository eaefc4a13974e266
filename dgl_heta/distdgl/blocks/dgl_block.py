"""DGL's own blocks in the place of a batch's: in reference mode, and in the replay of a proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_view import EdgeView, SliceData
from dgl_heta.sampling.blocks import MiniBatch

SEEDS = "heta_seeds"
"""The attribute of such a block for what `dgl_heta.all_seeds` gives: node type → ids."""


class PlainBlock(DGLBlock):
    """DGL's block as it is, or a slice of one.

    Attributes
    ----------
    layer : what it was made of; None of a slice.
    """

    layer: Any = None
    _of: Any = None  # of a slice the layer of its block, for the ids of its edges

    @property
    def edges(self) -> EdgeView:
        return EdgeView(self, super().edges, self.layer or self._of)

    @property
    def edata(self) -> Any:
        if len(self.etypes) > 1:
            return super().edata
        return SliceData(self, self.etypes[0], super().edata, self.layer or self._of)

    def __getitem__(self, key: Any) -> Any:
        piece = super().__getitem__(key)  # of this class, as DGL makes slices
        piece._of = self.layer or self._of
        return piece


def note_seeds(blocks: Sequence[Any], batch: MiniBatch) -> None:
    """Let plain blocks that stand for a batch's tell the same seeds."""
    shares = batch.blocks[-1].seeds
    tell(blocks, {t: torch.from_numpy(batch.input_nodes[t][:share.total])
                  for t, share in shares.items()})


def tell(blocks: Sequence[Any], seeds: dict[str, Tensor]) -> None:
    """Let plain blocks tell these seeds."""
    for block in blocks:
        setattr(block, SEEDS, seeds)
