"""A training: from what the user names to a trained model and a report."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch import worker
from dgl_heta.launch.jobs.choices import check_staged, open_for, parts_here, plan_for
from dgl_heta.launch.jobs.run_directory import (
    check_store,
    claimed,
    remove_store,
    run_directory,
    store_of_run,
)
from dgl_heta.launch.local import AT_WORK, Terminated, run_workers
from dgl_heta.launch.scheduler import is_worker, restarted
from dgl_heta.models import find_model
from dgl_heta.partition.directory import STORE_DIR
from dgl_heta.partition.graph_input import GraphInput, Reading
from dgl_heta.partition.own_plan import followed
from dgl_heta.planning.cost import predict
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report.page import write_report
from dgl_heta.report.plan_picture import svg
from dgl_heta.report.started import note_start
from dgl_heta.settings import Settings
from dgl_heta.store import Store, write_store
from dgl_heta.store.store_files import PROFILES_DIR
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.memory import capacity_bytes
from dgl_heta.training.checkpoint_files import check_saved, saved_position
from dgl_heta.training.setup import check

Report = Callable[[dict[str, Any]], None]
log = logging.getLogger("dgl_heta")


class TrainingInterruptedError(HetaError):
    """Ctrl-C or another signal ended a training; the message says what is saved and how it goes
    on."""

    exit_status = 130

    @classmethod
    def of(cls, ended: BaseException, message: str) -> TrainingInterruptedError:
        """The error for what ended it: a signal's exit status stays."""
        error = cls(message)
        error.exit_status = getattr(ended, "exit_status", getattr(ended, "code", cls.exit_status))
        return error


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training; `summary` is what `summary.json` holds."""

    run_dir: Path
    summary: dict[str, Any]
    report: Path

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.run_dir / "model.safetensors"


@dataclass(frozen=True)
class TrainingJob:
    """A checked training of a graph, with its settings and its plan."""

    graph: str
    opened: GraphInput
    settings: Settings
    plan: Plan
    registry: Plugins

    @classmethod
    def prepare(cls, graph: str, config: Path | None, overrides: Iterable[str],
                registry: Plugins, reading: Reading | None = None) -> TrainingJob:
        """Find the settings and the plan; nothing is written yet.

        Raises
        ------
        InputError
            What is wrong, as far as that can be known before edges are read.
        """
        opened, settings, registry = open_for(graph, config, overrides, registry, reading)
        if opened.store is None and opened.source is None:
            raise InputError(f"'{graph}' is a schema without edges; train on a store, a "
                             "partition, a directory of edge files or a data set")
        find_model(registry, settings.model.name)
        for kind, name in (("module wrapper", settings.train.wrapper),
                           ("batch source", settings.train.batches),
                           ("cache policy", settings.cache.policy_on(True))):
            registry.get(kind, name)
        registry.kernel(settings.train.kernel, settings.train.device.startswith("cuda"))
        for name in settings.run.loggers:
            registry.get("logger", name).check()
        plan = plan_for(opened, settings, registry)
        check_staged(opened.store, plan, settings.train.trainers)
        job = cls(graph, opened, _placed(registry.recorded(settings)), plan, registry)
        _check_cache(settings, job.workers)
        return job

    @property
    def workers(self) -> int:
        """How many processes train."""
        return self.plan.num_parts * self.settings.train.trainers

    @property
    def followed(self) -> Plan:
        """The plan that workers follow: the module wrapper may replace `plan`."""
        return followed(self.plan, self.settings, self.registry)

    def run(self, run_dir: Path | None = None, *, resume: bool = False, again: bool = False,
            report: Report = lambda event: None) -> TrainingResult | None:
        """Train; returns what came of it, or None at all ranks of a scheduler but the first.

        Parameters
        ----------
        run_dir : default: that of the settings, else a new one in `runs/`.
        resume : continue from the last checkpoint there.
        again : continue from it if there is one. So does what a scheduler starts again.
        report : gets the events of the first worker.

        Raises
        ------
        InputError
            The run directory or the graph's data are not fit for it.
        HetaError
            A worker failed; all others are ended.
        TrainingInterruptedError
            Ctrl-C or SIGTERM; all workers are ended.
        PreemptedError
            SIGTERM came to this worker or another one of a scheduler.
        """
        shared = is_worker()
        self._check_workers(shared)
        going = not shared and self.goes_on(run_dir, again)
        directory = self._directory(run_dir, resume, shared, going)
        anew = not resume  # who asks for it is told when there is nothing to go on from
        # Machines may have directories of their own, of which some are new.
        resume = resume or going or (shared and (again or restarted()))
        with claimed(directory, shared=shared):
            try:
                summary = self._train(directory, resume, anew, shared, report)
            except (KeyboardInterrupt, Terminated) as ended:
                raise TrainingInterruptedError.of(ended, self._saved(directory)) from None
            if os.environ.get("RANK", "0") != "0":
                return None
            plan = self.followed
            costs = predict(plan, Workload.of(self.settings, summary["parameters"],
                                              plan.num_parts))
            return TrainingResult(directory, summary, write_report(directory, svg(plan, costs)))

    def check(self, run_dir: Path | None = None, *, resume: bool = False, seeds: bool = False
              ) -> list[str]:
        """Check all that :meth:`run` does before the first step; nothing is kept.

        Returns a sentence for each type with features that are not finite. `seeds`: the directory
        is of runs with several seeds (:func:`~dgl_heta.launch.jobs.seed_runs.check_seeds`).

        A graph that is no store yet is read as a whole, into a store beside the run directory that
        is removed again.

        Raises
        ------
        InputError
            The run directory, the graph's data or, with `resume`, a checkpoint are not fit for it.
        """
        shared = is_worker()
        self._check_workers(shared)
        directory = self._directory(run_dir, resume, shared, seeds=seeds, make=False)
        if self.opened.store is None:
            check_store(directory, resume)
        parent = next(p for p in directory.absolute().parents if p.is_dir())
        with contextlib.ExitStack() as stack:
            if self.opened.store is None and not (resume and Store.is_store(directory / STORE_DIR)):
                scratch = stack.enter_context(scratch_directory(parent, "dgl-heta-dry-run"))
                notes = self._verified(self.checked_store(scratch, False, shared))
            else:
                notes = self._verified(self.checked_store(directory, resume, shared))
        if resume and not seeds:
            check_saved(directory)
        return notes

    def goes_on(self, run_dir: Path | None, again: bool) -> bool:
        """Return whether a scheduler may have begun the run before: the user says so (`again`) or
        the scheduler does, and the directory is there."""
        given = run_dir or self.settings.run.directory
        if again and not given:
            raise InputError("--auto-resume needs --run-dir, the directory of the run to begin or "
                             "continue")
        return (again or restarted()) and given is not None and Path(given).is_dir()

    def _directory(self, run_dir: Path | None, resume: bool, shared: bool, again: bool = False,
                   seeds: bool = False, make: bool = True) -> Path:
        given = run_dir or self.settings.run.directory
        return run_directory(Path(given) if given else None, self.opened.name, resume=resume,
                             shared=shared, again=again, seeds=seeds, make=make)

    def _check_workers(self, shared: bool) -> None:
        size = int(os.environ["WORLD_SIZE"]) if shared else self.workers
        if size != self.workers:
            raise InputError(f"{several(size, 'worker')} of a scheduler (WORLD_SIZE) for "
                             f"{several(self.plan.num_parts, 'partition')} with "
                             f"{several(self.settings.train.trainers, 'trainer')} each; start "
                             f"{self.workers}")

    def _saved(self, run_dir: Path) -> str:
        """Return a sentence on what an interrupted training has saved, and how it goes on."""
        at = saved_position(run_dir)
        if not any(at):
            return "interrupted; no epoch was saved yet"
        return (f"interrupted; {at.saved}: go on by the same command with --resume --run-dir "
                f"{run_dir}")

    def _train(self, run_dir: Path, resume: bool, anew: bool, shared: bool, report: Report
               ) -> dict[str, Any]:
        store = self.checked_store(run_dir, resume, shared)
        for text in self._verified(store):
            report({"event": "note", "text": text})
        profiles = Path(self.graph) if self.opened.plan is not None else store.directory
        job = {"kind": "train", "settings": self.settings.model_dump(),
               "store": str(store.directory.resolve()), "plan": self.plan.to_json(),
               "graph": store.manifest.checksum,
               "shared": self.plan.shared and self.plan.shared.to_json(),
               "run_dir": str(run_dir.resolve()), "resume": resume, "anew": anew,
               "profiles": str(profiles.resolve() / PROFILES_DIR)}

        @functools.cache  # once, when workers are at work: before that they may refuse to go on
        def noted() -> None:
            note_start(run_dir, self.opened.name, self.plan.schema, resume)

        def told(event: dict[str, Any]) -> None:
            if event["event"] in AT_WORK:
                noted()
            report(event)

        if shared:
            summary = worker.run(job, told)
        else:
            try:
                summary = run_workers(job, self.workers, run_dir, told)
            except InputError:
                raise
            except HetaError as error:
                raise HetaError(f"{error}; see {run_dir}/worker-*.log", error.details) from None
        if os.environ.get("RANK", "0") == "0":
            noted()  # of a run that had all its epochs
        return summary

    def _verified(self, store: Store) -> list[str]:
        """Compare what is read of a store with its checksums, if that is asked for; returns what
        :meth:`~dgl_heta.store.Store.verify` has to say."""
        if not self.settings.run.verify:
            return []
        here = [self.plan.partitions[part]
                for part in parts_here(self.plan, self.settings.train.trainers)]
        self.plan.verify()
        return store.verify({t for p in here for t in p.node_types},
                            {r for p in here for r in p.relations})

    def checked_store(self, run_dir: Path, resume: bool, shared: bool) -> Store:
        """The graph's store, made in the run directory where it has none, after all is checked.

        Raises
        ------
        InputError
            The training cannot be; a store that was made for it is removed.
        """
        store = self._store(run_dir, resume, shared)
        try:
            check(store, self.plan, self.settings, self.registry)
        except InputError:
            if self.opened.store is None and not resume:
                remove_store(run_dir)  # of a run that never was
            raise
        return store

    def saved_epoch(self, run_dir: Path) -> int:
        """The last epoch that all workers have saved there; 0 if none."""
        return saved_position(run_dir).epoch

    def _store(self, run_dir: Path, resume: bool, shared: bool) -> Store:
        if self.opened.store is not None:
            return self.opened.store
        if shared:
            raise InputError("under a scheduler train from a relation store or a partition; write "
                             f"one with `dgl-heta partition {self.graph} --out DIR`")
        assert self.opened.source is not None
        check_store(run_dir, resume)
        path = run_dir / STORE_DIR
        if resume and Store.is_store(path):
            log.warning("the run goes on with the copy of %s in %s, made before: changes of it "
                        "since do not count; train in a new run directory for them",
                        self.graph, path)
        else:
            self.opened.check_seeds(self.plan.targets)
            with store_of_run(run_dir):
                write_store(self.opened.source, path, overwrite=True)
            self.opened.write_seeds()
        return Store(path)


def _check_cache(settings: Settings, workers: int) -> None:
    """Check what can be known of a cache before workers start."""
    cache = settings.cache
    gpu = settings.train.device != "cpu" and torch.cuda.is_available()
    if cache.policy_on(gpu) == "none":
        return
    if cache.profile and not Path(cache.profile).is_dir():
        raise InputError(f"cache.profile: there is no directory {cache.profile}; make a profile "
                         "with `dgl-heta profile --out`, or leave the setting out")
    if not gpu:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", workers))
        capacity_bytes(cache.capacity_mb, torch.device("cpu"), local)


def _placed(settings: Settings) -> Settings:
    """The settings with the files of links and seeds by their whole paths, for workers and for a
    later resume."""
    return settings.model_copy(update={"task": settings.task.model_copy(update={
        name: str(Path(file).resolve()) for name in ("links", "table")
        if (file := getattr(settings.task, name)) is not None})})
