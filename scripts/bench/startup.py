"""What starting P workers costs: CPU seconds, memory, connections, rendezvous.

    python scripts/bench/startup.py --json FILE

The launcher of `dgl-heta train` starts workers on this machine, which take five steps. Of each
worker: CPU seconds (user and system) of its imports, of the rendezvous, and to the end of its first
step; peak memory, and memory that belongs to no file; established TCP connections and open files.
Figures are means over the workers. Unlike seconds of a clock they hardly depend on what else the
machine does; those of the rendezvous include the wait for the last worker.

Each figure is fitted with a + b (P - 1) + c / P, all >= 0, by least squares from two workers on:
what is always there, what there is for each other worker, and what workers divide. The largest
difference of the fit is beside it, and what it says of 64. Left out: several machines.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from common import CLI, finish, machine, markdown, memory_mb, parser, progress, run_child, work_dir
from scipy.optimize import nnls

from dgl_heta.launch import worker

MOST, STEPS = 64, 5
FIGURES: dict[str, tuple[str, int, Callable[[dict[str, Any]], float]]] = {
    "imports": ("CPU s of imports", 2, lambda w: w["cpu"]["imports"]),
    "rendezvous": ("CPU s of rendezvous", 3, lambda w: w["cpu"]["rendezvous"]),
    "first step": ("CPU s to first step", 2, lambda w: w["cpu"]["first step"]),
    "peak": ("peak MB", 0, lambda w: w["peak_mb"]),
    "own": ("own MB", 0, lambda w: w["own_mb"]),
    "connections": ("TCP connections", 0, lambda w: w["connections"]),
    "files": ("open files", 0, lambda w: w["files"]),
    "waited": ("s of rendezvous (clock)", 2, lambda w: w["rendezvous_s"]),
}


class Fit(NamedTuple):
    """The factors of a figure's terms, the largest difference from it, and its value for `MOST`."""

    always: float
    other: float
    divided: float
    off: float
    most: float


def main() -> None:
    options = parser(__doc__, "scripts/bench/startup.py --json FILE")
    options.add_argument("--graph", default="synthetic-freebase:scale=0.001")
    options.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    args = options.parse_args()
    parts = [1, 2, 4] if args.quick else args.parts
    before = machine()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # of the workers
    with work_dir(args) as directory:
        graph = directory / "graph"
        run_child([*CLI, "partition", args.graph, "--out", str(graph), "--json"], "writing")
        measured = {count: start(graph / "store", count, directory) for count in parts}
    means = {count: {name: statistics.mean(map(of, workers))
                     for name, (_, _, of) in FIGURES.items()}
             for count, workers in measured.items()}
    fitted = {name: fit({p: m[name] for p, m in means.items() if p > 1}) for name in FIGURES}
    finish(args, "Starting workers", [tables(means, fitted)],
           {"workers": measured, "means": means,
            "fitted": {name: found._asdict() for name, found in fitted.items()}}, before)


def start(store: Path, workers: int, directory: Path) -> list[dict[str, Any]]:
    """What each worker of a run reports."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs.training import TrainingJob
    from dgl_heta.launch.local import run_workers

    progress(f"{workers} workers …")
    job = TrainingJob.prepare(str(store), None, [
        f"partition.parts={workers}", "train.batch_size=2", "train.threads=1",
        "train.fanouts=[4,4]", "partition.shared=rows"], plugins())
    run_dir = directory / str(workers)
    run_dir.mkdir()
    told: list[dict[str, Any]] = []
    run_workers({"settings": job.settings.model_dump(), "store": str(store),
                 "plan": job.plan.to_json(), "run_dir": str(run_dir)},
                workers, run_dir, told.append, "startup")
    assert len(told) == workers
    return told


def fit(values: dict[int, float]) -> Fit:
    """The fit of a figure, by the number of workers."""
    counts, measured = np.array(list(values)), np.array(list(values.values()))
    factors, _ = nnls(terms(counts), measured)
    always, other, divided = factors.tolist()
    return Fit(always, other, divided, float(np.abs(terms(counts) @ factors - measured).max()),
               float((terms(np.array([MOST])) @ factors)[0]))


def terms(counts: np.ndarray) -> np.ndarray:
    """The terms of a fit: (number of counts, 3)."""
    return np.stack([np.ones_like(counts), counts - 1, 1 / counts], axis=1)


def tables(means: dict[int, dict[str, float]], fitted: dict[str, Fit]) -> str:
    """A row per figure; a column per number of workers, then the fit."""
    rows = []
    for name, (title, digits, _) in FIGURES.items():
        found = fitted[name]
        values = [*(m[name] for m in means.values()), found.off, found.most]
        each = (found.always, found.other, found.divided)
        rows.append([title, *(f"{value:,.{digits}f}" for value in values),
                     *(f"{factor:,.{digits + 1}f}" for factor in each)])
    return markdown(["of a worker", *map(str, means), "fit off by", str(MOST), "a", "b", "c"],
                    rows)


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
    if "RANK" in os.environ:
        worker.worker_main(work)
    else:
        main()
