"""The source trainers of a batch's rows: those whose seeds a row is read for.

DistDGL's sparse optimizers divide the gradient of a row by the number of trainers whose batch has
it. Under RAF every trainer of a group reads rows for the seeds of all, so it must be known for
whose. Sets of trainers are words of bits (:mod:`dgl_heta.sampling.trainer_bits`).

They go down from the seeds, layer by layer, against the edges: a source row has the trainers of all
destinations that it has an edge to.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.sampling.trainer_bits import words_of
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import prefetch

Words = dict[str, np.ndarray]
"""Node type → the source trainers of each row of a block, int64 (rows,)."""
SourceTrainers = list[Words]
"""Words of the source rows of each block, from the input on; empty if they were not asked for."""


def source_trainers(batch: MiniBatch, group: Comm, ranks: Sequence[int], ntypes: Collection[str]
                    ) -> SourceTrainers:
    """Return the source trainers of a batch's rows; nothing if there is no embedding.

    Parameters
    ----------
    group : this trainer's, with process groups that are used by nobody else meanwhile.
    ranks : of its trainers.
    ntypes : node types that have an embedding.
    """
    if not ntypes:
        return []
    first, words = batch.blocks[0], trainers_of_seeds(batch.blocks[-1].seeds, ranks)
    # Below the first block nothing follows from the words: only embeddings need them.
    inputs = {t: share for t, share in first.seeds.items() if t in ntypes}
    levels: SourceTrainers = []
    for below, block in reversed([(None, first), *itertools.pairwise(batch.blocks)]):
        words = trainers_of_sources(block, words, below.seeds if below else inputs, group, "seeds")
        levels.insert(0, words)
    return levels


def trainers_of_seeds(shares: Mapping[str, SeedShares], trainers: Sequence[int]) -> Words:
    """Return the words of a batch's seeds: each one's own trainer."""
    words = words_of(trainers)
    return {t: share.local(torch.from_numpy(np.repeat(words, share.sizes))).numpy()
            for t, share in shares.items()}


def trainers_of_sources(block: Block, words: Words, shares: Mapping[str, SeedShares], group: Comm,
                        cause: str) -> Words:
    """Return the words of a block's source rows, from those of its destinations.

    Those of `shares`, the leading rows that the group has in common, are united over it: a seed of
    one trainer that is a neighbour of another's has both, which only the machine with that relation
    sees.
    """
    sources = {t: np.zeros(n, np.int64) for t, n in block.num_src.items()}
    for t, destinations in words.items():
        sources[t][:len(destinations)] = destinations  # which lead the sources, as in DGL's blocks
    every = trainers_of_destinations(block, words, group, cause)
    for edges in block.edges:
        unite_along_edges(edges.indptr.numpy(), edges.indices.numpy(),
                          edges.of(torch.from_numpy(every[edges.relation.dst])).numpy(),
                          sources[edges.relation.src])
    if group.size > 1:
        for t, share in shares.items():
            # Each worker has the seeds in an order of its own (its own ones first), so rows are
            # united in the one that all know.
            rows = share.canonical(torch.from_numpy(sources[t][:share.total]))
            sources[t][:share.total] = share.local(group.all_reduce(rows, "or", cause)).numpy()
    return sources


def trainers_of_destinations(block: Block, words: Words, group: Comm, cause: str) -> Words:
    """Return the words of all destination rows, from those of a worker's own: others tell it those
    of the rows that it aggregates for them."""
    if not block.offloads or group.size == 1:
        return words
    none = np.empty(0, np.int64)
    own = {t: words.get(t, none) for t in block.remote}
    # The rows that others aggregate are the last ones of a type, by the worker that does so.
    sent = [[own[t][len(own[t]) - remote.sent[worker]:] for t, remote in block.remote.items()]
            for worker in range(group.size)]
    sizes = [[remote.received[worker] for remote in block.remote.values()]
             for worker in range(group.size)]
    received = group.all_to_all_rows(
        torch.from_numpy(np.concatenate([none, *itertools.chain(*sent)])),
        [sum(map(len, pieces)) for pieces in sent], [sum(of) for of in sizes], cause)
    pieces = iter(received.split([size for of in sizes for size in of]))
    joined = {t: [of_type] for t, of_type in own.items()}
    for _ in range(group.size):
        for t in block.remote:
            joined[t].append(next(pieces).numpy())
    return {**words, **{t: np.concatenate(of_type) for t, of_type in joined.items()}}


@kernel
def unite_along_edges(indptr, indices, words, out):  # type: ignore[no-untyped-def]
    """Unite the word of each destination into those of its sources, which are in `out`."""
    for row in range(len(indptr) - 1):
        word = words[row]
        for edge in range(indptr[row], indptr[row + 1]):
            prefetch(out, indices, edge)
            out[indices[edge]] |= word
