"""`dgl-heta profile`: what a feature cache would be filled by, and what it would save."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dgl_heta.cache.policies import choose
from dgl_heta.cache.profile import DIRECTORY
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.inputs import open_input
from dgl_heta.report.text import PALETTE, human_bytes
from dgl_heta.store import Store, write_store
from dgl_heta.training.command import TrainRequest, plan_of, settings_of

if TYPE_CHECKING:
    from dgl_heta.training.engine import Engine

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Capacities to look at, as shares of all rows that a worker could cache."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ProfileRequest:
    """The arguments of `dgl-heta profile`."""

    graph: str
    config: Path | None
    overrides: list[str]
    out: Path | None = None
    svg: Path | None = None
    quiet: bool = False


def profile_command(request: ProfileRequest, registry: Plugins, err: Console) -> dict[str, Any]:
    """Profile all workers of a training; returns what each of them found."""
    opened = open_input(request.graph, registry)
    if opened.store is None and opened.source is None:
        raise InputError(f"'{request.graph}' is a schema without edges; profile a store, a "
                         "partition, a directory of edge files or a data set")
    settings = settings_of(TrainRequest(request.graph, request.config, request.overrides), opened)
    registry = registry.configured(settings)
    named = settings.cache.profile
    if request.out is not None and named and Path(named) != request.out:
        raise InputError(f"--out is {request.out}, but cache.profile is {named}; leave one of them "
                         "out")
    out = request.out or (Path(named) if named else None)
    settings = settings.model_copy(
        update={"cache": settings.cache.model_copy(update={"profile": None})})
    if request.svg is not None and not request.svg.parent.is_dir():
        raise InputError(f"--svg: there is no directory {request.svg.parent}")
    plan = plan_of(opened, settings, registry)
    if opened.store is None and out is None:
        raise InputError(f"'{request.graph}' has no directory to keep a profile in; write a store "
                         f"with `dgl-heta partition {request.graph} --out DIR`, or give --out")
    with tempfile.TemporaryDirectory(prefix=".dgl-heta-profile-",
                                     dir=_parent(out)) as scratch:
        store = opened.store
        if store is None:
            assert opened.source is not None
            write_store(opened.source, Path(scratch) / "store")
            store = Store(Path(scratch) / "store")
        from dgl_heta.launch.local import WorkerError, launch
        from dgl_heta.training.engine import check

        check(store, plan, settings, registry)
        if out is not None:
            directory = out
        else:
            directory = (Path(request.graph) if opened.plan is not None
                         else store.directory) / DIRECTORY
        job = {"settings": settings.model_dump(), "store": str(store.directory.resolve()),
               "plan": plan.to_json(), "run_dir": scratch, "profile": True,
               "profiles": str(directory.resolve())}
        bar = Progress(TextColumn("pre-sampling"), BarColumn(), MofNCompleteColumn(),
                       TimeRemainingColumn(), console=err, transient=True,
                       disable=request.quiet or not err.is_terminal)
        task = bar.add_task("")

        def report(event: dict[str, Any]) -> None:
            if event["event"] == "profile":
                bar.update(task, completed=event["done"], total=event["total"])

        workers = plan.num_parts * settings.train.trainers
        with bar:
            try:
                launch(job, workers, Path(scratch), report)
            except WorkerError as error:  # its log goes with the scratch directory
                raise WorkerError(str(error).partition("; its log is")[0], error.details) from None
        found = [json.loads((Path(scratch) / f"profile-{rank}.json").read_text(encoding="utf-8"))
                 for rank in range(workers)]
    if request.svg:
        save_picture(found, request.svg)
    return {"graph": request.graph, "directory": str(directory), "workers": found}


def _parent(out: Path | None) -> Path | None:
    """A directory on a disk for tables of which misses are timed."""
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HetaError(f"cannot make {out}: {error.strerror}") from None
    return out


def profile_worker(engine: Engine, job: Mapping[str, Any], registry: Plugins, report: Report
                   ) -> dict[str, Any]:
    """One worker's part: writes `profile-RANK.json`; returns a summary."""
    from dgl_heta.training.caches import Profiler

    profiler = Profiler(engine, Path(job["profiles"]), "visits", report, fresh=True)
    start = time.perf_counter()
    visits = profiler.visits()
    between = time.perf_counter()
    penalties = profiler.penalties()
    end = time.perf_counter()
    row_bytes = profiler.row_bytes()
    ratios = {t: penalties[t].at(visits.per_batch(t)) for t in profiler.sizes}
    types = {t: {
        "kind": "static" if t in engine.static.sources else "learnable",
        "nodes": profiler.sizes[t], "row_bytes": row_bytes[t],
        "visits": int(visits.counts[t].sum()), "visited": int(np.count_nonzero(visits.counts[t])),
        "per_batch": visits.per_batch(t), "penalty": ratios[t], **penalties[t].to_json(),
    } for t in profiler.sizes}
    total = sum(profiler.sizes[t] * row_bytes[t] for t in profiler.sizes)
    policies = {}
    for name, provider in registry.providers("cache policy").items():
        policy = provider.value
        if getattr(policy, "counts", "visits") != "visits" or getattr(policy, "replacement", None):
            continue  # of degrees, or of what happens in training
        curve: dict[str, list[float]] = {"capacity_mb": [], "hit_rate": [], "time_saved": []}
        for share in SHARES:
            chosen = choose(policy, visits.counts, row_bytes, ratios, int(total * share))
            hits = {t: int(visits.counts[t][ids].sum()) for t, ids in chosen.items()}
            curve["capacity_mb"].append(total * share / 1e6)
            curve["hit_rate"].append(_share(sum(hits.values()), visits.counts, {}))
            costs = {t: ratios[t] * row_bytes[t] for t in ratios}
            curve["time_saved"].append(_share(sum(n * costs[t] for t, n in hits.items()),
                                              visits.counts, costs))
        policies[name] = curve
    result = {"rank": engine.rank, "batches": visits.batches,
              "seconds": {"visits": between - start, "penalties": end - between},
              "reads": engine.static.reads, "bytes": total, "types": types, "policies": policies,
              "notes": profiler.notes}
    (Path(job["run_dir"]) / f"profile-{engine.rank}.json").write_text(
        json.dumps(result), encoding="utf-8")
    engine.world.barrier()
    return {"ranks": engine.world.size}


