"""Plans whose partitions have equal work: heavy sub-metatrees are shared by target nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache

from dgl_heta.graph.schema import Schema
from dgl_heta.planning.assignment import Partition, Share
from dgl_heta.planning.balance import group_sizes, longest_processing_time
from dgl_heta.planning.making import make_plan, reassigned
from dgl_heta.planning.metatree import Metapath
from dgl_heta.planning.plan import Plan


def make_shared_plan(schema: Schema, target: str | Sequence[str], hops: int | None, parts: int,
                     metapaths: Sequence[Metapath] | None,
                     work: Callable[[Plan, Partition], float], method: str) -> Plan:
    """Plan so that partitions of a group have equal work, as `work` says of a plan's partition.

    Where whole sub-metatrees cannot be dealt evenly, the heaviest are run by several partitions,
    each for a share of the target nodes. Every one of these needs their relations.

    Raises
    ------
    InputError
        As :func:`make_plan`.
    """
    plan = make_plan(schema, target, hops, parts, metapaths, method=method)
    trees = len(plan.sub_metatrees)

    def load(fractions: Mapping[int, Fraction]) -> float:
        shares = {i: Share(0, f.denominator, f.numerator) for i, f in sorted(fractions.items())}
        alone = reassigned(plan, [(0, shares)], method)
        return work(alone, alone.partitions[0]) if shares else 0.0

    assignment: list[tuple[int, dict[int, Share]]] = []
    for group, size in enumerate(group_sizes(parts, trees)):
        assignment += [(group, shares) for shares in share_evenly(trees, size, load)]
    return reassigned(plan, assignment, method)


SHARES = 16
"""Equal parts of the target nodes that sub-metatrees are shared by; more with many partitions."""
UNEVEN = 1.1
"""Nothing is shared where the heaviest partition has at most so many times the mean: partitions
that share a sub-metatree draw some neighbours twice."""
WORTH = 0.05
"""Shares move only where that relieves the heaviest partition by so much of the mean."""
TRIED = 4
"""Sub-metatrees of the heaviest partition that are tried for a move, the heaviest first."""


def share_evenly(trees: int, parts: int, load: Callable[[Mapping[int, Fraction]], float]
                 ) -> list[dict[int, Share]]:
    """For each of `parts` partitions its sub-metatrees and its share of each.

    From whole ones dealt by LPT, parts of the heaviest partition's sub-metatrees move to another,
    those first that relieve it most, until that is not worth it.

    Parameters
    ----------
    trees : number of sub-metatrees.
    load : work of a partition that has these fractions of sub-metatrees; may be less than the sum
        of its parts, because they reach some rows together.
    """
    units = max(SHARES, 2 * parts)

    @cache
    def units_load(mine: frozenset[tuple[int, int]]) -> float:
        return load({i: Fraction(n, units) for i, n in mine})

    def weigh(mine: Mapping[int, int]) -> float:
        return units_load(frozenset(mine.items()))

    alone = [weigh({i: units}) for i in range(trees)]
    held = [dict.fromkeys(part, units) for part in longest_processing_time(
        [round(w * 1000 / (max(alone) or 1)) for w in alone], parts)]
    loads = [weigh(mine) for mine in held]
    moved = 0
    while not all(held) or max(loads) > (1 if moved else UNEVEN) * sum(loads) / parts:
        source = max(range(parts), key=lambda p: (loads[p], len(held[p]), -p))
        best = None
        # The lightest partition, and the lightest that has some of it anyway.
        for i in sorted(held[source], key=lambda i: -alone[i] * held[source][i])[:TRIED]:
            others = sorted((p for p in range(parts) if p != source), key=lambda p: loads[p])
            for other in {*others[:1], *[p for p in others if i in held[p]][:1]}:
                count = _most_even(held[source], held[other], i, weigh)
                after = [weigh(_plus(held[source], i, -count)), weigh(_plus(held[other], i, count))]
                if best is None or max(after) < best[0]:
                    best = max(after), i, other, count, after
        if best is None or moved == 8 * parts or (
                held[best[2]] and best[0] >= loads[source] - WORTH * sum(loads) / parts):
            break
        _, i, other, count, (loads[source], loads[other]) = best
        held[source], held[other] = _plus(held[source], i, -count), _plus(held[other], i, count)
        moved += 1
    reached = [0] * trees
    found: list[dict[int, Share]] = []
    for mine in held:
        shares = {}
        for index, count in sorted(mine.items()):
            whole = count == units
            shares[index] = Share() if whole else Share(reached[index], units, count)
            reached[index] += count
        found.append(shares)
    return found


def _plus(held: Mapping[int, int], index: int, units: int) -> dict[int, int]:
    """What a partition holds after some units of a sub-metatree came or went."""
    after = {**held, index: held.get(index, 0) + units}
    return {i: n for i, n in after.items() if n}


def _most_even(source: Mapping[int, int], other: Mapping[int, int], index: int,
               weigh: Callable[[Mapping[int, int]], float]) -> int:
    """How many units to move, so that the heavier of the two has least."""
    low, high = 1, source[index]
    while low < high:  # the fewest that leave the source no heavier than the other
        middle = (low + high) // 2
        if weigh(_plus(source, index, -middle)) <= weigh(_plus(other, index, middle)):
            high = middle
        else:
            low = middle + 1
    return min((n for n in (low - 1, low) if n), key=lambda n: max(
        weigh(_plus(source, index, -n)), weigh(_plus(other, index, n))))
