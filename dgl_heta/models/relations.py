"""The in-edges by one relation, or by several, as a layer of a model sees them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dgl_heta.errors import InputError, RelationError
from dgl_heta.models.spec import slot
from dgl_heta.nn.aggregate import attend_each, reduce_each
from dgl_heta.nn.cross import Exchange
from dgl_heta.nn.graph_attention import SLOPE
from dgl_heta.nn.joined import elementwise
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.shared import reduce_shared, softmax_shared
from dgl_heta.planning.compute import MARGIN, attended_before
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import Block, InEdges, RelationBlock


class Edges:
    """The in-edges by one relation of some destination rows, with the states at both ends.

    Edges are in the order of their destination rows. A row without edges is a row all the same.

    Attributes
    ----------
    relation : the relation.
    source : states of the source side (source rows, width).
    num_rows : number of destination rows.
    products : of states and weights, by the node type; all edges of a block share them.
    """

    def __init__(self, block: Block, edges: RelationBlock, states: Mapping[str, Tensor],
                 exchange: Exchange | None = None,
                 products: dict[str, Tensor] | None = None) -> None:
        self.relation, self.num_rows = edges.relation, edges.num_rows
        self.source = states[edges.relation.src]
        self._block, self._edges, self._states = block, edges, states
        self._exchange = exchange if edges.shared is not None else None
        self._weighted = False
        self.products = {} if products is None else products

    def _join(self, rows: Tensor, op: str) -> Tensor:
        """Rows (num_rows, …) with what other workers have of their edges."""
        assert self._exchange is not None
        return self._exchange.join(rows, self._block, self.relation, op)

    def weighted(self) -> Edges:
        """The same for :meth:`HGNNLayer.attend`, whose weighted sums are merged as they are."""
        if self._exchange is None:
            return self
        other = copy(self)
        other._weighted = True
        return other

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self._edges.indices)

    @property
    def destination(self) -> Tensor:
        """States of the destination rows (num_rows, width)."""
        self._block.check_rows(self._edges)
        return self._edges.of(self._states[self.relation.dst])

    @property
    def in_edges(self) -> InEdges:
        """The edges as a kernel takes them.

        Raises
        ------
        InputError
            Other workers have edges of the same rows (a plan with hubs).
        """
        if self._exchange is not None:
            raise InputError(
                f"the plan cuts the in-edges of single nodes by '{self.relation}', so in_edges "
                "would be some of them; use the methods of Edges, which join them, or make the "
                "partition again with partition.hubs = 0")
        return self._edges.in_edges

    def reduce(self, op: str = "mean", states: Tensor | None = None) -> Tensor:
        """Sum, mean, max or min over each row's neighbours, of `states` (default: `source`).

        `states` is (source rows, width); returns (num_rows, width), 0 for a row without edges.
        """
        return Relations([self]).reduce(op, None if states is None else [states])[0]

    def dot(self, queries: Tensor, states: Tensor | None = None) -> Tensor:
        """For each edge the products (edges, heads) of its source's state and its row's queries.

        `queries` is (num_rows, heads, width); `states`, (source rows, width), default `source`.
        """
        return Relations([self]).dot([queries], None if states is None else [states])[0]

    def add(self, source: Tensor, destination: Tensor) -> Tensor:
        """For each edge the sum (edges, heads) of a number of its source and one of its row.

        `source` is (source rows, heads), `destination` (num_rows, heads).
        """
        return Relations([self]).add([source], [destination])[0]

    def spread(self, values: Tensor) -> Tensor:
        """Each edge gets its row's values: (num_rows, heads) to (edges, heads)."""
        return Relations([self]).spread([values])[0]

    def total(self, weights: Tensor) -> Tensor:
        """Sums over each row's edges: (edges, heads) to (num_rows, heads)."""
        return Relations([self]).total([weights])[0]

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax of scores (edges, heads) over each row's edges by this relation."""
        return Relations([self]).softmax([scores])[0]

    def attend(self, weights: Tensor, states: Tensor | None = None) -> Tensor:
        """Sums of the neighbours' states, weighted per head: (num_rows, heads, width).

        `weights` is (edges, heads); `states`, (source rows, width), default `source`.
        """
        return Relations([self]).attend([weights], None if states is None else [states])[0]


