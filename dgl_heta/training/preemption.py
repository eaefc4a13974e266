"""SIGTERM in a training: after which step all workers save what they have, and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import HetaError, several
from dgl_heta.system.signals import handle


class Position(NamedTuple):
    """How far a training is: the epochs that have ended, and the steps of the next one."""

    epoch: int = 0
    step: int = 0

    @property
    def saved(self) -> str:
        """`epochs 1 to 3 and 7 steps of epoch 4 are saved`."""
        parts = ["epoch 1" if self.epoch == 1 else f"epochs 1 to {self.epoch}"] * bool(self.epoch)
        if self.step:
            parts.append(f"{several(self.step, 'step')} of epoch {self.epoch + 1}")
        one = self in (Position(1), Position(0, 1))
        return f"{' and '.join(parts)} {'is' if one else 'are'} saved"


class Begun(NamedTuple):
    """An epoch after some of its steps, and what else than the model it goes on from."""

    step: int = 0
    state: Mapping[str, Tensor] = MappingProxyType({})


class PreemptedError(HetaError):
    """SIGTERM ended a training, whose checkpoint of a position is saved."""

    exit_status = 128 + signal.SIGTERM

    def __init__(self, at: Position, run_dir: Path) -> None:
        super().__init__(f"ended by SIGTERM; {at.saved}: go on by the same command with --resume "
                         f"--run-dir {run_dir}")


class Preemption:
    """Notes SIGTERM while its body runs, in which that ends no process.

    A worker that is asked to end must not leave the others waiting, and they may be asked a step
    later, or never. So all ask each other after each step, and hear the answer after the next: an
    answer at once would let none begin a step before the slowest has ended the last.
    """

    def __init__(self, world: Comm) -> None:
        self._world, self._asked = world, False
        self._answer: Callable[[], Tensor] | None = None
        self._before: Any = None

    def __enter__(self) -> Preemption:
        if (threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN):
            self._before = handle(signal.SIGTERM, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if error is None and self._answer is not None:
            self._answer()  # none may leave while another still asks

    def agreed(self) -> bool:
        """Return whether any worker was to end at the last call; every worker must call it
        alike."""
        if self._answer is not None and self._answer().item():
            self._answer = None
            return True
        asked = torch.tensor([float(self._asked)])
        self._answer = self._world.begin_all_reduce(asked, "max", "control")
        return False

    def _note(self, number: int) -> None:
        self._asked = True


def generators(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on from states that :func:`generators` gave, as far as they are there."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
