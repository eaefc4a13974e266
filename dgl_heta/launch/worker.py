"""One worker process: `python -m dgl_heta.launch.worker JOB.json`, or a rank of torchrun.

Events go to the launcher as lines of JSON, by a pipe that nothing else writes to; what code prints
is in the log. The last event is `done`: a worker that ends without it has not done its work. Exit
status: 0, 2 for wrong input, 3 when another worker was lost, 1 for any other failure. What a user
can understand is one line, `error: …`; a traceback is for what nobody foresaw.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgl_heta.errors import HetaError
from dgl_heta.launch.local import EVENTS
from dgl_heta.system.checksums import read_signed
from dgl_heta.system.disk import no_space
from dgl_heta.system.finish import finish, flush_files
from dgl_heta.system.memory import no_memory
from dgl_heta.system.parent import die_with_parent

if TYPE_CHECKING:
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.training.engine import Engine

Report = Callable[[dict[str, Any]], None]
FINISH_S = 8.0  # for threads of models at the good end; after 10 the launcher kills


def run(job: dict[str, Any], report: Report) -> dict[str, Any]:
    """Do what a job describes, as the worker that the environment names; returns its summary.

    `report` gets the first worker's events; the last of a job is its summary.
    """
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.settings import Settings

    first = os.environ.get("RANK", "0") == "0"
    registry = plugins().configured(Settings(**job["settings"]))
    worker = {"train": _train, "predict": _predict, "profile": _profile,
              "check": _check}[job["kind"]]
    summary = worker(job, registry, report if first else lambda event: None)
    if first:
        report({"event": "summary", **summary})
    return summary


def _train(job: dict[str, Any], registry: Plugins, report: Report) -> dict[str, Any]:
    from dgl_heta.training.caches import attach
    from dgl_heta.training.loop import train

    engine = _engine(job, registry)
    attach(engine, Path(job["profiles"]), report)
    return train(engine, Path(job["run_dir"]), engine.settings, registry, resume=job["resume"],
                 anew=job["anew"], report=report)


def _predict(job: dict[str, Any], registry: Plugins, report: Report) -> dict[str, Any]:
    from dgl_heta.prediction.prediction_worker import run as predict

    return predict(job, registry, report)


def _profile(job: dict[str, Any], registry: Plugins, report: Report) -> dict[str, Any]:
    from dgl_heta.training.profiling import profile_worker

    return profile_worker(_engine(job, registry), job, registry, report)


def _check(job: dict[str, Any], registry: Plugins, report: Report) -> dict[str, Any]:
    from dgl_heta.training.checked import write_steps

    write_steps(_engine(job, registry), Path(job["run_dir"]))
    return {}


def _engine(job: dict[str, Any], registry: Plugins) -> Engine:
    from dataclasses import replace

    from dgl_heta.planning.offloading import SharingDecision
    from dgl_heta.planning.plan import Plan
    from dgl_heta.settings import Settings
    from dgl_heta.store import Store
    from dgl_heta.training.setup import build_engine

    store = Store(job["store"])
    plan = replace(Plan.from_json(job["plan"], store.schema, "of this job"),
                   shared=SharingDecision.from_json(job.get("shared"), "of this job"))
    return build_engine(store, plan, Settings(**job["settings"]), registry, Path(job["run_dir"]))


class Events:
    """The way to the launcher; started by hand, a worker tells nobody.

    The pipe is this process's own: no child inherits it.
    """

    def __init__(self) -> None:
        self._pipe = int(os.environ.pop(EVENTS, "-1"))
        if self._pipe >= 0:
            os.set_inheritable(self._pipe, False)
            os.register_at_fork(after_in_child=self._close)

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event."""
        data = memoryview(json.dumps(event).encode() + b"\n")
        while data and self._pipe >= 0:
            data = data[os.write(self._pipe, data):]

    def _close(self) -> None:
        os.close(self._pipe)
        self._pipe = -1


def worker_main(run: Callable[[dict[str, Any], Report], Any] = run) -> None:
    """Do the job of the file that the command names; a plugin's program gives its own `run`.

    What `run` reports is an event; the last one is `summary`, from the worker of rank 0.
    """
    parent = int(os.environ.get("DGL_HETA_LAUNCHER", "0"))
    die_with_parent(parent)
    if parent:  # Ctrl-C in a terminal is for the launcher, which ends its workers
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from dgl_heta.comm.collectives import PeerLostError

    events = Events()
    try:
        run(read_signed(Path(sys.argv[1]), "run the command again"), events.tell)
        events.tell({"event": "done"})
    except BaseException as error:
        said = None if isinstance(error, PeerLostError) else _said(error)
        try:
            with contextlib.suppress(OSError):  # the log may be on a disk that is full
                if said is None:
                    traceback.print_exc()
                else:
                    events.tell({"event": "error", "message": said})
                    print("error:", said, file=sys.stderr)
            flush_files("warning")  # the error that is told is the one before
        finally:
            # Not sys.exit: a process group that has lost a member may wait in its destructors.
            os._exit(error.exit_status if isinstance(error, HetaError) else 1)
    try:
        _limit(FINISH_S)
        finish()  # what a model or plugin prints is no result, whether or not it is written
    finally:
        # All results are written and all workers are past their last collective. The threads
        # of a process group sometimes abort or hang a process that ends the usual way.
        os._exit(0)


def _limit(seconds: float) -> None:
    """End this process well after so long, whatever it waits for then."""
    def end() -> None:
        flush_files()
        os._exit(0)

    limit = threading.Timer(seconds, end)
    limit.daemon = True  # else it would be waited for
    limit.start()


def _said(error: BaseException) -> str | None:
    """An error in a line, if it tells a user what is wrong: one of ours, or that the disk or memory
    is full, wherever that was noticed."""
    if isinstance(error, HetaError):
        return " ".join(str(error).splitlines())
    if isinstance(error, SystemExit):
        traceback.print_exc()
        return f"a program that it runs called sys.exit({error.code!r})"
    return no_memory(error) or no_space(error)


if __name__ == "__main__":
    worker_main()
