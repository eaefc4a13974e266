"""What `startup.py` runs in each worker: five steps, and what the start of them took.

    python -m startup_worker JOB.json
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from common import memory_mb

from dgl_heta.launch.worker import main

STEPS = 5


def work(job: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Start as a worker of `dgl-heta train` does, and report the cost of each part."""
    from dgl_heta.comm.collectives import init_workers
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.planning.plan import Plan
    from dgl_heta.settings import Settings
    from dgl_heta.store import Store
    from dgl_heta.training import loop  # noqa: F401  a worker imports it
    from dgl_heta.training.setup import build_engine

    settings, store = Settings(**job["settings"]), Store(job["store"])
    registry, plan = plugins().configured(settings), Plan.from_json(job["plan"], store.schema, "")
    cpu = {"imports": used()}
    started, before = time.perf_counter(), used()
    init_workers("gloo", settings.run.timeout_s)
    cpu["rendezvous"], waited = used() - before, time.perf_counter() - started
    engine = build_engine(store, plan, settings, registry, Path(job["run_dir"]))
    engine.start_epoch(1)
    steps = engine.steps("train", 1)[:STEPS]
    assert len(steps) == STEPS
    for index, _ in enumerate(engine.train(steps, 1 << 20)):
        if not index:
            cpu["first step"] = used()
    process = psutil.Process()
    kept = memory_mb()
    report({"event": "started", "cpu": cpu, "rendezvous_s": waited,
            "peak_mb": kept["VmHWM"], "own_mb": kept["RssAnon"],
            "connections": len([c for c in process.net_connections("tcp")
                                if c.status == psutil.CONN_ESTABLISHED]),
            "files": process.num_fds(), "threads": process.num_threads()})
    engine.world.barrier()  # nobody leaves while others count their connections
    if os.environ["RANK"] == "0":
        report({"event": "summary"})


def used() -> float:
    """CPU seconds of this process, user and system."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


if __name__ == "__main__":
    main(work)
