"""What a convolution gives under RAF: rows that are complete but for the group's seeds.

A convolution of one relation runs on every worker, with the edges that are there. Rows below the
seeds are whole (:mod:`dgl_heta_pyg.hops`); of a seed the one worker has the result that has its
in-edges. Sums, means, maxima and minima of such results are partial themselves; the first operation
that is something else completes them, in one exchange of the group's seeds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dgl_heta import HetaError
from dgl_heta.nn import CrossRelation
from dgl_heta.tools import Block, RelationBlock
from dgl_heta_pyg.hops import Hops

Piece = tuple[Any, Tensor]  # a relation and its rows
_ADD = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_EXTREME = {"max": "max", "maximum": "max", "min": "min", "minimum": "min"}


class Partial:
    """Rows of a node type, merged by `op` from relations, of which this worker has some.

    Stands for a tensor: whatever torch does with it is done with the complete rows, which are made
    at the first use. All workers run the same program, so they come to it together.
    """

    def __init__(self, complete: Callable[[Partial], Tensor], ntype: str, pieces: list[Piece],
                 op: str | None = None) -> None:
        self._complete, self.ntype, self.pieces, self.op = complete, ntype, pieces, op

    @functools.cached_property
    def rows(self) -> Tensor:
        """The complete rows."""
        return self._complete(self)

    def merged(self, other: Partial, op: str) -> Partial | None:
        """Both merged, if that is partial still."""
        fits = (self.ntype == other.ntype and self.pieces[0][1].shape == other.pieces[0][1].shape
                and {self.op, other.op} <= {None, op}
                and "rows" not in self.__dict__ and "rows" not in other.__dict__)
        return (Partial(self._complete, self.ntype, [*self.pieces, *other.pieces], op)
                if fits else None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        still = None if kwargs else _still_partial(name, args)
        return func(*complete(args), **complete(kwargs)) if still is None else still

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "rows":
            raise AttributeError(name)
        return getattr(self.rows, name)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        still = _still_partial(name, (self, *args))
        if still is not None:
            return still
        return getattr(self.rows, name)(*complete(args))
    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod",
              "pow", "rpow", "matmul", "rmatmul", "neg", "abs", "invert", "and", "or", "xor", "eq",
              "ne", "gt", "lt", "ge", "le", "getitem", "setitem", "len", "iter", "contains", "bool",
              "float", "int"):
    _name = f"__{_name}__"
    setattr(Partial, _name, _forwarded(_name))


def _still_partial(name: str, args: tuple[Any, ...]) -> Partial | None:
    """What an operation on partial rows gives, if that is partial still."""
    if len(args) != 2:
        return None
    one, other = args
    if isinstance(one, Partial) and isinstance(other, Partial):
        op = "sum" if name in _ADD else _EXTREME.get(name)
        return None if op is None else one.merged(other, op)
    starts = name == "__radd__" and type(other) is int and other == 0  # of Python's sum()
    return one if starts and isinstance(one, Partial) else None


def complete(value: Any) -> Any:
    """The value, with complete rows for all that is partial in it, in its order."""
    return tree_map(lambda x: x.rows if isinstance(x, Partial) else x, value)


def merge(partial: Partial, hops: Hops, exchange: Any, layer: int) -> Tensor:
    """The complete rows of partial ones; `layer` is how many were completed before."""
    shape = partial.pieces[0][1].shape
    width, ntype, seeds = math.prod(shape[1:]), partial.ntype, hops.seeds[partial.ntype].total
    if shape[0] < seeds:  # on all workers, by what they agreed on
        raise HetaError(f"a convolution gave {shape[0]} rows of '{ntype}', which has {seeds} seeds "
                        "in this batch; it must give a row for each destination")
    parts = []
    for place, (relation, rows) in enumerate(partial.pieces):
        rows = rows.reshape(shape[0], width)
        here = hops.covered.get(relation)
        if here is not None and bool(here.all()):
            parts.append((_rows_of(relation, place, shape[0]), rows))
            continue
        inner = torch.arange(seeds, shape[0], device=rows.device)
        kept = inner if here is None else torch.cat([torch.nonzero(here).flatten(), inner])
        if len(kept):
            parts.append((_rows_of(relation, place, len(kept), kept), rows[kept]))
    block = Block(layer, {}, {ntype: shape[0]}, [], hops.seeds, False, {}, {})
    cross = CrossRelation(partial.op or "sum")
    cross.exchange = exchange
    return cross(block, ntype, parts, width, partial.pieces[0][1]).view(shape)


def _rows_of(relation: Any, place: int, count: int, rows: Tensor | None = None) -> RelationBlock:
    none = torch.zeros(count + 1, dtype=torch.int64)
    return RelationBlock(relation, 0, none, none[:0], place, rows)
