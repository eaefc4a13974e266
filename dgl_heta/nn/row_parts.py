"""Parts of a node type's rows, one for each relation or range of rows, merged on one worker.

A part is the rows of a :class:`RelationBlock` with a value for each. A destination row can have a
value in many parts, in one or in none. Merging them is the local half of AGG_all; the other half,
over workers, is an :class:`dgl_heta.nn.cross.Exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.nn.precision import all_widened, is_mixed
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock

Part = tuple[RelationBlock, Tensor]

NOBODY = torch.iinfo(torch.int32).max
"""The place of the relation that attained an extreme, where no relation did."""


class Parts(Sequence[Part]):
    """Parts whose edges and values are sequences of their own, which a kernel may have joined.

    Attributes
    ----------
    edges : the rows of each part.
    values : the values of each.
    """

    def __init__(self, edges: Sequence[RelationBlock], values: Sequence[Tensor]) -> None:
        self.edges, self.values = edges, values

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Parts:
        """The same parts, or they themselves."""
        if isinstance(parts, Parts):
            return parts
        return cls([edges for edges, _ in parts], [value for _, value in parts])

    def __len__(self) -> int:
        return len(self.edges)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Parts: ...

    def __getitem__(self, index: int | slice) -> Part | Parts:
        if isinstance(index, slice):
            return Parts(self.edges[index], self.values[index])
        return self.edges[index], self.values[index]


def float32_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts; in mixed precision with values in float32."""
    if not is_mixed():
        return parts
    own = Parts.of(parts)
    return Parts(own.edges, all_widened(own.values))


def sum_parts(parts: Sequence[Part], rows: int, width: int, like: Tensor) -> Tensor:
    """Sums over the parts: y_v = Σ_r x_r,v, 0 for a row in no part.

    Parameters
    ----------
    parts : edges, each with values (edges.num_rows, width).
    rows : number of destination rows.
    like : gives dtype and device.

    Returns
    -------
    Tensor (rows, width). The gradient of a part is that of its rows.
    """
    parts = Parts.of(parts)
    if not parts:
        return like.new_zeros((rows, width))
    return kernel_in_use().scatter_sum(parts.values, [edges.index for edges in parts.edges],
                                       like.detach().new_empty((1, 1)).expand(rows, width))


def extreme_parts(op: str, parts: Sequence[Part], rows: int, width: int, like: Tensor
                  ) -> tuple[Tensor, Tensor]:
    """Maxima or minima over the parts, and which relation attained them first.

    Parameters
    ----------
    op : "max" or "min"; others as for :func:`sum_parts`.

    Returns
    -------
    Tensor (rows, width), 0 for a row in no part, and int32 (rows, width): the relation's `place`,
    NOBODY where there is none. The gradient goes to the relation that is named.
    """
    out, first = _ExtremeParts.apply(op, [edges for edges, _ in parts], rows, width, like.detach(),
                                     *(value for _, value in parts))
    return out, first


def stack_parts(parts: Sequence[Part], at: Sequence[int], columns: Sequence[int], none: Tensor
                ) -> Tensor:
    """The columns side by side: (rows, columns, width), 0 where a column has no part.

    Made at once, because autograd copies the whole for each piece that is written into it.

    Parameters
    ----------
    at : the column of each part.
    columns : those to stack, in order.
    none : zeros (rows, width).
    """
    of_column: dict[int, list[Part]] = {}
    for part, column in zip(parts, at):
        of_column.setdefault(column, []).append(part)
    stacked = []
    for column in columns:
        pieces, reached, scattered = [], 0, none
        for edges, value in sorted(of_column.get(column, ()), key=lambda part: part[0].start):
            if edges.rows is not None:  # a relation that is cut: so are all parts of the column
                pieces = [scattered := scattered.index_copy(0, edges.rows, value)]
                reached = len(none)
                continue
            pieces += [none[reached:edges.start], value]
            reached = edges.start + len(value)
        pieces = [piece for piece in (*pieces, none[reached:]) if len(piece)]
        stacked.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces) if pieces else none)
    return torch.stack(stacked, 1) if stacked else none.new_zeros((len(none), 0, none.shape[1]))


def coverage(parts: Sequence[Part], at: Sequence[int], count: int, seeds: int
             ) -> list[bool | None]:
    """For each column whether its parts have all the seeds' rows; None without a part."""
    rows: dict[int, int] = {}
    for (edges, _), column in zip(parts, at):
        if edges.rows is not None:
            rows[column] = -1  # a piece of a relation that is cut
        elif edges.start < seeds or not edges.stop:
            rows[column] = rows.get(column, 0) + min(edges.stop, seeds) - edges.start
    return [rows[column] == seeds if column in rows else None for column in range(count)]


def _apply(out: Tensor, edges: RelationBlock, value: Tensor,
           how: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`out[rows] = how(out[rows], value)` for the rows of a relation, in place."""
    out[edges.index] = how(edges.of(out), value)


class _ExtremeParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, edges: list[RelationBlock], rows: int, width: int, like: Tensor,
                *values: Tensor) -> tuple[Tensor, Tensor]:
        out = like.new_full((rows, width), EXTREMES[op])
        better = torch.maximum if op == "max" else torch.minimum
        for part, value in zip(edges, values):
            _apply(out, part, value, better)
        first = torch.full((rows, width), NOBODY, dtype=torch.int32, device=like.device)
        for part, value in zip(edges, values):
            attained = torch.where(value == part.of(out), part.place, NOBODY).to(torch.int32)
            _apply(first, part, attained, torch.minimum)
        out = torch.where(torch.isinf(out) & (first == NOBODY), 0, out)
        ctx.edges = edges
        ctx.save_for_backward(*(part.of(first) == part.place for part in edges))
        ctx.mark_non_differentiable(first)
        return out, first

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, None, None, None, None, *(
            part.of(grad) * mask for part, mask in zip(ctx.edges, ctx.saved_tensors))
