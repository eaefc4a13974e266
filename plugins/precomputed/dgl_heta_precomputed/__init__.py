"""Models over precomputed neighbour averages (Heta technical report, appendix C): SeHGNN and NARS.

They sample nothing. Before training each partition computes averages of its own metapaths, out of
core (`averages.py`); a batch reads their rows (`inputs.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgl_heta import ModelInputs, ModelProvider, hookimpl

if TYPE_CHECKING:
    from torch import nn

    from dgl_heta import ModelSpec

__all__ = ["Nars", "SeHgnn"]


class SeHgnn(ModelProvider):
    """Provides SeHGNN, over the averages of metapaths."""

    name, precomputed, reads = "sehgnn", "paths", ("heads", "dropout")

    def build(self, spec: ModelSpec) -> nn.Module:
        from dgl_heta_precomputed.sehgnn import SeHGNN

        return SeHGNN(spec)


class Nars(ModelProvider):
    """Provides NARS, over the averages of subsets of relations."""

    name, precomputed, reads = "nars", "subsets", ("subsets", "dropout")

    def build(self, spec: ModelSpec) -> nn.Module:
        from dgl_heta_precomputed.nars import NARS

        return NARS(spec)


@hookimpl
def dgl_heta_models() -> list[ModelProvider]:
    return [SeHgnn(), Nars()]


@hookimpl
def dgl_heta_model_inputs() -> list[ModelInputs]:
    from dgl_heta_precomputed.inputs import PathInputs, SubsetInputs

    return [PathInputs(), SubsetInputs()]
