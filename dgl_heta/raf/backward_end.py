"""Run actions when a backward pass ends.

PyTorch calls hooks when a gradient of one parameter is there; it has none for the end of a pass.
Its engine takes callbacks for the pass that is under way, so any hook that runs in it queues one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class BackwardEnd:
    """Runs actions once at the end of each backward pass that it hears of.

    Attributes
    ----------
    actions : called in order, without arguments.
    """

    def __init__(self) -> None:
        self.actions: list[Callable[[], None]] = []
        self._pending = False

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Hear of backward passes from the gradients of parameters."""
        def hear(_: Tensor) -> None:
            self.under_way()

        hear.dgl_heta = True  # type: ignore[attr-defined]
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(hear)

    def under_way(self) -> None:
        """Note that a backward pass is under way; called in it, any number of times."""
        if not self._pending:
            self._pending = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)

    def forget(self) -> None:
        """Forget a pass that failed."""
        self._pending = False

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Let backward passes of the body end without actions."""
        before, self._pending = self._pending, True
        try:
            yield
        finally:
            self._pending = before

    def _end(self) -> None:
        self._pending = False
        for action in self.actions:
            action()
