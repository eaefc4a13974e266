"""Rows of a static feature that are not gathered before something needs their values.

Wide static features are most of what a batch reads. A script gathers them, converts them,
multiplies them by a weight (its input layer) and aggregates the result. As

    mean over in-edges of (x W + b) = (mean over in-edges of x) W + b

for a row with in-edges, the product can as well be taken of the aggregated rows, of which there are
fewer; nothing needs the gathered rows then. :class:`LazyRows` wait for that: they are a tensor to
PyTorch, with the autograd graph of one, whose values are computed when anything but a conversion,
a product, or a slice of rows is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dgl_heta.errors import HetaError
from dgl_heta.features.chunks import DTYPES, ChunkedRows
from dgl_heta.planning.compute import aggregated_first

_aten = torch.ops.aten
_RAW = {Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.data_ptr, Tensor.contiguous,
        Tensor.__array__, Tensor.__dlpack__, Tensor.__reduce_ex__, Tensor.__deepcopy__,
        Tensor.share_memory_, Tensor.untyped_storage, Tensor.storage, Tensor.__repr__,
        Tensor.data.__get__}  # type: ignore[attr-defined]
"""What looks at memory, of which lazy rows have none."""
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


def lazy_rows(array: np.ndarray, ids: np.ndarray) -> Tensor | None:
    """`array[ids]` as rows that wait; None for other arrays.

    Parameters
    ----------
    array : (N, width), half, single or double precision. It must not change any more.
    ids : (n,) int64, in range.
    """
    if array.ndim != 2 or array.dtype not in DTYPES or not array.dtype.isnative:
        return None
    return _make(_Whole(ChunkedRows(array, ids.copy()), DTYPES[array.dtype], None))


class _Whole:
    """What lazy rows and their parts have in common. It refers to none of these tensors, whose
    autograd graph can refer to it.

    Attributes
    ----------
    source : where rows come from.
    linear : weight (width of the source, out), bias or None, that they are multiplied by.
    value : the rows, once they were computed; parts are views of it then.
    viewed : whether there are parts that autograd takes for views.
    """

    def __init__(self, source: ChunkedRows, dtype: torch.dtype,
                 linear: tuple[Tensor, Tensor | None] | None) -> None:
        self.source, self.dtype, self.linear = source, dtype, linear
        self.value: Tensor | None = None
        self.viewed = False
        self._versions = _versions(linear)

    @property
    def width(self) -> int:
        return self.source.width if self.linear is None else self.linear[0].shape[1]

    def kept(self) -> Tensor:
        """The rows, kept for everything that is done with them from now on."""
        if self.value is None:
            self.value = self.compute(slice(None))
        return self.value

    def compute(self, rows: slice) -> Tensor:
        ids = self.source.ids[rows]
        if self.linear is None:
            return self.source.gather(ids, self.dtype)
        self.check()
        weight, bias = self.linear
        return self.source.times(ids, weight.detach(), None if bias is None else bias.detach())

    def check(self) -> None:
        """
        Raises
        ------
        HetaError
            The weight was changed since the product was asked for.
        """
        if self._versions != _versions(self.linear):
            raise HetaError("a weight was changed in place between a product with feature rows and "
                            "its use; use train.lazy_features=false")


class LazyRows(Tensor):
    """Made by :func:`lazy_rows`; a two-dimensional tensor on the CPU.

    Attributes
    ----------
    own_rows : leading rows that are wanted besides aggregations: the destinations' own states.
    """

    own_rows: int
    whole: _Whole
    part: slice | None
    _flipped: bool

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA and isinstance(args[0], LazyRows):
            raise HetaError("the data of feature rows cannot be replaced; copy them by clone(), or "
                            "use train.lazy_features=false")
        if func in _RAW:
            args = (_computed(args[0]), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            found = handler(*args, **kwargs)
            if found is not None:
                return found
        schema = func._schema
        if schema.is_mutable:
            return _write(func, args, kwargs)
        view = any(returned.alias_info is not None for returned in schema.returns)

        def value(item: Any) -> Any:
            if isinstance(item, LazyRows):
                item.whole.viewed = item.whole.viewed or view
                return item.value(keep=view)
            return item

        return func(*tree_map(value, args), **tree_map(value, kwargs))

    def value(self, keep: bool = False) -> Tensor:
        """The rows. Those of a part are computed alone, unless it is kept as a view of all."""
        if self.part is None:
            return self.whole.kept()
        if keep or not self.waits:
            found = self.whole.kept()[self.part]
        else:
            found = self.whole.compute(self.part)
        return found.t() if self._flipped else found

    @property
    def waits(self) -> bool:
        """Whether nothing has been kept yet, so that something shorter may do."""
        return self.whole.value is None


def peek(rows: Tensor, at: np.ndarray | None = None) -> Tensor:
    """Some rows, or all, as a plain tensor without a gradient; rows that wait go on waiting."""
    index = slice(None) if at is None else torch.from_numpy(at)
    if not isinstance(rows, LazyRows):
        return rows.detach()[index]
    whole, part = rows.whole, rows.part or slice(None)
    if rows._flipped:
        raise HetaError("feature rows that were transposed cannot be looked at")
    if whole.value is not None:
        return whole.value.detach()[part][index]
    ids = whole.source.ids[part] if at is None else whole.source.ids[part][at]
    if whole.linear is None:
        return whole.source.gather(ids, whole.dtype)
    weight, bias = whole.linear
    return whole.source.times(ids, weight.detach(), None if bias is None else bias.detach())


def _write(func: Any, args: Any, kwargs: Any) -> Any:
    """Run what writes to its arguments.

    Raises
    ------
    HetaError
        Autograd would take the rows for what they are not, because views of them are involved.
    """
    given: list[Tensor] = []
    computed: dict[int, LazyRows] = {}

    def kept(item: Any) -> Any:
        if isinstance(item, Tensor):
            given.append(item)
        if not isinstance(item, LazyRows):
            return item
        value = item.value(keep=True)
        computed[id(value)] = item
        return value

    values, named = tree_map(kept, args), tree_map(kept, kwargs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given) and any(
            item.part is not None or item.whole.viewed for item in computed.values()):
        raise HetaError("a part of feature rows, or rows of which there are parts, cannot be "
                        "written in place where gradients are wanted; copy them by clone(), or use "
                        "train.lazy_features=false")
    return tree_map(lambda item: computed.get(id(item), item), func(*values, **named))


def _make(whole: _Whole, part: slice | None = None, flipped: bool = False) -> LazyRows:
    rows = len(range(*(part or slice(None)).indices(len(whole.source.ids))))
    # Whoever reads its memory nevertheless finds NaN.
    nothing = torch.full((1, 1), float("nan"), dtype=whole.dtype).expand(
        (whole.width, rows) if flipped else (rows, whole.width))
    made: LazyRows = Tensor._make_subclass(LazyRows, nothing)
    made.whole, made.part, made._flipped, made.own_rows = whole, part, flipped, 0
    return made


def _versions(linear: tuple[Tensor, Tensor | None] | None) -> tuple[int, ...]:
    """Inference tensors have none."""
    return tuple(t._version for t in linear or () if t is not None and not t.is_inference())


class _Identity(torch.autograd.Function):
    """The values of lazy rows, as a plain tensor with their gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        value: Tensor = rows.value(keep=True) if isinstance(rows, LazyRows) else rows
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


