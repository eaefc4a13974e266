"""Batches of a part, one a step: all of it, sampled neighbours, or an algorithm of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from dgl.dataloading import NeighborSampler
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dgl_heta import InputError
from dgl_heta_catgnn.training.models import imported


class PartBatches(ABC):
    """An algorithm: a part gives batches. One object serves one part, in all epochs.

    Cluster-GCN and GraphSAINT are examples (plugins/catgnn/examples). The attributes may hold
    what is computed once for the part.
    """

    @abstractmethod
    def batches(self, graph: Any, rng: np.random.Generator) -> Iterator[Any]:
        """The batches of an epoch; the optimizer steps after each.

        Parameters
        ----------
        graph : the part (:class:`~dgl_heta_catgnn.training.local.LocalPart`), with node data
            `feat`, `label`, `train` and the norms. It is not to be changed.
        rng : for all that is drawn; it depends on seed, part and epoch. Seeds of torch and DGL
            are set from them, too.

        Yields
        ------
        A subgraph with the graph's node data, as `dgl.node_subgraph` makes it: the loss is the
        mean over its `train` nodes, or their sum weighted by its node data `loss_weight`. Or
        a list of blocks, one for each layer: the loss is the mean over the last one's
        destinations.
        """


class FullBatch(PartBatches):
    """The part itself, one step an epoch."""

    def batches(self, graph: Any, rng: np.random.Generator) -> Iterator[Any]:
        yield graph


class Neighbours(PartBatches):
    """Blocks of sampled neighbours of shuffled training nodes (GraphSAGE's mini-batches).

    Parameters
    ----------
    size : training nodes of a batch.
    fanouts : neighbours of each layer, the first layer's first; -1 for all.
    """

    def __init__(self, size: int, fanouts: Sequence[int]) -> None:
        self.size, self.sampler = size, NeighborSampler(list(fanouts))

    def batches(self, graph: Any, rng: np.random.Generator) -> Iterator[Any]:
        train = graph.ndata["train"].nonzero().view(-1)
        train = train[torch.from_numpy(rng.permutation(len(train)))]
        for seeds in train.split(self.size):
            yield self.sampler.sample(graph, seeds)[2]


def make_batches(name: str | None, full: bool, size: int, fanouts: Sequence[int]) -> PartBatches:
    """An algorithm for a part: one's own by `module:attribute`, or a built-in one."""
    if name is None:
        return FullBatch() if full else Neighbours(size, fanouts)
    batches = imported(name)()
    if not isinstance(batches, PartBatches):
        raise InputError(f"'{name}' is no PartBatches; derive it from dgl_heta_catgnn.PartBatches")
    return batches


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    """The loss of a batch and over how many training nodes it is."""
    if isinstance(batch, list):
        label = batch[-1].dstdata["label"]
        return cross_entropy(model(batch, batch[0].srcdata["feat"]), label), len(label)
    train = batch.ndata["train"]
    count = int(train.sum())
    out, label = model(batch, batch.ndata["feat"])[train], batch.ndata["label"][train]
    if "loss_weight" in batch.ndata:
        return (cross_entropy(out, label, reduction="none")
                * batch.ndata["loss_weight"][train]).sum(), count
    return (cross_entropy(out, label) if count else out.sum()), count
