"""AGG_r of rows whose in-edges by one relation are on several workers (a vertex cut, Heta §5).

Each worker aggregates the edges that it has; what they have is joined, by
:meth:`dgl_heta.nn.cross.Exchange.join`, before a model goes on with it. So every worker that has
the relation gets the complete rows, and what a model makes of them need not be linear: sums are
added up; a mean is a sum divided by the number of edges of all; a softmax is that of an online
softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867); of several edges with the
maximum, the first in the order of a row's edges has its gradient, as in one process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgl_heta.nn.aggregate import reduce_each
from dgl_heta.nn.kernels import Join, first_extreme, kernel_in_use
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock


def reduce_shared(edges: RelationBlock, states: Tensor, op: str, join: Join) -> Tensor:
    """Sum, mean, max or min of source rows, (S, D) to (R, D), 0 for a row without edges."""
    if op in EXTREMES:
        assert edges.shared is not None
        csc, zeros = edges.in_edges, states.new_zeros((edges.num_rows, states.shape[1]))
        return first_extreme(csc.rows(), states.index_select(0, csc.indices.long()), zeros, op,
                             edges.shared.order, join)
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
