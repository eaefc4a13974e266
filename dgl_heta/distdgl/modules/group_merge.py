"""The merge of relations over the group, for HeteroGraphConv, multi_update_all and slices alike.

Whatever the aggregation, what a relation gives for the group's seeds is partial on each machine;
here it becomes complete (Heta §4). Sums and extremes are merged by the exchange. Whatever looks at
the relations apart ('stack', a callable) gets them side by side, which is a sum over columns of
which each has one trainer's values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from dgl.base import DGLError
from dgl.nn.pytorch import hetero
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.agreements import RowForm, agreed_form, merge_dtype
from dgl_heta.distdgl.modules.relation_modules import fails_without_rows
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.cross import extreme_of, merge
from dgl_heta.nn.row_parts import Part, sum_parts
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.raf.maps import EarlySum
from dgl_heta.sampling.blocks import Block, RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

Aggregate = str | Callable[..., Tensor]
"""How relations are merged: a name, or a function of a list of rows and the node type."""


def layer_to_merge(g: RafBlock) -> Layer:
    """Return what is behind a script's block.

    Raises
    ------
    HetaError
        It is a slice of a block.
    """
    if g.layer is None:
        refuse("a slice in place of a block")
    return g.layer


@contextmanager
def merge_scope(layer: Layer, inputs: Any) -> Iterator[Callable[[str, Tensor], None]]:
    """Let a merge of a block's relations run in the body; yield what is to be told of each result.

    Parameters
    ----------
    inputs : what the block's source rows are in, by node type.

    Raises
    ------
    HetaError
        It runs inside a backward pass, in which trainers come to their exchanges in an order of
        their own. Or trainers have skipped merges of the layers below differently.
    """
    session, block = layer.session, layer.block
    if torch._C._current_graph_task_id() != -1 and session.group.size > 1:
        refuse("a merge in a backward pass")
    # Before the first exchange: a trainer that skipped a merge below would answer another one.
    session.merges.check([below for below in layer.blocks if below.layer < block.layer],
                         block.done)
    session.order.merging(block, inputs)
    with session.scope.merge(block, inputs) as merged:
        yield merged


def begin_sum(layer: Layer, ntype: str, parts: Mapping[int, Part], owner: tuple[Any, str],
              like: Tensor) -> tuple[EarlySum, dict[int, Part]]:
    """Send the sums of rows that are aggregated for other trainers, before own rows are computed;
    return what :func:`merge_relations` adds, and own rows of the parts, by their numbers. The group
    knows the form of a row (:func:`.agreements.is_agreed`).

    Parameters
    ----------
    parts : of the type, all that have rows of others. Others are as for :func:`merge_relations`.
    """
    # Collective: the rows of others, which nobody waits for here.
    form = _form(layer, ntype, [*parts.values()], owner)
    assert form is not None
    block, like = layer.block, like.new_empty(0, dtype=merge_dtype(form.dtype))
    own, remote = dict[int, Part](), list[Part]()
    for number, part in parts.items():
        before, after = split_part(part, block.num_own(ntype))
        if before is not None:
            own[number] = before
        if after is not None:
            remote.append(after)
    sums = sum_parts(_flat(remote, form.shape, like.dtype), block.remote[ntype].total,
                     form.shape.numel(), like)
    return layer.session.exchange.begin_sum(sums, block, ntype), own


def split_part(part: Part, row: int) -> tuple[Part | None, Part | None]:
    """Return a part's rows before a row, and those from it on, numbered from there; None for none.
    """
    edges, value = _beside(*part), part[1]
    rows = edges.rows if edges.rows is not None else torch.arange(
        edges.start, edges.stop, device=value.device)

    def chosen(which: Tensor, start: int) -> Part | None:
        if not which.any():
            return None
        numbers = rows[which] - start
        return RelationBlock(edges.relation, 0, edges.indptr.new_zeros(len(numbers) + 1),
                             edges.indices[:0], edges.place, numbers), (
            value if which.all() else value[which])

    before = rows < row
    return (part, None) if before.all() else (chosen(before, 0), chosen(~before, row))


def merge_relations(layer: Layer, ntype: str, parts: list[Part], aggregate: Aggregate,
                    owner: tuple[Any, str], like: Tensor, relations: Mapping[Relation, bool],
                    early: EarlySum | None = None) -> Tensor | None:
    """Merge the relations of one destination type over the group; None if there are none.

    Parameters
    ----------
    parts : rows of each relation on this machine, (edges.num_rows, …).
    owner : the module and the node type, for which forms are remembered.
    relations : all that may be merged, in the order for 'stack' and callables, and whether plain
        DGL merges them here.
    early : of :func:`begin_sum`, if rows for other trainers have left; then `parts` are own rows.
    """
    # Collective: the form of a row once an epoch (:func:`.agreements.agreed_form`), then the rows.
    form = _form(layer, ntype, parts, owner)
    if form is None:
        return None
    return merge_agreed(layer, ntype, parts, aggregate, like.new_empty(0, dtype=form.dtype),
                        relations, form.shape, early=early)


def merge_agreed(layer: Layer, ntype: str, parts: list[Part], aggregate: Aggregate, like: Tensor,
                 relations: Mapping[Relation, bool], shape: torch.Size, complete: bool = False,
                 early: EarlySum | None = None) -> Tensor | None:
    """Merge relations where all trainers know the shape of a row, and the dtype, that of `like`.

    `complete`: rows that no edge reads on this machine, too.
    """
    block = layer.block
    # A callable may look at all rows together; in inference nothing tells what will read them.
    if complete or not torch.is_grad_enabled() or (
            callable(aggregate) and aggregate is not hetero._stack_agg_func):
        block = replace(block, reads={})
    # Partial sums travel, and each would be rounded in half precision; DGL rounds the whole once.
    precise = merge_dtype(like.dtype)
    flat = _flat([(_beside(edges, value), value) for edges, value in parts], shape, precise)
    out = _Merge(layer, block, ntype, flat, like.new_empty(0, dtype=precise), relations,
                 shape, early).by(aggregate)
    return out if out is None or out.dtype != precise else out.to(like.dtype)


def _flat(parts: Sequence[Part], shape: torch.Size, dtype: torch.dtype) -> list[Part]:
    """Return parts whose rows are vectors."""
    return [(edges, value.reshape(edges.num_rows, shape.numel()).to(dtype))
            for edges, value in parts]


def _beside(edges: RelationBlock, value: Tensor) -> RelationBlock:
    """Return the edges with the numbers of their rows on the device of these."""
    return edges if edges.rows is None else replace(edges, rows=edges.rows.to(value.device))


@dataclass
class _Merge:
    """A merge of rows of one form.

    Attributes
    ----------
    parts : rows of each relation, (edges.num_rows, width), in the dtype of `like`.
    relations, early, shape : as for :func:`merge_relations`, and of a row of the result.
    """

    layer: Layer
    block: Block
    ntype: str
    parts: list[Part]
    like: Tensor
    relations: Mapping[Relation, bool]
    shape: torch.Size
    early: EarlySum | None = None

    def by(self, aggregate: Aggregate) -> Tensor | None:
        """Merge by a name or a function; None if the function fails without any row."""
        width, remote = self.shape.numel(), self.ntype in self.block.remote
        op = aggregate if isinstance(aggregate, str) else ""
        if op in EXTREMES and remote and self.layer.session.group.size > 1:
            return self._extreme(op)
        if op == "sum" or op in EXTREMES:
            return self._reduce(op, self.parts, width).view(-1, *self.shape)
        if aggregate == "mean":
            # A column of ones counts the relations of each row, over all machines.
            counted = [(edges, torch.cat([value, value.new_ones(len(value), 1)], 1))
                       for edges, value in self.parts]
            out = self._reduce("sum", counted, width + 1)
            # A row of no relation is 0, as in DGL, not 0 / 0.
            return (out[:, :-1] / out[:, -1:].detach().clamp(min=1)).view(-1, *self.shape)
        if aggregate == "stack":
            aggregate = hetero._stack_agg_func
        if not callable(aggregate):
            refuse("an unknown aggregation", aggregation=aggregate)
        return self._by_function(aggregate)

    def _reduce(self, op: str, parts: Sequence[Part], width: int) -> Tensor:
        if self.early is not None:
            sums = sum_parts(parts, self.block.num_own(self.ntype), width, self.like)
            return self.layer.session.exchange.reduce_sum(sums, self.block, self.ntype, self.early)
        return merge(self.layer.session.exchange, op, self.block, self.ntype, parts, width,
                     self.like)

    def _columns(self) -> tuple[Tensor, Tensor]:
        """Return the outputs of every relation side by side, (rows, relations, width), and which
        relations have each row, bool (rows, relations)."""
        width = self.shape.numel() + 1  # the last one says whether the relation has the row
        position, spread = {r: i for i, r in enumerate(self.relations)}, []
        for edges, value in self.parts:
            before = position[edges.relation] * width
            after = (len(self.relations) - 1) * width - before
            spread.append((edges, torch.cat([
                value.new_zeros(len(value), before), value, value.new_ones(len(value), 1),
                value.new_zeros(len(value), after)], 1)))
        out = self._reduce("sum", spread, len(self.relations) * width)
        out = out.view(-1, len(self.relations), width)
        return out[:, :, :-1], out[:, :, -1].detach() > 0

    def _extreme(self, op: str) -> Tensor:
        """Return the maximum or minimum over relations; 0 for a row of none."""
        values, there = self._columns()
        best = extreme_of(torch.where(there[:, :, None], values, EXTREMES[op]), op)
        return torch.where(there.any(1, keepdim=True), best, 0).view(-1, *self.shape)

    def _by_function(self, aggregate: Callable[..., Tensor]) -> Tensor | None:
        """Call a function with the outputs of the relations that each row has, in order."""
        # Rows of the same relations go together: the seeds are such, and so are the others.
        values, there = self._columns()
        # Without a row the function is called all the same: its parameters then have zeros for
        # gradients, as in plain DGL, and not None.
        if not len(values):  # no row says which relations plain DGL would have
            there = torch.tensor([[*self.relations.values()]], device=values.device)
        patterns = there[:1]
        of_row = torch.zeros(len(values), dtype=torch.int64, device=values.device)
        if not torch.equal(there, patterns.expand_as(there)):
            patterns, of_row = torch.unique(there, dim=0, return_inverse=True)
        results, rows = [], []
        for number, pattern in enumerate(patterns.tolist()):
            chosen = values if len(patterns) == 1 else values[of_row == number]
            of_relations = [chosen[:, i].reshape(-1, *self.shape)
                            for i, is_there in enumerate(pattern) if is_there]
            if not of_relations:
                continue
            try:
                results.append(aggregate(of_relations, self.ntype))
            except Exception as error:
                if len(values):
                    raise
                fails_without_rows(aggregate, self.ntype, error)
                return None
            rows.append(torch.nonzero(of_row == number).flatten())
        if len(results) < 2:
            return results[0] if results else None
        # Back into the order of rows.
        return torch.cat(results)[torch.argsort(torch.cat(rows))]


def _form(layer: Layer, ntype: str, parts: list[Part], owner: tuple[Any, str]) -> RowForm | None:
    """Return the form of a row of the result, the same on all trainers of the group; None if no
    trainer has a relation into the type."""
    shapes = {value.shape[1:] for _, value in parts}
    dtypes = {value.dtype for _, value in parts}
    if len(shapes) > 1:
        text = " and ".join(sorted(str(tuple(shape)) for shape in shapes))
        raise HetaError(f"relations into '{ntype}' give rows of different shapes, {text}; they "
                        "cannot be merged")
    block = layer.block
    if layer.session.group.size == 1 or (ntype not in block.seeds and ntype not in block.remote):
        return RowForm(shapes.pop(), functools.reduce(torch.promote_types, dtypes)
                       ) if shapes else None
    agreed = agreed_form(layer, owner, shapes, dtypes)
    for dtype in dtypes:
        if agreed is not None and torch.promote_types(dtype, agreed.dtype) != agreed.dtype:
            raise HetaError(f"relations into '{ntype}' give rows of {dtype}, and gave "
                            f"{agreed.dtype} before in this epoch; use a HeteroGraphConv of its "
                            "own for each dtype")
    for shape in shapes:
        if agreed is None or shape != agreed.shape:
            raise HetaError(f"relations into '{ntype}' give rows of shape {tuple(shape)} here and "
                            f"of {tuple(agreed.shape if agreed else ())} on another trainer")
    return agreed


def canonical(etype: Any, relations: Sequence[Relation]) -> Relation:
    """Return the relation that a script names by its edge type or in full."""
    named = [r for r in relations if etype in (tuple(r), r.etype)]
    if len(named) != 1:
        raise DGLError(f"Edge type \"{etype}\" " + ("does not exist." if not named else
                                                    "is ambiguous; use the canonical edge type."))
    return named[0]
