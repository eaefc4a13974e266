"""How the batches of a pass over a data loader are drawn, maybe on another thread.

A drawing refers to no data loader: a loader that is forgotten ends its pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.remote_destinations import delivery
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.source_trainers import SourceTrainers, source_trainers
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import MiniBatch, mark_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.seeds import join_seeds

Drawn = tuple[MiniBatch, SourceTrainers]
"""A batch, and which trainers' seeds reach its input nodes."""


@dataclass(frozen=True)
class Drawing:
    """One pass of one loader.

    Attributes
    ----------
    targets : node types that seeds have, by their numbers.
    seeds : per trainer of the group (number of the target type, id) of its seeds, in their order.
    sizes : per trainer of the group how many of them a step has.
    group : the group's trainers, by process groups that nobody else uses meanwhile.
    first : the number of the first step, which draws follow from.
    """

    session: Session
    sampler: NeighborSampler
    targets: Sequence[str]
    seeds: Sequence[np.ndarray]
    sizes: Sequence[Sequence[int]]
    group: Comm
    first: int

    def draw(self, step: int) -> Drawn:
        """The batch of a step. Trainers tell each other of it only if there are embeddings, or
        relations are delegated."""
        session, pieces = self.session, []
        for seeds, sizes in zip(self.seeds, self.sizes):
            start = sum(sizes[:step])
            pieces.append(seeds[start:start + sizes[step]])
        return draw(session, self.sampler, [
            {t: piece[piece[:, 0] == kind, 1] for kind, t in enumerate(self.targets)}
            for piece in pieces], self.first + step, self.group)


@torch.inference_mode(False)  # or a step of inference could not be proved, by gradients too
def draw(session: Session, sampler: NeighborSampler, seeds: Sequence[Mapping[str, np.ndarray]],
         number: int, group: Comm, excluded: Mapping[Relation, np.ndarray] | None = None) -> Drawn:
    """A batch of seeds (per trainer of the group target type → ids); draws follow from `number`.

    `group` : the trainers, by process groups that nobody else uses meanwhile. `excluded` : edges to
    leave out, as :meth:`NeighborSampler.sample` has them.
    """
    every, shares = join_seeds(seeds, session.group.rank)
    deliver = delivery(session.store, group) if session.plan.delegates else None
    batch = sampler.sample(every, shares, number, deliver=deliver, excluded=excluded)
    done: set[tuple[int, str]] = set()
    for block in batch.blocks:
        block.done = done
    if len(batch.blocks) > 1 and not session.all_complete:
        mark_reads(batch.blocks[-2], batch.blocks[-1])
    ranks = group.ranks if session.world.size > 1 else (0,)
    return batch, source_trainers(batch, group, ranks, {e.ntype for e in session.embeddings})


def draw_told(session: Session, sampler: NeighborSampler, own: Mapping[str, Tensor], number: int,
              excluded: Mapping[Relation, np.ndarray] | None = None,
              targets: Sequence[str] | None = None) -> Drawn:
    """A batch of seeds that a trainer knows of its own alone (target type → ids): the trainers of
    the group, who all call it, tell each other. `excluded` is the same on all of them, and so are
    `targets`, by default the plan's."""
    group, targets = session.group, targets or session.plan.targets
    mine = [own.get(t, _NONE).to(torch.int64) for t in targets]
    counts = group.all_gather_rows(torch.tensor([[len(ids) for ids in mine]]), [1] * group.size,
                                   "seeds")
    every = group.all_gather_rows(torch.cat(mine), counts.sum(1).tolist(), "seeds")
    pieces = iter(every.split(counts.flatten().tolist()))
    seeds = [{t: next(pieces).numpy() for t in targets} for _ in range(group.size)]
    for rank, of_trainer in zip(group.ranks, seeds):
        for ntype, ids in of_trainer.items():
            check_once(ids, ntype, f"a batch of trainer {rank}")
    return draw(session, sampler, seeds, number, group, excluded)


def check_once(ids: np.ndarray, ntype: str, what: str) -> None:
    """
    Raises
    ------
    InputError
        A node is twice among a trainer's seeds; `what` names the batch.
    """
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise InputError(
            f"{what} has node {unique[counts > 1][0]} of type '{ntype}' twice: DistDGL's block "
            "would give the edges of both to one of its rows, and none to the other; give the data "
            "loader each node once (torch.unique), and weigh the loss instead")


_NONE = torch.empty(0, dtype=torch.int64)
