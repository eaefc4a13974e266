"""When an epoch of training ends in a script, which only its data loader knows.

An epoch is one pass over a data loader in which a backward pass ends, or in which the wrapped
modules are in training mode with gradients: a trainer without a node to train on takes part, too.
A loader that is left early has ended when it is started again, or, if the script has let it go,
when any other one is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Epochs:
    """The epochs of training in this process.

    Attributes
    ----------
    seeds : nodes of this trainer in the data loader that was started or ended last.
    before : called at the end of each epoch, before the modules are told.
    """

    def __init__(self) -> None:
        self.seeds = 0
        self.before: list[Callable[[], None]] = []
        self._modules: list[tuple[nn.Module, Callable[[int], None]]] = []
        # Loader → backward passes when it was started, and its nodes. Weak, and no ids: a new one
        # may have the id of one that is gone, on one trainer and not on another.
        self._open: dict[weakref.ref[Any], tuple[int, int]] = {}
        self._number = self._passes = 0

    def add(self, module: nn.Module, ended: Callable[[int], None]) -> None:
        """Call `ended` with the number of each epoch that a module was trained in."""
        self._modules.append((module, ended))

    def trained(self) -> None:
        """Note that a backward pass has ended."""
        self._passes += 1

    def started(self, loader: Any, seeds: int) -> None:
        """Begin a pass over a data loader, with so many nodes of this trainer."""
        started = weakref.ref(loader)
        for left in [left for left in self._open if left() is None or left == started]:
            before, of_left = self._open[left]
            self._end(left, of_left, self._passes > before)
        self.seeds = seeds
        self._open[started] = self._passes, seeds

    def ended(self, loader: Any, seeds: int) -> None:
        """End the pass of a data loader, which has no batch left."""
        ended = weakref.ref(loader)
        if ended in self._open:
            # A trainer without a labelled node has no backward pass, but its epoch ends with the
            # others': workers that average models once an epoch wait for it.
            self._end(ended, seeds, self._passes > self._open[ended][0] or (
                torch.is_grad_enabled() and all(
                    module.training for module, _ in self._modules)))

    def _end(self, loader: weakref.ref[Any], seeds: int, training: bool) -> None:
        del self._open[loader]
        self.seeds = seeds
        if training and self._modules:
            self._number += 1
            for action in self.before:
                action()
            for _, ended in self._modules:
                ended(self._number)

