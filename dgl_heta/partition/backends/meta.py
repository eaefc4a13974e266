"""`meta`: meta-partitioning with LPT (Heta §5)."""

from __future__ import annotations

from collections.abc import Sequence

from dgl_heta.partition.backends.metatree_backend import MetatreeBackend
from dgl_heta.planning.dealing import balanced


class Meta(MetatreeBackend):
    """Meta-partitioning with LPT (Heta §5)."""

    name = "meta"
    description = "meta-partitioning: sub-metatrees to the lightest partition, heaviest first"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        return balanced(weights, parts)
