"""Models, written for one process over blocks; distribution is applied from outside."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from dgl_heta.models.rgcn import RGCN, ModelSpec

__all__ = ["RGCN", "ModelProvider", "ModelSpec", "RGCNProvider"]


class ModelProvider(Protocol):
    """A provider of hook `dgl_heta_models`."""

    name: str

    def build(self, spec: ModelSpec) -> nn.Module:
        """A model that maps `(MiniBatch, inputs per type)` to logits per target type."""


class RGCNProvider:
    """The model `rgcn`."""

    name = "rgcn"

    def build(self, spec: ModelSpec) -> nn.Module:
        return RGCN(spec)
