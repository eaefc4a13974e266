"""Heterogeneous GNNs as Heta Eq. (1) writes them: AGG_r, AGG_all, an update.

A model is a layer class and two or three methods of it; it runs on one process as it is
written, and under RAF on many, because the merge over relations is a :class:`CrossRelation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.models.relations import Edges, Relations
from dgl_heta.models.spec import ModelSpec, slot
from dgl_heta.nn.cross import REDUCERS, CrossRelation, CrossSoftmax, CrossStack
from dgl_heta.nn.joined import Joined, grouped
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.precision import widened
from dgl_heta.nn.row_parts import Part, Parts
from dgl_heta.sampling.blocks import Block, MiniBatch

_OF_ONE = ("aggregate", "score", "attend")
_METHODS = {*_OF_ONE, *(f"{name}_all" for name in _OF_ONE), "across_is_shorter", "attend_across"}


class HGNNLayer(nn.Module):
    """One layer of Eq. (1): `h_v = update(AGG_all_r(AGG_r({h_u : u in N_r(v)})), h_v)`.

    Derive from it and define, by what `reduce` (AGG_all) is,

    - `sum`, `mean`, `max`, `min`: :meth:`aggregate`;
    - `softmax`, attention over the edges of all relations: :meth:`score` and :meth:`attend`;
    - `stack`, any function of all relations' aggregations: :meth:`aggregate`, :meth:`combine`;

    and, if there is more to it, :meth:`update`. Rows must not depend on each other: what a row
    gets is a function of its own edges and state (batch normalisation is not).

    :meth:`aggregate_all`, :meth:`score_all` and :meth:`attend_all` are given all relations of a
    block and call these methods for one after the other. A layer that defines them instead leaves
    it to the kernel to take the relations together. Methods of :class:`Edges` are to be called
    whatever the number of edges: where in-edges of hubs are cut, other workers call them, too.

    Parameters
    ----------
    reduce : AGG_all.
    width : of what :meth:`aggregate` or :meth:`attend` returns.
    heads : attention heads, where `reduce` is softmax.
    reads_state : whether :meth:`score`, :meth:`aggregate` or :meth:`update` read the state of
        the destination. If not, training can leave it out (`train.seed_states = false`).
    attends : whether :meth:`score`, :meth:`attend` or :meth:`aggregate` read the state of the
        destination. If not, it need not be where a relation is offloaded to
        (`partition.shared`).
    zero_without_edges : whether :meth:`aggregate` gives 0 for a row without edges (no bias, for
        one). Then sum and mean leave such rows out, which most relations have many of.
    """

    def __init__(self, reduce: str = "sum", width: int = 64, heads: int = 1,
                 reads_state: bool = True, zero_without_edges: bool = False,
                 attends: bool = True) -> None:
        super().__init__()
        self.attends = attends
        if reduce in REDUCERS:
            self.cross: CrossRelation = CrossRelation(reduce)
        elif reduce in ("softmax", "stack"):
            self.cross = CrossSoftmax() if reduce == "softmax" else CrossStack()
        else:
            raise InputError(f"reduce '{reduce}' is unknown; known are "
                             f"{', '.join(REDUCERS)}, softmax, stack")
        self.width, self.heads, self.reads_state = width, heads, reads_state
        self._sparse = reduce == "softmax" or (zero_without_edges and reduce in ("sum", "mean"))

    def __init_subclass__(cls) -> None:
        """A method for one relation that is defined anew stands for its inherited plural, too, and
        the other way round."""
        super().__init_subclass__()
        ways = {"score", "attend", "score_all", "attend_all", "across_is_shorter"}
        if "across_is_shorter" not in _nearest(cls, ways):
            cls.across_is_shorter = HGNNLayer.across_is_shorter  # type: ignore[method-assign]
        for name in _OF_ONE:
            of_all = f"{name}_all"
            defined = _nearest(cls, {name, of_all})  # by the class, or by one that it mixes in
            if of_all not in defined:
                setattr(cls, of_all, vars(HGNNLayer)[of_all])
            elif name not in defined:
                setattr(cls, name, _of_one(defined[of_all]))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but no method of AGG_r: those of a class are chosen together."""
        if name in _METHODS:
            kind = type(self).__name__
            raise InputError(f"'{name}' of one {kind} cannot be exchanged: define it in a class, "
                             f"as in: class Mine({kind}): def {name}(self, …)")
        super().__setattr__(name, value)

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

    def aggregate_all(self, relations: Relations) -> Sequence[Tensor]:
        """:meth:`aggregate` of several relations."""
        return [self.aggregate(edges) for edges in relations]

    def score_all(self, relations: Relations) -> Sequence[Tensor]:
        """:meth:`score` of several relations."""
        return [self.score(edges) for edges in relations]

    def attend_all(self, relations: Relations, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """:meth:`attend` of several relations."""
        return [self.attend(edges, e) for edges, e in zip(relations, weights)]

    def across_is_shorter(self, relations: Relations) -> bool:
        """Return True to have :meth:`attend_across` called, and no scores and messages, for these
        relations of a block."""
        return False

    def attend_across(self, relations: Relations) -> tuple[Tensor, Tensor]:
        """Return sums and maxima of all relations into one node type, as
        :meth:`dgl_heta.nn.BaseKernel.attend_across` does."""
        raise HetaError(f"{type(self).__name__} defines no attend_across(relations), which "
                        "across_is_shorter asks for")

    def combine(self, ntype: str, stacked: Tensor, relations: tuple[Relation, ...]) -> Tensor:
        """AGG_all for `stack`: (rows, relations, width) to (rows, …).

        `relations` is empty, and `stacked` (rows, 0, width), for a type that no relation reaches.
        """
        raise HetaError(f"{type(self).__name__} defines no combine(ntype, stacked, relations), "
                        "which reduce = 'stack' needs")

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        """The new states from AGG_all's result and the rows' own states (rows, …)."""
        return torch.relu(aggregated)

    def forward(self, block: Block, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """States of the destination rows, per node type."""
        if block.prepared is not None:
            as_a_whole = block.prepared.forward(self, block, states)
            if as_a_whole is not None:
                return as_a_whole
        into = {ntype: [edges.with_edges() if self._sparse else edges
                        for edges in block.into(ntype)] for ntype in block.num_dst}
        products: dict[str, Tensor] = {}
        views = {id(edges): Edges(block, edges, states, self.cross.exchange, products)
                 for parts in into.values() for edges in parts}
        relations, softmax = Relations(views.values()), isinstance(self.cross, CrossSoftmax)
        across = softmax and bool(views) and self.across_is_shorter(relations)
        values = (self.score_all if softmax else self.aggregate_all)(relations) if (
            views and not across) else ()
        like, updated = next(iter(states.values())), {}
        if not softmax:
            _check_shapes(list(views.values()), values, self.width)
        of_types = grouped(values, [len(edges_of) for edges_of in into.values()])
        for (ntype, edges_of), of_type in zip(into.items(), of_types):
            parts: Sequence[Part] = Parts(edges_of, of_type)
            if not softmax and any(edges.shared is not None for edges in edges_of):
                parts = [edges.owned(rows) for edges, rows in parts]
            if across and edges_of:
                assert isinstance(self.cross, CrossSoftmax)
                of_edges = Relations(views[id(edges)] for edges in edges_of)
                merged = self.cross.merged(*self.attend_across(of_edges), block, ntype)
            else:
                merged = self._merged(block, ntype, parts, views, like)
            updated[ntype] = widened(self.update(
                ntype, merged, _state(block, states, ntype) if self.reads_state else None))
        return updated

    def _merged(self, block: Block, ntype: str, parts: Sequence[Part], views: Mapping[int, Edges],
                like: Tensor) -> Tensor:
        """AGG_all of one node type's aggregations, or of its scores."""
        if isinstance(self.cross, CrossSoftmax):
            return self.cross(
                block, ntype, parts, self.width, like,
                lambda weighted: self.attend_all(
                    Relations(views[id(e)].weighted() for e in weighted.edges), weighted.values),
                self.heads)
        if isinstance(self.cross, CrossStack):
            return self.cross(block, ntype, parts, self.width, like,
                              lambda stacked, relations: self.combine(ntype, stacked, relations))
        return self.cross(block, ntype, parts, self.width, like)


def _state(block: Block, states: Mapping[str, Tensor], ntype: str) -> Tensor:
    """The states of the wanted destination rows."""
    block.check_destinations(ntype)
    return kernel_in_use().gather([states[ntype]], [slice(0, block.wanted(ntype))])[0]


def _check_shapes(views: Sequence[Edges], values: Sequence[Tensor], width: int) -> None:
    """
    Raises
    ------
    InputError
        What AGG_r returned for a relation is of another shape than AGG_all merges.
    """
    joined = isinstance(values, Joined) and values.whole.shape[1:] == (width,)
    for edges, value in () if joined else zip(views, values):
        if tuple(value.shape) != (edges.num_rows, width):
            raise InputError(
                f"AGG_r of '{edges.relation}' returned {tuple(value.shape)}, but "
                f"{(edges.num_rows, width)} is wanted: (edges.num_rows, width), with the width "
                f"that the layer gives HGNNLayer ({width})")


def _nearest(kind: type, names: Collection[str]) -> Mapping[str, Any]:
    """What the first class defines, in the order of resolution, that defines one of these names."""
    return next(vars(one) for one in kind.__mro__ if any(name in vars(one) for name in names))


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a Linear, neither exchanged, normalised nor watched, so that its
    weights may be multiplied without calling it."""
    return type(module) is nn.Linear and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        or module._backward_pre_hooks or "forward" in vars(module))


def _of_one(of_all: Callable[..., Sequence[Tensor]]) -> Callable[..., Tensor]:
    """A layer's method for one relation, from that for several."""
    def method(self: HGNNLayer, edges: Edges, *of_edges: Tensor) -> Tensor:
        return of_all(self, Relations([edges]), *([value] for value in of_edges))[0]
    return method


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
        if slot(ntype) not in self.project:
            return rows
        linear = self.project[slot(ntype)]
        if not is_linear(linear):
            return linear(rows)
        # Not linear(rows), whose gradient of a narrow weight takes PyTorch six times as long.
        return kernel_in_use().project([rows], [linear.weight.t()], [linear.bias])[0]

    def forward(self, batch: MiniBatch, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs per target type, (own seeds, classes).

        `inputs` are the input features per node type in the order of `batch.input_nodes`.
        """
        states = {t: widened(self.inputs(t, x)) for t, x in inputs.items()}
        for layer, block in zip(self.layers, batch.blocks):
            states = layer(block, states)
        return {t: self.heads[slot(t)](states[t]) for t in self.targets}


def attends(model: nn.Module) -> bool:
    """Return whether a model's aggregations may read the state of their destination."""
    layers = [m for m in model.modules() if isinstance(m, HGNNLayer)]
    return not layers or any(layer.attends for layer in layers)
