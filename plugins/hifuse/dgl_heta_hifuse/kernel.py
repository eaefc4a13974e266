"""The kernel `merged`: the relations of a layer in one pass."""

from __future__ import annotations

from dgl_heta.nn import FusedKernel


class MergedKernel(FusedKernel):
    """The relations of a layer in one pass."""

    name = "merged"
