"""Cache policies: which feature rows stay close to the processor (Heta §6 and its baselines).

A policy sees only numbers. :func:`choose` calls one, and checks what goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.hooks.protocols import CachePolicy

Counts = Mapping[str, np.ndarray]


class Policy(CachePolicy):
    """A built-in policy: a name and a function of the four numbers that `select` is given."""

    def __init__(self, name: str, select: Callable[..., dict[str, np.ndarray]],
                 counts: Literal["visits", "degree"] = "visits",
                 replacement: str | None = None) -> None:
        self.name, self.counts, self.replacement = name, counts, replacement
        self._select = select

    def select(self, counts: Counts, row_bytes: Mapping[str, int],
               penalties: Mapping[str, float], capacity: int) -> dict[str, np.ndarray]:
        return self._select(counts, row_bytes, penalties, capacity)


def built_in() -> list[Policy]:
    """The policies that dgl-heta comes with."""
    return [
        Policy("none", no_rows),
        Policy("degree", most_counted, counts="degree"),
        Policy("hotness", most_counted),
        Policy("miss_penalty", miss_penalty),
        Policy("density", density),
        Policy("fifo", first_rows, replacement="fifo"),
        Policy("clock", first_rows, replacement="clock"),
    ]


def no_rows(counts: Counts, row_bytes: Mapping[str, int], penalties: Mapping[str, float],
            capacity: int) -> dict[str, np.ndarray]:
    """`none`: cache nothing."""
    return {ntype: np.empty(0, np.int64) for ntype in counts}


def most_counted(counts: Counts, row_bytes: Mapping[str, int], penalties: Mapping[str, float],
                 capacity: int) -> dict[str, np.ndarray]:
    """`hotness` (GNNLab) and `degree` (PaGraph): the nodes with the largest counts of all types."""
    return _fill(counts, dict.fromkeys(counts, 1.0), row_bytes, capacity)


def density(counts: Counts, row_bytes: Mapping[str, int], penalties: Mapping[str, float],
            capacity: int) -> dict[str, np.ndarray]:
    """`density`: the rows with the largest product of visits and miss penalty per byte.

    A row of n visits costs n × penalty × bytes seconds when it is not cached, and `bytes` when it
    is. Taking rows by their ratio is the greedy solution of that knapsack problem, which is off by
    less than one row; Heta §6 decides per node type instead (`miss_penalty`).
    """
    return _fill(counts, penalties, row_bytes, capacity)


def miss_penalty(counts: Counts, row_bytes: Mapping[str, int], penalties: Mapping[str, float],
                 capacity: int) -> dict[str, np.ndarray]:
    """`miss_penalty` (Heta §6): bytes per type ∝ visits × miss penalty, then its hottest nodes.

    What exceeds the rows of a type goes to the others by the same rule.
    """
    weights = {t: float(count.sum()) * penalties[t] for t, count in counts.items()}
    if not any(weights.values()):
        weights = {t: float(len(count) * row_bytes[t]) for t, count in counts.items()}
    limits = {t: len(count) * row_bytes[t] for t, count in counts.items()}
    shares = share_bytes(weights, limits, capacity)
    unseen = {t: float(limits[t]) for t in counts if not weights[t]}
    shares.update(share_bytes(unseen, limits, capacity - sum(shares.values())))
    rows = {t: int(shares[t]) // row_bytes[t] for t in counts}
    free = capacity - sum(rows[t] * row_bytes[t] for t in counts)
    for ntype in sorted(counts, key=lambda t: -weights[t]):  # what whole rows leave over
        more = min(free // row_bytes[ntype], len(counts[ntype]) - rows[ntype])
        more = more if weights[ntype] else 0
        rows[ntype] += more
        free -= more * row_bytes[ntype]
    return {t: hottest(count, rows[t]) for t, count in counts.items()}


def first_rows(counts: Counts, row_bytes: Mapping[str, int], penalties: Mapping[str, float],
               capacity: int) -> dict[str, np.ndarray]:
    """`fifo` and `clock`: every type gets the same share of its rows, to be replaced in use."""
    total = sum(len(count) * row_bytes[t] for t, count in counts.items())
    share = min(capacity / max(total, 1), 1.0)
    return {t: np.arange(int(len(count) * share), dtype=np.int64) for t, count in counts.items()}


def share_bytes(weights: Mapping[str, float], limits: Mapping[str, int], capacity: float
                ) -> dict[str, float]:
    """Divide `capacity` in proportion to `weights`, no share above its limit.

    What a limit leaves over is divided among the others by the same rule; a weight of 0 gets 0.
    """
    shares = dict.fromkeys(weights, 0.0)
    open_types = [t for t in weights if weights[t] > 0 and limits[t] > 0]
    while open_types and capacity > 0:
        total = sum(weights[t] for t in open_types)
        full = [t for t in open_types if weights[t] / total * capacity >= limits[t]]
        for ntype in full or open_types:
            shares[ntype] = limits[ntype] if full else weights[ntype] / total * capacity
        capacity -= sum(shares[t] for t in full)
        open_types = [t for t in open_types if t not in full] if full else []
    return shares


def hottest(count: np.ndarray, rows: int) -> np.ndarray:
    """Ids of the `rows` nodes with the largest counts, in ascending order."""
    if rows >= len(count):
        return np.arange(len(count), dtype=np.int64)
    most_read = np.argpartition(-count, rows)[:rows] if rows > 0 else np.empty(0)
    return np.sort(most_read).astype(np.int64)


def _fill(counts: Counts, worth: Mapping[str, float], row_bytes: Mapping[str, int], capacity: int
          ) -> dict[str, np.ndarray]:
    """Rows by count × worth of their type, largest first, as many as fit.

    Found by bisection over the threshold: nothing of the size of all nodes is sorted.
    """
    counts = {t: count if worth[t] else count[:0] for t, count in counts.items()}

    def rows_above(threshold: float) -> dict[str, int]:
        return {t: int(np.count_nonzero(count * worth[t] > threshold))
                for t, count in counts.items()}

    def size(rows: Mapping[str, int]) -> int:
        return sum(n * row_bytes[t] for t, n in rows.items())

    low, high = -1.0, max((float(count.max()) * worth[t] for t, count in counts.items()
                           if len(count)), default=0.0)
    if size(rows_above(low)) > capacity:  # not everything fits
        for _ in range(60):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            low, high = (low, middle) if size(rows_above(middle)) <= capacity else (middle, high)
    rows = rows_above(low if size(rows_above(low)) <= capacity else high)
    free = capacity - size(rows)
    # Ties at the threshold: the types share what is left in proportion to their tied rows.
    tied = {t: min(len(counts[t]), int(np.count_nonzero(counts[t] * worth[t] > low))) - rows[t]
            for t in counts}
    total = sum(tied[t] * row_bytes[t] for t in counts)
    part = min(free / total, 1.0) if total else 0.0
    return {t: hottest(counts[t], rows[t] + int(tied[t] * part)) for t in counts}


def choose(policy: CachePolicy, counts: Counts, row_bytes: Mapping[str, int],
           penalties: Mapping[str, float], capacity: int) -> dict[str, np.ndarray]:
    """The rows that a policy selects, of the types of which it can help.

    Types whose penalty is 0 are not offered to it: reading them from the cache gains nothing.

    Raises
    ------
    InputError
        A negative capacity; a penalty that is negative, infinite or no number; types that differ.
    HetaError
        The policy selected more than fits, rows that are not there, or a row twice.
    """
    if capacity < 0:
        raise InputError(f"the cache's capacity is {capacity} bytes; it must be 0 or more")
    for what, mapping in (("row bytes", row_bytes), ("a miss penalty", penalties)):
        if missing := [t for t in counts if t not in mapping]:
            raise InputError(f"node type '{missing[0]}' has counts but no {what}")
    for ntype, penalty in penalties.items():
        if not 0 <= penalty < float("inf"):
            raise InputError(f"the miss penalty of '{ntype}' is {penalty}; it must be a number of "
                             "seconds per byte, 0 or more")
    offered = {t: count for t, count in counts.items() if penalties[t] > 0 and len(count)}
    empty = {t: np.empty(0, np.int64) for t in counts}
    if not offered or not capacity:
        return empty
    chosen = policy.select(offered, {t: row_bytes[t] for t in offered},
                          {t: penalties[t] for t in offered}, capacity)
    return {**empty, **_checked(policy.name, chosen, offered, row_bytes, capacity)}


def _checked(name: str, chosen: Any, counts: Counts, row_bytes: Mapping[str, int], capacity: int
             ) -> dict[str, np.ndarray]:
    if not isinstance(chosen, Mapping) or not set(chosen) <= set(counts):
        raise HetaError(f"cache policy '{name}' returned {str(chosen)[:80]}; it must map node "
                        f"types ({listing(counts)}) to ids")
    rows = {}
    for ntype, ids in chosen.items():
        try:
            ids = np.asarray(ids)
        except ValueError:
            raise HetaError(f"cache policy '{name}' returned no vector of ids for '{ntype}', but "
                            f"{str(ids)[:60]}") from None
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise HetaError(f"cache policy '{name}' returned ids of '{ntype}' with shape "
                            f"{ids.shape} and type {ids.dtype}; they must be a vector of integers")
        ids = ids.astype(np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(counts[ntype]):
            raise HetaError(f"cache policy '{name}' returned ids of '{ntype}' from {ids.min()} to "
                            f"{ids.max()}, but there are {len(counts[ntype])} nodes")
        if len(np.unique(ids)) != len(ids):
            raise HetaError(f"cache policy '{name}' returned a node of '{ntype}' more than once")
        rows[ntype] = ids
    total = sum(len(ids) * row_bytes[t] for t, ids in rows.items())
    if total > capacity:
        raise HetaError(f"cache policy '{name}' selected rows of {total:,} bytes for a cache of "
                        f"{capacity:,}; it must leave out what does not fit")
    return rows


def by_device(policy: CachePolicy, counts: Counts, row_bytes: Mapping[str, int],
              penalties: Mapping[str, float], capacity: int, devices: int
              ) -> dict[str, np.ndarray]:
    """As :func:`choose`, for several devices with `capacity` bytes each.

    Node `n` may only be cached on device `n mod devices`, so each device is filled with its own.
    """
    parts: Sequence[dict[str, np.ndarray]] = [
        choose(policy, {t: count[d::devices] for t, count in counts.items()}, row_bytes, penalties,
               capacity) for d in range(devices)]
    return {t: np.concatenate([part[t] * devices + d for d, part in enumerate(parts)])
            for t in counts}
