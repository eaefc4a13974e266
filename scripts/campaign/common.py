"""What the campaigns share: trials in directories of their own, processes, a table of outcomes.

A campaign is a list of trials. Each has a kind, which is a row of the table, and does one bad
thing to one command in an empty directory. It returns the outcome in a word or two ("refused",
"resumed") or raises :class:`Bad` with what a user would complain about. Everything a trial does
follows from the campaign's seed and the trial's number, so one can be run again alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
import temporary  # noqa: E402

work_dir = functools.partial(temporary.work_dir, name="campaign")
CLI = [sys.executable, "-m", "dgl_heta"]
MARK = "HETA_CAMPAIGN"  # in the environment of everything that a trial starts
LIMIT_S = 120.0


class Bad(Exception):
    """What a user would complain about."""


Do = Callable[[Path, random.Random], str]


@dataclass(frozen=True)
class Trial:
    """One try: `do(directory, random)` in an empty directory returns the outcome or raises Bad."""

    kind: str
    do: Do


@dataclass
class Row:
    """The trials of a kind: how they came out, the longest, what was bad."""

    outcomes: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    bad: list[str] = field(default_factory=list)


def parser(doc: str | None, name: str, trials: int) -> argparse.ArgumentParser:
    """The options that all campaigns have."""
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Example: python scripts/campaign/{name}.py --trials 20 --seed 7")
    options.add_argument("--trials", type=int, default=trials, metavar="N",
                         help=f"how many (default: {trials})")
    options.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    options.add_argument("--trial", type=int, metavar="I", help="only this one, as it was drawn")
    options.add_argument("--minutes", type=float, metavar="M", help="begin no trial after this")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write all outcomes here")
    options.add_argument("--work-dir", type=Path, metavar="DIR",
                         help="where the temporary directory goes (default: the system's)")
    return options


def run(args: argparse.Namespace, root: Path, draw: Callable[[random.Random], Trial]) -> int:
    """Draw and do the trials, print the table; returns the exit status, 1 if one was bad.

    Stopped by SIGINT or SIGTERM it prints the table of what was done.

    Parameters
    ----------
    root : a directory in which each trial gets an empty one of its own.
    draw : makes a trial; what it draws comes from the generator that it is given.
    """
    rows: dict[str, Row] = {}
    stopped = False
    try:
        _do(args, root, draw, rows)
    except (KeyboardInterrupt, SystemExit):  # what was found until then counts
        stopped = True
    done = sum(row.outcomes.total() for row in rows.values())
    print(_table(rows))
    bad = sum(len(row.bad) for row in rows.values())
    print(f"\n{done} trials with seed {args.seed}: {bad} bad" + ", then stopped" * stopped)
    if args.json:
        args.json.write_text(json.dumps({
            "seed": args.seed, "trials": done, "bad": bad,
            "kinds": {kind: {"outcomes": dict(row.outcomes), "longest_s": round(row.longest_s, 2),
                             "bad": row.bad} for kind, row in rows.items()}}, indent=1) + "\n")
    return 1 if bad or stopped or not done else 0


def _do(args: argparse.Namespace, root: Path, draw: Callable[[random.Random], Trial],
        rows: dict[str, Row]) -> None:
    until = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    numbers = range(args.trials) if args.trial is None else [args.trial]
    for done, number in enumerate(numbers, 1):
        if time.monotonic() > until:
            break
        generator = random.Random(f"{args.seed}-{number}")
        trial = draw(generator)
        row = rows.setdefault(trial.kind, Row())
        directory = root / f"trial-{number}"
        directory.mkdir()
        started = time.monotonic()
        try:
            outcome = trial.do(directory, generator)
        except Bad as fault:
            outcome = "BAD"
            row.bad.append(f"trial {number}: {fault}")
            print(f"BAD {trial.kind}, trial {number}: {fault}", file=sys.stderr, flush=True)
        row.outcomes[outcome] += 1
        row.longest_s = max(row.longest_s, time.monotonic() - started)
        remove(directory)
        _progress(done, len(numbers), trial.kind)


def _table(rows: Mapping[str, Row]) -> str:
    lines = ["| kind | trials | outcomes | longest, s | bad |",
             "| --- | ---: | --- | ---: | ---: |"]
    for kind, row in sorted(rows.items()):
        outcomes = ", ".join(f"{count} {name}" for name, count in row.outcomes.most_common())
        lines.append(f"| {kind} | {row.outcomes.total()} | {outcomes} | {row.longest_s:.1f} | "
                     f"{len(row.bad)} |")
    return "\n".join(lines)


def _progress(done: int, of: int, kind: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{of} {kind[:60]:60}", end="\n" if done == of else "", file=sys.stderr,
              flush=True)


# --- processes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its status (negative: the signal), output and seconds."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """The last line that it wrote."""
        return next((line for line in reversed((self.out + "\n" + self.err).splitlines())
                     if line.strip()), "")

    def clean(self) -> None:
        """Raise Bad for a traceback, a signal of its own, or no limit in its messages."""
        text = self.out + self.err
        if "Traceback (most recent call last)" in text:
            raise Bad("traceback: " + text[text.index("Traceback"):][-400:].replace("\n", " | "))
        if self.status in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, 139, 135, 134):
            raise Bad(f"ended by signal, status {self.status}: {self.last[:200]}")


def environment(mark: str, **more: str) -> dict[str, str]:
    """For a command of a trial; `mark` finds all processes that come of it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DGL_HETA_")
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return {**kept, "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1", "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]),
            MARK: mark, **more}


