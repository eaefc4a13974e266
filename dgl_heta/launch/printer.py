"""Printing that may have to wait for who reads it, on a thread: nothing else waits."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable

TOLD_EACH = 1 << 16  # characters, or when nothing is left to print


class Printer:
    """Prints lines in order; says how far it is, so that who sends them can wait.

    Parameters
    ----------
    show : prints a line, as (label, stream, text).
    printed : gets a source, how many characters of its lines are printed (with a line's end each),
        and at first the error where nothing more can be printed; lines then count as printed.

    Attributes
    ----------
    error : that error, if there is one.
    """

    def __init__(self, show: Callable[[str, str, str], None],
                 printed: Callable[[int, int, OSError | None], None]) -> None:
        self.show, self.printed = show, printed
        self.lines: queue.SimpleQueue[tuple[int, str, str, str] | None] = queue.SimpleQueue()
        self.given_up = False
        self.error: OSError | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def put(self, source: int, label: str, stream: str, text: str) -> None:
        """Print a line, sooner or later."""
        self.lines.put((source, label, stream, text))

    def close(self, limit: float | None) -> bool:
        """Wait until all is printed, or for so many seconds; returns whether it is."""
        self.lines.put(None)
        self.thread.join(limit)
        self.given_up = self.thread.is_alive()
        return not self.given_up

    def _run(self) -> None:
        sizes: Counter[int] = Counter()
        while (line := self.lines.get()) is not None and not self.given_up:
            source, label, stream, text = line
            error = None
            if self.error is None:
                try:
                    self.show(label, stream, text)
                except OSError as caught:
                    error = self.error = caught
            sizes[source] += len(text) + 1
            if error is not None or sizes[source] >= TOLD_EACH or self.lines.empty():
                for each, size in sizes.items():
                    self.printed(each, size, error)
                sizes.clear()
