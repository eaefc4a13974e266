"""The workers of this machine: a process per rank, each with a log in the run directory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgl_heta.errors import HetaError, quoted
from dgl_heta.launch.blame import Ended, Watched
from dgl_heta.launch.supervisor import KILL_AFTER_S, SAVE_S, Interrupted, Supervisor
from dgl_heta.system.atomic_files import plainly
from dgl_heta.system.checksums import write_signed

PROGRAM = "dgl_heta.launch.worker"
DRAIN_S = 1.0  # for the last events of a worker that has ended
EVENTS = "DGL_HETA_EVENTS"
"""The variable that names the pipe for a worker's events."""
JOB, NEXT_JOB = "job.json", "job.next.json"
"""Files with the job of a run's workers; the second, of a run that is to go on, until they are at
work."""
AT_WORK = ("step", "epoch")
"""Events by which a training is under way: its workers have refused nothing."""
Report = Callable[[dict[str, Any]], None]


class Terminated(SystemExit):
    """A signal that is not Ctrl-C has ended a job, and all its workers."""


def run_workers(job: dict[str, Any], workers: int, run_dir: Path, report: Report,
                program: str = PROGRAM) -> dict[str, Any]:
    """Run a job on workers of this machine; returns worker 0's summary.

    What they print is in `run_dir/worker-RANK.log`; `report` gets what they tell. `program` is the
    module that a worker runs, which calls :func:`dgl_heta.launch.worker.worker_main`.

    Raises
    ------
    InputError
        A worker found the input wrong.
    HetaError
        A worker raised or died; all others are ended, within seconds.
    """
    return LocalWorkers(job, workers, run_dir, report, program).run()


