"""Signals that this process notes, or that unwind the stack, so that what was begun is removed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NOTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that :func:`handle` is for."""

_held = threading.local()  # what this thread let through before it forked


class _Noted:
    """A handler that calls `note`."""

    def __init__(self, note: Callable[[int], object], before: Any) -> None:
        self.note, self.before = note, before

    def __call__(self, number: int, frame: object) -> None:
        self.note(number)


def handle(number: int, note: Callable[[int], object]) -> Any:
    """Let a signal to this process call `note` with its number; returns the handler of before.

    A process that this one forks has the handler of before: who ends it waits for its end.
    """
    before = signal.getsignal(number)
    signal.signal(number, _Noted(note, before))
    return before


def _before_fork() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOTED)  # Python forgets those that come


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forked() -> None:
    for number in NOTED:
        handler = signal.getsignal(number)
        if isinstance(handler, _Noted):
            signal.signal(number, handler.before or signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)


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
