"""Batches of models whose inputs are computed before: rows of the seeds, and no edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from dgl_heta.graph.schema import Relation
from dgl_heta.planning.partition_shares import Share
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.sampler import Deliver
from dgl_heta.sampling.seeds import SeedShares, join_seeds


class SeedBlocks:
    """Makes what a :class:`NeighborSampler` makes, of the seeds alone.

    Parameters
    ----------
    parts : for a target type, this worker's parts of the inputs, as
        :meth:`dgl_heta.hooks.protocols.InputReader.parts` has them. Each becomes a
        :class:`RelationBlock` without edges, so that models merge parts as they merge relations.
    """

    def __init__(self, parts: Callable[[str], Sequence[tuple[int, Relation, Share]]]) -> None:
        self._parts = parts

    def sample(self, seeds: Mapping[str, np.ndarray],
               shares: Mapping[str, SeedShares] | None = None, step: int = 0,
               without: Mapping[Relation, np.ndarray] | None = None,
               deliver: Deliver | None = None) -> MiniBatch:
        """The block of one step; `step`, `without` and `deliver` are about edges."""
        shares = shares or join_seeds([seeds])[1]
        ordered = {t: shares[t].local(torch.as_tensor(ids, dtype=torch.int64)).numpy()
                   for t, ids in seeds.items()}
        blocks = []
        for target in ordered:
            for number, relation, share in self._parts(target):
                rows = shares[target].local_ranges(*share.rows(shares[target].total))
                # A share without seeds still takes part in the merge, with no row.
                for low, high in rows or [(0, 0)]:
                    blocks.append(RelationBlock(relation, low, torch.zeros(high - low + 1).long(),
                                                torch.empty(0, dtype=torch.int32), number))
        counts = {t: len(ids) for t, ids in ordered.items()}
        return MiniBatch([Block(1, counts, counts, blocks, dict(shares), True, {}, {})],
                         ordered, ordered,
                         {t: ids[:shares[t].own] for t, ids in ordered.items()})
