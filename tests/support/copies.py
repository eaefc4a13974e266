"""Jobs that run in copies of a process which has imported what takes long.

Importing torch and DGL takes seconds, more than most jobs of the tests. `python -m
tests.support.copies MODULE` imports a module once; for each job, a file, a copy of the process
calls `MODULE.main(job)`, which may make copies of its own. :func:`copies` starts such a process,
one for all tests of this one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


class Copies:
    """The process, as those see it who have jobs for it; one job at a time."""

    def __init__(self, module: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                       "DGLBACKEND": "pytorch",
                       "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.copies", module], env=environment, cwd=ROOT,
            start_new_session=True, stdin=subprocess.PIPE, text=True)

    def run(self, job: Path, given_up: Callable[[], bool]) -> tuple[int | None, str]:
        """Run a job; its exit status, None if it was given up, and what it printed. No process of
        it is left."""
        group, ended = _files(job)
        for file in (group, ended):
            file.unlink(missing_ok=True)
        assert self._process.stdin is not None
        print(job, file=self._process.stdin, flush=True)
        assert until(lambda: group.exists() or self._process.poll() is not None, PATIENCE)
        while not ended.exists() and not given_up():
            assert self._process.poll() is None, "the process that has jobs done has ended"
            time.sleep(0.02)
        status = int(ended.read_text()) if ended.exists() else None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(group.read_text()), signal.SIGKILL)
        assert until(ended.exists)
        return status, job.with_suffix(".log").read_text(errors="replace")

    def end(self) -> None:
        """End the process, which has no job."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def copies(module: str) -> Copies:
    """The process that has imported a module; it ends with this one."""
    found = Copies(module)
    atexit.register(found.end)
    return found


def within(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds, from now, are over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _files(job: Path) -> tuple[Path, Path]:
    """Which the process writes: the process group of the job; its status, when it has ended."""
    return job.with_suffix(".group"), job.with_suffix(".ended")


def main() -> None:
    """Run the jobs whose files are read from standard input."""
    module = importlib.import_module(sys.argv[1])
    gc.collect()
    gc.freeze()  # else each copy walks through all that was imported, and gets pages of its own
    for line in sys.stdin:
        job = Path(line.rstrip("\n"))
        copy = os.fork()
        if not copy:
            _run(module.main, job)
        group, ended = _files(job)
        write(group, str(copy))
        _, status = os.waitpid(copy, 0)
        write(ended, str(status))


def _run(main: Callable[[Path], int], job: Path) -> None:
    """Do a job as a process group of its own, and end the process."""
    status = 1
    try:
        os.setsid()
        print_to(job.with_suffix(".log"))
        status = main(job)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def print_to(log: Path) -> None:
    """Send what this process prints to a file."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, 1)
    os.dup2(opened, 2)


def write(file: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text)
    os.replace(part, file)


if __name__ == "__main__":
    main()
