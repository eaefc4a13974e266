"""Loaders of nodes and edges with a sampler of no layer: batches of seeds alone, as in DGL.

Programs that infer over the whole graph read what they stored, by seeds. Nothing is sampled or
exchanged, so each trainer goes through its own nodes or edges, of any types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dgl_heta.errors import InputError


class _InTurn:
    """This trainer's seeds, batch by batch.

    Attributes
    ----------
    seeds : how many there are.
    """

    def __init__(self, seeds: int, batch_size: int, shuffle: bool, drop_last: bool) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
        self.seeds = seeds
        self._batch_size, self._shuffle = batch_size, shuffle
        full, rest = divmod(seeds, batch_size)
        self._steps = full + (rest > 0 and not drop_last)
        self._order = torch.arange(seeds)
        self._step = 0

    def __len__(self) -> int:
        return self._steps

    def start(self) -> None:
        """Begin an epoch."""
        self._step = 0
        if self._shuffle:
            self._order = torch.randperm(self.seeds)

    def _chosen(self) -> Tensor:
        """Places of the next batch's seeds; StopIteration at the end of the epoch."""
        if self._step >= self._steps:
            raise StopIteration
        low = self._step * self._batch_size
        self._step += 1
        return self._order[low:low + self._batch_size]


class SeedLoader(_InTurn):
    """Batches of nodes.

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
        self._types = tuple(nids)
        self._kinds = torch.repeat_interleave(torch.tensor([len(ids) for ids in nids.values()]))
        self._ids = torch.cat([torch.empty(0, dtype=torch.int64), *nids.values()])
        super().__init__(len(self._ids), batch_size, shuffle, drop_last)

    def next(self) -> tuple[dict[str, Tensor], dict[str, Tensor], list[object]]:
        """The next batch; StopIteration at the end of the epoch."""
        chosen = self._chosen()
        kinds, ids = self._kinds[chosen], self._ids[chosen]
        seeds = {t: ids[kinds == kind] for kind, t in enumerate(self._types)}
        seeds = {t: nodes for t, nodes in seeds.items() if len(nodes)}
        return {**seeds}, seeds, []


class PairLoader(_InTurn):
    """Batches of edges.

    Parameters
    ----------
    collator : DGL's collator of this trainer's edges, whose sampler gives the seeds alone.

    Raises
    ------
    InputError
        The batch size is below 1.
    """

    def __init__(self, collator: Any, batch_size: int = 1, shuffle: bool = False,
                 drop_last: bool = False) -> None:
        self._collator = collator
        super().__init__(len(collator.dataset), batch_size, shuffle, drop_last)

    def next(self) -> tuple[Any, ...]:
        """(ends of the edges, pair graph, no blocks), or with negatives (…, pair graph, graph of
        negatives, no blocks); StopIteration at the end of the epoch."""
        seeds, *graphs, _ = self._collator.collate(edges_at(self._collator, self._chosen()))
        return seeds if isinstance(seeds, Mapping) else {self._collator.g.ntypes[0]: seeds}, *(
            graphs), []


def edges_at(collator: Any, places: Tensor) -> list[Any]:
    """Entries of a collator's data set with numbers for ids, as DGL's loaders pass them on."""
    found = [collator.dataset[place] for place in places.tolist()]
    return [(item[0], int(item[1])) if isinstance(item, tuple) else int(item) for item in found]
