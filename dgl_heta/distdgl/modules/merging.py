"""The merge of relations over the group, for HeteroGraphConv and multi_update_all alike.

Whatever the aggregation, what a relation gives for the group's seeds is partial on each machine;
here it becomes complete (Heta §4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import hetero
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.relation_modules import fails_without_rows
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.cross import merge
from dgl_heta.sampling.blocks import Block, RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

Part = tuple[RelationBlock, Tensor]
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
          torch.complex128)
"""The dtypes of rows, in the order in which trainers name them to each other."""


def layer_of(g: RafBlock) -> Layer:
    """What is behind a script's block.

    Raises
    ------
    HetaError
        It is a slice of a block, or as :func:`check_forward`.
    """
    if g.layer is None:
        raise HetaError("HeteroGraphConv and multi_update_all take no slice of a block of a "
                        "meta-partitioned graph: pass the whole block to them, or call a "
                        "relation's own convolution on its slice")
    check_forward(g.layer)
    return g.layer


def check_forward(layer: Layer) -> None:
    """
    Raises
    ------
    HetaError
        A block is aggregated inside a backward pass, in which trainers come to their exchanges in
        an order of their own. Or trainers have skipped merges of the layers below differently.
    """
    if torch._C._current_graph_task_id() != -1 and layer.session.group.size > 1:
        raise HetaError("a block of a meta-partitioned graph cannot be aggregated again inside a "
                        "backward pass: use torch.utils.checkpoint for what is inside a relation's "
                        "module, or between layers, but not for a HeteroGraphConv")
    layer.session.merges.check([below for below in layer.blocks
                                if below.layer < layer.block.layer], layer.block.done)


def destination_rows(layer: Layer, ntype: str, rows: Any, gather: bool) -> Any:
    """The states of all destination rows of a type, the other trainers' seeds included.

    At the last layer they are gathered where the script gives its own seeds' alone, or these alone
    are complete. `rows` can be several tensors, in tuples, lists and dictionaries.
    """
    block, group = layer.block, layer.session.group
    if not gather or not block.last or group.size == 1 or not block.num_seeds(ntype):
        return mapped(lambda x: x[:block.num_dst[ntype]], rows)

    def gathered(x: Tensor) -> Tensor:
        own = x[:block.seeds[ntype].own].to(wide(x.dtype))
        return layer.session.exchange.gather_rows(own, block, ntype).to(x.dtype)
    return mapped(gathered, rows)


def mapped(function: Callable[[Tensor], Tensor], rows: Any) -> Any:
    """A function of the rows of a node type, or of each of several tensors that a module takes."""
    return rows if rows is None else tree_map(function, rows)


def tensors_in(rows: Any) -> list[Tensor]:
    """The rows of a node type, or all tensors of several that a module takes."""
    return [rows] if isinstance(rows, Tensor) else [
        x for x in tree_flatten(rows)[0] if isinstance(x, Tensor)]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What rows are merged and sent in: single precision for what has less."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def merge_relations(layer: Layer, ntype: str, parts: list[Part],
                    aggregate: str | Callable[..., Tensor], owner: tuple[Any, ...], like: Tensor,
                    relations: Mapping[Relation, bool]) -> Tensor | None:
    """Merge the relations of one destination type over the group; None if there are none.

    `relations` are all that may be merged, in the order for 'stack' and callables, and whether
    plain DGL merges them here.
    """
    agreed = _agreed(layer, ntype, parts, owner)
    if agreed is None:
        return None
    shape, dtype = agreed
    return merge_agreed(layer, ntype, parts, aggregate, like.new_empty(0, dtype=dtype), relations,
                        shape)


def merge_agreed(layer: Layer, ntype: str, parts: list[Part],
                 aggregate: str | Callable[..., Tensor], like: Tensor,
                 relations: Mapping[Relation, bool], shape: torch.Size, complete: bool = False
                 ) -> Tensor | None:
    """The same where all trainers know the shape of a row, and the dtype, that of `like`.

    `complete`: rows that no edge reads on this machine, too.
    """
    block = layer.block
    if complete or (callable(aggregate) and aggregate is not hetero._stack_agg_func):
        block = replace(block, reads={})  # it may look at all rows together
    dtype = like.dtype
    width, precise = shape.numel(), wide(dtype)
    like = like.new_empty(0, dtype=precise)
    flat = [(edges, value.reshape(edges.num_rows, width).to(precise)) for edges, value in parts]
    out = _merged(layer, block, ntype, flat, aggregate, like, shape, relations)
    return out if out is None or out.dtype != precise else out.to(dtype)


def _merged(layer: Layer, block: Block, ntype: str, flat: list[Part],
            aggregate: str | Callable[..., Tensor], like: Tensor, shape: torch.Size,
            relations: Mapping[Relation, bool]) -> Tensor | None:
    """Merge rows of one shape and dtype; see :func:`merge_relations`."""
    session, width = layer.session, shape.numel()

    def reduce(op: str, values: Sequence[Part], columns: int) -> Tensor:
        return merge(session.exchange, op, block, ntype, values, columns, like)

    extreme = aggregate in ("max", "min")
    if extreme and session.group.size > 1 and ntype in block.guests:
        columns = _columns(flat, reduce, width + 1, relations)
        return _extreme(columns, str(aggregate)).view(-1, *shape)
    if extreme or aggregate == "sum":
        return reduce(str(aggregate), flat, width).view(-1, *shape)
    if aggregate == "mean":
        counted = [(edges, torch.cat([value, value.new_ones(len(value), 1)], 1))
                   for edges, value in flat]
        out = reduce("sum", counted, width + 1)
        return (out[:, :-1] / out[:, -1:].detach().clamp(min=1)).view(-1, *shape)
    return _each(ntype, flat, aggregate, reduce, shape, relations)


_Reduce = Callable[[str, Sequence[Part], int], Tensor]


def _columns(parts: list[Part], reduce: _Reduce, columns: int, relations: Collection[Relation]
             ) -> Tensor:
    """The outputs of every relation side by side, (rows, relations, columns): each has columns of
    its own, with one more, the last, that says whether it was there."""
    place, spread = {r: i for i, r in enumerate(relations)}, []
    for edges, value in parts:
        before = place[edges.relation] * columns
        after = (len(relations) - 1) * columns - before
        spread.append((edges, torch.cat([
            value.new_zeros(len(value), before), value, value.new_ones(len(value), 1),
            value.new_zeros(len(value), after)], 1)))
    return reduce("sum", spread, len(relations) * columns).view(-1, len(relations), columns)


def _extreme(columns: Tensor, op: str) -> Tensor:
    """The maximum or minimum over relations of what :func:`_columns` gives; 0 for a row of none.

    For rows that one trainer aggregates for another: the relations are on several of them.
    """
    there = columns[:, :, -1:].detach() > 0
    unreached = float("-inf") if op == "max" else float("inf")
    values = torch.where(there, columns[:, :, :-1], unreached)
    best = values.max(1)[0] if op == "max" else values.min(1)[0]
    return torch.where(there.any(1), best, 0)


def _each(ntype: str, parts: list[Part], aggregate: str | Callable[..., Tensor], reduce: _Reduce,
          shape: torch.Size, relations: Mapping[Relation, bool]) -> Tensor | None:
    """Bring the outputs of every relation together in order, then aggregate them."""
    if aggregate == "stack":
        aggregate = hetero._stack_agg_func
    if not callable(aggregate):
        raise HetaError(f"aggregation {aggregate!r} is unknown; use 'sum', 'mean', 'max', 'min', "
                        "'stack' or a callable")
    out = _columns(parts, reduce, shape.numel() + 1, relations)
    # Rows of like relations together: the seeds are, and so are the others.
    flags = out[:, :, -1].detach() > 0
    if not len(out):  # no row says it
        flags = torch.tensor([[*relations.values()]], device=out.device)
    patterns, of_row = flags[:1], torch.zeros(len(out), dtype=torch.int64, device=out.device)
    if not torch.equal(flags, patterns.expand_as(flags)):
        patterns, of_row = torch.unique(flags, dim=0, return_inverse=True)
    results, rows = [], []
    for number, there in enumerate(patterns.tolist()):
        chosen = out if len(patterns) == 1 else out[of_row == number]
        columns_of = [chosen[:, i, :-1].reshape(-1, *shape) for i, is_there in enumerate(there)
                      if is_there]
        if not columns_of:
            continue
        try:
            results.append(aggregate(columns_of, ntype))
        except Exception as error:
            if len(out):
                raise
            fails_without_rows(aggregate, ntype, error)
            return None
        rows.append(torch.nonzero(of_row == number).flatten())
    if len(results) < 2:
        return results[0] if results else None
    return torch.cat(results)[torch.argsort(torch.cat(rows))]


def _agreed(layer: Layer, ntype: str, parts: list[Part], owner: tuple[Any, str]
            ) -> tuple[torch.Size, torch.dtype] | None:
    """The shape of a row of the result and its dtype, the same on all trainers of the group.

    A trainer that holds no relation into the type learns them from the others, once an epoch.
    """
    session, block = layer.session, layer.block
    own = {value.shape[1:] for _, value in parts}
    dtypes = {value.dtype for _, value in parts}
    if len(own) > 1:
        shapes = " and ".join(sorted(str(tuple(shape)) for shape in own))
        raise HetaError(f"relations into '{ntype}' give rows of different shapes, {shapes}; they "
                        "cannot be merged")
    if session.group.size == 1 or (ntype not in block.seeds and ntype not in block.guests):
        return (own.pop(), functools.reduce(torch.promote_types, dtypes)) if own else None
    agreed = agreed_shape(layer, owner, own, dtypes)
    for shape in own:
        if agreed is None or shape != agreed[0]:
            raise HetaError(f"relations into '{ntype}' give rows of shape {tuple(shape)} here and "
                            f"of {tuple(agreed[0] if agreed else ())} on another trainer")
    return agreed


def agreed_shape(layer: Layer, owner: tuple[Any, ...], shapes: Iterable[torch.Size],
                 dtypes: Iterable[torch.dtype]) -> tuple[torch.Size, torch.dtype] | None:
    """The shape of a row and the dtype as any trainer of the group knows them, asked once an epoch;
    None if nobody does. All trainers call it alike."""
    session = layer.session
    key = (*owner, *_conditions(layer, owner[0]))
    agreed = session.groups.agreed.shapes.get(key)
    if agreed is None:  # or nobody knew before
        told = session.group.all_reduce(_told(shapes, dtypes), "max", "control")
        agreed = session.groups.agreed.shapes[key] = _understood(told)
    return agreed


def complete_types(layer: Layer, merged: dict[str, Tensor], ntypes: Iterable[str],
                   owner: tuple[Any], like: Tensor) -> dict[str, Tensor]:
    """Results of all these node types, in DGL's order; those of other machines without a row.

    Their shapes are told by who has rows of them, once an epoch.
    """
    session = layer.session
    every = sorted({r.dst for r in session.store.schema.relations})
    key = (*owner, "types", *_conditions(layer, owner[0]))
    if session.group.size > 1 and key not in session.groups.agreed.types:
        told = torch.stack([_told([merged[t].shape[1:]], [merged[t].dtype]) if t in merged
                            else _told((), ()) for t in every])
        told = session.group.all_reduce(told, "max", "control")
        session.groups.agreed.types[key] = {t: _understood(row) for t, row in zip(every, told)}
    known = session.groups.agreed.types.get(key, {})
    of_any = next(((x.shape[1:], x.dtype) for x in merged.values()), None)
    wanted = set(ntypes)
    out = {}
    for ntype in every:
        shape = known.get(ntype) or of_any  # or nobody has rows of it
        if ntype in merged:
            out[ntype] = merged[ntype]
        elif ntype in wanted and shape is not None and not layer.block.num_dst.get(ntype):
            out[ntype] = like.new_zeros((0, *shape[0]), dtype=shape[1])
    return out


def _conditions(layer: Layer, owner: Any) -> tuple[Any, ...]:
    """On what, besides the epoch, shapes and dtypes may depend; alike on all trainers."""
    parameter = next(getattr(owner, "parameters", lambda: iter(()))(), None)
    return (layer.block.layer, torch.is_autocast_enabled(), torch.is_autocast_cpu_enabled(),
            None if parameter is None else parameter.dtype)


def _told(shapes: Iterable[torch.Size], dtypes: Iterable[torch.dtype]) -> Tensor:
    """A shape and dtypes in numbers, for a maximum over workers: -1 and 0 for what is not known."""
    told, there = torch.full((9,), -1, dtype=torch.int64), set(dtypes)
    for shape in shapes:
        told[0] = len(shape)
        told[1:1 + len(shape)] = torch.tensor(shape)
    return torch.cat([told, torch.tensor([int(d in there) for d in DTYPES])])


def _understood(told: Tensor) -> tuple[torch.Size, torch.dtype] | None:
    if told[0] < 0:
        return None
    return torch.Size(told[1:1 + int(told[0])].tolist()), functools.reduce(
        torch.promote_types, (d for d, there in zip(DTYPES, told[9:]) if there))


def canonical(etype: Any, relations: Sequence[Relation]) -> Relation:
    """The relation that a script names by its edge type or in full."""
    from dgl.base import DGLError

    named = [r for r in relations if etype in (tuple(r), r.etype)]
    if len(named) != 1:
        raise DGLError(f"Edge type \"{etype}\" " + ("does not exist." if not named else
                                                    "is ambiguous; use the canonical edge type."))
    return named[0]
