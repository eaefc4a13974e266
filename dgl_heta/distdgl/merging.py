"""The merge of relations over the group, for HeteroGraphConv and multi_update_all alike.

Whatever the aggregation, what a relation gives for the group's seeds is partial on each machine;
here it becomes complete (Heta §4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import hetero
from torch import Tensor

from dgl_heta.distdgl.layers import Layer
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.cross import merge
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks import RafBlock

Part = tuple[RelationBlock, Tensor]


def layer_of(g: RafBlock) -> Layer:
    if g.layer is None:
        raise HetaError("a slice of a block of a meta-partitioned graph cannot be aggregated: "
                        "pass the whole block to HeteroGraphConv or multi_update_all")
    return g.layer


def destination_rows(layer: Layer, ntype: str, rows: Tensor, gather: bool) -> Tensor:
    """The states of all destination rows of a type, the other trainers' seeds included.

    At the last layer they are gathered where the script gives its own seeds' alone, or these alone
    are complete.
    """
    block, group = layer.block, layer.session.group
    if not gather or not block.last or group.size == 1 or not block.num_seeds(ntype):
        return rows[:block.num_dst[ntype]]
    return layer.session.exchange.gather_rows(rows[:block.seeds[ntype].own], block, ntype)


def merge_relations(layer: Layer, ntype: str, parts: list[Part],
                    aggregate: str | Callable[..., Tensor], owner: tuple[Any, str], like: Tensor,
                    relations: Sequence[Relation]) -> Tensor | None:
    """Merge the relations of one destination type over the group; None if there are none.

    `relations` are all that may be merged, in the order for 'stack' and callables.
    """
    block, session = layer.block, layer.session
    if callable(aggregate) and aggregate is not hetero._stack_agg_func:
        block = replace(block, reads={})  # it may look at all rows together
    shape = _shape(layer, ntype, parts, owner)
    if shape is None:
        return None
    width = shape.numel()
    flat = [(edges, value.reshape(edges.num_rows, width)) for edges, value in parts]

    def reduce(op: str, values: Sequence[Part], columns: int) -> Tensor:
        return merge(session.exchange, op, block, ntype, values, columns, like)

    if aggregate in ("sum", "max", "min"):
        return reduce(str(aggregate), flat, width).view(-1, *shape)
    if aggregate == "mean":
        counted = [(edges, torch.cat([value, value.new_ones(len(value), 1)], 1))
                   for edges, value in flat]
        out = reduce("sum", counted, width + 1)
        return (out[:, :-1] / out[:, -1:].detach().clamp(min=1)).view(-1, *shape)
    return _each(layer, ntype, flat, aggregate, reduce, shape, relations)


def _each(layer: Layer, ntype: str, parts: list[Part], aggregate: str | Callable[..., Tensor],
          reduce: Callable[[str, Sequence[Part], int], Tensor], shape: torch.Size,
          relations: Sequence[Relation]) -> Tensor | None:
    """Bring the outputs of every relation together in order, then aggregate them.

    Each relation has columns of its own, with one more that says whether it was there.
    """
    if aggregate == "stack":
        aggregate = hetero._stack_agg_func
    if not callable(aggregate):
        raise HetaError(f"aggregation {aggregate!r} is unknown; use 'sum', 'mean', 'max', 'min', "
                        "'stack' or a callable")
    place, columns = {r: i for i, r in enumerate(relations)}, shape.numel() + 1
    spread = []
    for edges, value in parts:
        before = place[edges.relation] * columns
        after = (len(relations) - 1) * columns - before
        spread.append((edges, torch.cat([
            value.new_zeros(len(value), before), value, value.new_ones(len(value), 1),
            value.new_zeros(len(value), after)], 1)))
    out = reduce("sum", spread, len(relations) * columns).view(-1, len(relations), columns)
    block = layer.block
    seeds = min(block.num_seeds(ntype), len(out))
    pieces = []
    for rows in (out[:seeds], out[seeds:]):
        if len(rows):
            there = [i for i in range(len(relations)) if rows[0, i, -1] > 0]
            pieces.append((there, rows))
    if len(pieces) == 2 and pieces[0][0] == pieces[1][0]:
        pieces = [(pieces[0][0], out)]
    results = [aggregate([rows[:, i, :-1].reshape(-1, *shape) for i in there], ntype)
               for there, rows in pieces if there]
    return (torch.cat(results) if len(results) > 1 else results[0]) if results else None


def _shape(layer: Layer, ntype: str, parts: list[Part], owner: tuple[Any, str]
           ) -> torch.Size | None:
    """The shape of a row of the result, the same on all trainers of the group.

    A trainer that holds no relation into the type learns it from the others, once.
    """
    own = parts[0][1].shape[1:] if parts else None
    session = layer.session
    if ntype not in layer.block.seeds or session.group.size == 1:
        return own
    key = (*owner, layer.block.layer)
    if key not in session.shapes:
        sizes = torch.full((9,), -1, dtype=torch.int64)
        if own is not None:
            sizes[0] = len(own)
            sizes[1:1 + len(own)] = torch.tensor(own)
        sizes = session.group.all_reduce(sizes, "max", "control")
        session.shapes[key] = torch.Size(sizes[1:1 + int(sizes[0])].tolist()) if (
            sizes[0] >= 0) else None
    agreed = session.shapes[key]
    if own is not None and own != agreed:
        raise HetaError(f"relations into '{ntype}' give rows of shape {tuple(own)} here and of "
                        f"{tuple(agreed or ())} on another trainer")
    return agreed


def canonical(etype: Any, relations: Sequence[Relation]) -> Relation:
    """The relation that a script names by its edge type or in full."""
    from dgl.base import DGLError

    named = [r for r in relations if etype in (tuple(r), r.etype)]
    if len(named) != 1:
        raise DGLError(f"Edge type \"{etype}\" " + ("does not exist." if not named else
                                                    "is ambiguous; use the canonical edge type."))
    return named[0]
