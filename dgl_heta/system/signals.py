"""Signals that unwind the stack, so that what was begun is removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit (128 + the number) in the body.

    Those that are handled or ignored already stay as they are; so does everything on threads other
    than the main one, which get no signals.
    """
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