class LocalWorkers(Supervisor):
    """The processes of a job; each tells what happens by a pipe of its own, in lines of JSON."""

    all_of_them = "all workers"

    def __init__(self, job: dict[str, Any], workers: int, run_dir: Path, report: Report,
                 program: str = PROGRAM) -> None:
        super().__init__()
        self.program = program
        self.job, self.workers, self.run_dir, self.report = job, workers, run_dir, report
        self.children: list[subprocess.Popen[bytes]] = []
        self.meeting: int | None = None
        self.summary: dict[str, Any] | None = None
        self.unaccepted = False
        self.leave_by = math.inf

    def run(self) -> dict[str, Any]:
        """Run the job to its end; returns the summary."""
        try:
            self.supervise()
        except Interrupted:
            assert self.signalled is not None
            if self.signalled == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise Terminated(128 + self.signalled) from None
        if self.summary is None:
            raise HetaError("the workers ended without a result")
        return self.summary

    def start(self) -> None:
        job_file = self.run_dir / JOB
        if job_file.exists():  # of a run that these workers may refuse to go on with
            job_file, self.unaccepted = self.run_dir / NEXT_JOB, True
        write_signed(job_file, self.job)
        environment = self._environment()
        for rank in range(self.workers):
            self._start(rank, job_file, environment)

    def note(self, source: int, event: dict[str, Any]) -> None:
        if event["event"] == "exit":
            worker = self.processes[str(source)]
            worker.ended = Ended(event["status"], time.monotonic())
            if worker.failed:
                lines = self._log(source).read_text("utf-8", errors="replace").strip().splitlines()
                worker.lines.extend(lines)
                # Its standard output is in the same log, maybe after the error.
                errors = [line for line in lines if line.startswith("error: ")]
                worker.last_error = worker.last_error or (errors or lines or [""])[-1]
        elif event["event"] == "malformed":
            raise HetaError(f"worker {source} told what is no event: {event['line']}; "
                            f"{self.all_of_them} were ended")
        elif event["event"] == "error":
            self.processes[str(source)].last_error = f"error: {event['message']}"
        elif event["event"] == "done":
            self.processes[str(source)].done = True
        elif event["event"] == "summary":
            self._accepted()
            self.summary = {k: v for k, v in event.items() if k != "event"}
            self.leave_by = time.monotonic() + self.leave_s
        else:
            if event["event"] in AT_WORK:
                self._accepted()
            self.report(event)

    def _accepted(self) -> None:
        """The workers are at work, so the job that they were given is the run's."""
        if self.unaccepted:
            self.unaccepted = False
            (self.run_dir / NEXT_JOB).replace(self.run_dir / JOB)

    def is_over(self, running: dict[str, Watched], now: float) -> bool:
        return now >= self.leave_by

    def end(self) -> None:
        if self.unaccepted:
            with contextlib.suppress(OSError):
                (self.run_dir / NEXT_JOB).unlink(missing_ok=True)
        left = [child for child in self.children if child.poll() is None]
        # Those that train save what they have when they get SIGTERM; after anything else there is
        # nothing to wait for.
        saving = self.signalled == signal.SIGTERM
        for child in left:
            child.terminate() if saving else child.kill()
        deadline = time.monotonic() + (SAVE_S if saving else KILL_AFTER_S)
        for child in left:
            try:
                child.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self.meeting is not None:
            os.close(self.meeting)
            self.meeting = None

    def short_files(self) -> list[str]:
        from dgl_heta.store.store_files import short_files

        return short_files(self.job["store"]) if "store" in self.job else []

    def _log(self, rank: int) -> Path:
        return self.run_dir / f"worker-{rank}.log"

    def _environment(self) -> dict[str, str]:
        """Return the environment of all workers."""
        environment = {**os.environ, "WORLD_SIZE": str(self.workers),
                       "LOCAL_WORLD_SIZE": str(self.workers),
                       "DGL_HETA_LAUNCHER": str(os.getpid())}
        # OpenMP threads that spin while they wait make an epoch several times slower as soon as
        # anything else runs on the machine, the other workers for example.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Tensors of megabytes on huge pages: PyTorch returns them to the system at every step.
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        if self.workers > 1:
            # They meet in a file that is memory, which they inherit: nobody listens, nobody else
            # can open it, and it is gone with the last of them, however they end.
            self.meeting = os.memfd_create("dgl-heta-meeting")
            environment["DGL_HETA_RENDEZVOUS"] = f"/proc/self/fd/{self.meeting}"
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return environment

    def _start(self, rank: int, job_file: Path, environment: dict[str, str]) -> None:
        log = self._log(rank)
        log.unlink(missing_ok=True)
        reader, writer = os.pipe()
        with open(log, "ab", opener=plainly) as output, open(writer, "wb"):
            child = subprocess.Popen(
                [sys.executable, "-m", self.program, str(job_file)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank),
                     EVENTS: str(writer)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=[writer, *([] if self.meeting is None else [self.meeting])])
        self.children.append(child)
        self.processes[str(rank)] = Watched(f"worker {rank}", honest=True, pid=child.pid,
                                            done=False)
        told = threading.Thread(target=self._read, args=(rank, reader), daemon=True)
        told.start()
        threading.Thread(target=self._wait, args=(rank, child, told), daemon=True).start()

    def _read(self, rank: int, reader: int) -> None:
        with open(reader, "rb") as lines:
            for line in lines:
                self.events.put((rank, _event(line)))

    def _wait(self, rank: int, child: subprocess.Popen[bytes], told: threading.Thread) -> None:
        """Tell that a worker has ended, after all that it told itself."""
        child.wait()
        told.join(DRAIN_S)  # it has ended, but the thread may not have read all
        self.events.put((rank, {"event": "exit", "status": child.returncode}))


def _event(line: bytes) -> dict[str, Any]:
    """Return the event in a worker's line; "malformed" if it is none, or of a launcher's own kind.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    kind = event.get("event") if isinstance(event, dict) else None
    if (not isinstance(kind, str) or kind in ("exit", "signal", "malformed")
            or (kind == "error" and not isinstance(event.get("message"), str))):
        return {"event": "malformed", "line": quoted(line)}
    return dict(event)
