"""Which learnable types are delegated, and to which partition: the fewest expected bytes.

For each type that several partitions read at layer 1 there are two ways
(:mod:`dgl_heta.planning.delegation`): its rows move, or partial aggregations do. Rows cost an id, a
row and a gradient for each that another partition keeps. Delegated, each destination row
that is no seed costs an id, a partial aggregation and its gradient, once for all types that the
same partition aggregates; and what a partition reads of the type as a destination still moves.

What is chosen for all types together has the fewest bytes, the rows that the busiest partition has
to aggregate counted, too (:data:`WORK`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dgl_heta.planning import traffic
from dgl_heta.planning.delegation import can_delegate, delegated, shared_learnable
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.reach import Reach, reach
from dgl_heta.planning.workload import Workload

WORK = 0.2
"""Bytes that may be sent to spare a partition one byte of rows to read, aggregate and update: about
what both take on a core and on a link of 1 Gbit/s."""

WAYS = ("rows", "delegate", "auto")
"""What `partition.shared` may be."""


@dataclass(frozen=True)
class Choice:
    """What is expected of a learnable type that several partitions read at layer 1.

    Attributes
    ----------
    owner : the partition that would aggregate it for the others.
    rows, partials : bytes of a step, of all workers, if rows move and if partial aggregations do
        (what is sent once for several types, shared evenly).
    chosen : whether it is delegated.
    """

    ntype: str
    owner: int
    rows: float
    partials: float
    chosen: bool

    def __str__(self) -> str:
        """One line that says why."""
        what = (f"partition {self.owner} aggregates it for the others" if self.chosen
                else "its rows move")
        return (f"{self.ntype}: {what} (rows {self.rows / 1e6:.1f} MB a step, partial aggregations "
                f"{self.partials / 1e6:.1f})")


def choose(plan: Plan, work: Workload, way: str) -> tuple[Plan, list[Choice]]:
    """The plan with the best delegation, and why.

    Parameters
    ----------
    way : "rows": nothing is delegated; "delegate": all that can be; "auto": what saves bytes.

    Raises
    ------
    InputError
        `way` is "delegate" and the plan cannot delegate.
    """
    if way == "rows" or (way == "auto" and (
            can_delegate(plan) is not None or work.reduce in ("max", "min"))):
        return plan, []
    choices = _choices(plan, work, way == "delegate") if can_delegate(plan) is None else []
    owners = {c.ntype: c.owner for c in choices if c.chosen}
    if way == "delegate" and can_delegate(plan) is not None:
        owners = {plan.schema.node_types[0]: 0}  # says why it cannot
    return delegated(plan, owners), choices


def _choices(plan: Plan, work: Workload, always: bool) -> list[Choice]:
    fanouts, size = work.fanouts_of(plan.hops), plan.num_parts
    seeds = work.batch_size * size
    steps = [reach(plan, p.index, fanouts, seeds, work.batch_size) for p in plan.partitions]
    expected = Expected(plan, steps, work)
    owners = expected.best(always)
    return [Choice(t, expected.owner_of(t, owners), expected.rows[t],
                   expected.partials_of(t, owners), owners[t] is not None)
            for t in expected.types]


Owners = dict[str, int | None]
"""Node type → the partition that aggregates it for the others; None: its rows move."""
Invitation = tuple[int, int, str]
"""Who asks, who is asked, the type of the destination rows."""


class Expected:
    """Bytes of a step by who aggregates what.

    Attributes
    ----------
    types : what can be delegated, most bytes first.
    rows : bytes of each, of all workers, if its rows move.
    """

    def __init__(self, plan: Plan, steps: Sequence[Reach], work: Workload) -> None:
        self._parts, self._steps, self._work = range(plan.num_parts), steps, work
        self.rows = {t: _moved(plan, steps, t, work) for t in shared_learnable(plan)}
        self.types = sorted(self.rows, key=self.rows.__getitem__, reverse=True)
        self._asked = {(t, p): _invitations(plan, t, p) for t in self.types for p in self._parts}
        self._price = {i: _invited(plan, steps, i, work)
                       for found in self._asked.values() for i in found}
        self._read = {(t, p): _read_elsewhere(plan, steps, t, p, work)
                      for t in self.types for p in self._parts}
        self._own = {t: [step.inputs.get(t, 0.0) * work.row_bytes for step in steps]
                     for t in self.types}
        self._whole = {t: min(sum(own), plan.schema.node_counts[t] * work.row_bytes)
                       for t, own in self._own.items()}

    def best(self, always: bool) -> Owners:
        """The owners with the fewest bytes that no other owner of one type betters.

        The search begins with types in turn, and with each partition as the owner of all: types
        that one partition aggregates share what is sent, so that moving one alone saves nothing.
        """
        ways: list[int | None] = [*self._parts] if always else [None, *self._parts]
        in_turn: Owners = {}
        for t in self.types:
            in_turn[t] = min(ways, key=lambda p: self.bytes_of({**in_turn, t: p}))
        starts = [in_turn, *(self._all(p) for p in ways)]
        return min((self._bettered(dict(start), ways) for start in starts), key=self.bytes_of)

    def _all(self, owner: int | None) -> Owners:
        return dict.fromkeys(self.types, owner)

    def _bettered(self, owners: Owners, ways: Sequence[int | None]) -> Owners:
        least, before = self.bytes_of(owners), math.inf
        while least < before:
            before = least
            for t in self.types:
                for p in ways:
                    found = self.bytes_of({**owners, t: p})
                    if found < least:
                        owners[t], least = p, found
        return owners

    def bytes_of(self, owners: Owners) -> float:
        """All that is sent, and the rows of the busiest partition at :data:`WORK`."""
        asked: set[Invitation] = set()
        total, load = 0.0, [0.0 for _ in self._parts]
        for t, owner in owners.items():
            if owner is None:
                total += self.rows[t]
                load = [a + b for a, b in zip(load, self._own[t])]
            else:
                asked |= self._asked[t, owner]
                total += self._read[t, owner]
                load[owner] += self._whole[t]
        return total + sum(self._price[i] for i in sorted(asked)) + WORK * max(load, default=0.0)

    def owner_of(self, ntype: str, owners: Owners) -> int:
        """Who aggregates a type, or would."""
        owner = owners[ntype]
        if owner is not None:
            return owner
        return min(self._parts, key=lambda p: self.bytes_of({**owners, ntype: p}))

    def partials_of(self, ntype: str, owners: Owners) -> float:
        """Bytes that delegating a type costs: what is sent for several is shared evenly."""
        owner = self.owner_of(ntype, owners)
        users = {**owners, ntype: owner}
        return self._read[ntype, owner] + sum(
            self._price[i] / sum(p is not None and i in self._asked[t, p]
                                 for t, p in users.items())
            for i in sorted(self._asked[ntype, owner]))


def _moved(plan: Plan, steps: Sequence[Reach], ntype: str, work: Workload) -> float:
    """Bytes of a step where a type's rows move: they are kept by its users in even ranges."""
    users, nodes = plan.users(ntype), max(plan.schema.node_counts[ntype], 1)
    read = [steps[p].inputs.get(ntype, 0.0) for p in users]
    away = traffic.owned_elsewhere(len(users))
    return sum(traffic.learnable(rows * away, work, rows / nodes) for rows in read)


