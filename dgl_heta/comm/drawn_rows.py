"""What the workers of a group tell each other of rows while they sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.sampling.sampler import Deliver
from dgl_heta.store import Store


def agreement(store: Store, group: Comm
              ) -> Callable[[Mapping[str, np.ndarray]], dict[str, list[np.ndarray]]]:
    """How workers of a group agree on rows that several of them hold, see
    :class:`dgl_heta.sampling.sampler.NeighborSampler`."""
    types = store.schema.node_types

    def agree(new: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        counts = torch.tensor([[len(new.get(t, ())) for t in types]])
        every = group.all_gather_rows(counts, [1] * group.size, "sampling")
        united = {}
        for ntype, ids in new.items():
            holders = group.holders(ntype)
            column = types.index(ntype)
            sizes = [int(every[group.ranks.index(rank), column]) for rank in holders.ranks]
            rows = holders.all_gather_rows(torch.from_numpy(ids), sizes, "sampling")
            united[ntype] = [part.numpy() for part in rows.split(sizes)]
        return united
    return agree


def delivery(store: Store, group: Comm) -> Deliver:
    """How ids of rows come to the workers that aggregate them, see
    :class:`dgl_heta.sampling.sampler.NeighborSampler`."""
    types = store.schema.node_types
    most = max(store.schema.node_counts.values(), default=0)
    dtype = torch.int32 if most < 2**31 else torch.int64

    def deliver(own: Mapping[str, np.ndarray], asked: Mapping[str, Sequence[int]]
                ) -> dict[str, list[np.ndarray]]:
        counts = torch.zeros((group.size, len(types)), dtype=torch.int64)
        pieces: list[list[np.ndarray]] = [[] for _ in range(group.size)]
        for column, ntype in enumerate(types):
            for place in asked.get(ntype, ()):
                counts[place, column] = len(own[ntype])
                pieces[place].append(own[ntype])
        ones = [1] * group.size
        arriving = group.all_to_all_rows(counts, ones, ones, "sampling")
        ids = group.all_to_all_rows(
            torch.from_numpy(np.concatenate([np.empty(0, np.int64), *itertools.chain(*pieces)])
                             ).to(dtype),
            counts.sum(1).tolist(), arriving.sum(1).tolist(), "sampling")
        parts = iter(ids.long().split(arriving.flatten().tolist()))
        found: dict[str, list[np.ndarray]] = {t: [] for t in types}
        for _ in range(group.size):
            for ntype in types:
                found[ntype].append(next(parts).numpy())
        return found
    return deliver
