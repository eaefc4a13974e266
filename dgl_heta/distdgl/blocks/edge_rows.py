"""Rows of data of a block's edges in a script's hands.

A machine has the edges of its own relations, for the seeds of all trainers. What is computed edge
by edge is right there; what looks at several edges (a sum, a softmax) would be another thing than
in plain DistDGL. So rows are good for what is computed row by row, until a relation's module or
message function takes them. What is not known to be such is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dgl_heta.distdgl.blocks.edge_ids import EdgeIds, ids_of
from dgl_heta.distdgl.refusals import refuse


class EdgeRows(Tensor):
    """Rows of this machine's edges of a relation in a block, (edges, …).

    Attributes
    ----------
    ids : of the edges.

    Raises
    ------
    HetaError
        At a function of PyTorch that is not known to compute row by row.
    """

    ids: EdgeIds

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__":  # of an attribute
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        every: list[EdgeRows] = []
        bare_args, bare_kwargs = unguarded((args, kwargs), every)
        rows = every[0]
        length, dims = bare(rows).shape[:1], bare(rows).dim()
        if name in _ABOUT:
            about = func(*bare_args, **bare_kwargs)
            # A number of rows is a count of edges; that of columns is a plain number.
            of_rows = name in _NUMBERS and not (name == "size" and isinstance(about, int)
                                                and _beside([*args[1:], *kwargs.values()], dims))
            return rows.ids.counted(about) if of_rows else about
        rule = _RULES.get(name)
        if rule is None or not rule(_Use(name, args, kwargs, rows, len(every), dims)):
            _refuse(name, rows)
        value = func(*bare_args, **bare_kwargs)

        def guarded(item: Any) -> Any:
            # A rule looks at arguments; that each row is still there is seen in the result.
            if not isinstance(item, Tensor):
                return item
            if item.shape[:1] != length or (name.startswith("expand") and item.dim() != dims):
                _refuse(name, rows)
            return edge_rows(item, rows.ids)
        return tree_map(guarded, tuple(value) if isinstance(value, tuple) else value)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<rows of edges of {tuple(self.ids.relation)}>"


def _refuse(name: str, rows: EdgeRows) -> NoReturn:
    refuse("rows of edges together", function=name, relation=tuple(rows.ids.relation))


def edge_rows(rows: Tensor, ids: EdgeIds) -> EdgeRows:
    """Return the same rows, guarded."""
    guarded: EdgeRows = rows.as_subclass(EdgeRows)
    guarded.ids = ids
    return guarded


def rows_by_ids(ids: EdgeIds, tensor: Any, read: Callable[[Tensor], Tensor]) -> EdgeRows:
    """Return rows of a DistTensor, that `read` gives by ids.

    Raises
    ------
    HetaError
        It has not as many rows as the relation has edges, or the store keeps no ids.
    """
    layer, relation = ids.layer, ids.relation
    edges = layer.session.store.schema.edge_counts[relation]
    if len(tensor) != edges:
        refuse("other data by the ids of edges", rows=len(tensor), relation=tuple(relation),
               edges=edges)
    layer.edges_read = True
    numbers = ids_of(layer, relation)
    rows = (read(numbers) if len(numbers) else
            torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype))
    return edge_rows(rows, ids)


def of_edges(rows: Any, ids: EdgeIds, what: str = "what is computed with") -> Tensor:
    """Return rows of these edges as an ordinary tensor.

    Raises
    ------
    HetaError
        They are of others, or no rows of edges; `what` says what they are for.
    """
    if not isinstance(rows, EdgeRows) or not rows.ids.like(ids):
        refuse("rows that are not of these edges", what=what, relation=tuple(ids.relation))
    return bare(rows)


def bare(rows: EdgeRows) -> Tensor:
    """Return the same rows as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():  # or `as_subclass` would be asked about, too
        return rows.as_subclass(Tensor)


def unguarded(value: Any, every: list[EdgeRows] | None = None) -> Any:
    """Return rows of edges in nested containers as ordinary tensors; they are added to `every`."""
    def one(item: Any) -> Any:
        if not isinstance(item, EdgeRows):
            return item
        if every is not None:
            every.append(item)
        return bare(item)
    return tree_map(one, value)


# --- what is computed row by row ------------------------------------------------------------------

class _Use(NamedTuple):
    """A call of a function of PyTorch with rows of edges, `number` of them; `rows` are the first
    ones and have so many dimensions."""

    name: str
    args: Any
    kwargs: Any
    rows: EdgeRows
    number: int
    dims: int

    @property
    def first(self) -> bool:
        """Return whether the rows are the first argument."""
        return bool(self.args) and self.args[0] is self.rows

    @property
    def alone(self) -> bool:
        """Return whether they are the first argument, and no other rows of edges are there."""
        return self.first and self.number == 1

    def argument(self, key: str, position: int, default: Any = None) -> Any:
        args = self.args
        return self.kwargs.get(key, args[position] if len(args) > position else default)

    def of_rest(self) -> Any:
        """Return what follows the rows: several arguments, or a list."""
        rest = self.args[1:]
        return rest[0] if len(rest) == 1 and not isinstance(rest[0], int) else rest