def _invitations(plan: Plan, ntype: str, owner: int) -> set[Invitation]:
    return {(p.index, owner, r.dst) for p in plan.partitions if p.index != owner
            for r in p.inner[1] if r.src == ntype}


def _invited(plan: Plan, steps: Sequence[Reach], invitation: Invitation, work: Workload) -> float:
    """Bytes of a step for rows that one partition asks another for."""
    asking, _, dst = invitation
    rows = steps[asking].layers[-1].inner.get(dst, 0.0)
    nodes = plan.schema.node_counts[dst]
    total = traffic.delegated(rows, work, nodes)
    if work.model != "rgcn" and work.in_script:
        total += traffic.delegated_states(rows, work)
    elif work.model != "rgcn" and not plan.schema.feature_bytes.get(dst):
        # Attention reads the destination there, too.
        total += traffic.learnable(rows, work, rows / max(nodes, 1))
    return total


def _read_elsewhere(plan: Plan, steps: Sequence[Reach], ntype: str, owner: int, work: Workload
                    ) -> float:
    """Bytes of a step for rows of a type that others than its owner read as destinations."""
    total = 0.0
    for p in plan.partitions:
        if p.index != owner and work.seed_states:
            layer = steps[p.index].layers[-1]
            read = layer.inner.get(ntype, 0.0) + (
                steps[p.index].own.get(ntype, 0.0) if ntype in plan.targets else 0.0)
            total += traffic.learnable(read, work, read / max(plan.schema.node_counts[ntype], 1))
    return total
