"""Run actions when a backward pass ends.

PyTorch calls hooks when a gradient of one parameter is there; it has none for the end of a pass.
Its engine takes callbacks for the pass that is under way, so any hook that runs in it queues one.

A backward pass may run others: those of reentrant checkpoints. The engine's callbacks are then for
the innermost one, whose end says nothing of the others. Who is called in the place of
`torch.autograd.backward` knows the outermost: :meth:`BackwardEnd.whole_pass`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class BackwardEnd:
    """Runs actions once at the end of each backward pass that it hears of.

    Attributes
    ----------
    actions : called in order, without arguments.
    failures : called where a pass that it heard of does not come to its end.
    """

    _hearing: ClassVar[list[BackwardEnd] | None] = None
    """Those that have heard of the pass in :meth:`whole_pass`; None outside of one."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], None]] = []
        self.failures: list[Callable[[], None]] = []
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
        if self._pending:
            return
        self._pending = True
        if BackwardEnd._hearing is not None:
            BackwardEnd._hearing.append(self)
        else:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)

    @staticmethod
    @contextmanager
    def whole_pass() -> Iterator[None]:
        """Let the body run a backward pass; actions are run after it, and none if it fails. Passes
        inside of it are parts of it."""
        if BackwardEnd._hearing is not None:
            yield
            return
        hearing: list[BackwardEnd] = []
        BackwardEnd._hearing = hearing
        try:
            yield
            with torch.no_grad():  # as in the engine's callbacks
                for end in hearing:
                    end._end()
        except BaseException:
            for end in hearing:
                end.forget()
                for tell in end.failures:
                    tell()
            raise
        finally:
            BackwardEnd._hearing = None

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
