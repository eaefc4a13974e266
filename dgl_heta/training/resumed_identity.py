"""The identity of a run: what a checkpoint must share with the run that goes on from it, and what
workers must share with each other."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgl_heta._version import __version__
from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError, listing
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.sources import Auto
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.checksums import file_sum
from dgl_heta.training.tasks import TrainingTask
from dgl_heta.training.tasks.timed_seeds import seed_files

if TYPE_CHECKING:
    from dgl_heta.training.worker_partition import WorkerPartition

_OF_MACHINE = {"threads", "device", "precompute_mb", "batches", "sampling_threads", "kernel"}
_NUMBERS_STAY = {*_OF_MACHINE, "epochs", "eval_every", "early_stopping", "metrics"}
_OF_WORKERS = ("batch_size", "global_batch_size", "trainers")


@dataclass(frozen=True)
class Identity:
    """The graph, the plan and the settings that a run's numbers follow from.

    Attributes
    ----------
    graph : SHA-256 of the graph's checksums.
    plan : SHA-256 of the plan.
    settings : section → setting → value, of those that change numbers.
    mark : SHA-256 of all of it.
    follows : what of the plan numbers follow from whatever the partitions: `targets`, `metapaths`.
    workers : how many there are.
    """

    graph: str
    plan: str
    settings: dict[str, dict[str, Any]]
    mark: str
    follows: dict[str, Any]
    workers: int

    @classmethod
    def of(cls, part: WorkerPartition, task: TrainingTask, settings: Settings,
           sources: Collection[str] = (), kernels: Collection[str] = ()) -> Identity:
        """That of `dgl-heta train`; `sources` are all that can make batches, `kernels` all kernels.
        """
        sections = _sections(settings, _NUMBERS_STAY)
        if task.held_out is not None:  # what was found in the graph counts, too
            sections["task"]["reverse"] = [[*map(str, group.relations), group.undirected]
                                           for group in task.held_out.groups]
        # Batches are the same whoever makes them, which by "auto" depends on the machine.
        making = sources if settings.train.batches == Auto.name else [part.source.name]
        computing = kernels if settings.train.kernel == "auto" else ()
        own = {name: given for name, given in settings.plugins.items() if name not in (
            *making, *computing, settings.train.batches, *settings.run.loggers)}
        return cls.from_sections(part.store, part.plan, sections, own)

    @classmethod
    def from_sections(cls, store: Store, plan: Plan, sections: dict[str, dict[str, Any]],
                      own: Mapping[str, Mapping[str, Any]]) -> Identity:
        """That of a graph, a plan and settings; `own` are those of plugins."""
        planned = _planned(plan)
        sums = store.manifest.checksum
        content = [sums, planned, *sections.values()]
        if own:
            content.append(own)
        return cls(_sum(sums), _sum(planned), {**sections, **{f"plugins.{name}": dict(given)
                                                              for name, given in own.items()}},
                   _sum(content), {"targets": list(plan.targets),
                                   "metapaths": planned["metapaths"]}, plan.num_parts)

    def to_json(self) -> dict[str, Any]:
        return {"fingerprint": self.mark, "graph": self.graph, "plan": self.plan,
                "settings": self.settings, **self.follows, "workers": self.workers}

    def same_workers(self, note: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint is of the same workers, each with its part of the plan."""
        return note.get("fingerprint") == self.mark or note.get("plan") == self.plan

    def difference(self, note: Mapping[str, Any]) -> str:
        """The differences of the run that a checkpoint's note speaks of; "" where nothing does."""
        if note.get("fingerprint") == self.mark:
            return ""
        before = _of_any_workers(note["settings"], note["workers"])
        now = _of_any_workers(self.settings, self.workers)
        changed = [f"{section}.{name} = {_short(old)} (now {_short(new)})"
                   for section in {**before, **now}
                   for name, old, new in _changed(before.get(section, {}), now.get(section, {}))]
        differences = [*([f"other settings: {', '.join(changed)}"] if changed else []),
                 *(["another graph"] if note.get("graph") != self.graph else []),
                 *(f"other {name}" for name, value in self.follows.items()
                   if note.get(name) != value)]
        return listing(differences) if differences else ""


def check_alike(world: Comm, store: Store, plan: Plan, settings: Settings, plugins: Plugins
                ) -> None:
    """Check, on all workers alike and before they exchange anything else, that they train the same:
    each machine has files of its own, and what they send to each other may fit all the same.

    Raises
    ------
    InputError
        A worker has another version, graph, plan or setting than worker 0.
    """
    if world.size == 1:
        return
    own = {*plugins.providers("batch source"), *plugins.providers("aggregation kernel"),
           *settings.run.loggers}  # which there are may depend on the machine
    mine = {"host": platform.node(), "version": __version__, "graph": store.manifest.checksum,
            "plan": _sum(_planned(plan)), "settings": {
                **_sections(settings, _OF_MACHINE), "run": {"prove": settings.run.prove},
                # Of these a machine may have more or less, but with none it counts no visits.
                "cache": {**settings.cache.model_dump(include={"policy", "epochs", "tables"}),
                          "capacity_mb = 0": settings.cache.capacity_mb == 0,
                          "profile": settings.cache.profile is not None},
                **{f"plugins.{name}": given for name, given in settings.plugins.items()
                   if name not in own}}}
    first, *others = world.all_gather_json(mine, "control")
    for rank, other in enumerate(others, 1):
        settings_differ = [
            f"{section}.{name} = {_short(new)} and not {_short(old)}"
            for section in {**first["settings"], **other["settings"]}
            for name, old, new in _changed(first["settings"].get(section, {}),
                                           other["settings"].get(section, {}))]
        differences = (
            [f"dgl-heta {other['version']} and not {first['version']}"]
            if other["version"] != first["version"] else
            [*(f"another {name}" for name in ("graph", "plan") if other[name] != first[name]),
             *settings_differ])
        if differences:
            raise InputError(f"worker {rank} (on {other['host']}) has {listing(differences)}, as "
                             f"worker 0 (on {first['host']}) has; give all workers the same "
                             "version, partition and settings")


def _sections(settings: Settings, leave: Collection[str]) -> dict[str, dict[str, Any]]:
    """Settings of the task, the model and the training, but those of `train` to leave out."""
    task = settings.task.model_dump()
    if settings.task.links is not None:  # its content counts, not where it lies
        task["links"] = file_sum(Path(settings.task.links))[:16]
    if settings.task.table is not None:
        task["table"] = [file_sum(file)[:16] for file in seed_files(settings.task.table)]
    return {"task": task, "model": settings.model.model_dump(),
            "train": settings.train.model_dump(exclude={*leave})}


def _planned(plan: Plan) -> dict[str, Any]:
    planned = plan.to_json()
    for entry in planned.get("ownership", ()):
        del entry["file"]  # its content counts, not where it lies
    return planned


def _of_any_workers(settings: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Settings that say how many seeds a step has, not who has which."""
    train = settings["train"]
    size = train.get("global_batch_size") or train["batch_size"] * workers
    return {**settings, "train": {**train, **dict.fromkeys(_OF_WORKERS), "global_batch_size": size}}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings of a section that differ, with both values."""
    return [(name, old.get(name), new.get(name)) for name in {**old, **new}
            if old.get(name) != new.get(name)]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
