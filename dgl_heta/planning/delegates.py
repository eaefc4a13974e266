"""Which learnable types are delegated, and to which partition: the fewest expected bytes.

For each type that several partitions read at layer 1 there are two ways
(:mod:`dgl_heta.planning.delegation`): its rows move, or partial aggregations do. Rows cost an id, a
row and a gradient for each that another partition keeps. Delegated, each destination row
that is no seed costs an id, a partial aggregation and its gradient, once for all types that the
same partition aggregates; and what a partition reads of the type as a destination still moves.

Types are taken in turn, those with most bytes first. What is chosen has the fewest bytes, the rows
that the busiest partition has to aggregate counted, too (:data:`WORK`).
"""

from __future__ import annotations

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
    rows, partials : bytes of a step, of all workers, if rows move and if partial aggregations do.
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
    invited: set[tuple[int, int, str]] = set()  # (who asks, who is asked, type of destinations)
    found, load = [], [0.0] * size
    by_rows = {t: _moved(plan, steps, t, work) for t in shared_learnable(plan)}
    for ntype in sorted(by_rows, key=by_rows.__getitem__, reverse=True):
        costs = [_delegated(plan, steps, ntype, owner, invited, work) for owner in range(size)]
        own = [step.inputs.get(ntype, 0.0) * work.row_bytes for step in steps]
        whole = min(sum(own), plan.schema.node_counts[ntype] * work.row_bytes)
        loads = [[a + (whole if p == owner else 0.0) for p, a in enumerate(load)]
                 for owner in range(size)]
        owner = min(range(size), key=lambda p: costs[p] + WORK * max(loads[p]))
        apart = [a + b for a, b in zip(load, own)]
        chosen = always or (costs[owner] + WORK * max(loads[owner])
                            < by_rows[ntype] + WORK * max(apart))
        load = loads[owner] if chosen else apart
        if chosen:
            invited |= _invitations(plan, ntype, owner)
        found.append(Choice(ntype, owner, by_rows[ntype], costs[owner], chosen))
    return found


def _moved(plan: Plan, steps: Sequence[Reach], ntype: str, work: Workload) -> float:
    """Bytes of a step where a type's rows move: they are kept by its users in even ranges."""
    users = plan.users(ntype)
    rows = sum(steps[p].inputs.get(ntype, 0.0) for p in users)
    return traffic.learnable(rows * traffic.owned_elsewhere(len(users)), work)


def _invitations(plan: Plan, ntype: str, owner: int) -> set[tuple[int, int, str]]:
    return {(p.index, owner, r.dst) for p in plan.partitions if p.index != owner
            for r in p.inner[1] if r.src == ntype}


def _delegated(plan: Plan, steps: Sequence[Reach], ntype: str, owner: int,
               invited: set[tuple[int, int, str]], work: Workload) -> float:
    """Bytes of a step more, where a partition aggregates a type for the others."""
    total = 0.0
    for asking, _, dst in _invitations(plan, ntype, owner) - invited:
        rows = steps[asking].layers[-1].inner.get(dst, 0.0)
        total += traffic.delegated(rows, work)
        if work.model != "rgcn" and not plan.schema.feature_bytes.get(dst):
            total += traffic.learnable(rows, work)  # attention reads the destination there, too
    for p in plan.partitions:
        if p.index != owner and work.seed_states:
            layer = steps[p.index].layers[-1]
            read = layer.inner.get(ntype, 0.0) + (
                steps[p.index].own.get(ntype, 0.0) if ntype in plan.targets else 0.0)
            total += traffic.learnable(read, work)
    return total
