"""A partition backend from outside the package: `meta-random`.

The same sub-metatrees as `meta`, dealt to the partitions by a seeded shuffle instead of LPT.
It is a baseline for balance, and the template for plugins of your own: an entry point in group
`dgl_heta` (pyproject.toml), hooks marked with `hookimpl`, nothing but the public names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dgl_heta import MetatreeBackend, hookimpl


class RandomAssignment(MetatreeBackend):
    """Sub-metatrees in shuffled order, dealt round and round: every partition gets some."""

    name = "meta-random"
    description = "meta-partitioning, sub-metatrees dealt by a seeded shuffle"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> list[list[int]]:
        order = list(range(len(weights)))
        random.Random(seed).shuffle(order)
        return [order[part::parts] for part in range(parts)]


@hookimpl
def dgl_heta_partition_backends() -> list[MetatreeBackend]:
    return [RandomAssignment()]
