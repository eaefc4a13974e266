"""The ids that DistDGL gives: contiguous for each part, and in a part for each type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dgl_heta.tools import kernel


@dataclass(frozen=True)
class NodeNumbers:
    """New ids of all nodes; "old" are those of the stream's one id space.

    Attributes
    ----------
    new : new id by old id; (nodes,).
    old : old id by new id; (nodes,).
    ranges : first new id and the one after the last, int64 (types, parts, 2).
    first : first old id of each type, int64 (types + 1,).
    """

    new: np.ndarray
    old: np.ndarray
    ranges: np.ndarray
    first: np.ndarray

    def part(self, part: int) -> tuple[int, int]:
        """The new ids of a part's own nodes, from and to."""
        return int(self.ranges[0, part, 0]), int(self.ranges[-1, part, 1])

    def source_ids(self, ntype: int, part: int) -> np.ndarray:
        """Ids in the source of a part's own nodes of a type, by their new ids."""
        low, high = self.ranges[ntype, part]
        ids: np.ndarray = self.old[low:high].astype(np.int64) - self.first[ntype]
        return ids

    def types(self, new: np.ndarray) -> np.ndarray:
        """The index of the type of nodes, by new ids."""
        kinds: np.ndarray = np.searchsorted(self.first, self.old[new], "right") - 1
        return kinds


def number_nodes(owner: np.ndarray, counts: Mapping[str, int], parts: int) -> NodeNumbers:
    """Number nodes by part, in a part by type, and there as they were."""
    first = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int64)
    ids = np.int32 if len(owner) < 2**31 else np.int64
    sizes = np.stack([np.bincount(owner[low:high], minlength=parts)
                      for low, high in pairwise(first)])
    ranges = as_ranges(sizes)
    new, old = np.empty(len(owner), ids), np.empty(len(owner), ids)
    _number(owner, first, ranges[:, :, 0].copy(), new, old)
    return NodeNumbers(new, old, ranges, first)


def as_ranges(sizes: np.ndarray) -> np.ndarray:
    """Ranges of ids of these sizes, (types, parts) to (types, parts, 2), types within parts."""
    ends = np.cumsum(sizes.T.ravel()).reshape(sizes.T.shape).T
    return np.stack([ends - sizes, ends], axis=-1)


@kernel
def _number(owner, first, following, new, old):
    for ntype in range(len(first) - 1):
        for node in range(first[ntype], first[ntype + 1]):
            number = following[ntype, owner[node]]
            following[ntype, owner[node]] += 1
            new[node] = number
            old[number] = node
