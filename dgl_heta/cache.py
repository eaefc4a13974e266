"""Cache policies: which feature rows stay close to the processor (Heta §6).

The contract alone, with the policy that caches nothing; a policy sees only numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class CachePolicy(Protocol):
    """A provider of hook `dgl_heta_cache_policies`."""

    name: str

    def select(
        self,
        counts: Mapping[str, np.ndarray],
        row_bytes: Mapping[str, int],
        penalties: Mapping[str, float],
        capacity: int,
    ) -> dict[str, np.ndarray]:
        """Choose the rows to cache.

        Parameters
        ----------
        counts : node type → visits per node, int64.
        row_bytes : node type → bytes of a row, optimizer state included where it has one.
        penalties : node type → miss penalty, seconds per byte.
        capacity : bytes of the cache.

        Returns
        -------
        Node type → ids of the cached nodes, int64; together at most `capacity` bytes.
        """


class NoCache:
    """The policy `none`: cache nothing."""

    name = "none"

    def select(
        self,
        counts: Mapping[str, np.ndarray],
        row_bytes: Mapping[str, int],
        penalties: Mapping[str, float],
        capacity: int,
    ) -> dict[str, np.ndarray]:
        return {ntype: np.empty(0, np.int64) for ntype in counts}
