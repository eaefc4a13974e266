"""Gradients of one tensor from many operators, added in one place.

An operator that reads some rows of a tensor has a gradient of all of them, most of it zeros; a
layer has many such operators (relations times scores, sums, destinations), and autograd would fill
an array for each and add them up. Here they add to one array. Operators depend on a token, which
the tensor's :class:`_Hub` gives; when all of them have added what they have, autograd comes to the
hub, which hands the array on as the tensor's gradient.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

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


class Sink:
    """The gradient of a tensor, while a backward pass adds to it."""

    def __init__(self, like: Tensor) -> None:
        self._shape, self._dtype, self._device = like.shape, like.dtype, like.device
        self._array: Tensor | None = None
        self._pass = -1

    def array(self) -> Tensor:
        """The array to add to, of the tensor's shape, C order; zeros when a pass first asks."""
        this = torch._C._current_graph_task_id()
        if self._array is None or self._pass != this:  # what a pass has left that ended early
            self._array = new_zeros(self._shape, self._dtype, self._device)
            self._pass = this
        return self._array

    def take(self) -> Tensor | None:
        """The whole gradient, None if nobody added to it; the next pass begins with zeros."""
        found, self._array = self._array, None
        return found if self._pass == torch._C._current_graph_task_id() else None


class _Hub(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, sink: Sink) -> Tensor:
        ctx.sink = sink
        return states.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        return ctx.sink.take(), None


class Reading:
    """That a tensor is read by operators. They hold it, for as long as their graph is there.

    Attributes
    ----------
    sink : where they add its gradient.
    token : what they depend on, so that the hub comes after them.
    """

    def __init__(self, states: Tensor) -> None:
        self.version = states._version
        self.sink = Sink(states)
        self.token: Tensor = _Hub.apply(states, self.sink)


# Weak on both sides: a token keeps the tensor's graph, and so a leaf itself.
_readings: Any = WeakIdKeyDictionary()


_VIEWS = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0",
          "SqueezeBackward1"}


def _viewed(states: Tensor) -> Tensor:
    """The tensor that `states` shows in another shape, or itself: scripts make a view for each
    relation."""
    base = states._base
    if base is None or not (base.requires_grad and base.is_contiguous()
                            and states.is_contiguous() and base.shape.numel() ==
                            states.shape.numel()):
        return states
    node = states.grad_fn
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    made = base.grad_fn
    if node is None or (node is not made if made is not None
                        else getattr(node, "variable", None) is not base):
        return states  # another way leads to its memory: detached, or written to
    return base


def reading_of(states: Tensor) -> Reading | None:
    """What operators that read a tensor have in common; None if it wants no gradient.

    Its sink's array has the tensor's memory layout, but may have another shape.
    """
    if not (states.requires_grad and torch.is_grad_enabled()):
        return None
    states = _viewed(states)
    found = _known(states)
    if found is None:
        found = Reading(states)
        _readings[states] = weakref.ref(found)
    return found


def is_read(states: Tensor) -> bool:
    """Whether another operator reads the tensor already, so that there is an array to add to."""
    return _known(_viewed(states)) is not None


def _known(states: Tensor) -> Reading | None:
    known = _readings.get(states)
    found: Reading | None = known() if known is not None else None
    return found if found is not None and found.version == states._version else None


def with_memory(states: Tensor) -> Tensor:
    """The same tensor, or its values where rows wait for them
    (:mod:`dgl_heta.features.deferred`)."""
    return states if type(states) in (Tensor, torch.nn.Parameter) else states.contiguous()


def with_token(reading: Reading | None) -> tuple[Reading | None, Tensor | None]:
    """What an operator takes of a tensor that it reads: the last two arguments of `apply`."""
    return reading, None if reading is None else reading.token


def array_of(reading: Reading | None, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
    """The array that an operator adds a tensor's gradient to, as the operator has the tensor's
    shape; one that nobody reads if the tensor wants no gradient."""
    if reading is None:
        return new_zeros(shape, dtype).numpy()
    array: np.ndarray = reading.sink.array().view(tuple(shape)).numpy()
    return array


def done(reading: Reading | None, like: Tensor) -> Tensor | None:
    """The gradient of the token: the operator has added what it has."""
    return None if reading is None else like.new_zeros(())
