"""The training loop of one worker: epochs, validation, metrics, checkpoints, summary."""

from __future__ import annotations

import importlib.metadata
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.report.epoch_records import CAUSES, STAGES, EpochRecord
from dgl_heta.report.metrics_log import Line, log_line, log_lines
from dgl_heta.settings import Settings
from dgl_heta.system.atomic_files import plainly, write_atomic
from dgl_heta.system.checksums import write_signed
from dgl_heta.system.memory import peak_rss_mb
from dgl_heta.training.checkpoint import (
    consolidate,
    latest_epoch,
    load_checkpoint,
    recovery,
    save_checkpoint,
)
from dgl_heta.training.engine import Engine
from dgl_heta.training.evaluating import (
    NOTHING,
    classes,
    evaluate,
    followed,
    not_finite_text,
    of_relations,
)
from dgl_heta.training.identity import Identity
from dgl_heta.training.loggers import Loggers
from dgl_heta.training.recorded import best_epoch

logger = logging.getLogger("dgl_heta")
Report = Callable[[dict[str, Any]], None]
"""Receives progress events: {"event": "step" | "epoch", …}."""


def train(engine: Engine, run_dir: Path, settings: Settings, registry: Plugins, *,
          resume: bool = False, report: Report = lambda event: None) -> dict[str, Any]:
    """Train, keep the best epoch by validation accuracy, test it; returns the summary.

    Worker 0 writes `metrics.jsonl` (a line per epoch) and `summary.json` in the run directory.

    Raises
    ------
    InputError
        Nothing to train on, or a checkpoint of another run to resume from.
    """
    first, rank = engine.rank == 0, engine.rank
    _check_seeds(engine)
    identity = Identity.of(engine, settings)
    validates = bool(engine.steps("val"))
    _check_validation(engine, validates)
    start = latest_epoch(run_dir, rank, engine.world, identity) if resume else 0
    _check_directory(engine, run_dir, resume)
    log = run_dir / "metrics.jsonl"
    best, history = _go_on(engine, settings, run_dir, log, start)
    last, stopped = start, _stops(settings, start, best)
    if first:
        write_atomic(log, "".join(log_line(record.to_json()) for record in history))
    registry.hook.dgl_heta_run_started(run_dir=run_dir, rank=rank, settings=settings.model_dump())
    own: list[OwnEpoch] = []
    said = report if first else lambda event: None
    with Loggers(registry, settings, run_dir, start, first) as logs:
        for epoch in range(start + 1, settings.train.epochs + 1):
            if stopped:
                break
            engine.store.check_sizes()
            record = _epoch(engine, epoch, run_dir, own, said)
            _check_parameters(engine, run_dir, epoch)
            score = followed(settings, record.val_acc, record.metrics)
            if _better(engine, validates, score, best):
                best = {"epoch": epoch, "val_acc": score}
            if engine.schedule is not None:
                engine.schedule.step(score)
            last, stopped = epoch, _stops(settings, epoch, best)
            history.append(record)
            if first:  # before the checkpoint: a line without one is dropped when the run goes on
                _append(log, record.to_json())
            save_checkpoint(engine, run_dir, epoch, best, identity)
            registry.hook.dgl_heta_epoch_ended(run_dir=run_dir, rank=rank, metrics=record.to_json())
            if first:
                report(record.to_json())
                logs.epoch(record.to_json())
        best = _finish(engine, run_dir, best, last)
        engine.reset_traffic()
        evaluated = {split: evaluate(engine, split, count=True) for split in ("val", "test")}
        if text := not_finite_text(evaluated["test"], "test"):
            said({"event": "note", "text": text})
        consolidate(engine, run_dir)
        summary = {
            **_summary(engine, settings, history, own, best, {
                "val_acc": evaluated["val"].score, "test_acc": evaluated["test"].score,
                "test_loss": evaluated["test"].loss}),
            "stopped_early": stopped and last < settings.train.epochs,
            **_further_scores(engine, evaluated)}
        if first:
            write_signed(run_dir / "summary.json", summary, indent=1)
            _append(log, {"event": "summary", **summary})
            logs.close(summary)
    registry.hook.dgl_heta_run_ended(run_dir=run_dir, rank=rank, summary=summary)
    engine.world.barrier()  # nobody leaves while another worker's hook may still fail
    return summary


def _go_on(engine: Engine, settings: Settings, run_dir: Path, log: Path, start: int
           ) -> tuple[dict[str, Any], list[EpochRecord]]:
    """Be where an earlier run was after epoch `start`; the best epoch so far, and all records."""
    best: dict[str, Any] = {}
    if start:
        best = best_epoch(load_checkpoint(engine, run_dir, start), start, run_dir)
    history = _history(log, start)
    if engine.schedule is not None:
        # A schedule is not saved: it takes the same steps again, from the same scores.
        engine.schedule.again({r.epoch: followed(settings, r.val_acc, r.metrics)
                               for r in history}, start)
    return best, history


def _better(engine: Engine, validates: bool, score: float | None, best: Mapping[str, Any]) -> bool:
    """Return whether an epoch is the best so far. Where workers differ, none is until they are
    made equal; where nothing is validated, every last one is."""
    if not engine.wrapped.equal():
        return False
    return not validates or (score is not None and (not best or score > best["val_acc"]))


def _further_scores(engine: Engine, evaluated: Mapping[str, Any]) -> dict[str, Any]:
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


def _finish(engine: Engine, run_dir: Path, best: dict[str, Any], last: int) -> dict[str, Any]:
    """Finish, and leave the best model on all workers; returns what is known of its epoch.

    Where workers differ after the last epoch, what finishing makes of it is a candidate, too.
    """
    apart = not engine.wrapped.equal()
    if apart:
        engine.wrapped.finish()
        evaluated = evaluate(engine, "val")
        score = followed(engine.settings, evaluated.score, evaluated.metrics)
        if not best or score is None or score > best["val_acc"]:
            return {"epoch": last, "val_acc": score}
    if best and best["epoch"] != last:
        load_checkpoint(engine, run_dir, best["epoch"])
    if not apart:
        engine.wrapped.finish()
    return best


def _check_seeds(engine: Engine) -> None:
    """Refuse, on all workers alike, to train on nothing."""
    # The least over all workers: all raise the error, or none does.
    least = torch.tensor([float(bool(engine.steps("train")))])
    if not engine.world.all_reduce(least, "min", "control").item():
        elsewhere = " and is owned by this worker" if engine.task.steps("train", 0, 1) else ""
        what = "no link is for training" if engine.task.held_out is not None else (
            f"no node of {' or '.join(repr(t) for t in engine.task.targets)} is in train_mask and "
            "has a label")
        raise InputError(f"there is nothing to train on: {what}{elsewhere}")


def _check_validation(engine: Engine, validates: bool) -> None:
    """Refuse what follows the validation score where there is none."""
    if validates:
        return
    followers = [("monitor", engine.settings.train.monitor is not None),
                 ("early_stopping", engine.settings.train.early_stopping is not None),
                 ("schedule", engine.schedule is not None and engine.schedule.by_score)]
    for name, follows in followers:
        if follows:
            raise InputError(f"train.{name} = {getattr(engine.settings.train, name)} follows the "
                             "validation score, and no node or edge is for validation (val_mask); "
                             f"leave train.{name} out")


def _stops(settings: Settings, epoch: int, best: dict[str, Any]) -> bool:
    """Return whether training ends after an epoch, early: it follows from the checkpoint alone."""
    patience = settings.train.early_stopping
    return (patience is not None and bool(best) and epoch % settings.train.eval_every == 0
            and epoch - best["epoch"] >= patience)


def _check_directory(engine: Engine, run_dir: Path, resume: bool) -> None:
    """Refuse, on all workers alike, to overwrite a run."""
    kept = (run_dir / "metrics.jsonl").exists() or (run_dir / "checkpoints").exists()
    if engine.world.all_reduce(torch.tensor([float(kept and not resume)]), "max",
                               "control").item():
        raise InputError(f"{run_dir} holds a run already; continue it with --resume, or choose "
                         "another directory")


@dataclass(frozen=True)
class OwnEpoch:
    """The cost of an epoch on this worker: seconds, seconds of waiting for others, bytes sent."""

    seconds: float
    waiting: float
    sent: float


def _diverged(run_dir: Path, what: str) -> InputError:
    """The error of a training that cannot go on, with what is left of it."""
    return InputError(f"{what}: training diverged; lower train.lr or train.sparse_lr, or check the "
                      f"features, and train in a new run directory. {recovery(run_dir)}")


def _check_parameters(engine: Engine, run_dir: Path, epoch: int) -> None:
    """Refuse, on all workers alike, to save parameters that are not finite: the last step of an
    epoch can make them so, which its loss does not show."""
    wrong = any(not bool(p.isfinite().all()) for p in engine.model.parameters())
    if engine.world.all_reduce(torch.tensor([float(wrong)]), "max", "control").item():
        raise _diverged(run_dir, f"parameters are NaN or infinite after epoch {epoch}")


