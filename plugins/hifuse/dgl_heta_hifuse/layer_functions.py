"""What a layer computes of all its relations' tiles, one kernel each, by PyTorch's operators.

Sizes are those of :class:`dgl_heta_hifuse.layer_edges.LayerEdges`; H heads, D width of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgl_heta.nn import differentiable_once
from dgl_heta_hifuse.layer_edges import TILE, LayerEdges

try:
    from dgl_heta_hifuse import triton_kernels as fused
except ImportError:  # Triton is optional
    fused = None  # type: ignore[assignment]


def segments(values: Tensor, ends: Tensor, op: str = "sum") -> Tensor:
    """Sums, means or maxima of rows that follow each other, 0 (maxima: -inf) where there is none.
    """
    return torch.segment_reduce(values, op, offsets=ends, axis=0, unsafe=True,  # (asks for no sync)
                                initial=float("-inf") if op == "max" else 0)


def added_at(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Zeros (count, …) to which rows are added."""
    return rows.new_zeros((count, *rows.shape[1:])).index_add_(0, index, rows)


class operators:  # stands for the module `triton_kernels`
    """Attention over each row's edges by PyTorch's operators."""

    @staticmethod
    def attend(items: Tensor, sent: Tensor, edges: LayerEdges) -> tuple[Tensor, ...]:
        """See :func:`dgl_heta_hifuse.triton_kernels.attend`."""
        scores = items[:edges.edges] + items[edges.edges:].index_select(0, edges.row)
        positive = scores > 0
        scores = torch.nn.functional.leaky_relu_(scores, 0.2)
        most = segments(scores, edges.indptr, "max")
        share = scores.sub_(most.index_select(0, edges.row)).exp_()
        total = segments(share, edges.indptr).clamp_(min=1)  # 0 without edges; else 1 at least
        out = segments(sent * share.unsqueeze(2), edges.indptr).div_(total.unsqueeze(2))
        return out, share, total, positive

    @staticmethod
    def attend_backward(grad: Tensor, sent: Tensor, edges: LayerEdges, out: Tensor, share: Tensor,
                        total: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        grad = grad / total.unsqueeze(2)
        mean = (grad * out).sum(2)
        of_edges = grad.index_select(0, edges.row)
        scores = (of_edges * sent).sum(2).sub_(mean.index_select(0, edges.row)).mul_(share)
        scores = torch.where(positive, scores, 0.2 * scores)
        return (torch.cat([scores, segments(scores, edges.indptr)]),
                of_edges.mul_(share.unsqueeze(2)))


class Reduce(torch.autograd.Function):
    """The sum or mean of source states: (S, A) to (P, A)."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, edges: LayerEdges, op: str) -> Tensor:
        ctx.edges, ctx.op, ctx.count = edges, op, len(states)
        if fused is not None and fused.takes(states, edges.degree.expand(-1, states.shape[1])):
            return fused.sums(states, edges, op)
        return segments(states.index_select(0, edges.source), edges.indptr, op)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        edges = ctx.edges
        if ctx.op == "mean":
            grad = grad / edges.degree
        return added_at(grad.index_select(0, edges.row), edges.source, ctx.count), None, None


class Spread(torch.autograd.Function):
    """Each edge gets its row's values: (P, …) to (E, …)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, edges: LayerEdges) -> Tensor:
        ctx.edges = edges
        return rows.index_select(0, edges.row)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return segments(grad, ctx.edges.indptr), None


class Total(torch.autograd.Function):
    """Sums over each row's edges: (E, …) to (P, …)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, edges: LayerEdges) -> Tensor:
        ctx.edges = edges
        return segments(values, edges.indptr)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.edges.row), None


class Products(torch.autograd.Function):
    """Rows times the weight of their relation: (P, A) with (R, A, B) to (P, B)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, edges: LayerEdges) -> Tensor:
        chosen = weights.index_select(0, edges.row_tiles)
        tiles = rows.view(-1, TILE, rows.shape[1])
        ctx.save_for_backward(tiles, chosen)
        ctx.edges = edges
        return torch.bmm(tiles, chosen).view(len(rows), -1)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tiles, chosen = ctx.saved_tensors
        grad = grad.reshape(len(tiles), TILE, -1)
        rows = torch.bmm(grad, chosen.transpose(1, 2)).view(-1, tiles.shape[2])
        weights = segments(torch.bmm(tiles.transpose(1, 2), grad), ctx.edges.row_tile_ends)
        return rows, weights, None


