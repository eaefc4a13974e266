"""Processes that belong together: started, watched, and all ended when one fails.

Local workers (`local`) and the processes of several hosts (`hosts`) are started and ended in
different ways; how they are watched, who is blamed and what a signal does is the same, and here.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from dgl_heta.launch.blame import Watched, cause, failure
from dgl_heta.system.signals import handle

TICK_S = 0.2
KILL_AFTER_S = 3.0  # between the request to end and the kill
SAVE_S = 25.0  # the same after SIGTERM; SLURM, torchrun and Kubernetes kill after 30

Events = queue.SimpleQueue[tuple[int, dict[str, Any]]]
"""Events: who reports one (a rank, a host; -1 for this process), and its fields with `event`."""


class Interrupted(Exception):
    """A signal, whose number it has, asked this process to end."""


class Supervisor(ABC):
    """Runs a set of processes to their end; :meth:`supervise` leaves none of them.

    Attributes
    ----------
    processes : what is watched, by label; filled by :meth:`start`.
    events : what happens, in order.
    signalled : the first signal that asked this process to end.
    ended_well : whether the work is done, when the rest of the processes is to end.
    """

    all_of_them = "all processes"
    """The name of all of them in messages."""

    leave_s = 10.0
    """For the rest to be gone once the work is done."""

    def __init__(self) -> None:
        self.processes: dict[str, Watched] = {}
        self.events: Events = Events()
        self.signalled: int | None = None
        self.ended_well = False

    def supervise(self) -> None:
        """Start, watch and end the processes.

        Raises
        ------
        HetaError
            One of them failed: the error tells which and why.
        Interrupted
            A signal asked this process to end.
        """
        with _signals_as_events(self.events):
            try:
                self.start()
                self._watch()
                self.ended_well = True
            finally:
                self.end()
            while self.next_event(0) is not None:  # a signal while they were ended counts too
                pass

    @abstractmethod
    def start(self) -> None:
        """Start all processes."""

    @abstractmethod
    def note(self, source: int, event: dict[str, Any]) -> None:
        """Take an event; the end of a process is noted in :attr:`processes`."""

    @abstractmethod
    def is_over(self, running: dict[str, Watched], now: float) -> bool:
        """Return whether to stop though some still run; raise what is wrong with that, if anything.
        """

    @abstractmethod
    def end(self) -> None:
        """End what is left of the processes, within seconds."""

    def short_files(self) -> list[str]:
        """Files of the store that processes read which are shorter than they were written."""
        return []

    def next_event(self, timeout: float) -> tuple[int, dict[str, Any]] | None:
        """The next event, None if there is none in time.

        Raises
        ------
        Interrupted
            It is a signal to this process.
        """
        try:
            source, event = (self.events.get(timeout=timeout) if timeout
                             else self.events.get_nowait())
        except queue.Empty:
            return None
        if event["event"] == "signal":
            self.signalled = self.signalled or event["number"]
            raise Interrupted(event["number"])
        return source, event

    def _watch(self) -> None:
        while True:
            item = self.next_event(TICK_S)
            while item is not None:
                self.note(*item)
                item = self.next_event(0)
            now = time.monotonic()
            running = {label: p for label, p in self.processes.items() if p.ended is None}
            self._raise_failure(now, final=not running)
            if not running:
                return
            if self.is_over(running, now):
                self._raise_failure(now, final=True)
                return

    def _raise_failure(self, now: float, final: bool) -> None:
        first = cause(self.processes.values(), now, final)
        if first is not None:
            raise failure(first, self.all_of_them, self.short_files, self.processes.values())


@contextlib.contextmanager
def _signals_as_events(events: Events) -> Iterator[None]:
    """Signals that ask this process to end become events, so that all is ended in order.

    Those that it ignores, as under nohup, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int) -> None:
        events.put((-1, {"event": "signal", "number": number}))

    before = {number: handle(number, note)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
              if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
