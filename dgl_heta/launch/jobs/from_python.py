"""`dgl_heta.train`: what `dgl-heta train` does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, overload

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.jobs.seed_runs import SeedsResult, seeds_of, train_seeds
from dgl_heta.launch.jobs.training import TrainingJob, TrainingResult
from dgl_heta.launch.scheduler import is_worker

Report = Callable[[dict[str, Any]], None]


@overload
def train(graph: str | Path, run_dir: str | Path | None = None, *, model: str | None = None,
          parts: int | None = None, settings: Iterable[str] = (), config: str | Path | None = None,
          seeds: None = None, resume: bool = False, report: Report = ...) -> TrainingResult: ...


@overload
def train(graph: str | Path, run_dir: str | Path | None = None, *, model: str | None = None,
          parts: int | None = None, settings: Iterable[str] = (), config: str | Path | None = None,
          seeds: int | Iterable[int], resume: bool = False, report: Report = ...
          ) -> SeedsResult: ...


def train(graph: str | Path, run_dir: str | Path | None = None, *, model: str | None = None,
          parts: int | None = None, settings: Iterable[str] = (), config: str | Path | None = None,
          seeds: int | Iterable[int] | None = None, resume: bool = False,
          report: Report = lambda event: None) -> TrainingResult | SeedsResult:
    """Train as `dgl-heta train` does, with a process for each worker; returns what came of it.

    Parameters
    ----------
    graph : a partition, a relation store, or anything else that the command takes.
    run_dir : default: a new one in `runs/`.
    model, parts : as --model and --parts.
    settings : "section.key=value", as by --set; stronger than the file `config`.
    seeds : as --seeds: train with so many seeds, one after another, or with these, into `seed-N`
        of `run_dir`.
    resume : continue from the last checkpoint in `run_dir`.
    report : gets the events of the first worker.

    Raises
    ------
    InputError, HetaError
        As :meth:`TrainingJob.prepare` and :meth:`TrainingJob.run`; and under torchrun or srun, for
        whose workers the command is.
    """
    if is_worker():
        raise InputError("dgl_heta.train starts its own workers; under torchrun or srun give "
                         "`-m dgl_heta train` for the program")
    overrides = [*([settings] if isinstance(settings, str) else settings),
                 *([f"model.name={model}"] if model else []),
                 *([f"partition.parts={parts}"] if parts is not None else [])]
    job = TrainingJob.prepare(str(graph), Path(config) if config else None, overrides, plugins())
    directory = Path(run_dir) if run_dir else None
    if seeds is not None:
        return train_seeds(job, seeds_of(seeds, job.settings.train.seed), directory, resume=resume,
                           report=report)
    result = job.run(directory, resume=resume, report=report)
    assert result is not None
    return result
