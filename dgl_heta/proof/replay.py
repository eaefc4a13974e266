"""Run a copy of a module once, apart from the run that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dgl_heta.nn.kernels import FusedKernel, TorchKernel, kernel_in_use, use_kernel
from dgl_heta.proof.copies import noise, perturbed
from dgl_heta.proof.outside import Outside
from dgl_heta.system.nested import Path, items_of

_DROPOUT = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
            functional.alpha_dropout, functional.feature_alpha_dropout, torch.dropout,
            torch.dropout_, torch.alpha_dropout, torch.feature_dropout}
_LESS = {Tensor.float, Tensor.half, Tensor.bfloat16}
_LESS_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _Exactly(TorchFunctionMode):
    """Dropout is the identity, and nothing is converted to less precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def _wide(self, value: Any) -> Any:
        return self._dtype if isinstance(value, torch.dtype) and value in _LESS_DTYPES else value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if func in _LESS and self._dtype == torch.float64:
            return Tensor.to(args[0], self._dtype)
        kwargs = {k: self._wide(v) for k, v in kwargs.items()} if kwargs else {}
        return func(*(self._wide(x) if isinstance(x, torch.dtype) else x for x in args), **kwargs)


@dataclass
class Reads:
    """Rows of tables that a module read itself: leaves, whose gradients are compared."""

    dtype: torch.dtype
    leaves: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, name: str, ids: Tensor, rows: Tensor) -> Tensor:
        """Rows (ids, width) as the module is given them."""
        given = perturbed(rows, ids.detach(), self.dtype).requires_grad_()
        self.leaves.append((name, ids.detach().reshape(-1), given))
        return given


@dataclass
class Outcome:
    """The results of a copy.

    Attributes
    ----------
    outputs : tensors in what it returned, by path.
    trace : (module's name, its tensors by path) in the order in which modules ended.
    reads : see :class:`Reads`.
    module : the copy.
    leaves : arguments whose gradients are compared, with their ids, by path.
    drawn : generators that random numbers were drawn from: their places, and marks before and after
        (:class:`Outside`).
    """

    outputs: dict[Path, Tensor]
    trace: list[tuple[str, dict[Path, Tensor]]]
    reads: Reads
    module: nn.Module | None = None
    leaves: dict[Path, tuple[np.ndarray, Tensor]] = field(default_factory=dict)
    drawn: list[list[int]] = field(default_factory=list)


def _rows_in(value: Any) -> dict[Path, Tensor]:
    """Tensors of numbers with a fraction in what a module returned, by path."""
    return {path: x for path, x in items_of(Tensor, value) if x.is_floating_point()}


@contextmanager
def apart(dtype: torch.dtype, outside: Outside, compiled: bool) -> Iterator[None]:
    """For the body: gradients on, autocast off; afterwards everything is as it was.

    Parameters
    ----------
    compiled : whether our own kernels are compiled for the dtype. Otherwise operators of PyTorch
        stand for them: compiling would take longer than all else.
    """
    default, kernel = torch.get_default_dtype(), kernel_in_use()
    with ExitStack() as stack:
        stack.enter_context(outside.kept())
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(dtype)
        if not compiled and type(kernel) is FusedKernel:
            stack.callback(use_kernel, kernel)
            use_kernel(TorchKernel())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, torch.bfloat16, enabled=False))
        stack.enter_context(_Exactly(dtype))
        yield


def run(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], reads: Reads) -> Outcome:
    """Call a copy, and note what its parts return; inside :func:`apart`."""
    trace: list[tuple[str, dict[Path, Tensor]]] = []
    handles = [part.register_forward_hook(_note(name, trace))
               for name, part in module.named_modules() if name]
    try:
        returned = module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    outputs = _rows_in(returned)
    trace.append(("", outputs))
    return Outcome(outputs, trace, reads)


def _note(name: str, trace: list[tuple[str, dict[Path, Tensor]]]) -> Callable[..., None]:
    def note(module: Any, args: Any, output: Any) -> None:
        trace.append((name, _rows_in(output)))
    note.heta_own = True  # type: ignore[attr-defined]  # modules are computed as without it
    return note


def gradients(pairs: Sequence[tuple[Tensor, int]], inputs: Sequence[Tensor],
              last: Sequence[Tensor] = ()) -> list[Tensor | None]:
    """Gradients of inputs for random gradients of outputs.

    Parameters
    ----------
    pairs : output rows with the seed of their gradient.
    last : tensors that outputs are to depend on with gradient 0 (ends of chains of exchanges).
    """
    wanted = [x for x in inputs if x.requires_grad]
    outputs = [(x, noise(seed, x, x.dtype)) for x, seed in pairs if x.requires_grad]
    outputs += [(x, torch.zeros_like(x)) for x in last if x.requires_grad]
    if not outputs or not wanted:
        return [None] * len(inputs)
    # Of sums, whose gradient is 1: given others, torch compares sizes by sympy, which it imports.
    grads = iter(torch.autograd.grad([(x * g).sum() for x, g in outputs], wanted,
                                     allow_unused=True))
    return [next(grads) if x.requires_grad else None for x in inputs]
