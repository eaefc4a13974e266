"""`dgl-heta train`: from what the user names to a trained model and a report."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dgl_heta.cache.profile import DIRECTORY
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.inputs import GraphInput, open_input
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cost import predict, to_json
from dgl_heta.planning.limit import within
from dgl_heta.planning.metatree import load_metapaths
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `dgl-heta train`."""

    graph: str
    config: Path | None
    overrides: list[str]
    run_dir: Path | None = None
    resume: bool = False
    dry_run: bool = False
    quiet: bool = False


def train_command(request: TrainRequest, registry: Plugins, out: Console,
                  err: Console) -> dict[str, Any] | None:
    """Train as requested; returns the summary, or None where there is none to print."""
    opened = open_input(request.graph, registry)
    if opened.store is None and opened.source is None:
        raise InputError(f"'{request.graph}' is a schema without edges; train on a store, a "
                         "partition, a directory of edge files or a data set")
    settings = settings_of(request, opened)
    registry = registry.configured(settings)
    from dgl_heta.models import find_model

    find_model(registry, settings.model.name)
    for kind, name in (("module wrapper", settings.train.wrapper),
                       ("aggregation kernel", settings.train.kernel),
                       ("cache policy", settings.cache.policy)):
        registry.get(kind, name)
    plan = plan_of(opened, settings, registry)
    settings = registry.recorded(settings)
    _check_cache(settings, plan.num_parts * settings.train.trainers)
    if request.dry_run:
        from dgl_heta.report.plan_terminal import terminal

        if request.quiet:
            return {**plan.to_json(), "prediction": to_json(plan, Workload.of(settings))}
        terminal(plan, predict(plan, Workload.of(settings)), out)
        return None
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    run_dir = _run_dir(request, settings, opened.name, under_torchrun)
    with _claimed(run_dir, shared=under_torchrun):
        return _train(request, registry, opened, settings, plan, run_dir, out, err)


def _train(request: TrainRequest, registry: Plugins, opened: GraphInput, settings: Settings,
           plan: Plan, run_dir: Path, out: Console, err: Console) -> dict[str, Any] | None:
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    from dgl_heta.training.engine import check

    store = _store(opened, run_dir, request, under_torchrun)
    try:
        check(store, plan, settings, registry)
    except InputError:
        if opened.store is None and not request.resume:
            shutil.rmtree(store.directory)  # of a run that never was
        raise
    if settings.run.verify:
        here = (plan.partitions[int(os.environ["RANK"]):][:1] if under_torchrun
                else plan.partitions)
        store.verify({t for p in here for t in p.node_types},
                     {r for p in here for r in p.relations})
    job = {"settings": settings.model_dump(), "store": str(store.directory.resolve()),
           "plan": plan.to_json(), "run_dir": str(run_dir.resolve()), "resume": request.resume,
           "profiles": str((Path(request.graph) if opened.plan is not None
                            else store.directory).resolve() / DIRECTORY)}
    first = os.environ.get("RANK", "0") == "0"
    with _Monitor(err, first and not request.quiet, settings.train.epochs) as monitor:
        if under_torchrun:
            summary = _as_worker(job, plan, monitor.report)
        else:
            from dgl_heta.launch.local import launch

            summary = launch(job, plan.num_parts * settings.train.trainers, run_dir,
                             monitor.report)
    if not first:
        return None
    from dgl_heta.report import summary_table, write_report
    from dgl_heta.report.plan_picture import svg

    report = write_report(run_dir, svg(plan, predict(plan, Workload.of(settings,
                                                                     summary["parameters"]))))
    if not request.quiet:
        out.print(summary_table(summary))
        out.print(f"Report: {escape(str(report))}\nModel: {escape(str(run_dir))}/model.safetensors",
                  highlight=False)
    return {**{k: v for k, v in summary.items() if k not in ("plan", "settings")},
            "run_dir": str(run_dir)}


def _check_cache(settings: Settings, workers: int) -> None:
    """Check what can be known of a cache before workers start."""
    cache = settings.cache
    if cache.policy == "none":
        return
    import torch

    from dgl_heta.system.memory import capacity_bytes

    if cache.profile and not Path(cache.profile).is_dir():
        raise InputError(f"cache.profile: there is no directory {cache.profile}; make a profile "
                         "with `dgl-heta profile --out`, or leave the setting out")
    if settings.train.device == "cpu" or not torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", workers))
        capacity_bytes(cache.capacity_mb, torch.device("cpu"), local)


def settings_of(request: TrainRequest, opened: GraphInput) -> Settings:
    base: dict[str, Any] = {}
    if opened.plan is not None:
        base = {"partition": {"parts": opened.plan.num_parts, "method": opened.plan.method},
                "model": {"layers": opened.plan.hops}}
    elif "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        base = {"partition": {"parts": int(os.environ["WORLD_SIZE"])}}
    return load_settings(request.config, request.overrides, base=base)


