"""Mixed precision: products of matrices in bfloat16, sums over edges and relations in float32.

Within :func:`mixed_precision` PyTorch's operators follow the rules of its autocast; kernels and
merges take float32, and states between layers, what workers send and parameters stay float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from dgl_heta.nn.joined import Joined

_DEVICE: ContextVar[str | None] = ContextVar("mixed precision", default=None)
"""The type of device that computes in mixed precision; None if none does."""


@contextmanager
def mixed_precision(device: torch.device, on: bool = True) -> Iterator[None]:
    """Compute forward passes in mixed precision."""
    before = _DEVICE.set(device.type if on else None)
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=on):
            yield
    finally:
        _DEVICE.reset(before)


def widened(x: Tensor) -> Tensor:
    """The tensor, in mixed precision as float32 where an operator has made it bfloat16."""
    return x.float() if x.dtype == torch.bfloat16 and is_mixed() else x


def all_widened(values: Sequence[Tensor]) -> Sequence[Tensor]:
    """:func:`widened` of several tensors; one that is there several times stays one."""
    if not is_mixed():
        return values
    if isinstance(values, Joined):
        return Joined(widened(values.whole), values.sizes)
    wide = {id(x): widened(x) for x in values}
    return [wide[id(x)] for x in values]


def is_mixed() -> bool:
    """Return whether this is within :func:`mixed_precision`."""
    return _DEVICE.get() is not None


class InFloat32:
    """A kernel that is given float32 in place of bfloat16, outside of autocast.

    Methods named in `plain` are PyTorch's operators alone, which autocast knows better.
    """

    def __init__(self, kernel: Any, plain: Collection[str] = ()) -> None:
        self._kernel, self._plain = kernel, plain

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._kernel, name)
        if not callable(attribute) or name in self._plain:
            return attribute

        def method(*args: Any) -> Any:
            given = [_widened(arg) for arg in args]
            with torch.autocast(_DEVICE.get() or "cpu", enabled=False):
                return attribute(*given)

        return method


def _widened(arg: Any) -> Any:
    if isinstance(arg, Tensor):
        return widened(arg)
    tensors = isinstance(arg, Joined) or (
        isinstance(arg, list | tuple) and all(isinstance(x, Tensor) for x in arg))
    return all_widened(arg) if tensors else arg
