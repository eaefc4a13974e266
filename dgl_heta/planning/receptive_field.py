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
(docs/measurements/cost-model.md); with σ = 0 (every node has the mean degree, draws are even) it
would be 0.76 to 1.34.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
class LayerField:
    """Expected figures of a layer.

    Attributes
    ----------
    inner : node type → destination rows that are no seeds.
    sources : node type → rows on the source side that are no seeds.
    relations : those that are run for at least a row.
    counts : (4, relations) float64: destination rows that are no seeds, seeds, and the edges
        sampled for either.
    """

    inner: dict[str, float]
    sources: dict[str, float]
    relations: list[Relation]
    counts: np.ndarray

    @cached_property
    def rows(self) -> dict[Relation, float]:
        """Relation → destination rows that it is run for, seeds included."""
        return dict(zip(self.relations, self.counts[:2].sum(0).tolist()))

    @cached_property
    def sampled(self) -> dict[Relation, float]:
        """Relation → edges sampled."""
        return dict(zip(self.relations, self.counts[2:].sum(0).tolist()))

    @property
    def inner_edges(self) -> float:
        """Edges sampled for rows that are no seeds."""
        return float(self.counts[2].sum())

    @property
    def edges(self) -> float:
        return float(self.counts[2:].sum())


@dataclass
class ReceptiveField:
    """The expected rows and edges that a worker samples in a step.

    Attributes
    ----------
    layers : the last layer first.
    inputs : node type → distinct input rows, its own seeds among them.
    own : node type → seeds of which the worker computes the final states.
    """

    layers: list[LayerField]
    inputs: dict[str, float]
    own: dict[str, float]


def receptive_field(plan: Plan, part: int, fanouts: Sequence[int], seeds: float, own: float
                    ) -> ReceptiveField:
    """Expected figures of a step of a partition.

    Without replication it has all rows of its types that the group reaches, the others' seeds among
    them, and of the edges those of its relations; sources of the first layer that only others read
    it has not.

    Parameters
    ----------
    fanouts : one per layer, input layer first; negative: all neighbours.
    seeds : those of the group, of all target types in proportion to their nodes, of which the
        partition aggregates its shares.
    own : seeds of which it computes the final states.
    """
    return ReceptiveFields(plan, fanouts).field(part, seeds, own)


def receptive_fields(plan: Plan, fanouts: Sequence[int], seeds: float, own: float
                     ) -> list[ReceptiveField]:
    """:func:`receptive_field` of every partition."""
    fields = ReceptiveFields(plan, fanouts)
    return [fields.field(p.index, seeds, own) for p in plan.partitions]


