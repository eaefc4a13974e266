"""The choice of owner partitions: which types are offloaded, and to whom, by expected bytes.

For each type that several partitions read at layer 1 there are two ways
(:mod:`dgl_heta.planning.offloading`): its rows move, or partial aggregations do. Rows cost an id, a
row and a gradient for each that another partition keeps. Offloaded, each destination row
that is no seed costs an id, a partial aggregation and its gradient, once for all types that the
same partition aggregates; and what a partition reads of the type as a destination still moves.

What is chosen for all types together has the fewest bytes, the rows that the busiest partition has
to aggregate counted, too (:data:`WORK`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgl_heta.planning import traffic
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import ReceptiveField, receptive_fields
from dgl_heta.planning.workload import Workload

log = logging.getLogger("dgl_heta")

WORK = 0.2
"""Bytes that may be sent to spare a partition one byte of rows to read, aggregate and update: about
what both take on a core and on a link of 1 Gbit/s."""
ATTENTION = 3
"""Times :data:`WORK` in scripts with attention, whose calls take two to three times as long for
each row as those of R-GCN (measured on Freebase: scripts/bench/compare.py)."""

WAYS = ("rows", "delegate", "auto")
"""The values of `partition.shared`."""


@dataclass(frozen=True)
class Choice:
    """The expected bytes of a learnable type that several partitions read at layer 1.

    Attributes
    ----------
    owner : the partition that would aggregate it for the others.
    rows, partials : bytes of a step, of all workers, if rows move and if partial aggregations do
        (what is sent once for several types, shared evenly).
    chosen : whether it is offloaded.
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
    """The plan with the best owner partitions, and why.

    Parameters
    ----------
    way : "rows": nothing is offloaded; "delegate": all that can be; "auto": what saves bytes.

    Raises
    ------
    InputError
        `way` is "delegate" and the plan cannot delegate.
    """
    if way == "rows" or (way == "auto" and (
            plan.why_not_offload() is not None or not worth_choosing(work))):
        return plan, []
    choices = _choices(plan, work, way == "delegate") if plan.why_not_offload() is None else []
    owners = {c.ntype: c.owner for c in choices if c.chosen}
    if way == "delegate" and plan.why_not_offload() is not None:
        owners = {plan.schema.node_types[0]: 0}  # says why it cannot
    return plan.with_owners(owners), choices


def worth_choosing(work: Workload) -> bool:
    """Return whether "auto" may offload. For max and min every relation's aggregation is sent by
    itself, which may be more than the rows; "delegate" does it all the same."""
    return not work.takes_extremes


def _choices(plan: Plan, work: Workload, always: bool) -> list[Choice]:
    said = threading.Timer(1.0, log.warning, (
        "choosing which of %s node types one of %s partitions aggregates for the others "
        "(partition.shared) …", f"{len(plan.schema.node_types):,}", f"{plan.num_parts:,}"))
    said.daemon = True
    said.start()
    try:
        return _best_choices(plan, work, always)
    finally:
        said.cancel()


def _best_choices(plan: Plan, work: Workload, always: bool) -> list[Choice]:
    steps = receptive_fields(plan, work.fanouts_of(plan.hops), work.batch_size * plan.num_parts,
                          work.batch_size)
    expected = Expected(plan, steps, work)
    return expected.choices(expected.best(always))


Owners = dict[str, int | None]
"""Node type → the partition that aggregates it for the others; None: its rows move."""

STARTS = 4
"""A search begins with one owner for all types, for so many of the best ones."""
ROUNDS = 3
"""Rounds over all types that each search has; the best one goes on."""


