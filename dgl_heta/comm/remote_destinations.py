"""What the workers of a group tell each other of rows while they sample.

Ids are packed (:mod:`dgl_heta.comm.packed_ids`), and how many bytes there are goes before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.packed_ids import pack, unpack
from dgl_heta.sampling.sampler import Deliver
from dgl_heta.store import Store


def agreement(store: Store, group: Comm
              ) -> Callable[[Mapping[str, np.ndarray]], dict[str, list[np.ndarray]]]:
    """How workers of a group agree on rows that several of them hold, see
    :class:`dgl_heta.sampling.sampler.NeighborSampler`. The ids of a worker come sorted."""
    types = store.schema.node_types

    def agree(new: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        packed = {t: pack(np.sort(ids), [len(ids)])[0] for t, ids in new.items()}
        own = torch.tensor([[len(packed.get(t, ())) for t in types]])
        every = group.all_gather_rows(own, [1] * group.size, "sampling")
        united = {}
        for ntype, data in packed.items():
            holders = group.holders(ntype)
            column = types.index(ntype)
            sizes = [int(every[group.ranks.index(rank), column]) for rank in holders.ranks]
            arrived = holders.all_gather_rows(torch.from_numpy(data), sizes, "sampling")
            ids, counts = unpack(arrived.numpy(), sizes)
            united[ntype] = np.split(ids, np.cumsum(counts[:-1]))
        return united
    return agree


def delivery(store: Store, group: Comm) -> Deliver:
    """How ids of rows come to the workers that aggregate them, see
    :class:`dgl_heta.sampling.sampler.NeighborSampler`. Their order stays: it is that of the rows
    that come back."""
    types = store.schema.node_types

    def deliver(own: Mapping[str, np.ndarray], asked: Mapping[str, Sequence[int]]
                ) -> dict[str, list[np.ndarray]]:
        sizes = torch.zeros((group.size, len(types)), dtype=torch.int64)
        pieces: list[list[np.ndarray]] = [[] for _ in range(group.size)]
        for column, ntype in enumerate(types):
            data = pack(own[ntype], [len(own[ntype])])[0] if ntype in asked else _NONE
            for place in asked.get(ntype, ()):
                sizes[place, column] = len(data)
                pieces[place].append(data)
        ones = [1] * group.size
        arriving = group.all_to_all_rows(sizes, ones, ones, "sampling")
        arrived = group.all_to_all_rows(
            torch.from_numpy(np.concatenate([_NONE, *(one for few in pieces for one in few)])),
            sizes.sum(1).tolist(), arriving.sum(1).tolist(), "sampling")
        ids, counts = unpack(arrived.numpy(), arriving.flatten().tolist())
        parts = iter(np.split(ids, np.cumsum(counts[:-1])))
        found: dict[str, list[np.ndarray]] = {t: [] for t in types}
        for _ in range(group.size):
            for ntype in types:
                found[ntype].append(next(parts))
        return found
    return deliver


_NONE = np.empty(0, np.uint8)