class PerHead(torch.autograd.Function):
    """Products of rows with the weight of their relation, per head, where one of A and B is 1:
    (P, H, A) with (R, H, A, B) to (P, H, B)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, edges: LayerEdges) -> Tensor:
        chosen = weights.flatten(2).index_select(0, edges.row_tiles).unsqueeze(1)
        tiles = rows.view(-1, TILE, *rows.shape[1:])
        ctx.save_for_backward(tiles, chosen)
        ctx.edges, ctx.shape = edges, weights.shape
        out = tiles * chosen
        return (out if weights.shape[2] == 1 else out.sum(3, keepdim=True)).flatten(0, 1)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tiles, chosen = ctx.saved_tensors
        grad = grad.reshape(len(tiles), TILE, *grad.shape[1:])
        rows = grad * chosen
        if tiles.shape[3] == 1 != grad.shape[3]:
            rows = rows.sum(3, keepdim=True)
        weights = segments((grad * tiles).sum(1), ctx.edges.row_tile_ends)
        return rows.flatten(0, 1), weights.view(ctx.shape), None


class EdgeDots(torch.autograd.Function):
    """Products of rows' queries with states times their relation's weight, per head: states (S, A),
    (P, H, D), (R, H, D, A) to (E, H)."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, queries: Tensor, weights: Tensor, edges: LayerEdges
                ) -> Tensor:
        tiles = states.index_select(0, edges.source).view(-1, TILE, states.shape[1])
        chosen = weights.flatten(1, 2).index_select(0, edges.tiles[:len(tiles)])
        keys = torch.bmm(tiles, chosen.transpose(1, 2)).view(-1, *queries.shape[1:])
        of_edges = queries.index_select(0, edges.row)
        ctx.save_for_backward(tiles, chosen, keys, of_edges)
        ctx.edges, ctx.count, ctx.shape = edges, len(states), weights.shape
        return (keys * of_edges).sum(2)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tiles, chosen, keys, of_edges = ctx.saved_tensors
        edges, grad = ctx.edges, grad.unsqueeze(2)
        to_keys = (grad * of_edges).view(len(tiles), TILE, -1)
        states = torch.bmm(to_keys, chosen).view(-1, tiles.shape[2])
        weights = segments(torch.bmm(to_keys.transpose(1, 2), tiles),
                           edges.tile_ends[:ctx.shape[0] + 1])
        return (added_at(states, edges.source, ctx.count), segments(grad * keys, edges.indptr),
                weights.view(ctx.shape), None)


class EdgeSums(torch.autograd.Function):
    """Sums of states times their relation's weight, weighted by their edges, per head: (S, A),
    (E, H), (R, A, H, D) to (P, H, D)."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, share: Tensor, weights: Tensor, edges: LayerEdges
                ) -> Tensor:
        tiles = states.index_select(0, edges.source).view(-1, TILE, states.shape[1])
        chosen = weights.flatten(2).index_select(0, edges.tiles[:len(tiles)])
        messages = torch.bmm(tiles, chosen).view(-1, *weights.shape[2:])
        ctx.save_for_backward(tiles, chosen, messages, share)
        ctx.edges, ctx.count, ctx.shape = edges, len(states), weights.shape
        return segments(messages * share.unsqueeze(2), edges.indptr)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tiles, chosen, messages, share = ctx.saved_tensors
        edges, of_edges = ctx.edges, grad.index_select(0, ctx.edges.row)
        to_share = (of_edges * messages).sum(2)
        to_messages = (of_edges * share.unsqueeze(2)).view(len(tiles), TILE, -1)
        states = torch.bmm(to_messages, chosen.transpose(1, 2)).view(-1, tiles.shape[2])
        weights = segments(torch.bmm(tiles.transpose(1, 2), to_messages),
                           edges.tile_ends[:ctx.shape[0] + 1])
        return (added_at(states, edges.source, ctx.count), to_share, weights.view(ctx.shape), None)


class Stack(torch.autograd.Function):
    """`torch.stack`, whose gradients are contiguous, so that autograd copies none of them."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        return torch.stack(tensors)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.contiguous().unbind())


class Merge(torch.autograd.Function):
    """The sum of all relations' rows: (P, A) to (N + 1, A)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, edges: LayerEdges) -> Tensor:
        ctx.edges = edges
        return added_at(rows, edges.target, edges.number + 1)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.edges.target), None


class Attention(torch.autograd.Function):
    """The attention of GAT (Veličković et al. 2018, Eq. 3 to 5) of all relations.

    Products of states with their relation's weight are taken for edges and for rows; the softmax's
    denominator is divided by at last, once per row. States (S, A), weights (R, A, H · D), of scores
    (2 R, H, D), for sources and then for rows, to (P, H · D).
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weights: Tensor, vectors: Tensor, edges: LayerEdges
                ) -> Tensor:
        heads, width = vectors.shape[1:]
        tiles = states.index_select(0, edges.items).view(-1, TILE, states.shape[1])
        chosen = weights.index_select(0, edges.tiles)
        of_tiles = vectors.index_select(0, edges.sides).unsqueeze(1)
        messages = torch.bmm(tiles, chosen).view(-1, TILE, heads, width)
        items = (messages * of_tiles).sum(3).view(-1, heads)
        sent = messages.view(-1, heads, width)[:edges.edges]
        by = fused if fused is not None and fused.takes(messages) else operators
        weighted = by.attend(items, sent, edges)
        ctx.save_for_backward(tiles, chosen, of_tiles, messages, *weighted)
        ctx.by, out = by, weighted[0]
        ctx.edges, ctx.count = edges, len(states)
        return out.view(len(out), -1)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tiles, chosen, of_tiles, messages, *weighted = ctx.saved_tensors
        edges, (heads, width) = ctx.edges, messages.shape[2:]
        sent = messages.view(-1, heads, width)[:edges.edges]
        to_items, to_sent = ctx.by.attend_backward(
            grad.reshape(-1, heads, width), sent, edges, *weighted)
        to_items = to_items.view(-1, TILE, heads, 1)
        to_messages = to_items * of_tiles
        to_messages.view(-1, heads, width)[:edges.edges] += to_sent
        to_vectors = segments((to_items * messages).sum(1), edges.tile_ends)
        to_messages = to_messages.view(len(tiles), TILE, -1)
        to_states = torch.bmm(to_messages, chosen.transpose(1, 2)).view(-1, tiles.shape[2])
        to_weights = segments(torch.bmm(tiles.transpose(1, 2), to_messages), edges.tile_ends)
        return (added_at(to_states, edges.items, ctx.count),
                to_weights.view(2, -1, *to_weights.shape[1:]).sum(0), to_vectors, None)
