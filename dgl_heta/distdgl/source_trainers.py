"""Which trainers' seeds reach a node of a batch.

DistDGL's sparse optimizers divide the gradient of a row by the number of trainers whose batch
has it. Under RAF every trainer of a group works for the seeds of all, so it must be known for
whose.
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

Reached = list[dict[str, np.ndarray]]
"""For each layer, from the input on, and node type: for each source row of its block the bits of
the trainers whose seeds reach it."""


def reached_by(batch: MiniBatch, group: Comm, ranks: Sequence[int], ntypes: Collection[str]
               ) -> Reached:
    """Return the trainers' bits (:mod:`~dgl_heta.sampling.trainer_bits`), or nothing if there is no
    embedding.

    Parameters
    ----------
    group : this trainer's, with process groups that are used by nobody else meanwhile.
    ranks : of its trainers.
    ntypes : node types that have an embedding.

    A node that is a seed of one trainer and a neighbour of another's is reached by both, which
    only the machine with that relation sees: the bits of seeds are exchanged at each layer.
    """
    if not ntypes:
        return []
    shares = batch.blocks[-1].seeds
    rows = of_seeds(shares, ranks)
    levels: Reached = []
    for block in reversed(batch.blocks):
        asked = shares if block is not batch.blocks[0] else {
            t: share for t, share in shares.items()
            if t in ntypes}  # of input nodes
        rows = below(block, rows, asked, group, "seeds")
        levels.insert(0, rows)
    return levels


def of_seeds(shares: Mapping[str, SeedShares], trainers: Sequence[int]) -> dict[str, np.ndarray]:
    """The bits of a batch's seeds: each one's trainer's."""
    return {t: share.local(torch.from_numpy(np.repeat(words_of(trainers), share.sizes))).numpy()
            for t, share in shares.items()}


def below(block: Block, rows: Mapping[str, np.ndarray], shares: Mapping[str, SeedShares],
          group: Comm, cause: str) -> dict[str, np.ndarray]:
    """The bits of a block's source rows, from those of its destinations; those of seeds in `shares`
    are united over the group."""
    reached = {t: np.zeros(n, np.int64) for t, n in block.num_src.items()}
    for t, bits in rows.items():
        reached[t][:len(bits)] = bits
    ends = with_guests(block, rows, group, cause)
    for edges in block.edges:
        spread(edges.indptr.numpy(), edges.indices.numpy(),
               ends[edges.relation.dst][edges.start:edges.stop], reached[edges.relation.src])
    if group.size > 1:
        for t, share in shares.items():
            seeds = share.canonical(torch.from_numpy(reached[t][:share.total]))
            reached[t][:share.total] = share.local(group.all_reduce(seeds, "or", cause)).numpy()
    return reached


def with_guests(block: Block, rows: Mapping[str, np.ndarray], group: Comm, cause: str
                ) -> Mapping[str, np.ndarray]:
    """The bits of all destination rows, from those of a worker's own: others say those of theirs
    that are aggregated here."""
    if not block.offloads or group.size == 1:
        return rows
    none = np.empty(0, np.int64)
    own = {t: rows.get(t, none) for t in block.remote}
    pieces = [[own[t][len(own[t]) - guests.sent[place]:] for t, guests in block.remote.items()]
              for place in range(group.size)]
    held = [[guests.received[place] for guests in block.remote.values()]
            for place in range(group.size)]
    arrived = group.all_to_all_rows(
        torch.from_numpy(np.concatenate([none, *itertools.chain(*pieces)])),
        [sum(map(len, piece)) for piece in pieces], [sum(sizes) for sizes in held], cause)
    parts = iter(arrived.split([size for sizes in held for size in sizes]))
    found = {t: [bits] for t, bits in own.items()}
    for _ in range(group.size):
        for t in block.remote:
            found[t].append(next(parts).numpy())
    return {**rows, **{t: np.concatenate(bits) for t, bits in found.items()}}


@kernel
def spread(indptr, indices, bits, out):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        word = bits[row]
        for edge in range(indptr[row], indptr[row + 1]):
            prefetch(out, indices, edge)
            out[indices[edge]] |= word
