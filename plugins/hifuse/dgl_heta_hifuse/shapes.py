"""The graphs of HiFuse's Table 2, by their numbers: AIFB, MUTAG, BGS and AM.

Nodes, edges (with the reverse ones), node types and relations are those of the table; DGL's page of
its data sets says 881,680 nodes for AM. Target types, classes, and how many nodes are for training
and test are of Schlichtkrull et al. 2018 (https://arxiv.org/abs/1703.06103, Tables 1 and 2) and of
that page. None of them has features. How nodes and edges are split over types and relations is not
published; here

* the target type has the nodes with labels alone;
* the k-th of the other types has nodes in proportion to 1 / k;
* half of the relations are the reverse of the other half, every type has about as many, and edges
  are split by the sizes of their ends.
"""

from __future__ import annotations

import math

from dgl_heta.tools import NodeShape, RelationShape, Shape


def _shape(name: str, target: str, nodes: int, types: int, edges: int, relations: int,
           classes: int, train: int, test: int) -> Shape:
    labelled, others = train + test, [f"type-{k}" for k in range(1, types)]
    unit = (nodes - labelled) / sum(1 / k for k in range(1, types))
    counts = {t: round(unit / k) for k, t in enumerate(others, 1)}
    counts[others[0]] += nodes - labelled - sum(counts.values())
    counts = {target: labelled, **counts}
    pairs = _pairs(list(counts), relations // 2)
    weights = [math.sqrt(counts[a] * counts[b]) for a, b in pairs]
    links = [int(edges // 2 * w / sum(weights)) for w in weights]
    links[weights.index(max(weights))] += edges // 2 - sum(links)
    return Shape(
        name, {t: NodeShape(n) for t, n in counts.items()},
        tuple(RelationShape(
            src, f"relation-{i}", dst, n, skew=0.7, signal=(0.8, 0.3, 0.7, 0.1)[i % 4],
            hub="src" if counts[src] < counts[dst] else "dst", reverse=f"rev-relation-{i}")
            for i, ((src, dst), n) in enumerate(zip(pairs, links), 1)),
        target, classes, labelled, (train / labelled, 0.0, test / labelled),
        nodes_per_class=min(50, labelled // classes))


def _pairs(types: list[str], number: int) -> list[tuple[str, str]]:
    """Ends of relations: each type to the next one, then to the one after it, and so on."""
    around = [(a, types[(i + step) % len(types)]) for step in range(1, len(types))
              for i, a in enumerate(types)]
    return [around[i % len(around)] for i in range(number)]


SHAPES = {shape.name: shape for shape in (
    _shape("aifb", "Personen", 7_262, 7, 48_810, 104, 4, 140, 36),
    _shape("mutag", "d", 27_163, 5, 148_100, 50, 2, 272, 68),
    _shape("bgs", "Lexicon/NamedRockUnit", 94_806, 27, 672_884, 122, 2, 117, 29),
    _shape("am", "proxy", 1_885_136, 7, 5_668_682, 108, 11, 802, 198))}
