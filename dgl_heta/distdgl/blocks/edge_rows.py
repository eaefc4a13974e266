"""Edges of a block in a script's hands: their ids, and rows of data by these.

A machine has the edges of its own relations, for the seeds of all trainers. What is computed edge
by edge is right there; what looks at several edges (a sum, a softmax) would be another thing than
in plain DistDGL. So ids are good for reading a DistTensor of edge data, and rows for what is
computed row by row, until a relation's module or message function takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dgl_heta.distdgl.blocks.edge_count import EdgeCount
from dgl_heta.distdgl.store.masked_store import sampled_edge_ids
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.layer import Layer


def ids_of(layer: Layer, relation: Relation) -> Tensor:
    """Ids of a relation's edges in a block, int64 (edges,), in the order of the block's edges.

    Raises
    ------
    HetaError
        The store keeps none.
    """
    store, found = layer.session.store, []
    for edges in layer.block.into(relation.dst):
        if edges.relation != relation or not len(edges.indices):
            continue
        assert edges.drawn is not None  # only training on edges by ourselves leaves some out
        try:
            numbers = sampled_edge_ids(store, relation, edges.drawn.csc)
        except InputError as error:
            raise HetaError(f"edge ids (dgl.EID) of {tuple(relation)} are not stored by this "
                            "meta-partitioned graph; make it by dgl.distributed.partition_graph, "
                            "or leave edge features out") from error
        nodes = layer.destination_ids(relation.dst)[edges.index].numpy()
        ids = numbers[edges.drawn.positions(nodes, len(edges.indices))].astype("int64")
        check_ids(ids, store.schema.edge_counts[relation])
        found.append(torch.from_numpy(ids))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


class EdgeIds:
    """Ids of this machine's edges of a relation in a block, (edges,) int64.

    A DistTensor can be indexed by them: the rows are :class:`EdgeRows`. Nothing else can be read
    but their number.

    Attributes
    ----------
    relation : (source type, name, destination type).
    """

    dtype, ndim = torch.int64, 1

    def __init__(self, relation: Any, layer: Layer) -> None:
        self.relation, self._layer = Relation(*relation), layer

    def __len__(self) -> int:
        return self.counted(self._layer.count(self.relation))  # type: ignore[no-any-return]

    @property
    def shape(self) -> torch.Size:
        return self.counted(torch.Size([len(self)]))  # type: ignore[no-any-return]

    def counted(self, number: Any) -> Any:
        """A number of edges, or a shape, in a script's hands."""
        self._layer.asked.add(self.relation)

        def everywhere() -> int:
            return self._layer.edges_of_all(self.relation)
        if isinstance(number, torch.Size):
            return torch.Size([EdgeCount(number[0], everywhere), *number[1:]])
        return EdgeCount(number, everywhere)

    def like(self, other: EdgeIds) -> bool:
        """Whether they are of the same edges."""
        return self._layer is other._layer and self.relation == other.relation

    def same(self, *_: Any, **__: Any) -> EdgeIds:
        return self

    to = long = cpu = clone = detach = contiguous = same

    def rows(self, tensor: Any, read: Callable[[Tensor], Tensor]) -> EdgeRows:
        """Rows of a DistTensor, that `read` gives by ids.

        Raises
        ------
        HetaError
            It has not as many rows as the relation has edges, or the store keeps no ids.
        """
        edges = self._layer.session.store.schema.edge_counts[self.relation]
        if len(tensor) != edges:
            raise HetaError(f"a DistTensor of {len(tensor)} rows is read by the ids of edges of "
                            f"{tuple(self.relation)}, of which there are {edges}; read data of "
                            "these edges, g.edges[relation].data[…]")
        self._layer.edges_read = True
        ids = ids_of(self._layer, self.relation)
        found = read(ids) if len(ids) else torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype)
        return edge_rows(found, self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise HetaError(
            f"edge ids (dgl.EID) of {tuple(self.relation)} are good for reading data of these "
            "edges alone, g.edges[relation].data['…'][ids]: on a meta-partitioned graph a block "
            "has this machine's edges, for the seeds of all trainers")

    __getitem__ = __iter__ = __array__ = __torch_function__ = __int__ = __bool__ = _refuse
    __eq__ = __lt__ = __add__ = __sub__ = __index__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse()


_BY_ROW = frozenset((
    "abs", "absolute", "neg", "negative", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt",
    "rsqrt", "square", "reciprocal", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "gelu", "silu",
    "selu", "mish", "prelu", "softplus", "logsigmoid", "sin", "cos", "sign", "clamp", "clip", "pow",
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "eq", "ne",
    "lt", "le", "gt", "ge", "logical_not", "isnan", "isinf", "nan_to_num", "where", "maximum",
    "minimum", "masked_fill", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
    "__truediv__", "__rtruediv__", "__rdiv__", "__div__", "__neg__", "__abs__", "__pow__",
    "__rpow__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__invert__", "float",
    "double", "half", "bfloat16", "long", "int", "bool", "to", "type", "type_as", "dropout", "cpu",
    "detach", "clone", "contiguous", "zeros_like", "ones_like", "full_like"))
"""Functions of each number, and of the numbers beside it."""
_RESHAPED = frozenset(("unsqueeze", "view", "reshape", "flatten", "expand", "expand_as"))
"""Functions that keep the numbers of each row, if there are as many rows as before."""
_ALONG = {**dict.fromkeys((
    "sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "argmax", "argmin",
    "logsumexp", "softmax", "log_softmax", "cumsum", "squeeze", "select", "narrow", "unbind"), 1),
    **dict.fromkeys(("norm", "normalize", "split", "chunk"), 2)}
"""Functions along one dimension, which must not be that of the rows, and which argument it is."""
_PRODUCTS = frozenset(("linear", "matmul", "__matmul__", "mm"))
"""Products of rows and a matrix that is no data of edges."""
_JOINS = frozenset(("cat", "concat", "concatenate", "stack"))
"""Functions that put columns of several rows side by side, along another dimension than rows."""
_NUMBER = frozenset(("size", "__len__", "numel", "shape"))
"""What says how many rows there are."""
_ABOUT = frozenset((
    "dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device",
    "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad_fn", "layout",
    "is_cuda", "is_sparse", "is_quantized", "is_meta")) | _NUMBER
"""Functions and attributes that say nothing of values."""


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
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        found: list[EdgeRows] = []
        bare_args, bare_kwargs = unguarded((args, kwargs), found)
        rows = found[0]
        if name in _ABOUT:
            about = func(*bare_args, **bare_kwargs)
            width = name == "size" and isinstance(about, int) and _beside(
                [*args[1:], *kwargs.values()], bare(rows).dim())
            return rows.ids.counted(about) if name in _NUMBER and not width else about
        if not _row_by_row(name, args, kwargs, rows, len(found)):
            _refuse(name, rows)
        value = func(*bare_args, **bare_kwargs)
        same, dims = bare(rows).shape[:1], bare(rows).dim()

        def guarded(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            if item.shape[:1] != same or (name.startswith("expand") and item.dim() != dims):
                _refuse(name, rows)
            return edge_rows(item, rows.ids)
        return tree_map(guarded, tuple(value) if isinstance(value, tuple) else value)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<rows of edges of {tuple(self.ids.relation)}>"


def edge_rows(rows: Tensor, ids: EdgeIds) -> EdgeRows:
    """The same rows, guarded."""
    made: EdgeRows = rows.as_subclass(EdgeRows)
    made.ids = ids
    return made


def of_edges(rows: Any, ids: EdgeIds, what: str = "what is computed with") -> Tensor:
    """Rows of these edges as an ordinary tensor.

    Raises
    ------
    HetaError
        They are of others, or no rows of edges; `what` says what they are for.
    """
    if not isinstance(rows, EdgeRows) or not rows.ids.like(ids):
        raise HetaError(f"{what} the edges of {tuple(ids.relation)} must be rows of these edges: "
                        "on a meta-partitioned graph what their slice has given (apply_edges, "
                        "edge_softmax), what was read by their ids, g.edges[relation].data['…']"
                        "[block.edges[relation].data[dgl.EID]], and what was computed of it row "
                        "by row")
    return bare(rows)


def bare(rows: EdgeRows) -> Tensor:
    """The same rows as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return rows.as_subclass(Tensor)


def unguarded(value: Any, found: list[EdgeRows] | None = None) -> Any:
    """Rows of edges in nested containers as ordinary tensors; they are added to `found`."""
    def one(item: Any) -> Any:
        if not isinstance(item, EdgeRows):
            return item
        if found is not None:
            found.append(item)
        return bare(item)
    return tree_map(one, value)


def _row_by_row(name: str, args: Any, kwargs: Any, rows: EdgeRows, number: int) -> bool:
    """Whether each row of a function's result is made of that row alone, if it has as many."""
    dims, first = bare(rows).dim(), bool(args) and args[0] is rows
    if name in _BY_ROW:
        return _alike([*args, *kwargs.values()], rows)
    if name in _RESHAPED:
        return first and (number == 1 or args[-1].ids.like(rows.ids))
    if name in _ALONG:
        place = _ALONG[name]
        dim = kwargs.get("dim", args[place] if len(args) > place else None)
        return first and number == 1 and _beside(dim, dims)
    if name in _JOINS:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        return _alike(args[0], rows) and _beside(dim, dims + (name == "stack"))
    if name in ("transpose", "swapaxes"):
        return first and _beside([*args[1:], *kwargs.values()], dims)
    if name == "permute":
        order = args[1] if len(args) == 2 else args[1:]
        return first and order[0] % dims == 0
    if name == "repeat":
        sizes = args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:]
        return first and len(sizes) == dims and sizes[0] == 1
    if name == "__getitem__":
        return first and number == 1 and isinstance(args[1], tuple) and (
            args[1][0] is Ellipsis or (isinstance(args[1][0], slice)
                                       and args[1][0] == slice(None)))
    if name == "embedding":
        return first and number == 1
    if name == "layer_norm":
        return first and number == 1 and len(args[1]) < dims
    return (name in _PRODUCTS and number == 1 and first and dims > 1
            and all(x.dim() < 3 for x in args[1:] if isinstance(x, Tensor)))


def _beside(dim: Any, dims: int) -> bool:
    """Whether dimensions are given, all others than that of the rows."""
    every = [dim] if isinstance(dim, int) else dim if isinstance(dim, list | tuple) else []
    return bool(every) and all(isinstance(d, int) and d % dims != 0 for d in every)


def _alike(values: Any, rows: EdgeRows) -> bool:
    """Whether each tensor is rows of the same edges, or the same for all of them."""
    edges = bare(rows)
    for value in values:
        if isinstance(value, EdgeRows):
            if not value.ids.like(rows.ids) or bare(value).dim() != edges.dim():
                return False
        elif isinstance(value, Tensor) and value.dim() and (
                value.dim() > edges.dim() or (value.dim() == edges.dim() and value.shape[0] != 1)):
            return False
    return True


def _refuse(name: str, rows: EdgeRows) -> NoReturn:
    raise HetaError(
        f"'{name}' of rows of edges of {tuple(rows.ids.relation)}: on a meta-partitioned graph a "
        "block has this machine's edges, for the seeds of all trainers, so only what is computed "
        "edge by edge is as in plain DistDGL; compute it in a relation's own module or in a "
        "message function, which see whole in-edges")