def plan_of(opened: GraphInput, settings: Settings, registry: Plugins) -> Plan:
    from dgl_heta.training.tasks import resolve

    targets = resolve(settings.task, opened.task, opened.schema).targets or []
    if opened.plan is not None:
        if set(targets) != set(opened.plan.targets):
            raise InputError(
                f"the partition was made for target {', '.join(opened.plan.targets)}, but the task "
                f"is about {', '.join(targets)}; make another partition with "
                f"{' '.join(f'--target {t}' for t in targets)}")
        for what, wanted, made in (
            ("parts", settings.partition.parts, opened.plan.num_parts),
            ("layers", settings.model.layers, opened.plan.hops),
            ("method", settings.partition.method, opened.plan.method),
        ):
            if wanted != made:
                raise InputError(
                    f"the partition was made for {what} {made}, but the settings ask for {wanted}; "
                    f"leave the setting out, or make another partition from its store "
                    f"({opened.store.directory if opened.store else ''})"
                )
        metapaths = settings.partition.metapaths
        if metapaths and tuple(load_metapaths(metapaths, opened.schema)) != opened.plan.metapaths:
            raise InputError("the partition was not made for the metapaths of "
                             f"partition.metapaths={metapaths}; leave the setting out, or make "
                             "another partition with --metapaths")
        if settings.partition.replication not in (None, opened.plan.replication):
            raise InputError(
                f"the partition was made with replication = {opened.plan.replication}, but the "
                f"settings ask for {settings.partition.replication}; leave the setting out, or "
                "make another partition")
        if settings.partition.memory_mb is not None:
            within(opened.plan, int(settings.partition.memory_mb * 1e6), Workload.of(settings))
        if settings.partition.seed:
            raise InputError("partition.seed has no effect on a partition that exists; leave it "
                             "out, or make another partition with --seed")
        return opened.plan
    metapaths = settings.partition.metapaths
    request = PartitionRequest(
        settings.partition.parts, tuple(targets), settings.model.layers,
        load_metapaths(metapaths, opened.schema) if metapaths else (), settings.partition.seed,
        replication=settings.partition.replication, workload=Workload.of(settings),
        memory_limit=(None if settings.partition.memory_mb is None
                      else int(settings.partition.memory_mb * 1e6)))
    plan: Plan = registry.get("partition backend", settings.partition.method).plan(
        opened.schema, request)
    return plan


def _run_dir(request: TrainRequest, settings: Settings, name: str, under_torchrun: bool) -> Path:
    given = request.run_dir or settings.run.directory
    if given is None:
        if request.resume:
            raise InputError("--resume needs --run-dir, the directory of the run to continue")
        if under_torchrun:
            raise InputError("under torchrun give --run-dir: every rank must use the same one")
        path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    else:
        path = Path(given)
    if request.resume and not path.is_dir():
        raise InputError(f"there is no run to resume in {path}")
    started = (path / "metrics.jsonl").exists() or (path / "checkpoints").exists()
    if started and not request.resume and not under_torchrun:
        raise InputError(f"{path} holds a run already; continue it with --resume, or choose "
                         "another directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make run directory {path}: {error.strerror}") from None
    return path


def _store(opened: GraphInput, run_dir: Path, request: TrainRequest,
           under_torchrun: bool) -> Store:
    if opened.store is not None:
        return opened.store
    if under_torchrun:
        raise InputError(f"under torchrun train from a relation store or a partition; write one "
                         f"with `dgl-heta partition {request.graph} --out DIR`")
    assert opened.source is not None
    path = run_dir / "store"
    if not (request.resume and Store.is_store(path)):
        write_store(opened.source, path, overwrite=True)
    return Store(path)


@contextmanager
def _claimed(run_dir: Path, shared: bool) -> Iterator[None]:
    """Keep a run directory to one command, and leave none behind that is empty.

    Ranks of torchrun share theirs; the training loop checks it for all of them.
    """
    with contextlib.ExitStack() as stack:
        lock = run_dir / ".lock"
        if not shared:
            file = stack.enter_context(lock.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another command is training in {run_dir}; choose another "
                                 "directory") from None
        try:
            yield
        finally:
            if not shared:
                lock.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                run_dir.rmdir()  # only if nothing came of it


def _as_worker(job: dict[str, Any], plan: Plan, report: Callable[[dict[str, Any]], None]
               ) -> dict[str, Any]:
    """Be one rank of torchrun; returns the summary."""
    from dgl_heta.launch.worker import run

    size, trainers = int(os.environ["WORLD_SIZE"]), job["settings"]["train"]["trainers"]
    if size != plan.num_parts * trainers:
        raise InputError(f"torchrun started {size} workers for {plan.num_parts} partitions with "
                         f"{trainers} trainers each; start {plan.num_parts * trainers}")
    summary: dict[str, Any] = run(job, report)
    return summary


class _Monitor:
    """The progress of a run on standard error: a bar per epoch, a line when it is over."""

    def __init__(self, console: Console, show: bool, epochs: int) -> None:
        self._console, self._show, self._epochs = console, show, epochs
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                             TimeRemainingColumn(), TextColumn("{task.fields[loss]}"),
                             console=console, transient=True,
                             disable=not (show and console.is_terminal))
        self._task: Any = None

    def __enter__(self) -> _Monitor:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            title = f"epoch {event['epoch']}/{self._epochs}"
            if self._task is None:
                self._task = self._bar.add_task(title, total=event["steps"], loss="")
            self._bar.update(self._task, description=title, completed=event["step"],
                             total=event["steps"], loss=f"loss {event['loss']:.3f}")
        elif event["event"] == "profile":
            if self._task is None:
                self._task = self._bar.add_task("", total=event["total"], loss="")
            self._bar.update(self._task, description="pre-sampling", completed=event["done"],
                             total=event["total"])
        elif event["event"] == "note" and self._show:
            self._console.print(f"note: {escape(event['text'])}", highlight=False)
        elif event["event"] == "epoch" and self._show:
            val = event["val_acc"]
            cached = event.get("cache") or {}
            reads = sum(c["reads"] for c in cached.values())
            hits = sum(c["hits"] for c in cached.values())
            self._console.print(
                f"epoch {event['epoch']}/{self._epochs}: loss {event['loss']:.4f}, train "
                f"{event['train_acc']:.4f}, val {'-' if val is None else f'{val:.4f}'}, "
                f"{event['seconds']['total']:.1f} s, "
                f"{event['bytes_sent']['total'] / 1e6:.1f} MB sent"
                + (f", {hits / reads:.1%} of rows in the cache" if reads else ""),
                highlight=False)

