"""Who trains together, and what the trainers have agreed on.

The *world* are all trainers: they make data loaders alike and average gradients. A *group* has one
trainer on each of the machines that together hold all relations: they work on one batch, and
exchange partial aggregations. Methods that all trainers (or those of the group) are said to call
are collectives: all come to the same point, or some wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.comm.machines import join_machine
from dgl_heta.distdgl.watchdog import watchdog
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.planning.plan import Plan


class Groups:
    """The trainers of a run as one of them sees them; it is alone until :meth:`form` is called.

    Parameters
    ----------
    part : the partition of this trainer's machine.
    timeout_s : the limit of every wait.
    wire : what float32 numbers are sent as (see :class:`Comm`).

    Attributes
    ----------
    traffic : counts the bytes that this trainer sends.
    world : all trainers.
    group : those of this trainer's group.
    trainers : for each machine the ranks of its trainers.
    members : partitions of this trainer's group, in the order of its ranks.
    sampling : process groups for passes over data loaders.
    agreed : facts that the group's trainers have told each other in this epoch, so as to ask once:
        question → answer. It is cleared where an epoch begins, on all trainers.
    """

    def __init__(self, part: int, timeout_s: float, wire: torch.dtype | None = None) -> None:
        self._part, self._timeout_s, self._wire = part, timeout_s, wire
        self.traffic = Traffic()
        self.world = self.group = Comm(self.traffic)
        self.trainers: list[list[int]] = [[0]]
        self.members: tuple[int, ...] = (part,)
        self._every_group: list[list[int]] = []
        self.sampling = SamplingGroups(self.new_group)
        self.agreed: dict[Any, Any] = {}

    def form(self, plan: Plan, by_machine: bool) -> None:
        """Form the world, and this trainer's group as the plan has them; all trainers call it.

        `by_machine`: let the world know which trainers share a machine, by which learnable rows
        are routed.
        """
        ranks = range(dist.get_world_size())
        timeout = timedelta(seconds=self._timeout_s)
        self.world = Comm(self.traffic, ranks,
                          dist.new_group(list(ranks), timeout=timeout, backend="gloo"), self._wire)
        part_of = self.world.all_gather_rows(
            torch.tensor([self._part]), [1] * self.world.size, "control").tolist()
        self.trainers = [[r for r in ranks if part_of[r] == part]
                         for part in range(plan.num_parts)]
        counts = {len(trainers) for trainers in self.trainers}
        if len(counts) != 1 or 0 in counts:
            raise InputError("every part needs the same number of trainers; there are "
                             f"{listing(str(len(r)) for r in self.trainers)} on machines 0 … "
                             f"{plan.num_parts - 1}")
        if by_machine:
            join_machine(self.world, list(map(str, part_of)), self._timeout_s)
        self.members = next((m for m in plan.groups if self._part in m), self.members)
        self._every_group = [[self.trainers[part][number] for part in members]
                             for members in plan.groups for number in range(min(counts))]
        self.group = self.new_group(self.traffic)

    def new_group(self, traffic: Traffic | None = None) -> Comm:
        """Return this trainer's group with a process group of its own; all trainers call it."""
        timeout, chosen = timedelta(seconds=self._timeout_s), self.group
        # torch.distributed wants every trainer to take part in making every process group, also
        # those that it is not in.
        for ranks in self._every_group:
            process_group = (dist.new_group(ranks, timeout=timeout, backend="gloo")
                             if len(ranks) > 1 else None)
            if dist.get_rank() in ranks:
                chosen = Comm(traffic or Traffic(), ranks, process_group, self._wire)
        return chosen

    def partners(self, members: Sequence[int]) -> list[int]:
        """Return the ranks of this trainer's partners on the machines of these partitions."""
        number = self.trainers[self._part].index(self.world.rank) if self.world.size > 1 else 0
        return [self.trainers[part][number] for part in members] if self.world.size > 1 else [0]

    def agree(self, what: str, values: Sequence[int]) -> None:
        """Check that all trainers are at the same point with the same values; all call it.

        Raises
        ------
        HetaError
            They are not; the message says `what`.
        """
        if self.world.size == 1:
            return
        # A trainer that never comes here would be met by a time-out alone, so it is looked for
        # before the collective.
        watchdog().meet(self._timeout_s)
        values_here = torch.tensor([list(values)], dtype=torch.int64)
        every = self.world.all_gather_rows(values_here, [1] * self.world.size, "control").tolist()
        for rank, row in enumerate(every):
            if row != every[0]:
                raise HetaError(f"trainers do not agree on {what}: {every[0]} on trainer "
                                f"0, {row} on trainer {rank}; all trainers must create and "
                                "iterate their data loaders alike")

    def all_agree(self, question: Any, holds: bool) -> bool:
        """Return whether something holds on all trainers of the group, asked once an epoch.

        All of them call it at the same point.
        """
        if self.group.size == 1:
            return holds
        if question not in self.agreed:
            answer = self.group.all_reduce(torch.tensor([int(holds)]), "min", "control")
            self.agreed[question] = bool(answer)
        return bool(self.agreed[question])

    @contextmanager
    def replaced(self, world: Comm, group: Comm) -> Iterator[None]:
        """Let other communicators be the world and the group while the body runs, without what was
        agreed on: a replay computes with other dtypes and batches."""
        before = self.world, self.group, self.agreed
        self.world, self.group, self.agreed = world, group, {}
        try:
            yield
        finally:
            self.world, self.group, self.agreed = before


class SamplingGroups:
    """Process groups for what the trainers of a group agree on when they sample.

    Each pass that is under way has its own: passes over several loaders may be sampled side by
    side, on threads, in an order that differs from trainer to trainer. On one process group their
    collectives would be taken for each other.

    Parameters
    ----------
    make : makes one more process group for the trainers of this one's group.
    """

    def __init__(self, make: Callable[[], Comm]) -> None:
        self._make = make
        self._groups: list[Comm] = []
        self._taken: set[int] = set()

    @contextmanager
    def one(self, world: Comm) -> Iterator[Comm]:
        """Lend one that no trainer uses; all trainers enter alike, and leave when they like."""
        # A trainer may still be in a pass that others have left, so they agree on one that is free
        # for all; the one after the last is always free.
        free = torch.tensor([int(n not in self._taken) for n in range(len(self._groups) + 1)])
        number = world.all_reduce(free, "min", "control").tolist().index(1)
        if number == len(self._groups):
            self._groups.append(self._make())
        self._taken.add(number)
        try:
            yield self._groups[number]
        finally:
            self._taken.discard(number)
