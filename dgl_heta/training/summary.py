"""The summary of a run: `summary.json`."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch

from dgl_heta._version import __version__
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.report.epoch_records import CAUSES, STAGES, EpochRecord
from dgl_heta.settings import Settings
from dgl_heta.system.memory import peak_rss_mb
from dgl_heta.training.engine import Engine
from dgl_heta.training.evaluating import classes, of_relations
from dgl_heta.training.setup import without_trainers


@dataclass(frozen=True)
class OwnEpoch:
    """The cost of an epoch on this worker: seconds, seconds of waiting for others, bytes sent."""

    seconds: float
    waiting: float
    sent: float


def summarize(engine: Engine, settings: Settings, history: list[EpochRecord],
              own: list[OwnEpoch], best: dict[str, Any], scores: dict[str, float | None]
              ) -> dict[str, Any]:
    """Return the summary without further scores; figures are means per epoch without the first one,
    which compiles and warms up."""
    steady = history[1:] or history
    world = engine.world

    def mean(section: str, key: str) -> float:
        return sum(getattr(record, section)[key] for record in steady) / max(len(steady), 1)

    epochs = own[1:] or own or [OwnEpoch(0.0, 0.0, 0.0)]
    means = [sum(column) / len(epochs) for column in zip(*map(astuple, epochs))]
    own_figures = torch.tensor([[peak_rss_mb(), *means]], dtype=torch.float64)
    workers = world.all_gather_rows(own_figures, [1] * world.size, "control").tolist()
    return {
        **scores,
        "best_epoch": best.get("epoch"), "epochs": len(history),
        "epoch_seconds": mean("seconds", "total"),
        "bytes_sent_per_epoch": int(mean("bytes_sent", "total")),
        "peak_rss_mb": max(worker[0] for worker in workers),
        "stages": {stage: mean("seconds", stage) for stage in STAGES},
        "waiting_seconds": mean("seconds", "waiting"),
        "bytes": {cause: int(mean("bytes_sent", cause)) for cause in CAUSES},
        "workers": [{"rank": rank, "peak_rss_mb": rss, "seconds": seconds, "waiting": waiting,
                     "bytes_sent": int(sent)}
                    for rank, (rss, seconds, waiting, sent) in enumerate(workers)],
        **_cache(engine, steady), **_ahead(steady),
        "proof": engine.proof and {"steps": engine.proof.proved, "seconds": engine.proof.seconds,
                                   "not_proved": engine.proof.told},
        "metric": engine.task.metric,
        "dataset": engine.store.manifest.name, "model": settings.model.name,
        "wrapper": settings.train.wrapper, "kernel": kernel_in_use().name,
        "batches": engine.part.source.name, "parts": engine.plan.num_parts,
        "parameters": sum(p.numel() for p in engine.model.parameters()),
        "settings": settings.model_dump(), "versions": versions(),
        "plan": without_trainers(engine.plan, settings.train.trainers).to_json(),
        "shared": engine.plan.shared and engine.plan.shared.to_json(),
    }


def further_scores(engine: Engine, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary's entries beside the scores: metrics, classes, relations, if there are
    any."""
    watched = engine.settings.train.watched
    scores: dict[str, Any] = {}
    if watched:
        scores["metrics"] = {split: one.metrics for split, one in evaluated.items() if one.metrics}
    if (of_classes := classes(engine, evaluated)) is not None:
        scores["classes"] = of_classes
    if (of_each := of_relations(evaluated, watched)) is not None:
        scores["relations"] = of_each
    return scores


def _cache(engine: Engine, steady: list[EpochRecord]) -> dict[str, Any]:
    """Counts of the caches in an average epoch, with what they were chosen by on worker 0."""
    caches = engine.part.caches
    if caches is None:
        return {}
    types: dict[str, dict[str, Any]] = {}
    for record in steady:
        for ntype, counted in (record.cache or {}).items():
            mean = types.setdefault(ntype, dict.fromkeys(counted, 0))
            for name, value in counted.items():
                mean[name] += value / len(steady)
    return {"cache": {
        "policy": caches.policy, "capacity_bytes": caches.capacity,
        "profile_seconds": caches.seconds, "notes": caches.notes,
        "types": {t: {**{name: int(value) for name, value in mean.items()},
                      "penalty": caches.penalties.get(t)} for t, mean in types.items()}}}


def _ahead(steady: list[EpochRecord]) -> dict[str, Any]:
    """The seconds of an average epoch for making batches ahead of time."""
    epochs = [record.ahead for record in steady if record.ahead is not None]
    return {"ahead": {
        stage: {name: sum(epoch[stage][name] for epoch in epochs) / len(epochs) for name in first}
        for stage, first in epochs[0].items()}} if epochs else {}


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    numbers = {"dgl-heta": __version__, "python": platform.python_version()}
    for name in ("torch", "dgl", "numpy", "numba"):
        try:
            numbers[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers
