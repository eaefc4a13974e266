"""The training loop of one worker: epochs, validation, metrics, checkpoints, summary."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from dgl_heta.errors import HetaError, InputError, listing, several
from dgl_heta.hooks.manager import Plugins
from dgl_heta.report.epoch_records import CAUSES, STAGES, EpochRecord
from dgl_heta.report.metrics_log import Line, log_line, read_log
from dgl_heta.settings import Settings
from dgl_heta.system.atomic_files import plainly, write_atomic
from dgl_heta.system.checksums import write_signed
from dgl_heta.system.memory import peak_rss_mb
from dgl_heta.training.checkpoint import latest_position, load_checkpoint, save_checkpoint
from dgl_heta.training.checkpoint_files import BRING_BACK, gone, has_more_than_begun, recovery
from dgl_heta.training.engine import Engine
from dgl_heta.training.evaluating import (
    NOTHING,
    Evaluated,
    evaluate,
    followed,
    monitored,
    not_finite_text,
)
from dgl_heta.training.loggers import Loggers
from dgl_heta.training.preemption import (
    Begun,
    Position,
    PreemptedError,
    Preemption,
    generators,
    set_generators,
)
from dgl_heta.training.recorded import best_epoch
from dgl_heta.training.resumed_identity import Identity
from dgl_heta.training.summary import OwnEpoch, further_scores, summarize
from dgl_heta.training.trained_model import consolidate

logger = logging.getLogger("dgl_heta")
Report = Callable[[dict[str, Any]], None]
"""Receives progress events: {"event": "step" | "epoch", …}."""


def train(engine: Engine, run_dir: Path, settings: Settings, registry: Plugins, *,
          resume: bool = False, anew: bool = False, report: Report = lambda event: None
          ) -> dict[str, Any]:
    """Train, keep the best epoch by validation accuracy, test it; returns the summary.

    Worker 0 writes `metrics.jsonl` (a line per epoch) and `summary.json` in the run directory.

    Parameters
    ----------
    resume : go on from the last checkpoint there, if there is one.
    anew : begin again, over what is left, where the run had checkpoints that are gone.

    Raises
    ------
    InputError
        Nothing to train on; a checkpoint of another run to resume from, or one that is gone.
    PreemptedError
        SIGTERM came to a worker; a checkpoint is written.
    """
    # Before the first collective: when one worker's log is there, no other is ended by SIGTERM.
    with Preemption(engine.world) as preemption:
        return _train(engine, run_dir, settings, registry, resume, anew, report, preemption)


def _train(engine: Engine, run_dir: Path, settings: Settings, registry: Plugins, resume: bool,
           anew: bool, report: Report, preemption: Preemption) -> dict[str, Any]:
    first, rank, model = engine.rank == 0, engine.rank, engine.distributed
    _check_seeds(engine)
    identity = Identity.of(engine.part, engine.task, settings,
                           registry.providers("batch source"),
                           registry.providers("aggregation kernel"))
    validates = bool(engine.steps("val"))
    _check_validation(engine, validates)
    log = run_dir / "metrics.jsonl"
    said = report if first else lambda event: None
    start, best, history, begun = _go_on(engine, settings, run_dir, log, identity, resume, anew,
                                         said)
    last, stopped = start, _stops(engine, start, best)
    if first:
        (run_dir / "summary.json").unlink(missing_ok=True)  # of fewer epochs: the run goes on
        write_atomic(log, "".join(log_line(record.to_json()) for record in history))
    registry.hook.dgl_heta_run_started(run_dir=run_dir, rank=rank, settings=settings.model_dump())
    own: list[OwnEpoch] = []
    with Loggers(registry, settings, run_dir, start, first) as logs:
        for epoch in range(start + 1, settings.train.epochs + 1):
            if stopped:
                break
            engine.store.check_sizes()
            record = _epoch(engine, epoch, run_dir, own, said, preemption, begun)
            if isinstance(record, Begun):
                _end_within(engine, run_dir, epoch, record, best, identity)
            begun = Begun()
            _check_parameters(engine, run_dir, epoch)
            score = followed(settings, record.val_acc, record.metrics)
            if _better(engine, validates, score, best):
                best = {"epoch": epoch, "val_acc": score}
            if engine.schedule is not None:
                engine.schedule.step(monitored(settings, record.val_acc, record.metrics))
            last, stopped = epoch, _stops(engine, epoch, best)
            history.append(record)
            if first:  # before the checkpoint: a line without one is dropped when the run goes on
                _append(log, record.to_json())
            save_checkpoint(model, engine.optimizer, run_dir, Position(epoch), best, identity)
            registry.hook.dgl_heta_epoch_ended(run_dir=run_dir, rank=rank, metrics=record.to_json())
            if first:
                report(record.to_json())
                logs.epoch(record.to_json())
            if preemption.agreed():
                raise PreemptedError(Position(epoch), run_dir)
        best = _finish(engine, run_dir, best, last, identity)
        engine.reset_traffic()
        evaluated = _test(engine, said)
        consolidate(engine, run_dir)
        summary = {
            **summarize(engine, settings, history, own, best, {
                "val_acc": evaluated["val"].score, "test_acc": evaluated["test"].score,
                "test_loss": evaluated["test"].loss}),
            "stopped_early": stopped and last < settings.train.epochs,
            **further_scores(engine, evaluated)}
        if first:
            write_signed(run_dir / "summary.json", summary, indent=1)
            _append(log, {"event": "summary", **summary})
            logs.close(summary)
    registry.hook.dgl_heta_run_ended(run_dir=run_dir, rank=rank, summary=summary)
    engine.world.barrier()  # nobody leaves while another worker's hook may still fail
    return summary


def _end_within(engine: Engine, run_dir: Path, epoch: int, begun: Begun, best: dict[str, Any],
                identity: Identity) -> NoReturn:
    """Save what there is after some steps of an epoch, and end."""
    at = Position(epoch - 1, begun.step)
    save_checkpoint(engine.distributed, engine.optimizer, run_dir, at, best, identity, begun.state)
    raise PreemptedError(at, run_dir)


def _test(engine: Engine, report: Report) -> dict[str, Evaluated]:
    """Evaluate the model that is left, on the splits that it was not trained on."""
    evaluated = {split: evaluate(engine, split, count=True) for split in ("val", "test")}
    if text := not_finite_text(evaluated["test"], "test"):
        report({"event": "note", "text": text})
    return evaluated


def _go_on(engine: Engine, settings: Settings, run_dir: Path, log: Path, identity: Identity,
           resume: bool, anew: bool, report: Report
           ) -> tuple[int, dict[str, Any], list[EpochRecord], Begun]:
    """Be where an earlier run was, if one is to go on; returns its epochs, the best of them, their
    records, and the epoch in which it was."""
    start = latest_position(engine.distributed, run_dir, identity) if resume else Position()
    _check_directory(engine, run_dir, resume)
    if resume and not any(start):
        _check_lost(engine, run_dir, anew, report)
    best, begun = _restore(engine, run_dir, start, identity, report)
    if begun.step and (start.epoch >= settings.train.epochs
                       or _stops(engine, start.epoch, best)):
        # It is to have no further epoch now, so the steps of one do not count.
        best, begun = _restore(engine, run_dir, Position(start.epoch), identity)
    history = _history(log, start.epoch)
    _schedule_again(engine, settings, history, start.epoch)
    return start.epoch, best, history, begun


def _schedule_again(engine: Engine, settings: Settings, history: list[EpochRecord], epochs: int
                    ) -> None:
    """Take the steps of a schedule, which is not saved, for the epochs behind the run: on all
    workers by the scores that worker 0 has, as other machines may have no log."""
    if engine.schedule is not None:
        own = [(r.epoch, monitored(settings, r.val_acc, r.metrics)) for r in history]
        engine.schedule.again(dict(engine.world.all_gather_json(own, "control")[0]), epochs)


def _restore(engine: Engine, run_dir: Path, at: Position, identity: Identity,
             report: Report = lambda event: None) -> tuple[dict[str, Any], Begun]:
    """Load the checkpoint of a position; returns the best epoch so far, and the one begun."""
    if not any(at):
        return {}, Begun()
    note, state = load_checkpoint(engine.distributed, engine.optimizer, run_dir, at, identity)
    if not identity.same_workers(note):
        report({"event": "note", "text": "goes on by another plan, with "
                f"{several(engine.world.size, 'worker')}, from a checkpoint of {note['workers']}"})
    return best_epoch(note, at.epoch, run_dir), Begun(at.step, state)


def _better(engine: Engine, validates: bool, score: float | None, best: Mapping[str, Any]) -> bool:
    """Return whether an epoch is the best so far. Where workers differ, none is until they are
    made equal; where nothing is validated, every last one is."""
    if not engine.wrapped.equal():
        return False
    return not validates or (score is not None and (not best or score > best["val_acc"]))


def _finish(engine: Engine, run_dir: Path, best: dict[str, Any], last: int, identity: Identity
            ) -> dict[str, Any]:
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
        load_checkpoint(engine.distributed, engine.optimizer, run_dir,
                        Position(best["epoch"]), identity)
    if not apart:
        engine.wrapped.finish()
    return best


def _check_seeds(engine: Engine) -> None:
    """Refuse, on all workers alike, to train on nothing."""
    # The least over all workers: all raise the error, or none does.
    least, task = torch.tensor([float(bool(engine.steps("train")))]), engine.task
    links = task.held_out is not None
    if not engine.world.all_reduce(least, "min", "control").item():
        elsewhere = " and is owned by this worker" if task.steps("train", 0, 1) else ""
        what = "no link is for training" if links else (
            f"no node of {' or '.join(repr(t) for t in task.targets)} is in train_mask and has a "
            "label")
        raise InputError(f"there is nothing to train on: {what}{elsewhere}")
    if idle := task.untrained():
        why, name = (("no link is for training", "relation") if links else
                     ("no node is in train_mask and has a label", "targets"))
        raise InputError(f"there is nothing to train on for {listing(idle)}: {why}; name the "
                         f"others alone by task.{name}")


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


def _stops(engine: Engine, epoch: int, best: dict[str, Any]) -> bool:
    """Return whether training ends after an epoch, early: it follows from the checkpoint alone.

    All workers call it alike. Where they differ it goes on until they are made equal: no epoch
    before can have been the best one.
    """
    train = engine.settings.train
    due = (train.early_stopping is not None and bool(best) and epoch % train.eval_every == 0
           and epoch - best["epoch"] >= train.early_stopping)
    return due and engine.wrapped.equal()


def _check_directory(engine: Engine, run_dir: Path, resume: bool) -> None:
    """Refuse, on all workers alike, to overwrite a run."""
    kept = (run_dir / "metrics.jsonl").exists() or (run_dir / "checkpoints").exists()
    if engine.world.all_reduce(torch.tensor([float(kept and not resume)]), "max",
                               "control").item():
        raise InputError(f"{run_dir} holds a run already; continue it with --resume, or choose "
                         "another directory")


def _check_lost(engine: Engine, run_dir: Path, anew: bool, report: Report) -> None:
    """Refuse, on all workers alike, to begin again over a run whose checkpoints are gone, unless
    it may begin `anew`."""
    if not any(engine.world.all_gather_json(has_more_than_begun(run_dir), "control")):
        return
    if not anew:
        raise InputError(f"{gone(run_dir)}; {BRING_BACK}")
    report({"event": "note", "text": f"{gone(run_dir)}: training begins again"})


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


def _epoch(engine: Engine, epoch: int, run_dir: Path, own: list[OwnEpoch], report: Report,
           preemption: Preemption, begun: Begun) -> EpochRecord | Begun:
    """Train an epoch, or what is left of it, and validate it; adds to `own`. Returns how far it
    came where all workers are to end."""
    settings = engine.settings
    engine.start_epoch(epoch, begun.step)
    started, proving = time.perf_counter(), engine.proof.seconds if engine.proof else 0.0
    steps = engine.steps("train", epoch)
    if begun.step:
        set_generators(begun.state, engine.device)
        report({"event": "note", "text": f"epoch {epoch} goes on after {begun.step} of its "
                f"{len(steps)} steps; its seconds, bytes and cache counts are of the others"})
    totals = begun.state.get("totals")
    for index, statistics in enumerate(engine.train(steps, epoch << 20, begun.step),
                                       begun.step + 1):
        totals = statistics if totals is None else totals.to(statistics.device) + statistics
        report({"event": "step", "epoch": epoch, "step": index, "steps": len(steps),
                "loss": engine.task.score(statistics)[1]})
        if engine.in_step and preemption.agreed():
            return Begun(index, {"totals": totals, **generators(engine.device)})
    engine.wrapped.epoch_ended(epoch)
    seconds = time.perf_counter() - started
    if engine.proof:
        seconds -= engine.proof.seconds - proving
    sent, waiting, stages, ahead = engine.sent, engine.waited, engine.seconds, engine.ahead
    del sent["proof"]  # of single steps
    own.append(OwnEpoch(seconds, waiting, float(sum(sent.values()))))
    cached = None if engine.part.caches is None else engine.part.caches.counted()
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
    records, lines = list[EpochRecord](), read_log(log)
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
        if lines and lines[-1].cut and epochs not in known:
            raise _damaged(log, lines[-1], "it is cut off")
        logger.warning("%s has lines of %d epochs of the %d behind this run; figures of the run "
                       "leave the others out", log, len(known), epochs)
    return records


def _damaged(log: Path, line: Line, fault: str) -> InputError:
    return InputError(f"{log}, line {line.number}, is damaged: {fault}; remove the line to resume "
                      "without it")
