"""How many rows and edges a step reaches: the one model of expected rows.

Known are the counts of a schema alone. A type's N nodes are taken to have log-normal in-degrees
and log-normal popularity as neighbours, both of :data:`SPREAD` σ:

- a row has min(degree, fanout) neighbours by a relation, of which :func:`taken` is the mean. A
  seed's degree has the relation's mean; a row that was reached along an edge has more, by
  1 + (e^σ² - 1) (1 - rows / N): who is popular also has more neighbours, the fewer of its type
  were reached, the more so;
- d draws from a type reach N E[1 - e^(-p d / N)] of its nodes, p their popularity with mean 1
  (:func:`covered`); what was reached before is reached again in proportion.

σ was chosen on the five synthetic graphs. There, at fanouts 25, 20 and 10, 5 and 128 and 2,048
seeds, this expects 0.88 to 1.14 of the bytes of input rows that are sampled
(scripts/bench/reach.py); with σ = 0 (every node has the mean degree, draws are even) it would be
0.76 to 1.34.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan

SPREAD = 0.7
"""σ of the logarithm of degrees and popularity."""
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_POPULARITY = np.exp(SPREAD * _POINTS - SPREAD**2 / 2)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass
class LayerReach:
    """Expected figures of a layer.

    Attributes
    ----------
    inner : node type → destination rows that are no seeds.
    sources : node type → rows on the source side that are no seeds.
    rows : relation → destination rows that it is run for, seeds included.
    drawn : relation → edges drawn.
    inner_edges : edges drawn for rows that are no seeds.
    """

    inner: dict[str, float]
    sources: dict[str, float] = field(default_factory=dict)
    rows: dict[Relation, float] = field(default_factory=dict)
    drawn: dict[Relation, float] = field(default_factory=dict)
    inner_edges: float = 0.0

    @property
    def edges(self) -> float:
        return sum(self.drawn.values())

    def add(self, relation: Relation, rows: float, each: float, seeds: bool) -> None:
        """Let so many rows draw `each` edges by a relation."""
        self.rows[relation] = self.rows.get(relation, 0.0) + rows
        self.drawn[relation] = self.drawn.get(relation, 0.0) + rows * each
        self.inner_edges += 0 if seeds else rows * each


@dataclass
class Reach:
    """What a worker samples in a step.

    Attributes
    ----------
    layers : the last layer first.
    inputs : node type → distinct input rows, its own seeds among them.
    own : node type → seeds of which the worker computes the final states.
    """

    layers: list[LayerReach]
    inputs: dict[str, float]
    own: dict[str, float]


def reach(plan: Plan, part: int, fanouts: Sequence[int], seeds: float, own: float) -> Reach:
    """Expected figures of a step of a partition of a plan with full replication.

    Parameters
    ----------
    fanouts : one per layer, input layer first; negative: all neighbours.
    seeds : those of the group, of all target types in equal parts, of which the partition
        aggregates its shares.
    own : seeds of which it computes the final states.
    """
    schema, partition = plan.schema, plan.partitions[part]
    counts = schema.node_counts
    shares = {r: s.width / s.count for r, s in plan.roots(part).items()}
    reached: dict[str, float] = {}
    drawn: dict[tuple[Relation, bool], _Drawn] = {}
    layers = []
    for number in range(plan.hops, 0, -1):
        fanout = fanouts[number - 1] if fanouts[number - 1] >= 0 else math.inf
        draws: dict[str, float] = {}
        layer = LayerReach(dict(reached))
        for relation in partition.layers[number]:
            count = counts[relation.dst]
            mean = schema.edge_counts[relation] / count
            inner = reached.get(relation.dst, 0.0) if relation in partition.inner[number] else 0.0
            seed = min(seeds / len(plan.targets) * shares.get(relation, 0.0), count)
            for rows, is_seed in ((inner, False), (seed, True)):
                if rows:
                    degree = mean if is_seed else mean * (
                        1 + math.expm1(SPREAD**2) * (1 - rows / count))
                    each, key = taken(degree, fanout), (relation, is_seed)
                    new, drawn[key] = _draw(drawn.get(key, _Drawn()), rows, each, degree)
                    draws[relation.src] = draws.get(relation.src, 0.0) + new
                    layer.add(relation, rows, each, is_seed)
        for ntype, new in draws.items():
            already = reached.get(ntype, 0.0)
            reached[ntype] = already + (counts[ntype] - already) * covered(new / counts[ntype])
        layer.sources = dict(reached)
        layers.append(layer)
    finals = {t: min(own / len(plan.targets), counts[t]) for t in plan.targets}
    inputs = {t: n + finals.get(t, 0.0) * (1 - n / counts[t]) for t, n in reached.items()}
    return Reach(layers, {**finals, **inputs}, finals)


class _Drawn(NamedTuple):
    """Rows that drew by a relation at the layers above, and the share of their edges drawn."""

    rows: float = 0.0
    share: float = 0.0


def _draw(before: _Drawn, rows: float, each: float, degree: float) -> tuple[float, _Drawn]:
    """Draws that can reach new nodes, and all that is drawn after them.

    `rows` rows, those `before` among them, draw `each` of `degree` neighbours; those that drew
    before draw partly the same again.
    """
    share = min(each / degree, 1.0)
    again = 1 - (1 - before.share) * (1 - share)
    return each * (rows - before.rows * before.share), _Drawn(
        rows, (before.rows * again + (rows - before.rows) * share) / rows)


def reach_of_one_process(plan: Plan, fanouts: Sequence[int], seeds: float) -> Reach:
    """Expected figures of a step of a process that runs all relations by itself.

    Metapaths are left out: data parallelism does not know them.
    """
    return reach(make_plan(plan.schema, plan.targets, plan.hops, 1), 0, fanouts, seeds, seeds)


def destinations(whole: Reach, plan: Plan) -> list[dict[str, float]]:
    """Distinct destination rows per node type of each layer, the last layer first.

    Where nothing is replicated a seed that is some row's neighbour is one row with it.
    """
    counts = plan.schema.node_counts
    return [{t: layer.inner.get(t, 0.0)
             + whole.own.get(t, 0.0) * (1 - layer.inner.get(t, 0.0) / counts[t])
             for t in {*layer.inner, *whole.own}} for layer in whole.layers]


def covered(draws: float) -> float:
    """Share of a type's nodes that so many draws per node find: E[1 - e^(-p draws)]."""
    return float(-(_WEIGHTS * np.expm1(-draws * _POPULARITY)).sum())


@cache
def taken(mean: float, fanout: float) -> float:
    """Expected min(degree, fanout) of degrees with this mean."""
    if math.isinf(fanout):
        return mean
    at = (math.log(fanout / mean) + SPREAD**2 / 2) / SPREAD
    below = [(1 + math.erf(x / math.sqrt(2))) / 2 for x in (at - SPREAD, at)]
    return mean * below[0] + fanout * (1 - below[1])