Kind = TypeVar("Kind", bool, str)
Method = TypeVar("Method", bound=Callable[..., Any])


def _naming(method: Method) -> Method:
    """The method, whose errors of a kernel name the relation."""
    @functools.wraps(method)
    def named(self: Relations, *args: object, **kwargs: object) -> Any:
        try:
            return method(self, *args, **kwargs)
        except RelationError as error:
            raise InputError(f"relation '{self[error.place].relation}': {error.text}") from error

    return named  # type: ignore[return-value]


def chosen(values: Any, at: Sequence[int]) -> Any:
    """Those of a sequence, or of a tensor's rows, at some places; itself if these are all."""
    if len(at) == len(values):
        return values
    # Of a tensor not by a list, which a GPU would be sent and waited for.
    each = values.unbind() if isinstance(values, Tensor) else values
    rows = [each[i] for i in at]
    return torch.stack(rows) if isinstance(values, Tensor) else rows


class Relations(tuple[Edges, ...]):
    """The in-edges by several relations of a block.

    What :class:`Edges` does for one relation, its methods do for all of them, in one call of the
    kernel, or one for those that multiply by weights before the sums and one for those that do so
    after; arguments and results are lists with an entry for each relation.

    Attributes
    ----------
    by_cost : whether products with weights are taken before or after sums, whichever is shorter;
        else after.
    """

    by_cost = True

    @property
    def sources(self) -> list[Tensor]:
        """States of the source sides."""
        return [edges.source for edges in self]

    @property
    def destinations(self) -> Sequence[Tensor]:
        """States of the destination rows."""
        for edges in self:
            edges._block.check_rows(edges._edges)
        return kernel_in_use().gather([edges._states[edges.relation.dst] for edges in self],
                                      [edges._edges.index for edges in self])

    @property
    def destination(self) -> Tensor:
        """States of all destination rows of the node type that all these relations end at."""
        block, ntype = self[0]._block, self[0].relation.dst
        for edges in self:
            block.check_rows(edges._edges)
        return kernel_in_use().gather([self[0]._states[ntype]],
                                      [slice(0, block.num_dst[ntype])])[0]

    def of_block(self) -> tuple[int, int, int]:
        """Of all relations of the block: source rows, their edges, and rows that have some."""
        block = self[0]._block
        edges = [one for one in block.edges if len(one.indices)]
        return (sum(block.num_src[t] for t in {one.relation.src for one in edges}),
                sum(len(one.indices) for one in edges),
                sum(min(one.num_rows, len(one.indices)) for one in edges))

    def stack(self, weights: Sequence[Tensor]) -> Tensor:
        """A weight of each relation: (relations, …)."""
        return torch.stack(list(weights))

    def of_sources(self, weight: Callable[[str], Tensor]) -> Tensor:
        """The weight of each relation's source type: (relations, …)."""
        return self.stack([weight(edges.relation.src) for edges in self])

    def project(self, linears: nn.ModuleDict, heads: int) -> Sequence[Tensor]:
        """The states of the destination rows, by the linear layer of their type, per head: (rows,
        heads, width). It is applied to a type's rows or to those of its relations, whichever are
        fewer.
        """
        def function(ntype: str, rows: Tensor) -> Tensor:
            out: Tensor = linears[slot(ntype)](rows)
            return out.view(len(rows), heads, out.shape[1] // heads)

        kernel, results = kernel_in_use(), list[Tensor]()
        for ntype, group in itertools.groupby(self, lambda edges: edges.relation.dst):
            of_type = list(group)
            block, states = of_type[0]._block, of_type[0]._states[ntype]
            for edges in of_type:
                block.check_rows(edges._edges)
            rows, count = [edges._edges.index for edges in of_type], block.num_dst[ntype]
            if sum(edges.num_rows for edges in of_type) >= count:
                states = function(ntype, kernel.gather([states], [slice(0, count)])[0])
                results += kernel.gather([states] * len(rows), rows)
                continue
            results += [function(ntype, x) for x in kernel.gather([states] * len(rows), rows)]
        return results

    @_naming
    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        """Products of each relation's rows, (rows, A) with (A, B) or per head (rows, heads, A) with
        (heads, A, B). The weights of all relations may be one tensor (relations, …)."""
        return kernel_in_use().matmul(rows, weights)

    def reduce(self, op: str = "mean", states: Sequence[Tensor] | None = None
               ) -> Sequence[Tensor]:
        states = self.sources if states is None else states
        whole = [i for i, edges in enumerate(self) if edges._exchange is None]
        csc = self._in_edges()
        if len(whole) == len(self):
            return self._reduce(csc, states, op)
        results = dict(zip(whole, reduce_each([csc[i] for i in whole], [states[i] for i in whole],
                                            op)))
        return [results[i] if i in results else reduce_shared(e._edges, states[i], op, e._join)
                for i, e in enumerate(self)]

    def reduce_projected(self, op: str, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """:meth:`reduce` of states times a weight (A, B) of each relation: (rows, B).

        Sums and means are linear: products are taken of a relation's sources or, after the sum, of
        its rows, whichever are fewer.
        """
        def run(before: bool, some: Relations, at: list[int]) -> Sequence[Tensor]:
            own = chosen(weights, at)
            if before:
                return some.reduce(op, kernel_in_use().project(some.sources, own))
            return some.matmul(some.reduce(op), own)

        return self.by_kind([op in EXTREMES or (
            self.by_cost and edges._exchange is None
            and len(edges.source) < MARGIN * edges.num_rows) for edges in self], run)

    @_naming
    def dot(self, queries: Sequence[Tensor], states: Sequence[Tensor] | None = None
            ) -> Sequence[Tensor]:
        return kernel_in_use().u_dot_v(
            self._in_edges(), self.sources if states is None else states, queries)

    @_naming
    def products(self, weights: Tensor) -> Sequence[Tensor]:
        """For each edge its source's state times its relation's weight, (relations, width, heads):
        (edges, heads)."""
        return kernel_in_use().u_mm(self._in_edges(), self.sources, weights)

    @_naming
    def dot_projected(self, queries: Sequence[Tensor], weights: Tensor) -> Sequence[Tensor]:
        """:meth:`dot` of queries (rows, heads, A) times weights (relations, heads, A, width)."""
        kernel = kernel_in_use()
        return kernel.u_dot_v(self._in_edges(), self.sources, kernel.matmul(queries, weights))

    @_naming
    def add(self, sources: Sequence[Tensor], destinations: Sequence[Tensor]
            ) -> Sequence[Tensor]:
        return kernel_in_use().u_add_v(self._in_edges(), sources, destinations)

    @_naming
    def spread(self, values: Sequence[Tensor]) -> Sequence[Tensor]:
        return kernel_in_use().copy_v(self._in_edges(), values)

    @_naming
    def total(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return self._joined(kernel_in_use().e_sum(self._in_edges(), weights))

    def softmax(self, scores: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = [i for i, edges in enumerate(self) if edges._exchange is None]
        csc = self._in_edges()
        if len(whole) == len(self):
            return self._softmax(csc, scores)
        results = dict(zip(whole, kernel_in_use().edge_softmax(
            [csc[i] for i in whole], [scores[i] for i in whole]) if whole else ()))
        return [results[i] if i in results else softmax_shared(e._edges, scores[i], e._join)
                for i, e in enumerate(self)]

    @_naming
    def attend(self, weights: Sequence[Tensor], states: Sequence[Tensor] | None = None
               ) -> Sequence[Tensor]:
        return self._joined(kernel_in_use().u_mul_e_sum(
            self._in_edges(), self.sources if states is None else states, weights))

    @_naming
    def attend_projected(self, weights: Sequence[Tensor], of_sums: Tensor) -> Sequence[Tensor]:
        """:meth:`attend`, times weights (relations, heads, width, B): (rows, heads, B)."""
        kernel = kernel_in_use()
        return self._joined(kernel.matmul(
            kernel.u_mul_e_sum(self._in_edges(), self.sources, weights), of_sums))

    @_naming
    def attend_across(self, sources: Sequence[Tensor], queries: Tensor, to_scores: Tensor,
                      to_sums: Tensor, biases: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """:meth:`dgl_heta.nn.BaseKernel.attend_across` of relations into one node type."""
        return kernel_in_use().attend_across(
            self._in_edges(), [edges._edges.index for edges in self], sources, queries, to_scores,
            to_sums, biases)

    def attention(self, weights: Sequence[Tensor], to_sources: Sequence[Tensor],
                  to_rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each relation's attention over a row's neighbours (GAT, Eq. 3 and 5): (rows, H · D).

        Weights (width, H, D) and, of the scores, (H, D) for the source and for the row. Products
        with the weights are taken of a relation's sources, of the source of each edge or, after the
        sum, of its rows, whichever is shorter.
        """
        whole = torch.stack(list(weights))
        to_row = torch.einsum("rihd,rhd->rhi", whole, torch.stack(list(to_rows)))
        of_rows = self.matmul(self.destinations, to_row.transpose(1, 2))
        kinds = ["cut" if edges._exchange is not None else "before" if attended_before(
            min(len(edges.source), edges.num_edges), edges.num_edges, edges.num_rows,
            *whole.shape[1:]) else "after" for edges in self]
        results = self.by_kind(kinds, lambda kind, some, at: some._attention(
            kind, chosen(whole, at), chosen(to_sources, at), chosen(of_rows, at)))
        return elementwise(lambda rows: rows.flatten(1), results)

    @_naming
    def _attention(self, kind: str, weights: Tensor, to_sources: Sequence[Tensor],
                   of_rows: Sequence[Tensor]) -> Sequence[Tensor]:
        states = self.sources
        if kind != "cut":
            return attend_each(self._in_edges(), states, weights, to_sources, of_rows,
                               kind == "before")
        per_head = weights.transpose(1, 2)
        vectors = torch.matmul(per_head, torch.stack(list(to_sources)).unsqueeze(3)).squeeze(3)
        scores = self.add([x @ a.t() for x, a in zip(states, vectors)], of_rows)
        return self.attend_projected(self.softmax([F.leaky_relu(x, SLOPE) for x in scores]),
                                     per_head)

    def by_kind(self, kinds: Sequence[Kind], run: Callable[[Kind, Relations, list[int]],
                                                           Sequence[Tensor]]) -> Sequence[Tensor]:
        """What `run` returns for the relations of each kind and their places, in the order of all.
        """
        places = {kind: [i for i, one in enumerate(kinds) if one == kind] for kind in kinds}
        if len(places) == 1:
            return run(kinds[0], self, places[kinds[0]])
        results: dict[int, Tensor] = {}
        for kind, at in places.items():
            results.update(zip(at, run(kind, Relations(self[i] for i in at), at)))
        return [results[i] for i in range(len(self))]

    @_naming
    def _reduce(self, csc: Sequence[InEdges], states: Sequence[Tensor], op: str
                ) -> Sequence[Tensor]:
        return reduce_each(csc, states, op)

    @_naming
    def _softmax(self, csc: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        return kernel_in_use().edge_softmax(csc, scores)

    def _joined(self, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        if all(edges._exchange is None or edges._weighted for edges in self):
            return sums
        return [rows if edges._exchange is None or edges._weighted else edges._join(rows, "sum")
                for edges, rows in zip(self, sums)]

    def _in_edges(self) -> list[InEdges]:
        return [edges._edges.in_edges for edges in self]