def _computed(rows: Any) -> Any:
    if not isinstance(rows, LazyRows):
        return rows
    found: Tensor = _Identity.apply(rows)
    return found


# What can be put off, and what is shorter than computing all rows first.

def _product(rows: LazyRows, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    whole = rows.whole
    if (rows._flipped or isinstance(weight, LazyRows) or not rows.waits
            or (whole.linear is None and rows.requires_grad)
            or weight.dtype != rows.dtype or weight.device.type != "cpu"):
        return None
    if rows.part is None:
        return None if whole.linear is not None else _make(
            _Whole(whole.source, rows.dtype, (weight, bias)))
    if whole.linear is not None:
        value = rows.value(keep=2 * len(rows) > len(whole.source.ids))
        return value.mm(weight) if bias is None else torch.addmm(bias, value, weight)
    return whole.source.times(whole.source.ids[rows.part], weight, bias)


def _addmm(bias: Tensor, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
           ) -> Tensor | None:
    if isinstance(left, LazyRows) and bias.dim() == 1 and beta == alpha == 1 and not isinstance(
            bias, LazyRows):
        return _product(left, right, bias)
    return None


def _mm(left: Any, right: Any) -> Tensor | None:
    if not isinstance(left, LazyRows):  # grad.t() @ x
        found = None if right._flipped else _weight_gradient(right, left.t())
        return None if found is None else found.t()
    if not left._flipped:
        return _product(left, right, None)
    return None if isinstance(right, LazyRows) else _weight_gradient(left, right)  # x.t() @ grad


def _weight_gradient(rows: LazyRows, right: Tensor) -> Tensor | None:
    whole = rows.whole
    if not rows.waits or whole.linear is not None or right.dtype != rows.dtype:
        return None
    return whole.source.transposed_times(whole.source.ids[rows.part or slice(None)], right)


def _convert(rows: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
             ) -> Tensor | None:
    """To more precision, as most scripts do with features in half precision."""
    whole = rows.whole
    if (rows.part is not None or whole.linear is not None or not rows.waits or dtype is None
            or (device is not None and torch.device(device).type != "cpu")
            or dtype not in DTYPES.values() or dtype.itemsize < rows.dtype.itemsize
            or any(value for value in rest.values() if value not in (
                False, torch.strided, torch.preserve_format))):
        return None
    return _make(_Whole(whole.source, dtype, None))


def _slice(rows: Any, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Tensor | None:
    if rows._flipped or dim not in (0, -2) or step != 1:
        return None
    low, high, _ = slice(start, end).indices(len(rows))
    rows.whole.viewed = True
    return _part(rows, low, max(high, low))


def _part(rows: LazyRows, low: int, high: int) -> LazyRows:
    before = rows.part.start if rows.part is not None else 0
    return _make(rows.whole, slice(before + low, before + high))


def _same(rows: Any, *_: Any) -> Tensor | None:
    return None if rows._flipped else _part(rows, 0, len(rows))


def _view(rows: Any, shape: Sequence[int], *_: Any) -> Tensor | None:
    if tuple(shape) != tuple(rows.shape):
        return None
    rows.whole.viewed = True
    return _same(rows)


def _transpose(rows: Any) -> Tensor | None:
    if rows.part is not None:
        return None
    rows.whole.viewed = True
    return _make(rows.whole, slice(0, len(rows)), flipped=True)


def _new_like(func: Any) -> Callable[..., Tensor]:
    def new(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = func(torch.empty(0, dtype=rows.dtype), *args, **kwargs)
        return found
    return new


def _filled_like(func: Any) -> Callable[..., Tensor]:
    def like(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = func(torch.empty(rows.shape, dtype=rows.dtype), *args, **kwargs)
        return found
    return like


_HANDLERS: dict[Any, Callable[..., Tensor | None]] = {
    _aten.addmm.default: _addmm, _aten.mm.default: _mm, _aten._to_copy.default: _convert,
    _aten.slice.Tensor: _slice, _aten.alias.default: _same, _aten.detach.default: _same,
    _aten.view.default: _view, _aten._unsafe_view.default: _view,
    _aten._reshape_alias.default: _view, _aten.t.default: _transpose,
    **{f.default: _new_like(f) for f in (_aten.new_zeros, _aten.new_ones, _aten.new_empty,
                                         _aten.new_full, _aten.new_empty_strided)},
    **{f.default: _filled_like(f) for f in (_aten.zeros_like, _aten.ones_like, _aten.empty_like,
                                            _aten.full_like)}}


# Aggregation

def shorter_aggregated(states: Tensor, edges: Sequence[tuple[Tensor, Tensor]]
                       ) -> TypeGuard[LazyRows]:
    """Whether to aggregate rows before their product, in all these relations (indptr, indices)."""
    if (not isinstance(states, LazyRows) or states.part is not None or not states.waits
            or states.dtype not in (torch.float32, torch.float64)
            # Its own gradient is looked at:
            or (states.requires_grad and states.is_leaf) or states._backward_hooks
            or states.retains_grad):
        return False
    if states.whole.linear is None:
        return True
    return aggregated_first(len(states), sum(len(indices) for _, indices in edges),
                            sum(len(indptr) - 1 for indptr, _ in edges), states.own_rows,
                            states.whole.source.width, states.shape[1])


def aggregated(states: LazyRows, indptr: Tensor, indices: Tensor, op: str) -> Tensor:
    """The sum or mean over in-edges of lazy rows, (destinations, width), without computing them."""
    whole = states.whole
    whole.check()
    rows = whole.source.aggregate(indptr.numpy(), indices.numpy(), op == "mean", states.dtype)
    if whole.linear is None:
        return rows
    weight, bias = whole.linear
    if not states.requires_grad:  # the product was made without a gradient
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    if bias is None:
        return rows @ weight
    degrees = indptr[1:] - indptr[:-1]
    times = (degrees > 0 if op == "mean" else degrees).to(rows.dtype)
    return torch.addmm(times[:, None] * bias, rows, weight)
