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

from dgl_heta.distdgl.masked import ids_of_drawn
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.layers import Layer


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
            numbers = ids_of_drawn(store, relation, edges.drawn.csc)
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
        self.asked()
        return self._layer.count(self.relation)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self)])

    def asked(self) -> None:
        """Note that a script has asked for the number of edges."""
        self._layer.asked.add(self.relation)

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
    "abs", "absolute", "neg", "negative", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt",
    "square", "reciprocal", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "gelu", "silu",
    "softplus", "logsigmoid", "sin", "cos", "sign", "clamp", "clip", "pow", "add", "sub",
    "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "eq", "ne", "lt", "le",
    "gt", "ge", "logical_not", "nan_to_num", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__rdiv__", "__div__", "__neg__",
    "__abs__", "__pow__", "__rpow__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    "__invert__", "float", "double", "half", "bfloat16", "long", "int", "bool", "to", "type",
    "type_as", "dropout", "cpu", "detach", "clone", "contiguous", "unsqueeze", "view", "reshape",
    "flatten"))
"""Functions whose result has a row for each row, made of that row alone."""
_PRODUCTS = frozenset(("linear", "matmul", "__matmul__", "mm"))
"""Products of rows and a matrix that is no data of edges."""
_JOINS = frozenset(("cat", "concat", "concatenate"))
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
        first = bare(found[0])
        if name in _ABOUT:
            if name in _NUMBER:
                found[0].ids.asked()
            return func(*bare_args, **bare_kwargs)
        by_row = name in _BY_ROW and _alike([*args, *kwargs.values()], found[0])
        product = (name in _PRODUCTS and len(found) == 1 and args and args[0] is found[0]
                   and first.dim() > 1 and all(x.dim() < 3 for x in bare_args[1:]
                                               if isinstance(x, Tensor)))
        joined = name in _JOINS and _alike(args[0], found[0]) and _across(
            first.dim(), *args[1:], **kwargs)
        if not by_row and not product and not joined:
            _refuse(name, found[0])
        value = func(*bare_args, **bare_kwargs)
        if not isinstance(value, Tensor) or value.shape[:1] != first.shape[:1]:
            _refuse(name, found[0])
        return edge_rows(value, found[0].ids)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<rows of edges of {tuple(self.ids.relation)}>"


def edge_rows(rows: Tensor, ids: EdgeIds) -> EdgeRows:
    """The same rows, guarded."""
    made: EdgeRows = rows.as_subclass(EdgeRows)
    made.ids = ids
    return made


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


def _across(dims: int, dim: int = 0, **others: Any) -> bool:
    """Whether tensors of so many dimensions are joined along another than the first."""
    return not others and dim % dims != 0


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