class ReceptiveFields:
    """A plan's relations as arrays over all relations and types of its schema: a schema can have
    ten thousand relations, and a plan hundreds of partitions that run most of them."""

    def __init__(self, plan: Plan, fanouts: Sequence[int]) -> None:
        self._stored, schema = plan, plan.schema
        self._plan = plan if plan.replication == "full" else make_plan(
            schema, plan.targets, plan.hops, 1)
        self._fanouts = [f if f >= 0 else math.inf for f in fanouts]
        self._order = schema.order
        types = {t: i for i, t in enumerate(schema.node_types)}
        self._src = np.array([types[r.src] for r in schema.relations])
        self._dst = np.array([types[r.dst] for r in schema.relations])
        self._counts = np.array([*schema.node_counts.values()], np.float64)
        self._mean = np.array([*schema.edge_counts.values()]) / self._counts[self._dst]
        # Partitions share the tuples of their inner relations.
        self._indices: dict[int, np.ndarray] = {}

    def field(self, part: int, seeds: float, own: float) -> ReceptiveField:
        plan, alone = self._plan, self._plan is not self._stored
        if alone:
            types, share = self._stored.partitions[part].node_types, np.zeros(len(self._src))
            held, part = self._stored.held(part), 0
            share[[self._order[r] for r in held]] = [*held.values()]
        partition = plan.partitions[part]
        shares = {self._order[r]: s.width / s.count for r, s in plan.roots(part).items()}
        roots = np.array([*shares], np.int64)
        nodes = plan.schema.node_counts
        count = sum(nodes[t] for t in plan.targets)
        of_type = {t: nodes[t] / count for t in plan.targets}
        of_roots = [share * of_type[plan.schema.relations[i].dst] for i, share in shares.items()]
        seed_rows = np.minimum(seeds * np.array(of_roots), self._counts[self._dst[roots]])
        reached, touched = np.zeros_like(self._counts), np.zeros(len(self._counts), bool)
        before = np.zeros((2, 2, len(self._src)))  # of inner rows and seeds: rows, share of edges
        layers = []
        for number in range(plan.hops, 0, -1):
            above = self._by_type(reached, touched)
            inner = self._index(partition.inner[number])
            runs = np.isin(roots, self._index(partition.layers[number]))
            degree = self._mean[inner] * (1 + math.expm1(SPREAD**2) * (
                1 - reached[self._dst[inner]] / self._counts[self._dst[inner]]))
            counts = np.zeros((4, len(self._src)))
            draws = np.zeros_like(self._counts)
            for kind, (at, rows, mean) in enumerate((
                    (inner, reached[self._dst[inner]], degree),
                    (roots[runs], seed_rows[runs], self._mean[roots[runs]]))):
                at, rows, mean = (x[rows > 0] for x in (at, rows, mean))
                each = taken(mean, self._fanouts[number - 1])
                new, before[kind][:, at] = _draw(before[kind][:, at], rows, each, mean)
                if alone and number == 1:
                    new = new * share[at]
                draws += np.bincount(self._src[at], new, len(draws))
                touched[self._src[at]] = True
                counts[kind, at], counts[2 + kind, at] = rows, rows * each
            reached = reached + (self._counts - reached) * covered(draws / self._counts)
            if alone:
                counts *= share
                touched &= np.isin(plan.schema.node_types, types)
            run = np.flatnonzero(counts[:2].any(0))
            layers.append(LayerField(above, self._by_type(reached, touched), [
                plan.schema.relations[i] for i in run.tolist()], counts[:, run]))
        finals, every = ({t: min(n * part, nodes[t]) for t, part in of_type.items()}
                         for n in (own, seeds if alone else own))
        inputs = {t: n + every.get(t, 0.0) * (1 - n / nodes[t])
                  for t, n in layers[-1].sources.items()}
        for number, layer in enumerate(layers if alone else ()):
            # Of the seeds' rows those of other workers are no less there, but for final states.
            for side in (layer.inner,) * (number > 0) + (layer.sources,):
                side.update({t: n + every[t] * (1 - n / nodes[t]) - finals[t]
                             for t, n in ((t, side.get(t, 0.0)) for t in finals)})
        return ReceptiveField(layers, {**finals, **inputs}, finals)

    def _index(self, relations: tuple[Relation, ...]) -> np.ndarray:
        if id(relations) not in self._indices:  # which live as long as the plan
            self._indices[id(relations)] = np.array([self._order[r] for r in relations], np.int64)
        return self._indices[id(relations)]

    def _by_type(self, rows: np.ndarray, which: np.ndarray) -> dict[str, float]:
        names = self._plan.schema.node_types
        return {names[i]: rows[i] for i in np.flatnonzero(which).tolist()}


def _draw(before: np.ndarray, rows: np.ndarray, each: np.ndarray, degree: np.ndarray
          ) -> tuple[np.ndarray, np.ndarray]:
    """Draws that can reach new nodes, and all that is drawn after them.

    `rows` rows draw `each` of `degree` neighbours. `before` has the rows among them that drew at
    the layers above, and the share of their edges: these draw partly the same again.
    """
    old, part = before
    share = np.minimum(each / degree, 1.0)
    again = 1 - (1 - part) * (1 - share)
    return each * (rows - old * part), np.stack(
        [rows, (old * again + (rows - old) * share) / rows])


def field_of_one_process(plan: Plan, fanouts: Sequence[int], seeds: float) -> ReceptiveField:
    """Expected figures of a step of a process that runs all relations by itself.

    Metapaths are left out: data parallelism does not know them.
    """
    alone = make_plan(plan.schema, plan.targets, plan.hops, 1)
    return receptive_field(alone, 0, fanouts, seeds, seeds)


def destinations(whole: ReceptiveField, plan: Plan) -> list[dict[str, float]]:
    """Distinct destination rows per node type of each layer, the last layer first.

    Where nothing is replicated a seed that is some row's neighbour is one row with it.
    """
    counts = plan.schema.node_counts
    return [{t: layer.inner.get(t, 0.0)
             + whole.own.get(t, 0.0) * (1 - layer.inner.get(t, 0.0) / counts[t])
             for t in {*layer.inner, *whole.own}} for layer in whole.layers]


def covered(draws: np.ndarray) -> np.ndarray:
    """Share of a type's nodes that so many draws per node find: E[1 - e^(-p draws)]."""
    return -np.expm1(-np.multiply.outer(draws, _POPULARITY)) @ _WEIGHTS


def taken(mean: np.ndarray, fanout: float) -> np.ndarray:
    """Expected min(degree, fanout) of degrees with these means."""
    if math.isinf(fanout):
        return mean
    at = (np.log(fanout / mean) + SPREAD**2 / 2) / SPREAD
    return mean * _below(at - SPREAD) + fanout * (1 - _below(at))


def _below(x: np.ndarray) -> np.ndarray:
    """The normal distribution's cumulative function."""
    return np.array([(1 + math.erf(v)) / 2 for v in (x / math.sqrt(2)).tolist()])
