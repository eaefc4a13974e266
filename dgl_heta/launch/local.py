"""Start the workers of one machine, watch them, and end all when one fails."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.worker import EXIT_INPUT, EXIT_PEER

GRACE_S = 2.0  # how long to wait for a better cause when a worker only lost another one
STOP_S = 5.0  # between the request to end and the kill
LEAVE_S = 10.0  # for workers to be gone once the result is there


@dataclass
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    ended: float | None = None


class WorkerError(HetaError):
    """A worker failed; the details are what it wrote last."""


def launch(job: dict[str, Any], parts: int, run_dir: Path,
           report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run a job on `parts` workers of this machine; returns worker 0's summary.

    Raises
    ------
    InputError
        A worker found the input wrong.
    WorkerError
        A worker raised or died; all others are ended, within seconds.
    """
    job_file = run_dir / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    environment = {**os.environ, "WORLD_SIZE": str(parts), "LOCAL_WORLD_SIZE": str(parts),
                   "DGL_HETA_LAUNCHER": str(os.getpid())}
    # OpenMP threads that spin while they wait make an epoch several times slower as soon as
    # anything else runs on the machine, the other workers for example.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Tensors of megabytes on huge pages: PyTorch returns them to the system at every step.
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    rendezvous = None
    if parts > 1:
        from torch.distributed import TCPStore

        # The launcher keeps the store, on a port of the system's choice: no race for a port.
        rendezvous = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment["DGL_HETA_RENDEZVOUS"] = f"127.0.0.1:{rendezvous.port}"
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    workers: list[_Worker] = []
    summary: dict[str, Any] | None = None
    previous = _raise_on_terminate()
    try:
        for rank in range(parts):
            workers.append(_start(rank, job_file, run_dir, environment, events))
        deadline = math.inf
        while any(w.ended is None for w in workers) and time.monotonic() < deadline:
            found = _forward(events, report)
            if found is not None:
                summary, deadline = found, time.monotonic() + LEAVE_S
            failed = _first_failure(workers)
            if failed is not None:
                _raise_for(failed, workers)
        if summary is None and (failed := _first_failure(workers, final=True)) is not None:
            _raise_for(failed, workers)
        for _ in range(50):  # the last events may still be in the reader's hands
            summary = _forward(events, report) or summary
            if summary is not None:
                break
        if summary is None:
            raise WorkerError(f"the workers ended without a result; see {run_dir}")
        return summary
    finally:
        _stop(workers)
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
        del rendezvous


def _start(rank: int, job_file: Path, run_dir: Path, environment: dict[str, str],
           events: queue.Queue[dict[str, Any]]) -> _Worker:
    log = run_dir / f"worker-{rank}.log"
    log.unlink(missing_ok=True)
    with log.open("ab") as output:  # to append: the reader of its standard output writes here too
        process = subprocess.Popen(
            [sys.executable, "-m", "dgl_heta.launch.worker", str(job_file)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output)
    assert process.stdout is not None
    threading.Thread(target=_read_events, args=(process.stdout, log, events), daemon=True).start()
    return _Worker(rank, process, log)


def _read_events(stream: BinaryIO | Any, log: Path, events: queue.Queue[dict[str, Any]]) -> None:
    """JSON objects are events; anything else that a worker prints goes to its log."""
    for line in stream:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event:
            events.put(event)
        else:
            with log.open("ab") as output:
                output.write(line)


def _forward(events: queue.Queue[dict[str, Any]],
             report: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """Hand over waiting events; returns the summary if it is among them."""
    summary = None
    try:
        event = events.get(timeout=0.1)
        while True:
            if event["event"] == "summary":
                summary = {k: v for k, v in event.items() if k != "event"}
            else:
                report(event)
            event = events.get_nowait()
    except queue.Empty:
        return summary


def _first_failure(workers: list[_Worker], final: bool = False) -> _Worker | None:
    """Note who has ended; the worker to blame, once one has failed.

    A worker that merely lost another one is not the cause, so wait a moment for the other,
    unless this is the `final` look.
    """
    now = time.monotonic()
    for worker in workers:
        if worker.ended is None and worker.process.poll() is not None:
            worker.ended = now
    failures = [w for w in workers if w.ended is not None and w.process.returncode != 0]
    causes = [w for w in failures if w.process.returncode != EXIT_PEER]
    if causes:
        return min(causes, key=lambda w: w.ended or now)
    if failures and (final or now - min(w.ended or now for w in failures) > GRACE_S):
        return min(failures, key=lambda w: w.ended or now)
    return None


def _raise_for(failed: _Worker, workers: list[_Worker]) -> None:
    _stop(workers)
    text = failed.log.read_text(encoding="utf-8", errors="replace").strip()
    code = failed.process.returncode
    if code == EXIT_INPUT:
        raise InputError(text.rpartition("error: ")[2] or "a worker found the input wrong")
    how = (f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0
           else f"failed with exit status {code}")
    last = "\n".join(text.splitlines()[-60:]) or "(it wrote nothing)"
    raise WorkerError(f"worker {failed.rank} {how}; all workers were ended; its log is "
                      f"{failed.log}", details=last)


def _stop(workers: list[_Worker]) -> None:
    """End all workers: ask, wait, kill."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.terminate()
    deadline = time.monotonic() + STOP_S
    for worker in workers:
        try:
            worker.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _raise_on_terminate() -> Any:
    """Turn SIGTERM into an exception, so that the workers are ended on the way out."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    return signal.signal(signal.SIGTERM, stop)
