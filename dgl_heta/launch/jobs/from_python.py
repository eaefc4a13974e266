"""Training from Python: what `dgl-heta train` does, and a partition for a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, overload

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.jobs.choices import check_staged, open_for, plan_for
from dgl_heta.launch.jobs.seed_runs import SeedsResult, seeds_of, train_seeds
from dgl_heta.launch.jobs.training import TrainingJob, TrainingResult
from dgl_heta.launch.scheduler import adopt, is_worker, workers
from dgl_heta.nn import use_kernel
from dgl_heta.partition.directory import is_partition
from dgl_heta.partition.own_plan import followed
from dgl_heta.training.own_loop import Partition
from dgl_heta.training.setup import with_trainers
from dgl_heta.training.worker_partition import batch_source, join, rows_of

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


def open_partition(directory: str | Path, settings: Iterable[str] = (),
                   config: str | Path | None = None) -> Partition:
    """Open a partition as the worker that torchrun or srun has started, and meet the others.

    Without them it is the only worker, of a partition of one part.

    Parameters
    ----------
    directory : of a partition, staged or not.
    settings : "section.key=value", as by --set; stronger than the file `config`. Of `train` those
        of devices, dtypes, sampling and learnable rows count, of `model` its sizes, where the model
        is built from :meth:`Partition.spec`.

    Raises
    ------
    InputError
        No partition, or one for another number of workers; settings that it was not made for; a
        scheduler's variables that contradict each other.
    """
    if not isinstance(directory, str | Path):
        raise InputError(f"a partition is a directory, not {type(directory).__name__}; write it by "
                         "`dgl-heta partition` or dgl_heta.write_store and open that")
    if not is_partition(Path(directory)):
        raise InputError(f"{directory} is no partition; make one: dgl-heta partition GRAPH --out "
                         f"{directory} --target TYPE --parts {workers()}")
    adopt()
    overrides = [settings] if isinstance(settings, str) else [*settings]
    opened, chosen, registry = open_for(str(directory), Path(config) if config else None, overrides,
                                        plugins())
    if chosen.task.targets is None and not chosen.task.relation and opened.plan is not None:
        task = chosen.task.model_copy(update={"targets": list(opened.plan.targets)})
        chosen = chosen.model_copy(update={"task": task})
    plan, store, train = plan_for(opened, chosen, registry), opened.store, chosen.train
    check_staged(store, plan, train.trainers)
    assert store is not None
    plan = with_trainers(followed(plan, chosen, registry), train.trainers)
    registry.kernel(train.kernel, gpu=False)  # an unknown one is an error before workers meet
    met = join(store, plan, chosen, registry)
    use_kernel(registry.kernel(train.kernel, gpu=met.device.type == "cuda"))
    source = batch_source(registry, train.batches, plan, met.device)
    # There a node can have two rows: a seed of two workers' links, a node of two paths.
    repeated = plan.targets if plan.metapaths or chosen.task.relation else ()
    part = Partition(store, plan, chosen, source, met, rows_of(store, plan, chosen, met, repeated))
    part.cache_policy = registry.get("cache policy",
                                     chosen.cache.policy_on(met.device.type == "cuda"))
    return part
