"""Sampling of the batches of a group of trainers, maybe on another thread.

The seeds of a step are those of every trainer of the group; each trainer samples its machine's
relations for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.sampled_rows import agreement, delivery
from dgl_heta.distdgl.loading.typed_ids import TypedIds, check_once, gather_seeds
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.source_trainers import SourceTrainers, source_trainers
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import MiniBatch, mark_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.seeds import join_seeds


class SampledBatch(NamedTuple):
    """A batch, the source trainers of its input nodes, and the key that its samples follow from."""

    batch: MiniBatch
    sources: SourceTrainers
    key: int


@dataclass(frozen=True)
class PassSampling:
    """The sampling of one pass of one loader.

    It does not refer to the loader, which would keep alive a loader that the script has forgotten:
    the end of that loader is the end of its pass.

    Attributes
    ----------
    seeds : per trainer of the group, its seeds in their order.
    sizes : per trainer of the group, how many of them a step has.
    group : the group's trainers, by process groups that nobody else uses meanwhile.
    first_key : of the first step.
    """

    session: Session
    sampler: NeighborSampler
    seeds: Sequence[TypedIds]
    sizes: Sequence[Sequence[int]]
    group: Comm
    first_key: int

    def sample(self, step: int) -> SampledBatch:
        """Sample the batch of a step; trainers exchange rows where :func:`sample_batch` says so."""
        pieces = []
        for seeds, sizes in zip(self.seeds, self.sizes):
            start = sum(sizes[:step])
            pieces.append(seeds[start:start + sizes[step]].by_type())
        return sample_batch(self.session, self.sampler, pieces, self.first_key + step, self.group)


def sample_blocks(session: Session, sampler: NeighborSampler, key: int, group: Comm,
                  seeds: Sequence[Mapping[str, np.ndarray]],
                  excluded: Mapping[Relation, np.ndarray] | None = None) -> MiniBatch:
    """Sample the blocks of seeds (per trainer of the group target type → ids).

    Parameters
    ----------
    key : that the samples follow from; the same on all trainers.
    group : the trainers, by process groups that nobody else uses meanwhile. They exchange rows here
        where the plan says so (`Plan.exchanges_while_sampling`).
    excluded : edges to leave out, as :meth:`NeighborSampler.sample` has them.
    """
    every, shares = join_seeds(seeds, session.group.rank)
    batch = sampler.sample(every, shares, key, deliver=delivery(session.store, group),
                           agree=agreement(session.store, group), excluded=excluded)
    if len(batch.blocks) > 1 and not session.all_complete:
        mark_reads(batch.blocks[-2], batch.blocks[-1])
    return batch


@torch.inference_mode(False)  # or a step of inference could not be proved, by gradients too
def sample_batch(session: Session, sampler: NeighborSampler, seeds: Sequence[Mapping[str, Tensor]],
                 key: int, group: Comm, excluded: Mapping[Relation, np.ndarray] | None = None
                 ) -> SampledBatch:
    """Sample a batch as :func:`sample_blocks`, with the source trainers of its input nodes.

    Trainers exchange these where the graph has a DistEmbedding.
    """
    batch = sample_blocks(session, sampler, key, group, [
        {t: ids.numpy() for t, ids in of_trainer.items()} for of_trainer in seeds], excluded)
    # One set for all blocks: a session finds in it which reductions of the batch were done.
    done: set[tuple[int, str]] = set()
    for block in batch.blocks:
        block.done = done
    ranks = group.ranks if session.world.size > 1 else (0,)
    return SampledBatch(
        batch, source_trainers(batch, group, ranks, session.embedded), key)


def sample_own_seeds(session: Session, sampler: NeighborSampler, own: Mapping[str, Tensor],
                     key: int, excluded: Mapping[Relation, np.ndarray] | None = None,
                     targets: Sequence[str] | None = None) -> SampledBatch:
    """Sample a batch whose seeds each trainer knows of its own alone (target type → ids).

    The trainers of the group, who all call it, tell each other theirs. `excluded` is the same on
    all of them, and so are `targets`, by default the plan's.
    """
    group = session.group
    seeds = gather_seeds(group, targets or session.plan.targets, own)
    for rank, of_trainer in zip(group.ranks, seeds):
        for ntype, ids in of_trainer.items():
            check_once(ids, ntype, f"a batch of trainer {rank}")
    return sample_batch(session, sampler, seeds, key, group, excluded)