class Running:
    """A command that runs, in a session of its own, its output in files of a directory: its own,
    or `said`, where its own may be full."""

    def __init__(self, command: Sequence[str], directory: Path, said: Path | None = None,
                 **more: str) -> None:
        self.mark = f"{os.getpid()}-{directory.name}-{time.monotonic_ns()}"
        self.files = [(said or directory) / f".{self.mark}.{name}" for name in ("out", "err")]
        self.started = time.monotonic()
        with self.files[0].open("wb") as out, self.files[1].open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment(self.mark, **more), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=_as_from_a_terminal)

    def ended(self, limit_s: float = LIMIT_S) -> Ended:
        """Wait for the end.

        Raises
        ------
        Bad
            It did not end within the limit; everything of it is killed.
        """
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise Bad(f"did not end within {limit_s:g} s") from None
        seconds = time.monotonic() - self.started
        out, err = (file.read_text(errors="replace") for file in self.files)
        return Ended(self.process.returncode, out, err, seconds)

    def processes(self) -> dict[int, str]:
        """All living processes that came of it, by their mark: pid and command line."""
        return marked(self.mark)

    def none_left(self, limit_s: float) -> float:
        """Wait until no process of it lives; returns the seconds.

        Raises
        ------
        Bad
            Some live after the limit; they are killed.
        """
        started = time.monotonic()
        while left := self.processes():
            if time.monotonic() - started > limit_s:
                self.kill_all()
                raise Bad(f"{len(left)} processes left after {limit_s:g} s: "
                          f"{next(iter(left.values()))[:120]}")
            time.sleep(0.05)
        return time.monotonic() - started

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _as_from_a_terminal() -> None:
    """Signals that a shell's background jobs ignore, and what nohup ignores, end this process."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def call(command: Sequence[str], directory: Path, limit_s: float = LIMIT_S,
         said: Path | None = None, **more: str) -> Ended:
    """Run a command to its end; nothing of it may be left a few seconds later."""
    running = Running(command, directory, said, **more)
    ended = running.ended(limit_s)
    running.none_left(5.0)
    return ended


def undisturbed(ended: Ended) -> Ended:
    """The command as it ends when nothing happens to it; that it fails ends the campaign."""
    if ended.status:
        raise SystemExit(f"error: undisturbed, it fails: {ended.out}{ended.err}")
    return ended


def marked(mark: str) -> dict[int, str]:
    """Living processes that have a mark in their environment."""
    wanted, found = os.fsencode(f"{MARK}={mark}"), {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            process = Path("/proc") / name
            if wanted not in (process / "environ").read_bytes().split(b"\0"):
                continue
            if re.search(r"\) Z ", (process / "stat").read_text()):
                continue
            found[int(name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(
                errors="replace")
        except OSError:
            continue
    return found


def remove(directory: Path) -> None:
    """Remove a trial's directory, whatever rights it left there."""
    subprocess.run(["rm", "-rf", str(directory)], check=False)
