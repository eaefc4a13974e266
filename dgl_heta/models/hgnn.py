"""Heterogeneous GNNs as Heta Eq. (1) writes them: AGG_r, AGG_all, an update.

A model is a layer class and two or three methods of it; it runs on one process as it is
written, and under RAF on many, because the merge over relations is a :class:`CrossRelation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.models.spec import ModelSpec, slot
from dgl_heta.nn.aggregate import segment_reduce
from dgl_heta.nn.attention import (
    attend,
    edge_rows,
    edge_scores,
    edge_sum,
    segment_softmax,
    segment_total,
)
from dgl_heta.nn.cross import REDUCERS, CrossRelation, CrossSoftmax, CrossStack
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock


class Edges:
    """The in-edges by one relation of some destination rows, with the states at both ends.

    Edges are in the order of their destination rows. A row without edges is a row all the same.

    Attributes
    ----------
    relation : the relation.
    source : states of the source side (source rows, width).
    num_rows : number of destination rows.
    """

    def __init__(self, block: Block, edges: RelationBlock, states: Mapping[str, Tensor]) -> None:
        self.relation, self.num_rows = edges.relation, edges.num_rows
        self.source = states[edges.relation.src]
        self._block, self._edges, self._states = block, edges, states

    @property
    def destination(self) -> Tensor:
        """States of the destination rows (num_rows, width)."""
        self._block.check_destinations(self.relation.dst)
        return self._edges.of(self._states[self.relation.dst])

    def reduce(self, op: str = "mean", states: Tensor | None = None) -> Tensor:
        """Sum, mean, max or min over each row's neighbours, of `states` (default: `source`).

        `states` is (source rows, width); returns (num_rows, width), 0 for a row without edges.
        """
        return segment_reduce(self._edges.indptr, self._edges.indices,
                              self.source if states is None else states, op)

    def dot(self, queries: Tensor, states: Tensor | None = None) -> Tensor:
        """For each edge the products (edges, heads) of its source's state and its row's queries.

        `queries` is (num_rows, heads, width); `states`, (source rows, width), default `source`.
        """
        return edge_scores(self._edges.indptr, self._edges.indices, queries,
                           self.source if states is None else states)

    def add(self, source: Tensor, destination: Tensor) -> Tensor:
        """For each edge the sum (edges, heads) of a number of its source and one of its row.

        `source` is (source rows, heads), `destination` (num_rows, heads).
        """
        return edge_sum(self._edges.indptr, self._edges.indices, source, destination)

    def spread(self, values: Tensor) -> Tensor:
        """Each edge gets its row's values: (num_rows, heads) to (edges, heads)."""
        return edge_rows(self._edges.indptr, values)

    def total(self, weights: Tensor) -> Tensor:
        """Sums over each row's edges: (edges, heads) to (num_rows, heads)."""
        return segment_total(self._edges.indptr, weights)

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax of scores (edges, heads) over each row's edges by this relation."""
        return segment_softmax(self._edges.indptr, scores)

    def attend(self, weights: Tensor, states: Tensor | None = None) -> Tensor:
        """Sums of the neighbours' states, weighted per head: (num_rows, heads, width).

        `weights` is (edges, heads); `states`, (source rows, width), default `source`.
        """
        return attend(self._edges.indptr, self._edges.indices, weights,
                      self.source if states is None else states)