def _beside(dim: Any, dims: int) -> bool:
    """Return whether dimensions are given, all others than that of the rows."""
    every = [dim] if isinstance(dim, int) else dim if isinstance(dim, list | tuple) else []
    return bool(every) and all(isinstance(d, int) and d % dims != 0 for d in every)


def _alike(values: Any, rows: EdgeRows) -> bool:
    """Return whether each tensor is rows of the same edges, or the same for all of them."""
    edges = bare(rows)
    for value in values:
        if isinstance(value, EdgeRows):
            if not value.ids.like(rows.ids) or bare(value).dim() != edges.dim():
                return False
        elif isinstance(value, Tensor) and value.dim() and (
                value.dim() > edges.dim() or (value.dim() == edges.dim() and value.shape[0] != 1)):
            return False
    return True


def _number_by_number(use: _Use) -> bool:
    return _alike([*use.args, *use.kwargs.values()], use.rows)


def _reshaped(use: _Use) -> bool:
    # That there are as many rows as before is seen in the result.
    return use.first and (use.number == 1 or use.args[-1].ids.like(use.rows.ids))


def _along(position: int) -> Callable[[_Use], bool]:
    """Return a rule of functions along dimensions, which their argument at a position has."""
    return lambda use: use.alone and _beside(use.argument("dim", position), use.dims)


def _joined(use: _Use) -> bool:
    # Columns side by side; a stack has one dimension more.
    return _alike(use.args[0], use.rows) and _beside(use.argument("dim", 1, 0),
                                                     use.dims + (use.name == "stack"))


def _transposed(use: _Use) -> bool:
    return use.first and _beside([*use.args[1:], *use.kwargs.values()], use.dims)


def _permuted(use: _Use) -> bool:
    order = use.of_rest()
    return use.first and len(order) > 0 and order[0] % use.dims == 0


def _repeated(use: _Use) -> bool:
    sizes = use.of_rest()
    return use.first and len(sizes) == use.dims and sizes[0] == 1


def _indexed(use: _Use) -> bool:
    # All rows, and any of their columns.
    index = use.args[1]
    return use.alone and isinstance(index, tuple) and (
        index[0] is Ellipsis or (isinstance(index[0], slice) and index[0] == slice(None)))


def _product(use: _Use) -> bool:
    # Of rows and a matrix that is no data of edges: a stack of matrices would meet the rows.
    return use.alone and use.dims > 1 and all(
        x.dim() < 3 for x in use.args[1:] if isinstance(x, Tensor))


_BY_NUMBER = (
    "abs", "absolute", "neg", "negative", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt",
    "rsqrt", "square", "reciprocal", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "gelu", "silu",
    "selu", "mish", "prelu", "softplus", "logsigmoid", "sin", "cos", "sign", "clamp", "clip", "pow",
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "eq", "ne",
    "lt", "le", "gt", "ge", "logical_not", "isnan", "isinf", "nan_to_num", "where", "maximum",
    "minimum", "masked_fill", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
    "__truediv__", "__rtruediv__", "__rdiv__", "__div__", "__neg__", "__abs__", "__pow__",
    "__rpow__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__invert__", "float",
    "double", "half", "bfloat16", "long", "int", "bool", "to", "type", "type_as", "dropout", "cpu",
    "detach", "clone", "contiguous", "zeros_like", "ones_like", "full_like")
"""Functions of each number, and of the numbers beside it."""

_RULES: dict[str, Callable[[_Use], bool]] = {
    **dict.fromkeys(_BY_NUMBER, _number_by_number),
    **dict.fromkeys(("unsqueeze", "view", "reshape", "flatten", "expand", "expand_as"), _reshaped),
    **dict.fromkeys((
        "sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "argmax", "argmin",
        "logsumexp", "softmax", "log_softmax", "cumsum", "squeeze", "select", "narrow", "unbind"),
        _along(1)),
    **dict.fromkeys(("norm", "normalize", "split", "chunk"), _along(2)),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _joined),
    **dict.fromkeys(("transpose", "swapaxes"), _transposed),
    **dict.fromkeys(("linear", "matmul", "__matmul__", "mm"), _product),
    "permute": _permuted,
    "repeat": _repeated,
    "__getitem__": _indexed,
    "embedding": lambda use: use.alone,
    "layer_norm": lambda use: use.alone and len(use.args[1]) < use.dims,
}
"""By the name of a function of PyTorch whether a call makes each row of that row alone."""

_NUMBERS = frozenset(("size", "__len__", "numel", "shape"))
"""Names that tell how many rows there are."""
_ABOUT = _NUMBERS | {
    "dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device",
    "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad_fn", "layout",
    "is_cuda", "is_sparse", "is_quantized", "is_meta"}
"""Functions and attributes that say nothing of values."""
