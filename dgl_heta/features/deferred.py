"""Rows of a static feature that are not gathered before something needs their values.

Wide static features are most of what a batch reads. A script gathers them, converts them,
multiplies them by a weight (its input layer) and aggregates the result. As

    mean over in-edges of (x W + b) = (mean over in-edges of x) W + b

for a row with in-edges, the product can as well be taken of the aggregated rows, of which there are
fewer; nothing needs the gathered rows then. :class:`LazyRows` wait for that: they are a tensor to
PyTorch, with the autograd graph of one, whose values are computed when anything but a conversion,
one product or two, a slice of rows, or a view per head is done with them. Two products are what
keys and values of attention are, (x W + b) K: :mod:`dgl_heta.nn.attended`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from dgl_heta.errors import HetaError
from dgl_heta.features.chunks import DTYPES, ChunkedRows
from dgl_heta.features.waiting import Linear, Waiting, times

_aten = torch.ops.aten
_RAW = {Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.data_ptr, Tensor.contiguous,
        Tensor.__array__, Tensor.__dlpack__, Tensor.__reduce_ex__, Tensor.__deepcopy__,
        Tensor.share_memory_, Tensor.untyped_storage, Tensor.storage, Tensor.__repr__,
        Tensor.data.__get__}  # type: ignore[attr-defined]
"""Functions that look at memory, of which lazy rows have none."""
_OBSERVING = {Tensor.register_hook, Tensor.retain_grad}
_LEAVES = {Tensor.requires_grad_, Tensor.requires_grad.__set__}  # type: ignore[attr-defined]
"""Functions that show a tensor's own gradient, or make a tensor a leaf that has one."""
_IN_PLACE = ("cannot be written in place, as gradients are wanted; copy them by clone(), or use "
             "train.lazy_features=false")
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
    return _make(Waiting(ChunkedRows(array, ids.copy()), DTYPES[array.dtype]))


class LazyRows(Tensor):
    """Made by :func:`lazy_rows`; a tensor of rows, or of rows per head, on the CPU.

    Attributes
    ----------
    own_rows : leading rows that are wanted besides aggregations: the destinations' own states.
    heads : (heads, width of each) of a view per head, which has all rows; None of other rows.
    """

    own_rows: int
    whole: Waiting
    part: slice | None
    heads: tuple[int, int] | None
    _flipped: bool

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA and isinstance(args[0], LazyRows):
            raise HetaError("the data of feature rows cannot be replaced; copy them by clone(), or "
                            "use train.lazy_features=false")
        if func in _OBSERVING and isinstance(args[0], LazyRows):
            check_observed([args[0]])
            args[0].whole.observed |= args[0].part is None
        elif func is torch.autograd.grad:
            check_observed(args[1] if isinstance(args[1], Sequence) else [args[1]])
        elif func in _LEAVES and isinstance(args[0], LazyRows):
            args[0].whole.observed |= args[0].part is None
        elif func == Tensor.__getitem__ and isinstance(args[0], LazyRows):
            some = _few_rows(*args)
            if some is not None:
                return some
        if func in _RAW:
            args = (_computed(args[0]), *args[1:])
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if "inside a custom Function" in str(error):
                raise HetaError("some rows of a product of feature rows, or all after some were "
                                f"taken, {_IN_PLACE}") from error
            raise

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not None:
                return result
        schema = func._schema
        if schema.is_mutable:
            return _write(func, args, kwargs)
        view = any(returned.alias_info is not None for returned in schema.returns)

        def value(item: Any) -> Any:
            if isinstance(item, LazyRows):
                item.whole.viewed = item.whole.viewed or view
                item.whole.exposed = item.whole.exposed or view
                return item.value(keep=view)
            return item

        return func(*tree_map(value, args), **tree_map(value, kwargs))

    def value(self, keep: bool = False) -> Tensor:
        """The rows. Those of a part are computed alone, unless it is kept as a view of all."""
        if self.heads is not None:
            return self.whole.kept().view(-1, *self.heads)
        if self.part is None:
            return self.whole.kept()
        if keep or not self.waits:
            rows = self.whole.kept()[self.part]
        else:
            rows = self.whole.some(self.part)
        return rows.t() if self._flipped else rows

    @property
    def waits(self) -> bool:
        """Return whether nothing has been kept yet, so that something shorter may do."""
        return self.whole.value is None


def defers(states: LazyRows) -> bool:
    """Return whether something can be computed of these rows without their values."""
    whole = states.whole
    return (states.part is None and whole.may_be_passed() and _unseen(states)
            and (whole.factor is None or whole.factor.may_be_passed())
            and not (whole.linear is None and states.requires_grad)
            and states.dtype in (torch.float32, torch.float64))


