"""Dealing weights to partitions evenly, in whole or over several partitions.

The weights are those of sub-metatrees (Heta §5, step 2; technical report, Algorithm 2) or of
relations. Nothing here knows what they are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence

from dgl_heta.planning.partition_shares import Share


def longest_processing_time(weights: Sequence[int], parts: int) -> list[list[int]]:
    """LPT: heaviest first to the lightest partition; ties to the lower index (Algorithm 2).

    Never worse than 4/3 of the best possible heaviest partition (Graham 1969,
    https://doi.org/10.1137/0117039).

    Returns
    -------
    For each of `parts` partitions the indices of its weights, heaviest first.
    """
    heap = [(0, part) for part in range(parts)]
    assigned: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(weights)), key=lambda i: -weights[i]):
        load, part = heapq.heappop(heap)
        assigned[part].append(index)
        heapq.heappush(heap, (load + weights[index], part))
    return assigned


def balanced(weights: Sequence[int], parts: int) -> list[list[int]]:
    """LPT, made better where it can be: never heavier than LPT's heaviest partition.

    Single sub-metatrees move and pairs change places while that relieves the heaviest
    partition; up to 12 sub-metatrees, the best assignment is searched for.
    """
    assigned = longest_processing_time(weights, parts)
    loads = [sum(weights[i] for i in part) for part in assigned]
    while (change := _relief(weights, assigned, loads)) is not None:
        source, target, out, back = change
        for origin, destination, moved in ((source, target, out), (target, source, back)):
            if moved is not None:
                assigned[origin].remove(moved)
                assigned[destination].append(moved)
                loads[origin] -= weights[moved]
                loads[destination] += weights[moved]
    if len(weights) <= 12:
        assigned = _search(weights, parts, max(loads)) or assigned
    return assigned


def _relief(weights: Sequence[int], assigned: Sequence[Sequence[int]], loads: Sequence[int]
            ) -> tuple[int, int, int, int | None] | None:
    """A move or exchange that lightens the heaviest partition most: from, to, what, for what."""
    source = max(range(len(loads)), key=lambda p: (loads[p], -p))
    least, change = loads[source], None
    for target, content in enumerate(assigned):
        # Place -1 is a move alone. Of equal ones the first is taken.
        backs = sorted([(0, -1), *((weights[i], place) for place, i in enumerate(content))])
        apart = loads[source] - loads[target]
        for out in assigned[source] if target != source else ():
            # Most even is the exchange for a weight of weights[out] - apart / 2: the next ones.
            above = bisect_left(backs, (-((apart - 2 * weights[out]) // 2), -1))
            below = bisect_left(backs, (backs[above - 1][0], -1)) if above else above
            heavier, place = min(
                (max(loads[source] - weights[out] + back, loads[target] + weights[out] - back),
                 place) for back, place in (*backs[below:below + 1], *backs[above:above + 1]))
            if heavier < least:
                back = content[place] if place >= 0 else None
                least, change = heavier, (source, target, out, back)
    return change


def _search(weights: Sequence[int], parts: int, bound: int) -> list[list[int]] | None:
    """The assignment with the lightest heaviest partition, if one is below `bound`."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    loads, chosen = [0] * parts, [0] * len(order)
    best: list[int] | None = None
    least = max(-(-sum(weights) // parts), max(weights, default=0))

    def assign(depth: int) -> None:
        nonlocal best, bound
        if bound <= least:
            return
        if depth == len(order):
            best, bound = chosen.copy(), max(loads)
            return
        tried = set()
        for part in range(parts):
            load = loads[part] + weights[order[depth]]
            if load >= bound or loads[part] in tried:
                continue
            tried.add(loads[part])
            loads[part], chosen[depth] = load, part
            assign(depth + 1)
            loads[part] -= weights[order[depth]]

    assign(0)
    if best is None:
        return None
    return [[i for i, part in zip(order, best) if part == p] for p in range(parts)]


def group_sizes(parts: int, trees: int) -> list[int]:
    """Partitions of every model-parallel group, for so many sub-metatrees (Heta §5, Fig. 7)."""
    groups = max(1, parts // trees)
    return [parts // groups + (group < parts % groups) for group in range(groups)]


def spread(weights: Sequence[int], parts: int) -> list[tuple[int, Share]]:
    """Give each weight at least one partition and the rest where they relieve most.

    Parameters
    ----------
    weights : at most `parts` of them.

    Returns
    -------
    Per partition the index of its weight and its share of it; the shares of a weight are equal.
    """
    counts = [1] * len(weights)
    for _ in range(parts - len(weights)):
        counts[max(range(len(weights)), key=lambda i: (weights[i] / counts[i], -i))] += 1
    return [(i, Share(k, count)) for i, count in enumerate(counts) for k in range(count)]
