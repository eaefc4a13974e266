"""DistNodeDataLoader with a sampler of no layer: batches of seeds alone, as in DGL.

Programs that infer over the whole graph read what they stored, by seeds. Nothing is sampled or
exchanged, so each trainer goes through its own nodes, of any types.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dgl_heta.errors import InputError


class SeedLoader:
    """
    Parameters
    ----------
    nids : node type → ids (int64) of this trainer's nodes.

    Raises
    ------
    InputError
        The batch size is below 1.
    """

    def __init__(self, nids: Mapping[str, Tensor], batch_size: int = 1, shuffle: bool = False,
                 drop_last: bool = False) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
        self._types = tuple(nids)
        self._kinds = torch.repeat_interleave(torch.tensor([len(ids) for ids in nids.values()]))
        self._ids = torch.cat([torch.empty(0, dtype=torch.int64), *nids.values()])
        self._batch_size, self._shuffle = batch_size, shuffle
        self.seeds = len(self._ids)
        full, rest = divmod(self.seeds, batch_size)
        self._steps = full + (rest > 0 and not drop_last)
        self._order = torch.arange(self.seeds)
        self._step = 0

    def __len__(self) -> int:
        return self._steps

    def start(self) -> None:
        """Begin an epoch."""
        self._step = 0
        if self._shuffle:
            self._order = torch.randperm(self.seeds)

    def next(self) -> tuple[dict[str, Tensor], dict[str, Tensor], list[object]]:
        """The next batch; StopIteration at the end of the epoch."""
        if self._step >= self._steps:
            raise StopIteration
        low = self._step * self._batch_size
        self._step += 1
        chosen = self._order[low:low + self._batch_size]
        kinds, ids = self._kinds[chosen], self._ids[chosen]
        seeds = {t: ids[kinds == kind] for kind, t in enumerate(self._types)}
        seeds = {t: nodes for t, nodes in seeds.items() if len(nodes)}
        return {**seeds}, seeds, []
