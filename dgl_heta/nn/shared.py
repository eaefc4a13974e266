"""AGG_r of rows whose in-edges by one relation are on several workers (a vertex cut, Heta §5).

Each worker aggregates the edges that it has; what they have is joined, by
:meth:`dgl_heta.nn.cross.Exchange.join`, before a model goes on with it. So every worker that has
the relation gets the complete rows, and what a model makes of them need not be linear: sums are
added up; a mean is a sum divided by the number of edges of all; a softmax is that of an online
softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867); of several edges with the
maximum, the first in the order of a row's edges has its gradient, as in one process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dgl_heta.nn.aggregate import reduce_each
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock

Join = Callable[[Tensor, str], Tensor]
"""Rows (R, …) joined over the workers by `sum`, `max` or `min`; sums are differentiable."""

_NOWHERE = torch.iinfo(torch.int64).max


def reduce_shared(edges: RelationBlock, states: Tensor, op: str, join: Join) -> Tensor:
    """Sum, mean, max or min of source rows, (S, D) to (R, D), 0 for a row without edges."""
    if op in EXTREMES:
        return _extreme(edges, states, op, join)
    (rows,) = reduce_each([edges.in_edges], [states], "sum")
    rows = join(rows, "sum")
    if op == "sum":
        return rows
    count = join(edges.indptr.diff(), "sum")
    return rows / count.clamp(min=1).unsqueeze(1)


def softmax_shared(edges: RelationBlock, scores: Tensor, join: Join) -> Tensor:
    """Softmax over all edges of each row, here and elsewhere: (E, H) to (E, H)."""
    kernel, csc = kernel_in_use(), [edges.in_edges]
    with torch.no_grad():
        top = join(kernel.e_max(csc, [scores])[0], "max")
    weights = torch.exp(scores - kernel.copy_v(csc, [top])[0])
    total = join(kernel.e_sum(csc, [weights])[0], "sum")
    return weights / kernel.copy_v(csc, [total])[0]


def _extreme(edges: RelationBlock, states: Tensor, op: str, join: Join) -> Tensor:
    """The sum, over workers, of the one edge of each row and column that has the extreme."""
    assert edges.shared is not None
    messages = states.index_select(0, edges.indices.long())
    rows, shape = edges.in_edges.rows(), (edges.num_rows, states.shape[1])
    with torch.no_grad():
        index = rows.unsqueeze(1).expand_as(messages)
        best = messages.new_full(shape, EXTREMES[op])
        best = join(best.scatter_reduce(0, index, messages, "a" + op), op)
        attained = messages == best[rows]
        order = torch.where(attained, edges.shared.order.unsqueeze(1), _NOWHERE)
        first = order.new_full(shape, _NOWHERE).scatter_reduce(0, index, order, "amin")
        chosen = attained & (order == join(first, "min")[rows])
    messages = torch.where(chosen, messages, 0)  # no product: infinity times 0 is no number
    out = join(messages.new_zeros(shape).index_add(0, rows, messages), "sum")
    return torch.where(torch.isnan(best), best, out)