class Expected:
    """Bytes of a step by who aggregates what.

    Attributes
    ----------
    types : what can be offloaded, most bytes first.
    rows : bytes of each, of all workers, if its rows move.
    spared : bytes that may be sent to spare a partition one byte of rows.
    compared : how often all ways of one type were compared.
    """

    def __init__(self, plan: Plan, steps: Sequence[ReceptiveField], work: Workload) -> None:
        schema, self.parts = plan.schema, plan.num_parts
        moved = _moved(plan, steps, plan.shared_learnable(), work)
        self.types = sorted(moved, key=moved.__getitem__, reverse=True)
        self.rows = {t: moved[t] for t in self.types}
        self.spared = WORK * (ATTENTION if work.in_script and work.model != "rgcn" else 1)
        self.compared = 0
        self.moved = np.array([*self.rows.values()])
        # A partition that asks for rows of a type pays the same whoever it asks, for all that the
        # same partition aggregates together: requests are numbered without the one that is asked.
        requests: dict[tuple[int, str], int] = {}
        by_type: dict[str, dict[int, None]] = {t: {} for t in self.types}
        for p in plan.partitions:
            for r in p.inner[1]:
                if r.src in by_type:
                    number = requests.setdefault((p.index, r.dst), len(requests))
                    by_type[r.src][number] = None
        self.requests = [np.array([*numbers], np.int64) for numbers in by_type.values()]
        self.asking = np.array([part for part, _ in requests], np.int64)
        self.price = _prices(plan, steps, [*requests], work)
        self.read = _read_elsewhere(plan, steps, self.types, work)
        self.own = _inputs(steps, self.types).T * work.row_bytes
        nodes = np.array([schema.node_counts[t] for t in self.types])
        self.whole = np.minimum(self.own.sum(1), nodes * work.row_bytes)

    def best(self, always: bool) -> Owners:
        """The owners with the fewest bytes that no other owner of one type betters.

        The search begins with types in turn, and with one owner for all: types that one partition
        aggregates share what is sent, so that moving one alone saves nothing.
        """
        # Way 0 is that rows move; "delegate" does not have it.
        first = 1 if always else 0
        in_turn = _Search(self)
        for number in range(len(self.types)):
            in_turn.put(number, first + int(in_turn.costs(number)[first:].argmin()))
        for_all = first + self._for_all()[first:].argsort(kind="stable")[:STARTS]
        searches = [in_turn, *(_Search(self, [way] * len(self.types)) for way in for_all.tolist())]
        for search in searches:
            search.better(first, ROUNDS)
        best = min(searches, key=_Search.total)
        best.better(first)
        return {t: way - 1 if way else None for t, way in zip(self.types, best.ways)}

    def _for_all(self) -> np.ndarray:
        """Bytes if all types have one way: 0 if their rows move, else 1 + their owner."""
        asked = self.price.sum() - np.bincount(self.asking, self.price, self.parts)
        return np.append(self.moved.sum() + self.spared * self.own.sum(0).max(initial=0.0),
                         asked + self.read.sum(0) + self.spared * self.whole.sum())

    def bytes_of(self, owners: Owners) -> float:
        """All that is sent, and the rows of the busiest partition at :attr:`spared`."""
        return self._search(owners).total()

    def choices(self, owners: Owners) -> list[Choice]:
        """The expected bytes of each type with these owners of all types."""
        search, choices = self._search(owners), []
        for number, ntype in enumerate(self.types):
            way = search.ways[number]
            search.take_out(number)
            # Where rows move, the owner that would have cost least is shown beside them.
            owner = (way or 1 + int(search.costs(number)[1:].argmin())) - 1
            asked = self.requests[number]
            asked = asked[self.asking[asked] != owner]
            # What is sent for several types is shared evenly.
            partials = self.read[number, owner] + (
                self.price[asked] / (1 + search.users[asked, owner])).sum()
            choices.append(Choice(ntype, owner, self.rows[ntype], float(partials), way > 0))
            search.put(number, way)
        return choices

    def _search(self, owners: Owners) -> _Search:
        ways = [0 if (owner := owners[t]) is None else 1 + owner for t in self.types]
        return _Search(self, ways)