def _share(part: float, counts: Mapping[str, np.ndarray], costs: Mapping[str, float]) -> float:
    whole = sum(float(c.sum()) * (costs.get(t, 0.0) if costs else 1.0) for t, c in counts.items())
    return part / whole if whole else 0.0


def show(result: Mapping[str, Any], out: Console) -> None:
    """Print what was found, a table per worker."""
    for worker in result["workers"]:
        table = Table(title=f"Worker {worker['rank']}: {worker['batches']} batches sampled in "
                      f"{worker['seconds']['visits']:.1f} s, misses timed in "
                      f"{worker['seconds']['penalties']:.1f} s", title_justify="left",
                      box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name in ("node type", "features"):
            table.add_column(name)
        for name in ("nodes", "bytes per row", "visited", "rows per batch", "a miss costs"):
            table.add_column(name, justify="right")
        for ntype, found in worker["types"].items():
            cost = found["penalty"] * found["row_bytes"]
            table.add_row(escape(ntype), found["kind"], f"{found['nodes']:,}",
                          f"{found['row_bytes']:,}",
                          f"{found['visited'] / max(found['nodes'], 1):.1%}",
                          f"{found['per_batch']:,.0f}",
                          f"{cost * 1e6:.2f} µs" if cost else "nothing")
        out.print(table)
        curves = Table(title=f"Share of the misses' time that a cache saves (all rows: "
                       f"{human_bytes(worker['bytes'])})", title_justify="left",
                       box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        curves.add_column("policy")
        for share in SHARES:
            curves.add_column(f"{share:.0%}", justify="right")
        for name, curve in worker["policies"].items():
            if name != "none":
                curves.add_row(escape(name), *(f"{x:.0%}" for x in curve["time_saved"]))
        out.print(curves)
        for note in worker["notes"]:
            out.print(f"note: {escape(note)}", highlight=False)
    out.print(f"Profile: {escape(result['directory'])}", highlight=False, soft_wrap=True)


def save_picture(workers: list[dict[str, Any]], path: Path) -> None:
    """Draw what each policy would save against the capacity, a panel per worker."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(workers), 3.4), layout="constrained")
    for index, worker in enumerate(workers):
        ax = figure.add_subplot(1, len(workers), index + 1)
        for colour, (name, curve) in zip(PALETTE, worker["policies"].items()):
            if name != "none":
                ax.plot(curve["capacity_mb"], curve["time_saved"], marker="o", markersize=3.5,
                        color=colour, label=name)
        ax.set_title(f"worker {worker['rank']}", loc="left", fontsize=10.5)
        ax.set_xlabel("capacity, MB")
        ax.set_ylabel("misses' time saved")
        ax.set_ylim(0, 1.02)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)
    try:
        with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "dgl-heta"}):
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise HetaError(f"cannot write {path}: {error.strerror}") from None