def _unseen(states: LazyRows) -> bool:
    """Return whether nobody looks at the rows' own gradient."""
    return not ((states.requires_grad and states.is_leaf) or states._backward_hooks
                or states.retains_grad or states.whole.is_observed())


def check_observed(tensors: Iterable[Any]) -> None:
    """
    Raises
    ------
    HetaError
        Something was computed of one that gives it no gradient of its own. That is never so of a
        part of rows.
    """
    if any(isinstance(x, LazyRows) and x.whole.bypassed and x.part is None for x in tensors):
        raise HetaError("the gradient of feature rows cannot be had after message passing has read "
                        "them, which goes past their product; ask before (retain_grad(), "
                        "register_hook()), or use train.lazy_features=false")


def peek(rows: Tensor, at: np.ndarray | None = None) -> Tensor:
    """Some rows, or all, as a plain tensor without a gradient; rows that wait go on waiting."""
    index = slice(None) if at is None else torch.from_numpy(at)
    if not isinstance(rows, LazyRows):
        return rows.detach()[index]
    values = rows.whole.peek(rows.part or slice(None), index)
    if rows._flipped:
        return values.t()
    return values if rows.heads is None else values.view(-1, *rows.heads)


def _write(func: Any, args: Any, kwargs: Any) -> Any:
    """Run what writes to some of its arguments.

    Raises
    ------
    HetaError
        Autograd would take the rows for what they are not, because views of them are involved.
    """
    computed: dict[int, LazyRows] = {}

    def kept(item: Any) -> Any:
        if not isinstance(item, LazyRows):
            return item
        value = item.value(keep=True)
        item.whole.exposed = True
        computed[id(value)] = item
        return value

    def read(item: Any) -> Any:
        return item.value() if isinstance(item, LazyRows) else item

    writes = {argument.name: argument.alias_info is not None and argument.alias_info.is_write
              for argument in func._schema.arguments}
    values = [tree_map(kept if write else read, item) for item, write in zip(args, writes.values())]
    named = {name: tree_map(kept if writes[name] else read, item) for name, item in kwargs.items()}
    wanted = torch.is_grad_enabled() and any(
        t.requires_grad for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor))
    if wanted and any(item.part is not None or item.whole.viewed for item in computed.values()):
        raise HetaError(f"a part of feature rows, or rows of which there are parts, {_IN_PLACE}")
    return tree_map(lambda item: computed.get(id(item), item), func(*values, **named))


def _make(whole: Waiting, part: slice | None = None, flipped: bool = False,
          heads: tuple[int, int] | None = None) -> LazyRows:
    rows = len(range(*(part or slice(None)).indices(len(whole.source.ids))))
    # Whoever reads its memory nevertheless finds NaN.
    nothing = torch.full((), float("nan"), dtype=whole.dtype).expand(
        (whole.width, rows) if flipped else (rows, *(heads or (whole.width,))))
    lazy: LazyRows = Tensor._make_subclass(LazyRows, nothing)
    lazy.whole, lazy.part, lazy._flipped, lazy.own_rows = whole, part, flipped, 0
    lazy.heads = heads
    return lazy


def _few_rows(rows: LazyRows, index: Any) -> Tensor | None:
    """A slice of a product of features whose gradient goes past that of all rows, which autograd
    would fill with zeros; None for what is no such slice, or of most rows."""
    linear = rows.whole.linear
    if (not isinstance(index, slice) or index.step not in (None, 1) or rows._flipped or rows.heads
            or not (rows.requires_grad and torch.is_grad_enabled() and defers(rows))
            or linear is None or rows.whole.factor is not None):
        return None
    low, high, _ = index.indices(len(rows))
    if not 0 < 2 * (high - low) <= len(rows):
        return None
    weight, bias = rows.whole.bypass(graded=True)
    out: Tensor = _FewRows.apply(rows, weight, bias, low, high)
    return out


class _FewRows(torch.autograd.Function):
    """Autograd takes the rows for a view that a custom function has made: it refuses to write to
    them or to their views, and to go back through them when all rows were written to."""

    @staticmethod
    def forward(ctx: Any, rows: LazyRows, weight: Tensor, bias: Tensor | None, low: int, high: int
                ) -> Tensor:
        ctx.source, ctx.part = rows.whole.source, slice(low, high)
        return rows[low:high]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _, weight, bias, *_ = ctx.needs_input_grad
        some = ChunkedRows(ctx.source.array, ctx.source.ids[ctx.part])
        rows = _make(Waiting(some, grad.dtype))
        return (None, rows.t() @ grad if weight else None, grad.sum(0) if bias else None, None,
                None)


class _Identity(torch.autograd.Function):
    """The values of lazy rows, as a plain tensor with their gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        value: Tensor = rows
        if isinstance(rows, LazyRows):
            value = rows.value(keep=True)
            rows.whole.exposed = True
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


def _computed(rows: Any) -> Any:
    if not isinstance(rows, LazyRows):
        return rows
    out: Tensor = _Identity.apply(rows)
    return out


# What can be put off, and what is shorter than computing all rows first.

def _product(rows: LazyRows, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    whole = rows.whole
    if (rows._flipped or isinstance(weight, LazyRows) or not whole.may_be_passed()
            or (whole.linear is None and rows.requires_grad)
            or weight.dtype != rows.dtype or weight.device.type != "cpu"
            or weight.layout != torch.strided or len(weight) != rows.shape[1]
            or (bias is not None and (bias.dtype != rows.dtype or len(bias) != weight.shape[1]))):
        return None
    if rows.part is None:
        linear = Linear.of(weight, bias)
        if whole.linear is None:
            return _make(Waiting(whole.source, rows.dtype, linear))
        if whole.factor is not None or not _unseen(rows):
            return None
        return _make(Waiting(whole.source, rows.dtype, linear, whole, rows.requires_grad))
    if whole.linear is not None:
        return times(rows.value(keep=2 * len(rows) > len(whole.source.ids)), weight, bias)
    return whole.source.times(whole.source.ids[rows.part], weight, bias)


def _addmm(bias: Tensor, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
           ) -> Tensor | None:
    if isinstance(left, LazyRows) and bias.dim() == 1 and beta == alpha == 1 and not isinstance(
            bias, LazyRows):
        return _product(left, right, bias)
    return None


def _mm(left: Any, right: Any) -> Tensor | None:
    if not isinstance(left, LazyRows):  # grad.t() @ x
        grad = None if right._flipped else _weight_gradient(right, left.t())
        return None if grad is None else grad.t()
    if not left._flipped:
        return _product(left, right, None)
    return None if isinstance(right, LazyRows) else _weight_gradient(left, right)  # x.t() @ grad


def _weight_gradient(rows: LazyRows, right: Tensor) -> Tensor | None:
    whole = rows.whole
    if not rows.waits or whole.linear is not None or right.dtype != rows.dtype:
        return None
    return whole.source.transposed_times(whole.source.ids[rows.part or slice(None)],
                                         right.detach())


def _convert(rows: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
             ) -> Tensor | None:
    """To more precision, as most scripts do with features in half precision."""
    whole = rows.whole
    if (rows.part is not None or rows.heads or whole.linear is not None or not rows.waits
            or dtype is None
            or (device is not None and torch.device(device).type != "cpu")
            or dtype not in DTYPES.values() or dtype.itemsize < rows.dtype.itemsize
            or any(value for value in rest.values() if value not in (
                False, torch.strided, torch.preserve_format))):
        return None
    return _make(Waiting(whole.source, dtype, None))


def _slice(rows: Any, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Tensor | None:
    if rows._flipped or rows.heads or dim not in (0, -2) or step != 1:
        return None
    low, high, _ = slice(start, end).indices(len(rows))
    rows.whole.viewed = True
    return _part(rows, low, max(high, low))


def _part(rows: LazyRows, low: int, high: int) -> LazyRows:
    before = rows.part.start if rows.part is not None else 0
    return _make(rows.whole, slice(before + low, before + high))


def _same(rows: Any, *_: Any) -> Tensor | None:
    return None if rows._flipped or rows.heads else _part(rows, 0, len(rows))


def _view(rows: Any, shape: Sequence[int], *_: Any) -> Tensor | None:
    wanted = tuple(torch.empty(rows.shape, device="meta").view(tuple(shape)).shape)
    if wanted == tuple(rows.shape):
        rows.whole.viewed = True
        return _same(rows)
    if (len(wanted) != 3 or wanted[0] != len(rows) or rows._flipped or rows.part is not None
            or rows.heads or rows.whole.linear is None or not rows.whole.may_be_passed()):
        return None
    rows.whole.viewed = True
    return _make(rows.whole, heads=(wanted[1], wanted[2]))


def _transpose(rows: Any) -> Tensor | None:
    if rows.part is not None:
        return None
    rows.whole.viewed = True
    return _make(rows.whole, slice(0, len(rows)), flipped=True)


def _new_like(func: Any) -> Callable[..., Tensor]:
    def new(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = func(torch.empty(0, dtype=rows.dtype), *args, **kwargs)
        return out
    return new


def _filled_like(func: Any) -> Callable[..., Tensor]:
    def like(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = func(torch.empty(rows.shape, dtype=rows.dtype), *args, **kwargs)
        return out
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
