"""The identity of a run: what a checkpoint must share with the run that goes on from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgl_heta.errors import listing
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.sources import Auto
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.checksums import file_sum
from dgl_heta.training.tasks import TrainingTask
from dgl_heta.training.tasks.timed_seeds import seed_files
from dgl_heta.training.worker_partition import WorkerPartition

_OTHERS = "other settings, another plan or another graph"
_NUMBERS_STAY = {"epochs", "threads", "device", "eval_every", "precompute_mb", "batches",
                 "sampling_threads", "early_stopping", "metrics"}
_KERNEL = "fused"
"""In every fingerprint: numbers stay with any kernel, and runs from before have this one's name."""
_OF_WORKERS = ("batch_size", "global_batch_size", "trainers")
_LATER: dict[str, dict[str, Any]] = {  # settings that runs from before do not know: what they did
    "train": {"global_batch_size": None, "exchange_dtype": "same", "autocast": "off",
              "optimizer": "Adam", "optimizer_options": {}, "schedule": None,
              "schedule_options": {}, "clip_grad_norm": None, "class_weights": None,
              "monitor": None, "latest": False, "strictly_before": False},
    "task": {"links": None, "decoder": "dot", "unlabelled": None, "table": None,
             "columns": ["id", "time", "label"], "val_time": None, "test_time": None},
}


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
        sections = {"task": settings.task.model_dump(), "model": settings.model.model_dump(),
                    "train": settings.train.model_dump(exclude=_NUMBERS_STAY)}
        sections["train"]["kernel"] = _KERNEL
        if settings.task.links is not None:  # its content counts, not where it lies
            sections["task"]["links"] = file_sum(Path(settings.task.links))[:16]
        if settings.task.table is not None:
            sections["task"]["table"] = [file_sum(file)[:16]
                                         for file in seed_files(settings.task.table)]
        if task.held_out is not None:  # what was found in the graph counts, too
            sections["task"]["reverse"] = [[*map(str, group.relations), group.undirected]
                                           for group in task.held_out.groups]
        for section, known in _LATER.items():
            for name, before in known.items():
                if sections[section][name] == before:
                    del sections[section][name]
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
        planned = plan.to_json()
        for entry in planned.get("ownership", ()):
            del entry["file"]  # its content counts, not where it lies
        sums = store.manifest.to_json()["sha256"]
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
        before = note.get("settings")
        if not isinstance(before, Mapping) or not isinstance(before.get("train"), Mapping):
            return _OTHERS
        before, now = _without_kernel(before), _without_kernel(self.settings)
        then = note.get("workers")
        if then is not None:  # notes of earlier versions are of the same workers only
            before, now = _of_any_workers(before, then), _of_any_workers(now, self.workers)
        changed = [f"{section}.{name} = {_short(old)} (now {_short(new)})"
                   for section in {**before, **now}
                   for name, old, new in _changed(section, before.get(section), now.get(section))]
        differences = [*([f"other settings: {', '.join(changed)}"] if changed else []),
                 *(["another graph"] if note.get("graph") != self.graph else []),
                 *([f"other {name}" for name, value in self.follows.items()
                    if note.get(name) != value] if then is not None else
                   ["another plan"] if note.get("plan") != self.plan else [])]
        if not differences:
            return _OTHERS if then is None else ""
        return listing(differences)


def _without_kernel(settings: Mapping[str, Any]) -> dict[str, Any]:
    train = {name: value for name, value in settings["train"].items() if name != "kernel"}
    return {**settings, "train": train}


def _of_any_workers(settings: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Settings that say how many seeds a step has, not who has which."""
    train = settings["train"]
    size = train.get("global_batch_size") or train["batch_size"] * workers
    return {**settings, "train": {**train, **dict.fromkeys(_OF_WORKERS), "global_batch_size": size}}


def _changed(section: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """The settings of a section that differ, with both values."""
    usual = _usual(section)
    old, new = ({**usual, **(given if isinstance(given, Mapping) else {})} for given in (old, new))
    return [(name, old.get(name), new.get(name)) for name in {**old, **new}
            if old.get(name) != new.get(name)]


def _usual(section: str) -> dict[str, Any]:
    return dict(getattr(Settings(), section, None) or {}) if "." not in section else {}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
