"""AGG_r: sums, means, maxima, minima and GAT's attention over in-edges, by the kernel in use.

Rows that wait (:mod:`dgl_heta.features.deferred`) are aggregated before their product with a weight
where that is shorter, whatever the kernel, unless it wants all rows itself (`defers = False`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.features.deferred import LazyRows, defers
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.planning.compute import aggregated_first
from dgl_heta.sampling.blocks import InEdges

SEGMENT_OPS = ("sum", "mean", "max", "min")


def segment_reduce(indptr: Tensor, indices: Tensor, states: Tensor, op: str = "mean") -> Tensor:
    """Aggregate source rows over the in-edges of each destination row.

    `indptr` (R + 1, int64) and `indices` (E) are CSC over the destination rows, `states` is (S, D);
    returns (R, D), 0 for a row without edges. Differentiable in `states`.

    Raises
    ------
    InputError
        An unknown operation; known are sum, mean, max and min. Or an edge starts at a row that is
        not there, by the kernel `fused` on CPU; PyTorch's operators raise an error of their own.
    """
    return reduce_each([InEdges(indptr, indices)], [states], op)[0]


def reduce_each(edges: Sequence[InEdges], states: Sequence[Tensor], op: str) -> Sequence[Tensor]:
    """:func:`segment_reduce` for several relations in one call of the kernel.

    `states` has the source rows of each relation; relations of the same source rows are given the
    same tensor. Rows that wait are aggregated before their product in all of a tensor's relations
    or in none.
    """
    if op not in SEGMENT_OPS:
        raise InputError(f"aggregation '{op}' is unknown; known are {', '.join(SEGMENT_OPS)}")
    kernel = kernel_in_use()
    results: dict[int, Tensor] = {}
    if kernel.defers and op in ("sum", "mean"):
        waiting: dict[int, list[int]] = {}
        for i, rows in enumerate(states):
            if isinstance(rows, LazyRows):
                waiting.setdefault(id(rows), []).append(i)
        for places in waiting.values():
            rows, chosen = states[places[0]], [edges[i] for i in places]
            if _shorter_aggregated(rows, chosen):
                results.update((i, _aggregated(rows, *edges[i], op)) for i in places)
    rest = [i for i in range(len(edges)) if i not in results]
    if not results and rest:
        return kernel.reduce(edges, states, op)
    if rest:
        results.update(zip(rest, kernel.reduce([edges[i] for i in rest],
                                             [states[i] for i in rest], op)))
    return [results[i] for i in range(len(edges))]


def attend_each(edges: Sequence[InEdges], states: Sequence[Tensor], weights: Tensor,
                to_sources: Sequence[Tensor], of_rows: Sequence[Tensor], before: bool
                ) -> Sequence[Tensor]:
    """Attention of GAT (Eq. 3 and 5), (R, H, D) for each relation, 0 for a row without edges.

    Parameters
    ----------
    states : source rows of each relation, (S, W).
    weights : (relations, W, H, D).
    to_sources : (H, D), of the score of a source's product with the weights.
    of_rows : scores of the rows, (R, H).
    before : products with weights are taken of a relation's sources, or of the source of each edge
        if these are fewer; else of the sums (:func:`~dgl_heta.planning.compute.attended_before`).
    """
    kernel = kernel_in_use()
    if not before:
        per_head = weights.transpose(1, 2)
        vectors = torch.matmul(per_head, torch.stack(list(to_sources)).unsqueeze(3)).squeeze(3)
        return kernel.matmul(kernel.u_attend(edges, states, list(vectors), of_rows), per_head)
    edges, states = list(edges), list(states)
    for i, (csc, x) in enumerate(zip(edges, states)):
        if len(csc.indices) < len(x):
            (states[i],) = kernel.gather([x], [csc.indices.long()])
            edges[i] = InEdges(csc.indptr, torch.arange(
                len(csc.indices), dtype=torch.int32, device=x.device))
    products = kernel.project(states, list(weights.flatten(2)))
    return kernel.u_attend(edges, [x.view(-1, *weights.shape[2:]) for x in products], to_sources,
                           of_rows)


def _shorter_aggregated(states: Tensor, edges: Sequence[tuple[Tensor, Tensor]]
                       ) -> TypeGuard[LazyRows]:
    """Return whether it is shorter to aggregate rows before their product, in all these relations
    (indptr, indices)."""
    if not isinstance(states, LazyRows) or states.heads or not defers(states):
        return False
    if states.whole.linear is None:
        return True
    return aggregated_first(len(states), sum(len(indices) for _, indices in edges),
                            sum(len(indptr) - 1 for indptr, _ in edges), states.own_rows,
                            states.whole.source.width, states.shape[1])


def _aggregated(states: LazyRows, indptr: Tensor, indices: Tensor, op: str) -> Tensor:
    """The sum or mean over in-edges of lazy rows, (destinations, width), without computing them."""
    whole = states.whole
    rows = whole.source.aggregate(indptr.numpy(), indices.numpy(), op == "mean", states.dtype)
    if whole.linear is None:
        return rows
    weight, bias = whole.bypass(states.requires_grad)
    if bias is None:
        return rows @ weight
    degrees = indptr[1:] - indptr[:-1]
    times = (degrees > 0 if op == "mean" else degrees).to(rows.dtype)
    return torch.addmm(times[:, None] * bias, rows, weight)
