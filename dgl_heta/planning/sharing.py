"""Plans whose partitions have equal work: heavy sub-metatrees are shared by target nodes.

A plan of whole ones is kept where that is not worth it (:func:`worth_sharing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from dgl_heta.graph.schema import Schema
from dgl_heta.planning.compute import bytes_moved
from dgl_heta.planning.dealing import group_sizes, longest_processing_time
from dgl_heta.planning.footprint import footprint
from dgl_heta.planning.making import make_plan, reassigned
from dgl_heta.planning.metatree import Metapath
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import ReceptiveFields
from dgl_heta.planning.workload import MODELS, Workload


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

    sizes = group_sizes(parts, trees)
    of_group = {size: share_evenly(trees, size, load) for size in {*sizes}}
    return reassigned(plan, [(group, shares) for group, size in enumerate(sizes)
                             for shares in of_group[size]], method)


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
    # In whole units, so that loads can be cached and shares are exact fractions.
    units = max(SHARES, 2 * parts)

    @cache
    def load_of(items: frozenset[tuple[int, int]]) -> float:
        return load({i: Fraction(n, units) for i, n in items})

    def weigh(content: Mapping[int, int]) -> float:
        return load_of(frozenset(content.items()))

    alone = [weigh({i: units}) for i in range(trees)]
    contents = [dict.fromkeys(part, units) for part in longest_processing_time(
        [round(w * 1000 / (max(alone) or 1)) for w in alone], parts)]
    loads = [weigh(content) for content in contents]
    for moved in range(8 * parts):
        mean = sum(loads) / parts
        if all(contents) and max(loads) <= (1 if moved else UNEVEN) * mean:
            break
        source = max(range(parts), key=lambda p: (loads[p], len(contents[p]), -p))
        best = _best_move(source, contents, loads, alone, weigh)
        if best is None or (contents[best.target]
                            and max(best.after) >= loads[source] - WORTH * mean):
            break
        for part, change, load_after in zip((source, best.target), (-best.units, best.units),
                                            best.after):
            contents[part] = _plus(contents[part], best.tree, change)
            loads[part] = load_after
    _fill(contents)
    return _as_shares(contents, trees, units)


def _fill(contents: list[dict[int, int]]) -> None:
    """Give partitions that have nothing, as what there was to give hardly counts as work, a
    sub-metatree of the one that has most, or half of its only one."""
    for empty in [p for p, content in enumerate(contents) if not content]:
        source = max(contents, key=lambda content: sum(content.values()))
        index, count = max(source.items(), key=lambda item: item[1])
        moved = count if len(source) > 1 else count // 2
        contents[contents.index(source)] = _plus(source, index, -moved)
        contents[empty] = {index: moved}


class _Move(NamedTuple):
    """Units of a sub-metatree that leave the heaviest partition; loads of both after that."""

    tree: int
    target: int
    units: int
    after: tuple[float, float]


def _best_move(source: int, contents: Sequence[Mapping[int, int]], loads: Sequence[float],
               alone: Sequence[float], weigh: Callable[[Mapping[int, int]], float]
               ) -> _Move | None:
    """The move from `source` after which the heavier of the two has least."""
    best = None
    others = sorted((p for p in range(len(loads)) if p != source), key=lambda p: loads[p])
    for i in sorted(contents[source], key=lambda i: -alone[i] * contents[source][i])[:TRIED]:
        # The lightest partition, and the lightest that has some of it anyway.
        for other in {*others[:1], *[p for p in others if i in contents[p]][:1]}:
            count = _most_even(contents[source], contents[other], i, weigh)
            after = (weigh(_plus(contents[source], i, -count)),
                     weigh(_plus(contents[other], i, count)))
            if best is None or max(after) < max(best.after):
                best = _Move(i, other, count, after)
    return best


def _as_shares(contents: Sequence[Mapping[int, int]], trees: int, units: int
               ) -> list[dict[int, Share]]:
    """Units of sub-metatrees as shares that follow each other from partition to partition."""
    reached = [0] * trees
    shares: list[dict[int, Share]] = []
    for content in contents:
        shares.append({})
        for index, count in sorted(content.items()):
            shares[-1][index] = (Share() if count == units
                                 else Share(reached[index], units, count))
            reached[index] += count
    return shares


def _plus(content: Mapping[int, int], index: int, units: int) -> dict[int, int]:
    """Units of a partition by sub-metatree, after some units of a sub-metatree came or went."""
    after = {**content, index: content.get(index, 0) + units}
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


LESS, MORE = 0.9, 1.1
"""Sub-metatrees are shared where the partition that has most work in a step has at most so much of
what it has with whole ones, and the one that holds most so much more memory at most."""


def worth_sharing(whole: Plan, shared: Plan, work: Workload, way: str) -> bool:
    """Return whether `shared`, in which partitions share heavy sub-metatrees, is to be preferred to
    the plan of `whole` ones.

    Parameters
    ----------
    work : of a worker. Of a model of which it is not known what it reads nothing is shared.
    way : `partition.shared`. Where one partition may aggregate a type for the others, each plan
        is expected with its own best owners.
    """
    nothing = all(s == Share() for p in shared.partitions for s in p.sub_metatrees.values())
    if (nothing or work.model not in MODELS
            or (_are_copies(shared) and not _are_copies(whole))):
        return False
    (before, held), (after, needed) = (
        (max(works(plan, work)), max(footprint(plan.schema, p, work) for p in plan.partitions))
        for plan in (choose(one, work, "rows" if way == "rows" else "auto")[0]
                     for one in (whole, shared)))
    return after <= LESS * before and needed <= MORE * held


def _are_copies(plan: Plan) -> bool:
    """Return whether every partition has the whole graph."""
    return all(len(p.relations) == len(plan.schema.relations) for p in plan.partitions)


def works(plan: Plan, work: Workload) -> list[float]:
    """Expected work of each partition in a step of `work.batch_size` seeds per worker, as
    :func:`~dgl_heta.planning.compute.bytes_moved` counts it.

    What is offloaded is the work of its owner partition, which reads each row once for all.
    """
    fields = ReceptiveFields(plan.without_owners(), work.fanouts_of(plan.hops))
    steps = [fields.field(p.index, work.batch_size * len(plan.groups[p.group]), work.batch_size)
             for p in plan.partitions]
    edges = [float(sum(layer.edges for layer in step.layers)) for step in steps]
    inputs = [dict(step.inputs) for step in steps]
    for relation, owner in plan.offloaded.items():
        for part, step in enumerate(steps):
            asked = step.layers[-1].sampled.get(relation, 0.0)
            edges[part] -= asked
            edges[owner] += asked
    for ntype, owner in {r.src: owner for r, owner in plan.offloaded.items()}.items():
        count = plan.schema.node_counts[ntype]
        unread = math.prod(1 - rows.pop(ntype, 0.0) / max(count, 1) for rows in inputs)
        inputs[owner][ntype] = count * (1 - unread)
    return [bytes_moved(plan, partition, sampled, rows, work)
            for partition, sampled, rows in zip(plan.partitions, edges, inputs)]