class HGNNLayer(nn.Module):
    """One layer of Eq. (1): `h_v = update(AGG_all_r(AGG_r({h_u : u in N_r(v)})), h_v)`.

    Derive from it and define, by what `reduce` (AGG_all) is,

    - `sum`, `mean`, `max`, `min`: :meth:`aggregate`;
    - `softmax`, attention over the edges of all relations: :meth:`score` and :meth:`attend`;
    - `stack`, any function of all relations' aggregations: :meth:`aggregate`, :meth:`combine`;

    and, if there is more to it, :meth:`update`. Rows must not depend on each other: what a row
    gets is a function of its own edges and state (batch normalisation is not).

    Parameters
    ----------
    reduce : AGG_all.
    width : of what :meth:`aggregate` or :meth:`attend` returns.
    heads : attention heads, where `reduce` is softmax.
    reads_state : whether :meth:`score`, :meth:`aggregate` or :meth:`update` read the state of
        the destination. If not, training can leave it out (`train.seed_states = false`).
    zero_without_edges : whether :meth:`aggregate` gives 0 for a row without edges (no bias, for
        one). Then sum and mean leave such rows out, which most relations have many of.
    """

    def __init__(self, reduce: str = "sum", width: int = 64, heads: int = 1,
                 reads_state: bool = True, zero_without_edges: bool = False) -> None:
        super().__init__()
        if reduce in REDUCERS:
            self.cross: CrossRelation = CrossRelation(reduce)
        elif reduce in ("softmax", "stack"):
            self.cross = CrossSoftmax() if reduce == "softmax" else CrossStack()
        else:
            raise InputError(f"reduce '{reduce}' is unknown; known are "
                             f"{', '.join(REDUCERS)}, softmax, stack")
        self.width, self.heads, self.reads_state = width, heads, reads_state
        self._sparse = reduce == "softmax" or (zero_without_edges and reduce in ("sum", "mean"))

    def aggregate(self, edges: Edges) -> Tensor:
        """AGG_r: (edges.num_rows, width). It must depend on its relation alone."""
        raise HetaError(f"{type(self).__name__} defines no aggregate(edges), which is AGG_r")

    def score(self, edges: Edges) -> Tensor:
        """Scores before the softmax over all relations: (edges, heads)."""
        raise HetaError(f"{type(self).__name__} defines no score(edges), which reduce = "
                        "'softmax' needs")

    def attend(self, edges: Edges, weights: Tensor) -> Tensor:
        """Messages weighted by (edges, heads) and summed: (edges.num_rows, width).

        Linear in the weights, which do not add up to 1; heads side by side in the result.
        """
        raise HetaError(f"{type(self).__name__} defines no attend(edges, weights), which reduce = "
                        "'softmax' needs")

    def combine(self, ntype: str, stacked: Tensor, relations: tuple[Relation, ...]) -> Tensor:
        """AGG_all for `stack`: (rows, relations, width) to (rows, …)."""
        raise HetaError(f"{type(self).__name__} defines no combine(ntype, stacked, relations), "
                        "which reduce = 'stack' needs")

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        """The new states from AGG_all's result and the rows' own states (rows, …)."""
        return torch.relu(aggregated)

    def forward(self, block: Block, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """States of the destination rows, per node type."""
        return {ntype: self.update(
            ntype, self._merged(block, ntype, states),
            block.destination(states, ntype) if self.reads_state else None)
            for ntype in block.num_dst}

    def _merged(self, block: Block, ntype: str, states: dict[str, Tensor]) -> Tensor:
        like = next(iter(states.values()))
        into = [edges.with_edges() if self._sparse else edges for edges in block.into(ntype)]
        views = {id(edges): Edges(block, edges, states) for edges in into}
        if isinstance(self.cross, CrossSoftmax):
            scores = [(edges, self.score(views[id(edges)])) for edges in into]
            return self.cross(block, ntype, scores, self.width, like,
                              lambda edges, weights: self.attend(views[id(edges)], weights),
                              self.heads)
        parts = [(edges, self.aggregate(views[id(edges)])) for edges in into]
        if isinstance(self.cross, CrossStack):
            return self.cross(block, ntype, parts, self.width, like,
                              lambda stacked, relations: self.combine(ntype, stacked, relations))
        return self.cross(block, ntype, parts, self.width, like)


class HGNN(nn.Module):
    """Input projections, layers, and a linear head per target type.

    Parameters
    ----------
    layer : makes a layer: an :class:`HGNNLayer` class that takes the spec, for one.
    """

    def __init__(self, spec: ModelSpec, layer: Callable[[ModelSpec], nn.Module]) -> None:
        super().__init__()
        self.targets = tuple(spec.num_classes)
        self.project = nn.ModuleDict({
            slot(t): nn.Linear(spec.input_dims[t], spec.hidden)
            for t in spec.schema.node_types if t in spec.static})
        self.layers = nn.ModuleList(layer(spec) for _ in range(spec.layers))
        self.heads = nn.ModuleDict({slot(t): nn.Linear(spec.hidden, n)
                                    for t, n in spec.num_classes.items()})

    def inputs(self, ntype: str, rows: Tensor) -> Tensor:
        """Input features of a node type, (rows, input width) to (rows, hidden)."""
        return self.project[slot(ntype)](rows) if slot(ntype) in self.project else rows

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs per target type, (own seeds, classes).

        `inputs` are the input features per node type in the order of `batch.input_nodes`.
        """
        states = {t: self.inputs(t, x) for t, x in inputs.items()}
        for layer, block in zip(self.layers, batch.blocks):
            states = layer(block, states)
        return {t: self.heads[slot(t)](states[t]) for t in self.targets}