def _epoch(engine: Engine, epoch: int, run_dir: Path, own: list[OwnEpoch], report: Report
           ) -> EpochRecord:
    """Train an epoch and validate it; adds to `own`."""
    settings = engine.settings
    engine.start_epoch(epoch)
    started, proving = time.perf_counter(), engine.proof.seconds if engine.proof else 0.0
    steps = engine.steps("train", epoch)
    totals = None
    for index, statistics in enumerate(engine.train(steps, epoch << 20), 1):
        totals = statistics if totals is None else totals + statistics
        report({"event": "step", "epoch": epoch, "step": index, "steps": len(steps),
                "loss": engine.task.score(statistics)[1]})
    engine.wrapped.epoch_ended(epoch)
    seconds = time.perf_counter() - started
    if engine.proof:
        seconds -= engine.proof.seconds - proving
    sent, waiting, stages, ahead = engine.sent, engine.waited, dict(engine.seconds), engine.ahead
    del sent["proof"]  # of single steps
    own.append(OwnEpoch(seconds, waiting, float(sum(sent.values()))))
    cached = None if engine.caches is None else engine.caches.counted()
    train_acc, loss = engine.score(totals)
    if not math.isfinite(loss):
        raise _diverged(run_dir, f"the loss of epoch {epoch} is {loss}")
    every = settings.train.eval_every
    validate = epoch % every == 0 or epoch == settings.train.epochs
    evaluated = evaluate(engine, "val") if validate else NOTHING
    if text := not_finite_text(evaluated, "val"):
        report({"event": "note", "text": f"epoch {epoch}: {text}"})
    causes = {cause: int(total) for cause, total in zip(CAUSES, engine.sum_over_workers(
        torch.tensor([float(sent[c]) for c in CAUSES], dtype=torch.float64)))}
    return EpochRecord(
        epoch, loss, train_acc, evaluated.score,
        {**{s: stages.get(s, 0.0) for s in STAGES}, "waiting": waiting, "total": seconds},
        {**causes, "total": sum(causes.values())}, peak_rss_mb(), evaluated.metrics, cached, ahead)


def _summary(engine: Engine, settings: Settings, history: list[EpochRecord],
             own: list[OwnEpoch], best: dict[str, Any], scores: dict[str, float | None]
             ) -> dict[str, Any]:
    """Means per epoch without the first one, which compiles and warms up."""
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
        "wrapper": settings.train.wrapper, "parts": engine.plan.num_parts,
        "parameters": sum(p.numel() for p in engine.model.parameters()),
        "settings": settings.model_dump(), "versions": versions(),
        "plan": engine.plan.to_json(),
        "shared": engine.plan.shared and engine.plan.shared.to_json(),
    }


def _cache(engine: Engine, steady: list[EpochRecord]) -> dict[str, Any]:
    """Counts of the caches in an average epoch, with what they were chosen by on worker 0."""
    caches = engine.caches
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


def _append(log: Path, record: dict[str, Any]) -> None:
    """Add a line to the log, on the disk before anything counts on it.

    Raises
    ------
    HetaError
        It cannot be written, for example because the disk is full.
    """
    try:
        with open(log, "a", encoding="utf-8", opener=plainly) as file:
            file.write(log_line(record))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise HetaError(f"cannot write {log}: {error.strerror or error}") from None


def _history(log: Path, epochs: int) -> list[EpochRecord]:
    """The epochs that a resumed run has behind it.

    Raises
    ------
    InputError
        A line of them is not as it was written. The last line may be cut off, if it is of a later
        epoch: a line is on the disk before the checkpoint of its epoch.
    """
    if not epochs or not log.exists():
        return []
    try:
        with open(log, "rb", opener=plainly) as file:
            lines = log_lines(file.read(), log)
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror or error}") from None
    records = []
    for line in lines:
        if line.content is None and not line.cut:
            raise _damaged(log, line, "it is not what was written")
        if line.content is None or line.content.get("event") != "epoch":
            continue
        try:
            record = EpochRecord.from_json(line.content)
        except ValueError:
            raise _damaged(log, line, "it is no epoch as training writes one") from None
        if record.epoch <= epochs:
            records.append(record)
    known = {record.epoch for record in records}
    if len(known) < epochs:
        if lines and lines[-1].cut and lines[-1].checked and epochs not in known:
            raise _damaged(log, lines[-1], "it is cut off")
        logger.warning("%s has lines of %d epochs of the %d behind this run; figures of the run "
                       "leave the others out", log, len(known), epochs)
    return records


def _damaged(log: Path, line: Line, fault: str) -> InputError:
    return InputError(f"{log}, line {line.number}, is damaged: {fault}; remove the line to resume "
                      "without it")


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    numbers = {"dgl-heta": __version__, "python": platform.python_version()}
    for name in ("torch", "dgl", "numpy", "numba"):
        try:
            numbers[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers
