"""Gradients of one tensor from many operators, added in one place.

An operator that reads some rows of a tensor has a gradient of all of them, most of it zeros; a
layer has many such operators (relations times scores, sums, destinations), and autograd would fill
an array for each and add them up. Here they add to one array. Operators depend on a token, which
the tensor's :class:`_Hub` gives; when all of them have added what they have, autograd comes to the
hub, which hands the array on as the tensor's gradient.

Scripts make a view of a tensor for each relation (`key.view(-1, heads, width)`). Operators that
read such views add to the array of the tensor that they show, past the views. What would be seen
of a view's own gradient is refused: :func:`check_views`, and hooks when the hub runs.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dgl_heta.errors import HetaError
from dgl_heta.features.deferred import check_observed
from dgl_heta.features.row_kernels import new_rows

_CPU = torch.device("cpu")
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def new_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """A tensor with any content; a large one on CPU is in memory that others have left."""
    width = math.prod(shape[1:])
    if device.type != "cpu" or dtype not in _NUMPY or not width:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(new_rows(shape[0], width, _NUMPY[dtype])).view(shape)


def new_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """Zeros, as :func:`new_tensor`."""
    return new_tensor(shape, dtype, device).zero_()


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A `backward` whose results cannot be differentiated again: to ask for that is an error.

    PyTorch's `once_differentiable` gives results that fail when they are differentiated, unless
    that is by other inputs alone (`torch.autograd.grad`): then what it would add is missing.
    """
    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise HetaError("a gradient of a compiled kernel cannot be differentiated again "
                            "(create_graph); use the kernel 'torch' (train.kernel)")
        return backward(ctx, *grads)
    return run


class Sink:
    """The gradient of a tensor, while backward passes add to it: inside of each other, or on
    several threads. It refers to nothing of the graph, which refers to it."""

    def __init__(self, like: Tensor) -> None:
        self._shape, self._dtype, self._device = like.shape, like.dtype, like.device
        self._of_pass: dict[int, Tensor] = {}

    def array(self, hub: Any) -> Tensor:
        """The array to add to in this backward pass, of the tensor's shape, C order; zeros when it
        first asks. One that nobody takes if the pass does not come to the `hub`."""
        this = torch._C._current_graph_task_id()
        array = self._of_pass.get(this)
        if array is None:
            array = new_zeros(self._shape, self._dtype, self._device)
            if torch._C._will_engine_execute_node(hub):  # type: ignore[attr-defined]
                self._of_pass[this] = array
        return array

    def take(self) -> Tensor | None:
        """The whole gradient of this pass, None if nobody added to it."""
        return self._of_pass.pop(torch._C._current_graph_task_id(), None)


class _Hub(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, sink: Sink, views: list[Tensor]) -> Tensor:
        ctx.sink, ctx.views = sink, views
        return states.new_zeros(())

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None, None]:
        for view in ctx.views:
            if _is_observed(view):
                raise HetaError(
                    f"a hook, or retain_grad, was put on a view of shape {tuple(view.shape)} after "
                    "message passing had read it, past which its gradient goes; put it there "
                    "before, or on the tensor that the view was made of")
        return ctx.sink.take(), None, None


class Reading:
    """That a tensor is read by operators. They hold it, for as long as their graph is there.

    Attributes
    ----------
    views : those of the tensor that were read in its place.
    token : what they depend on, so that the hub comes after them.
    """

    def __init__(self, states: Tensor) -> None:
        self._state = _state(states)
        self.views: list[Tensor] = []
        sink = Sink(states)
        self._sink, self.token = sink, _Hub.apply(states, sink, self.views)

    def array(self) -> Tensor:
        """Where this backward pass adds the tensor's gradient, see :meth:`Sink.array`."""
        return self._sink.array(self.token.grad_fn)

    def is_of(self, states: Tensor) -> bool:
        """Return whether the tensor is still what was read."""
        return all(a is b or a == b for a, b in zip(self._state, _state(states)))


def _state(states: Tensor) -> tuple[Any, ...]:
    """Return values that change when a tensor is written to, detached in place or given other data.
    """
    return states._version, states.grad_fn, states.shape, states.dtype, states.data_ptr()


# Weak on both sides: a token keeps the tensor's graph, and so a leaf itself.
_readings: Any = WeakIdKeyDictionary()
_shown: Any = WeakIdKeyDictionary()
"""Views that were made here → the tensor that somebody gave."""
_passed: Any = WeakIdKeyDictionary()
"""Views that were read and that gradients go past."""

_VIEWS = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0",
          "SqueezeBackward1"}


def shaped(states: Tensor, *shape: int) -> Tensor:
    """`states.reshape(shape)`, for an operator that asks for another shape than it was given."""
    if states.shape == shape:
        return states  # also rows that wait for their values
    out = states.reshape(shape)
    if states.requires_grad and torch.is_grad_enabled() and states.is_contiguous() and (
            type(states) is Tensor):
        _shown[out] = states
    return out


def _is_observed(view: Tensor) -> bool:
    """Return whether somebody has asked to see a tensor's own gradient."""
    return bool(view._backward_hooks) or (not view.is_leaf and view.retains_grad)


def check_views(tensors: Iterable[Any]) -> None:
    """
    Raises
    ------
    HetaError
        One is a view, or rows that wait, that message passing has read: its own gradient is not to
        be had.
    """
    tensors = list(tensors)
    check_observed(tensors)
    for x in tensors:
        if isinstance(x, Tensor) and x in _passed:
            raise HetaError(f"the gradient of a view of shape {tuple(x.shape)} cannot be had after "
                            "message passing has read it, past which it goes; ask for that of the "
                            "tensor that the view was made of")


def _viewed(states: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor that `states` shows in another shape, and the view that somebody made of it; or
    itself."""
    states = _shown.get(states, states)
    base = states._base
    if base is None or not (base.requires_grad and base.is_contiguous()
                            and states.is_contiguous() and base.shape.numel() ==
                            states.shape.numel()) or _is_observed(states):
        return states, None
    node, creator = states.grad_fn, base.grad_fn
    if node is None or node.name() not in _VIEWS:
        return states, None  # another way leads to its memory: detached, or written to
    below, output = node.next_functions[0]
    if (below is creator and output == base.output_nr if creator is not None
            else getattr(below, "variable", None) is base):
        return base, states
    return states, None


def reading_of(states: Tensor) -> Reading | None:
    """Return the reading that all operators on a tensor share; None if it wants no gradient.

    Its array has the tensor's memory layout, but may have another shape.
    """
    if not (states.requires_grad and torch.is_grad_enabled()):
        return None
    states, view = _viewed(states)
    reading = _known(states)
    if reading is None:
        reading = Reading(states)
        _readings[states] = weakref.ref(reading)
    if view is not None and view not in _passed:
        _passed[view] = None
    if view is not None and not any(view is one for one in reading.views):
        reading.views.append(view)
    return reading


def _known(states: Tensor) -> Reading | None:
    known = _readings.get(states)
    reading: Reading | None = known() if known is not None else None
    return reading if reading is not None and reading.is_of(states) else None


def opened(states: Tensor) -> tuple[Tensor, Reading | None, Tensor | None]:
    """A tensor as an operator takes it, outside of autograd, with what it has in common with other
    operators that read it, and their token. Rows that wait for their values
    (:mod:`dgl_heta.features.deferred`) are computed."""
    if type(states) not in (Tensor, torch.nn.Parameter):
        states = states.contiguous()
    reading = reading_of(states)
    return states.detach(), reading, None if reading is None else reading.token


def array_of(reading: Reading | None, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
    """The array that an operator adds a tensor's gradient to, as the operator has the tensor's
    shape; one that nobody reads if the tensor wants no gradient."""
    if reading is None:
        return new_zeros(shape, dtype).numpy()
    array: np.ndarray = reading.array().view(tuple(shape)).numpy()
    return array


def done(reading: Reading | None, like: Tensor) -> Tensor | None:
    """The gradient of the token: the operator has added what it has."""
    return None if reading is None else like.new_zeros(())