class _Search:
    """Owners of types, and what they cost, kept up to date as one type after the other changes.

    Attributes
    ----------
    ways : of each type: 0 if its rows move, else 1 + its owner.
    users : (requests, partitions) int32: how many types need a request of a partition.
    """

    def __init__(self, expected: Expected, ways: Sequence[int] = ()) -> None:
        self._expected = expected
        self.ways = [-1] * len(expected.types)
        self.users = np.zeros((len(expected.asking), expected.parts), np.int32)
        self._sent, self._load = 0.0, np.zeros(expected.parts)
        for number, way in enumerate(ways):
            self.put(number, way)

    def total(self) -> float:
        """Bytes that are sent, and the rows of the busiest partition at `spared`."""
        return float(self._sent + self._expected.spared * self._load.max(initial=0.0))

    def costs(self, number: int) -> np.ndarray:
        """:meth:`total` for each way of a type that is taken out, (1 + partitions,)."""
        expected, asked = self._expected, self._expected.requests[number]
        expected.compared += 1
        prices = np.where(self.users[asked] == 0, expected.price[asked, None], 0.0)
        # A partition does not ask itself.
        prices[np.arange(len(asked)), expected.asking[asked]] = 0
        sent = np.append(expected.moved[number], expected.read[number] + prices.sum(0))
        load = np.append((self._load + expected.own[number]).max(), np.maximum(
            self._load + expected.whole[number], self._load.max()))
        return self._sent + sent + expected.spared * load

    def put(self, number: int, way: int) -> None:
        """Give a type that is taken out a way."""
        self.ways[number] = way
        self._add(number, way, 1)

    def take_out(self, number: int) -> None:
        """Leave a type out of all sums."""
        self._add(number, self.ways[number], -1)

    def better(self, first: int, rounds: int | None = None) -> None:
        """Change one type after the other to what costs least, from way `first` on, in so many
        rounds at most, or until none saves more than rounding."""
        before, done = math.inf, 0
        while done != rounds and self.total() < before * (1 - 1e-9):
            before, done = self.total(), done + 1
            for number, way in enumerate(self.ways):
                self.take_out(number)
                costs = self.costs(number)
                least = first + int(costs[first:].argmin())
                self.put(number, least if costs[least] < costs[way] else way)

    def _add(self, number: int, way: int, sign: int) -> None:
        expected = self._expected
        if way == 0:
            self._sent += sign * expected.moved[number]
            self._load += sign * expected.own[number]
            return
        owner = way - 1
        asked = expected.requests[number]
        asked = asked[expected.asking[asked] != owner]
        # A request is paid for by the first type that needs it, and saved with the last.
        new = self.users[asked, owner] == (0 if sign > 0 else 1)
        self.users[asked, owner] += sign
        self._sent += sign * (expected.read[number, owner] + expected.price[asked[new]].sum())
        self._load[owner] += sign * expected.whole[number]


def _inputs(steps: Sequence[ReceptiveField], ntypes: Sequence[str]) -> np.ndarray:
    """(partitions, types): input rows."""
    return np.array([[step.inputs.get(t, 0.0) for t in ntypes] for step in steps])


def _moved(plan: Plan, steps: Sequence[ReceptiveField], ntypes: Sequence[str], work: Workload
           ) -> dict[str, float]:
    """Bytes of a step where a type's rows move: they are kept by its users in even ranges."""
    nodes = np.array([plan.schema.node_counts[t] for t in ntypes])
    using = Counter(t for p in plan.partitions for t in p.node_types)
    away = np.array([traffic.owned_elsewhere(using[t]) for t in ntypes])
    rows = _inputs(steps, ntypes)
    return dict(zip(ntypes, traffic.learnable(rows * away, work, rows / nodes).sum(0).tolist()))


def _prices(plan: Plan, steps: Sequence[ReceptiveField], requests: Sequence[tuple[int, str]],
            work: Workload) -> np.ndarray:
    """Bytes of a step for destination rows of a type that a partition asks another for."""
    rows = np.array([steps[part].layers[-1].inner.get(t, 0.0) for part, t in requests])
    nodes = np.array([plan.schema.node_counts[t] for _, t in requests], np.float64)
    total = traffic.offloaded(rows, work, nodes)
    if work.model != "rgcn" and work.in_script:
        total += traffic.offloaded_states(rows, work)
    elif work.model != "rgcn":
        # Attention reads the destination there, too.
        learned = np.array([not plan.schema.feature_bytes.get(t) for _, t in requests], bool)
        total += np.where(learned, traffic.learnable(rows, work, rows / nodes), 0.0)
    return total


def _read_elsewhere(plan: Plan, steps: Sequence[ReceptiveField], ntypes: Sequence[str],
                    work: Workload) -> np.ndarray:
    """(types, partitions): bytes of a step for rows of a type that others than this partition, its
    owner, read as destinations."""
    if not work.seed_states:
        return np.zeros((len(ntypes), len(steps)))
    rows = np.array([[step.layers[-1].inner.get(t, 0.0) + step.own.get(t, 0.0) for step in steps]
                     for t in ntypes]).reshape(len(ntypes), len(steps))
    nodes = np.array([plan.schema.node_counts[t] for t in ntypes])
    of_each = traffic.learnable(rows, work, rows / nodes[:, None])
    return of_each.sum(1, keepdims=True) - of_each
