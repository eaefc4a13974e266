"""The steps of a data loader, on which all trainers agree when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import several


@dataclass(frozen=True)
class StepPlan:
    """How many steps a pass has, and what each trainer has in them.

    Attributes
    ----------
    loader : the number of the data loader, in the order in which all trainers make theirs.
    counts : per trainer, how many seeds it has.
    sizes : per trainer, how many of its seeds each step has.
    seed : of sampling; the same on all trainers.
    """

    loader: int
    counts: Sequence[int]
    sizes: Sequence[Sequence[int]]
    seed: int

    def __len__(self) -> int:
        return len(self.sizes[0])

    def sampling_key(self, epoch: int, step: int) -> int:
        """Return the number that a step's samples follow from: no other step of the run has it."""
        return (self.loader << 48) + (epoch << 28) + step


def agree_on_steps(session: Session, options: LoaderOptions, seeds: int, values: Sequence[int]
                   ) -> StepPlan:
    """Return the plan of a new data loader; all trainers call it alike.

    Parameters
    ----------
    seeds : how many this trainer has.
    values : what else must be the same on all trainers: what is sampled, and how.

    Raises
    ------
    InputError
        A trainer has not a seed for every step.
    HetaError
        Trainers make different loaders.
    """
    loader = session.loaders
    session.loaders += 1
    # Agreed first: trainers that make other loaders would gather rows of other shapes below.
    session.groups.agree("the data loaders", [loader, options.batch_size, int(options.shuffle),
                                       int(options.drop_last), *values])
    ones = [1] * session.world.size
    counts: list[int] = session.world.all_gather_rows(
        torch.tensor([seeds]), ones, "control").tolist()
    sizes = step_sizes(counts, options.batch_size, options.drop_last)
    # Trainer 0's: scripts may seed each trainer otherwise, and all must sample the same edges.
    seed = torch.tensor([torch.initial_seed() % 2**62])
    seed = session.world.all_gather_rows(seed, ones, "control")[:1]
    return StepPlan(loader, counts, sizes, int(seed))


def step_sizes(counts: Sequence[int], batch_size: int, drop_last: bool) -> list[list[int]]:
    """Return per trainer the number of its seeds in every step; every trainer has one in each.

    As many steps as the trainer with most seeds needs; one that has fewer gives fewer per step
    at the end. With `drop_last` every batch is full, and the trainer with fewest decides.
    """
    if drop_last:
        return [[batch_size] * (min(counts) // batch_size)] * len(counts)
    steps = -(-max(counts) // batch_size)
    sizes = []
    for rank, count in enumerate(counts):
        if count < steps:
            refuse("trainer without a seed for each step", rank=rank, has=several(count, "seed"),
                   steps=steps, most=max(counts), batch_size=batch_size,
                   otherwise=" or use larger batches" if count else
                   ", of as many nodes as there are trainers at least")
        left, of_trainer = count, []
        for step in range(steps):
            # One seed is kept back for each of the steps to come.
            of_trainer.append(min(batch_size, left - (steps - step - 1)))
            left -= of_trainer[-1]
        sizes.append(of_trainer)
    return sizes
