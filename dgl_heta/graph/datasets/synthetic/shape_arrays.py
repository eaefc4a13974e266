"""A synthetic graph in memory."""

from __future__ import annotations

import numpy as np

from dgl_heta.graph.datasets.synthetic.maker import Maker
from dgl_heta.graph.datasets.synthetic.published import scaled_shape
from dgl_heta.graph.datasets.synthetic.shapes import Shape
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, EdgeSource, GraphSource, Task


def generate(shape: str | Shape, scale: float = 1.0, seed: int = 0, cohesion: float = 0.0,
             correlation: float = 0.0) -> GraphSource:
    """Make a graph in memory; equal arguments give equal graphs.

    Parameters
    ----------
    shape : a key of :data:`SHAPES`, or a shape of one's own.
    scale : multiplies the counts of nodes, edges and labelled nodes.
    seed : every type and relation has a random stream of its own, derived from the seed, the
        shape and its name.
    cohesion : least share of every relation's edges that stay within a community, 0 … 1 (see
        :meth:`Shape.cohesive`): how good METIS's parts can be.
    correlation : of a node's degrees in its relations, 0 … 1 (see :class:`Shape`).

    Raises
    ------
    InputError
        An unknown shape, a scale that is not above 0, a negative seed, a cohesion or a
        correlation that is no share.
    """
    maker = Maker(scaled_shape(shape, scale).cohesive(cohesion).correlated(correlation), seed)
    edges: dict[Relation, EdgeSource] = {}
    for relation in maker.shape.relations:
        ends = np.empty((2, relation.edges), maker.id_dtype(relation))
        for start, src, dst in maker.edges(relation):
            ends[0, start:start + len(src)] = src
            ends[1, start:start + len(src)] = dst
        for name, (src, dst) in zip(relation.relations(), (ends, ends[::-1])):
            edges[name] = EdgeArrays(src, dst)
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for ntype, node in maker.shape.nodes.items():
        own = arrays.setdefault(ntype, {})
        if node.dim:
            own["feat"] = np.empty((node.count, node.dim), maker.shape.dtype)
            for start, block in maker.features(ntype):
                own["feat"][start:start + len(block)] = block
        if ntype == maker.shape.target:
            own.update(maker.target_arrays())
    return GraphSource(
        f"synthetic-{maker.shape.name}", {t: n.count for t, n in maker.shape.nodes.items()}, edges,
        {t: own for t, own in arrays.items() if own},
        Task(maker.shape.target, maker.shape.num_classes),
        {"origin": "synthetic", "shape": maker.shape.name, "scale": scale, "seed": seed,
         **({"cohesion": cohesion} if cohesion else {}),
         **({"correlation": correlation} if correlation else {})})
