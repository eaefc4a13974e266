"""Seconds of what a program does, on a GPU without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceSeconds:
    """Adds up seconds: of the host, or on a GPU those in which its stream came from the beginning
    of each body to the end. Events note both and are read once they have passed."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._ahead: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def timed(self, device: torch.device) -> Iterator[None]:
        """Add the seconds of the body, which works on a device; not those of one that fails."""
        if device.type != "cuda":
            start = time.perf_counter()
            yield
            self._passed += time.perf_counter() - start
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream(device))
        yield
        end.record(torch.cuda.current_stream(device))
        self._ahead.append((begin, end))
        self._read()

    def add(self, seconds: float) -> None:
        """Add seconds that were measured otherwise."""
        self._passed += seconds

    @property
    def total(self) -> float:
        """All seconds; waits for the GPU to have come to the end."""
        if self._ahead:
            self._ahead[-1][1].synchronize()
            self._read()
        return self._passed

    def _read(self) -> None:
        while self._ahead and self._ahead[0][1].query():
            begin, end = self._ahead.popleft()
            self._passed += begin.elapsed_time(end) / 1000
