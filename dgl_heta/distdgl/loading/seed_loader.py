"""Loaders of nodes and edges with a sampler of no layer: batches of seeds alone, as in DGL.

Programs that infer over the whole graph read what they stored, by seeds. Nothing is sampled or
exchanged, so each trainer goes through its own nodes or edges, of any types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.loading.typed_ids import TypedIds


class _SeedBatches:
    """This trainer's seeds, batch by batch.

    Attributes
    ----------
    seeds : how many there are.
    """

    def __init__(self, seeds: int, options: LoaderOptions) -> None:
        self.seeds, self.options = seeds, options
        full, rest = divmod(seeds, options.batch_size)
        self._steps = full + (rest > 0 and not options.drop_last)
        self._order = torch.arange(seeds)
        self._step = 0

    def __len__(self) -> int:
        return self._steps

    def start(self) -> None:
        """Begin an epoch."""
        self._step = 0
        if self.options.shuffle:
            # DGL shuffles what the last epoch has left.
            self._order = self._order[torch.randperm(self.seeds)]

    def _next_positions(self) -> Tensor:
        """Return the positions of the next batch's seeds; StopIteration at the end."""
        if self._step >= self._steps:
            raise StopIteration
        low = self._step * self.options.batch_size
        self._step += 1
        return self._order[low:low + self.options.batch_size]


class SeedLoader(_SeedBatches):
    """Batches of nodes.

    Parameters
    ----------
    nids : node type → ids (int64) of this trainer's nodes.
    """

    def __init__(self, nids: Mapping[str, Tensor], options: LoaderOptions) -> None:
        self._nodes = TypedIds.of(tuple(nids), nids.items())
        super().__init__(len(self._nodes), options)

    def next(self) -> tuple[dict[str, Tensor], dict[str, Tensor], list[object]]:
        """Return (input nodes, seeds, no blocks); StopIteration at the end of the epoch."""
        batch = self._nodes[self._next_positions()].by_type()
        seeds = {t: nodes for t, nodes in batch.items() if len(nodes)}
        return {**seeds}, seeds, []


class EdgeSeedLoader(_SeedBatches):
    """Batches of edges.

    Parameters
    ----------
    collator : DGL's collator of this trainer's edges, whose sampler gives the seeds alone.
    """

    def __init__(self, collator: Any, options: LoaderOptions) -> None:
        self.collator = collator
        super().__init__(len(collator.dataset), options)

    def next(self) -> tuple[Any, ...]:
        """Return the next batch; StopIteration at the end of the epoch.

        It is (ends of the edges, pair graph, no blocks), or with negatives (…, pair graph, graph of
        negatives, no blocks).
        """
        seeds, *graphs, _ = self.collator.collate(items_at(self.collator, self._next_positions()))
        return seeds if isinstance(seeds, Mapping) else {self.collator.g.ntypes[0]: seeds}, *(
            graphs), []


def items_at(collator: Any, positions: Tensor) -> list[Any]:
    """Return entries of a collator's data set with numbers for ids, as DGL's loaders do."""
    items = [collator.dataset[position] for position in positions.tolist()]
    return [(item[0], int(item[1])) if isinstance(item, tuple) else int(item) for item in items]
