"""The seeds of a step: whose each of them is, and which are read where.

The workers of a model-parallel group step together: the seeds of a step are those of all of them,
and every worker runs its own relations for all (Heta Algorithm 1). Two orders of the seeds occur:

- *canonical*: by rank, the same on all workers; in it rows are exchanged;
- *local*: this worker's own first, then the others' by rank; in it a batch has its rows, so that
  what a model returns for the leading rows is for the worker's own seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SeedShares:
    """Rows of one node type that the workers of a group share: its seeds first of all.

    In local order this worker's own seeds come first and then the others' by rank; in canonical
    order all are by rank. Without replication (Heta Algorithm 1) rows that are nobody's seeds are
    shared too; in both orders they follow, in an order that all workers agree on.

    Attributes
    ----------
    sizes : number of seeds of each worker of the group.
    rank : this worker in the group.
    others : number of shared rows that are no seeds.
    common : whether all rows of the type are shared; then they are exchanged though there be none,
        or who has a weight below them alone would get no gradient of it in place of zeros.
    """

    sizes: tuple[int, ...]
    rank: int = 0
    others: int = 0
    common: bool = False

    @property
    def total(self) -> int:
        return sum(self.sizes) + self.others

    @property
    def own(self) -> int:
        """Number of this worker's seeds."""
        return self.sizes[self.rank]

    @property
    def before(self) -> int:
        """Number of seeds of the workers of lower rank."""
        return sum(self.sizes[:self.rank])

    def canonical(self, rows: Tensor) -> Tensor:
        """Rows (total, …) in canonical order, from this worker's local order."""
        if not self.before:
            return rows
        own, before = self.own, self.before
        return torch.cat([rows[own:own + before], rows[:own], rows[own + before:]])

    def local(self, rows: Tensor) -> Tensor:
        """Rows (total, …) in this worker's local order, from canonical order."""
        if not self.before:
            return rows
        low, high = self.before, self.before + self.own
        return torch.cat([rows[low:high], rows[:low], rows[high:]])

    def local_ranges(self, low: int, high: int) -> list[tuple[int, int]]:
        """A half-open range of canonical rows as ranges of local rows, ascending."""
        own, before = self.own, self.before
        pieces = ((before, before + own, -before), (0, before, own),
                  (before + own, self.total, 0))
        ranges: list[tuple[int, int]] = []
        for start, stop, shift in pieces:
            first, last = max(low, start) + shift, min(high, stop) + shift
            if first >= last:
                continue
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        return ranges

    @classmethod
    def even(cls, total: int, workers: int, rank: int) -> SeedShares:
        """Contiguous shares of `total` seeds, their sizes differing by one at most."""
        bounds = [total * i // workers for i in range(workers + 1)]
        return cls(tuple(b - a for a, b in itertools.pairwise(bounds)), rank)


def join_seeds(parts: Sequence[Mapping[str, np.ndarray]], rank: int = 0
               ) -> tuple[dict[str, np.ndarray], dict[str, SeedShares]]:
    """The seeds of a step of a whole group, from those of its workers.

    Parameters
    ----------
    parts : per worker of the group, by rank, target type → ids (int64) of its seeds, unique; each
        of the same types.
    rank : this worker in the group.

    Returns
    -------
    Target type → ids in canonical order, and target type → how they are shared.
    """
    seeds = {t: np.concatenate([part[t] for part in parts]) for t in parts[0]}
    shares = {t: SeedShares(tuple(len(part[t]) for part in parts), rank) for t in parts[0]}
    return seeds, shares


class SeedReads:
    """The other workers' seeds whose state the next layer reads on this worker.

    Attributes
    ----------
    rows : (n,) int64, destination rows in local order, ascending.
    given : positions among this worker's own seeds that others read; one worker's after the
        other's, `given_counts` of each. Agreed on when states are first exchanged.
    """

    def __init__(self, rows: Tensor, shares: SeedShares) -> None:
        self.rows, self._shares = rows, shares
        self.given: Tensor | None = None
        self.given_counts: list[int] = []

    def canonical(self) -> Tensor:
        """The rows in canonical order; as ascending as `rows`."""
        lower = self.rows - self._shares.own
        return torch.where(lower < self._shares.before, lower, self.rows)

    def counts(self) -> list[int]:
        """How many rows of each worker's seeds are read."""
        starts = torch.tensor([0, *itertools.accumulate(self._shares.sizes)])
        counts: list[int] = torch.searchsorted(self.canonical(), starts).diff().tolist()
        return counts
