"""One training with several seeds: one after another, each in a directory of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing, several
from dgl_heta.launch.jobs.run_directory import claimed, holds_run, holds_seeds, run_directory
from dgl_heta.launch.jobs.training import TrainingInterruptedError, TrainingJob, TrainingResult
from dgl_heta.launch.local import JOB
from dgl_heta.launch.scheduler import is_worker
from dgl_heta.system.checksums import read_signed
from dgl_heta.training.checkpoint_files import check_saved

_MOST = 1000
Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class SeedsResult:
    """The results of trainings with several seeds: the directory of all, and a result each."""

    run_dir: Path
    results: dict[int, TrainingResult]

    @property
    def summaries(self) -> dict[int, dict[str, Any]]:
        """Seed → the summary of its training."""
        return {seed: result.summary for seed, result in self.results.items()}


def seeds_of(given: str | int | Iterable[int], first: int = 0) -> list[int]:
    """The seeds that are given: so many, from `first` on, or a list, as a text with commas, too.

    Raises
    ------
    InputError
        It is neither; there are none, too many, or one is there twice.
    """
    if isinstance(given, str):
        if not re.fullmatch(r"\s*\d{1,18}\s*(,\s*\d{1,18}\s*)*", given, re.ASCII):
            raise InputError(f"--seeds {given} is neither a number of seeds nor a list as 1,2,3")
        words = [int(word) for word in given.split(",")]
        given = words if len(words) > 1 else words[0]
    listed = [given] if isinstance(given, int) else list(given)
    if not all(type(seed) is int and 0 <= seed < 2**63 for seed in listed):
        raise InputError(f"seeds {given!r} are neither a number of seeds nor a list of whole "
                         "numbers, as [1, 2, 3]")
    count = given if isinstance(given, int) else len(listed)
    if not 1 <= count <= _MOST:
        raise InputError(f"--seeds asks for {several(count, 'seed')}; there are 1 to {_MOST:,}")
    seeds = list(range(first, first + count)) if isinstance(given, int) else listed
    if twice := {seed for seed in seeds if seeds.count(seed) > 1}:
        raise InputError(f"--seeds names {listing(twice)} twice; give each once")
    return seeds


def train_seeds(job: TrainingJob, seeds: Sequence[int], run_dir: Path | None = None, *,
                resume: bool = False, again: bool = False,
                report: Report = lambda event: None) -> SeedsResult:
    """Train once with each seed (`train.seed`), into `seed-N` of one directory.

    Parameters
    ----------
    run_dir : default: that of the settings, else a new one in `runs/`.
    resume : leave out seeds that are finished, go on with the one that was interrupted.
    again : do so if the directory is there. So does what a scheduler starts again.
    report : gets a note before each seed, and the events of the first worker.

    Raises
    ------
    InputError, HetaError
        As :meth:`TrainingJob.run`; under a scheduler's workers, who are for one training.
    TrainingInterruptedError
        Ctrl-C or SIGTERM; the message says which seeds are finished and what is saved of this one.
    """
    going = job.goes_on(run_dir, again)
    directory = _directory(job, seeds, run_dir, resume, going)
    asked, resume = resume, resume or going
    places = _places(directory, seeds)
    results: dict[int, TrainingResult] = {}
    with claimed(directory, shared=False):
        seed = seeds[0]
        try:
            # One store for all, where the graph is none yet.
            store = job.checked_store(directory, resume, False)
            job = replace(job, opened=replace(job.opened, store=store))
            for number, seed in enumerate(seeds, 1):
                one, seed_dir = _with_seed(job, seed), places[seed]
                kept = _finished(one, seed_dir) if resume else None
                report({"event": "note", "text": f"seed {seed}, {number} of {len(seeds)}"
                        + (": finished before" if kept is not None else "")})
                result = kept or one.run(seed_dir, resume=asked and holds_run(seed_dir),
                                         again=resume, report=report)
                assert result is not None
                results[seed] = result
        except (KeyboardInterrupt, TrainingInterruptedError) as ended:
            raise TrainingInterruptedError.of(
                ended, _saved(job, directory, len(results), seeds, seed)) from None
    return SeedsResult(directory, results)


def check_seeds(job: TrainingJob, seeds: Sequence[int], run_dir: Path | None = None, *,
                resume: bool = False) -> list[str]:
    """Check all that :func:`train_seeds` does before the first step; nothing is kept. Returns and
    raises as :meth:`TrainingJob.check`."""
    directory = _directory(job, seeds, run_dir, resume, make=False)
    notes = job.check(directory, resume=resume, seeds=True)
    for seed_dir in _places(directory, seeds).values() if resume else ():
        if not (seed_dir / "summary.json").exists():  # else it has ended
            check_saved(seed_dir)
    return notes


def _directory(job: TrainingJob, seeds: Sequence[int], run_dir: Path | None, resume: bool,
               going: bool = False, make: bool = True) -> Path:
    """The directory of all, in which these seeds may be trained."""
    if is_worker():
        raise InputError("--seeds starts one training after another; under a scheduler start one "
                         "for each seed, with --set train.seed=N")
    given = run_dir or job.settings.run.directory
    directory = run_directory(Path(given) if given else None, job.opened.name, resume=resume,
                              shared=False, again=going, seeds=True, make=make)
    if holds_run(directory):
        raise InputError(f"{directory} holds a run of one seed; choose another directory for "
                         "--seeds")
    if not (resume or going):
        for seed_dir in _places(directory, seeds).values():
            if holds_run(seed_dir):
                raise InputError(f"{seed_dir} holds a run already; go on with --resume, or choose "
                                 "another directory")
        # Runs there are read with the store that they were trained on.
        if job.opened.store is None and holds_seeds(directory):
            raise InputError(f"{directory} holds runs of other seeds with a copy of the graph; "
                             "add seeds with --resume, or choose another directory")
    return directory


def _places(directory: Path, seeds: Sequence[int]) -> dict[int, Path]:
    return {seed: directory / f"seed-{seed}" for seed in seeds}


def _with_seed(job: TrainingJob, seed: int) -> TrainingJob:
    train = job.settings.train.model_copy(update={"seed": seed})
    return replace(job, settings=job.settings.model_copy(update={"train": train}))


def _finished(job: TrainingJob, run_dir: Path) -> TrainingResult | None:
    """Return the result of a training that came to its end with this graph, plan and settings, or
    None: whether it can go on with these is for its checkpoint to say."""
    result = TrainingResult(run_dir, {}, run_dir / "report.html")
    file = run_dir / "summary.json"
    if not all(path.exists() for path in (file, run_dir / JOB, result.report, result.model)):
        return None
    summary = read_signed(file, "remove it, and resume the run to write it again")
    of = read_signed(run_dir / JOB, "resume the run to write it again")
    assert job.opened.store is not None
    graph, plan = job.opened.store.manifest.checksum, json.loads(json.dumps(job.plan.to_json()))
    asked, had = json.loads(json.dumps(job.settings.model_dump())), summary.get("settings", {})
    if asked["cache"]["policy"] == "auto":  # a run records what that came to
        asked["cache"]["policy"] = had.get("cache", {}).get("policy")
    same = (asked, graph, plan) == (had, of.get("graph"), of.get("plan"))
    return replace(result, summary=summary) if same else None


def _saved(job: TrainingJob, directory: Path, finished: int, seeds: Sequence[int], seed: int
           ) -> str:
    """Return a sentence on what interrupted trainings have saved, and how they go on."""
    epoch = job.saved_epoch(directory / f"seed-{seed}") if finished < len(seeds) else 0
    if not finished and not epoch:
        return "interrupted; no epoch was saved yet"
    saved = [f"{finished} of {several(len(seeds), 'seed')} {'is' if finished == 1 else 'are'} "
             "finished"] if finished else []
    if epoch:
        saved.append(f"epoch 1 of seed {seed} is saved" if epoch == 1 else
                     f"epochs 1 to {epoch} of seed {seed} are saved")
    return (f"interrupted; {' and '.join(saved)}: go on by the same command with --resume "
            f"--run-dir {directory}")
