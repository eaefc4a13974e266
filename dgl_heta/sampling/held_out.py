"""Edges that carry no messages, as they are what a link predictor is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.kernels import hash_key, pair_chances


@dataclass(frozen=True)
class HeldOut:
    """Edges of a relation, and of its reverse, that are left out of every sample.

    An edge of `relation`, and of `reverse`, is known by its pair of end nodes, so parallel edges
    and the two directions stay together: pair = source × (destinations of `relation`) +
    destination. A share of all pairs is held out by a hash, without a list of them, and so are
    those that are listed.

    Attributes
    ----------
    tails : number of destination nodes of `relation`.
    share : of all pairs, in [0, 1).
    pairs : held out whatever the hash says; ascending, int64.
    """

    relation: Relation
    reverse: Relation | None
    tails: int
    share: float
    seed: int = 0
    pairs: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), compare=False)

    @property
    def salt(self) -> np.uint64:
        return np.uint64(hash_key(self.seed, 0x11))

    def draw(self, pairs: np.ndarray) -> np.ndarray:
        """For each pair (int64) a number in [0, 1); pairs below `share` are held out."""
        numbers = np.empty(len(pairs))
        pair_chances(pairs, self.salt, numbers)
        return numbers

    def pairs_left_out(self, relation: Relation, without: np.ndarray) -> tuple[Any, ...] | None:
        """What :func:`dgl_heta.sampling.kernels.draw` needs to drop edges of `relation`.

        `without` are more pairs to leave out, ascending. None for a relation of which none are.
        """
        if relation not in (self.relation, self.reverse):
            return None
        return without, self.pairs, self.salt, self.share, self.tails, relation != self.relation
