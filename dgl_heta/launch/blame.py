"""Which of several processes that failed is the cause, and how that is said.

When one process of a job fails, the others soon fail too, for they have lost a peer. Some tell so,
by their exit status or in what they write; the one to blame is who has failed for a reason of its
own.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from dgl_heta.errors import EXIT_PEER, HetaError, InputError

GRACE_S = 2.0  # how long to wait for a better cause than a process that may have lost another one
LAST_LINES = 60
LOST_PEER = re.compile(  # how a process says that another one is gone
    r"(closed|reset) by peer|broken pipe|connection refused|PeerLostError|DistConnectError", re.I)
TIMED_OUT = re.compile(r"timed? ?-?out", re.I)  # how it says that another one did not answer
SECONDARY = (signal.SIGABRT, signal.SIGPIPE)  # signals that a lost peer can bring about


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, when (monotonic), why it could not be started."""

    status: int
    at: float
    reason: str = ""


@dataclass
class Watched:
    """A process under watch.

    Attributes
    ----------
    title : what messages call it.
    honest : whether it exits with `EXIT_PEER` whenever it has lost a peer, so that any other
        exit status is a cause for certain.
    lines : the last that it wrote.
    last_error : the last line on its standard error that is not blank.
    pid : where it is a process of this machine.
    done : whether it has done its work, as far as that can be known; one that ends without has
        failed, whatever its exit status.
    stopped : whether its host says that it is stopped (SIGSTOP, a debugger).
    """

    title: str
    honest: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    last_error: str = ""
    ended: Ended | None = None
    pid: int | None = None
    done: bool = True
    stopped: bool = False

    @property
    def is_stopped(self) -> bool:
        """True if it is there and stopped, so that others wait for it in vain."""
        if self.ended is not None or self.pid is None:
            return self.stopped and self.ended is None
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except OSError:
            return False

    @property
    def failed(self) -> bool:
        """True if it has ended, and not well."""
        return self.ended is not None and (self.ended.status != 0 or not self.done)

    @property
    def input_error(self) -> str | None:
        """Its complaint about the input, if that is why it ended."""
        return self._said if self.ended and self.ended.status == InputError.exit_status else None

    @property
    def told(self) -> str | None:
        """The cause in its own words, if it is a process of ours that gave one."""
        if self.ended and (self.ended.status == EXIT_PEER
                           or (self.honest and self.ended.status == 1)):
            return self._said
        return None

    @property
    def _said(self) -> str | None:
        """The error that it wrote last, if processes of ours write such."""
        said = self.last_error.removeprefix("error: ")
        return said if said != self.last_error else None

    @property
    def last_words(self) -> str:
        """The last that it wrote, as details of an error."""
        return "\n".join(self.lines) or "(it wrote nothing)"


class Guilt(IntEnum):
    """Kinds of failures, beginning with those that are a cause for certain."""

    WRONG_INPUT = 0
    KILLED = 1
    FAILED = 2
    LOST_PEER = 3


def guilt(process: Watched) -> Guilt:
    """Return the kind of a process's failure."""
    assert process.ended is not None
    status = process.ended.status
    if process.input_error is not None:
        return Guilt.WRONG_INPUT
    if status < 0 and -status not in SECONDARY:
        return Guilt.KILLED
    reads_as_lost = (status < 0 or not process.honest) and any(
        LOST_PEER.search(line) for line in process.lines)
    return Guilt.LOST_PEER if status == EXIT_PEER or reads_as_lost else Guilt.FAILED


def cause(processes: Iterable[Watched], now: float, final: bool) -> Watched | None:
    """The process to blame, once one has failed.

    One that may merely have lost another is not the cause, so that there is None for `GRACE_S`,
    unless this is the `final` look. Of equals it is who failed first. Where one has lost another,
    or waited for it in vain, and a third is stopped, that is the cause.
    """
    processes = list(processes)
    failed = [(guilt(p), p.ended.at, number, p) for number, p in enumerate(processes)
              if p.failed and p.ended]
    if not failed:
        return None
    level, _, _, first = min(failed)
    certain = level <= Guilt.KILLED or (
        level == Guilt.FAILED and first.honest and first.ended is not None
        and first.ended.status >= 0)
    waited = now - min(at for _, at, _, _ in failed)
    if not (certain or final or waited >= GRACE_S):
        return None
    if level == Guilt.LOST_PEER or (level == Guilt.FAILED and any(
            TIMED_OUT.search(line) for line in first.lines)):
        return next((p for p in processes if p.is_stopped), first)
    return first


def failure(process: Watched, all_of_them: str = "all processes",
            short_files: Callable[[], Sequence[str]] = tuple,
            others: Iterable[Watched] = ()) -> HetaError:
    """The error for a process to blame; its details are the last that it wrote.

    Parameters
    ----------
    others : of which one may have left well, and too early: where the process lost another one.
    short_files : says which files that it may have mapped are shorter than they were written; asked
        where that is what its end means.
    """
    if process.input_error is not None:
        return InputError(process.input_error)
    end = process.ended
    left = [p for p in others if p.ended and not p.failed and end and p.ended.at <= end.at
            ] if end and guilt(process) == Guilt.LOST_PEER else []
    if process.told is not None:
        early = (f"{left[0].title} ended with exit status 0 before its work was done, as by "
                 "os._exit(0) or sys.exit(0); ") if left else ""
        return HetaError(f"{early}{process.title}: {process.told}; {all_of_them} were ended")
    if end is None:
        return HetaError(f"{process.title} was stopped (SIGSTOP or a debugger), and the others "
                         f"waited for it in vain; {all_of_them} were ended",
                         details=process.last_words)
    if end.reason:
        how = f"could not be started: {end.reason}"
    elif end.status < 0:
        how = f"was killed by signal {-end.status} ({_signal_name(-end.status)})"
        if end.status == -signal.SIGBUS:
            how += _of_mapped(short_files())
    elif end.status == 0:
        how = "ended with exit status 0 before its work was done, as by os._exit(0)"
    else:
        how = f"failed with exit status {end.status}"
    if left:
        how += f", after {left[0].title} had ended with exit status 0"
    return HetaError(f"{process.title} {how}; {all_of_them} were ended", details=process.last_words)


def _of_mapped(short: Sequence[str]) -> str:
    """Return the likely cause of a SIGBUS, for a message."""
    if short:
        shown = ", ".join(short[:3]) + (f" and {len(short) - 3} more" if len(short) > 3 else "")
        return f", for files that it had open were cut: {shown}; write the store again"
    return (", as when a file that it had open is cut, its disk fails, or shared memory (/dev/shm) "
            "has no room")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of real time"
