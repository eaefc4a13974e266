"""The directory of a training run: which one, and that one command alone works in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dgl_heta.errors import HetaError, InputError
from dgl_heta.partition.directory import STORE_DIR, is_part_config
from dgl_heta.system.atomic_files import check_plain, plainly, write_atomic
from dgl_heta.system.remote_files import check_on_disk

STORE_MARK = ".store-of-run"
"""Says that the store in a run directory is one that training writes, and may replace."""
DIRECTORIES = ("checkpoints", "checkpoints/epoch-*", "averages", "seed-*")
FILES = (".lock", STORE_MARK, "job*.json", "worker-*.log", "started.json", "summary.json",
         "metrics.jsonl", "model.json", "model.safetensors", "report.html", "checkpoints/*/*")
"""Files that training writes, with one seed or several."""


def run_directory(given: Path | None, name: str, *, resume: bool, shared: bool,
                  again: bool = False, seeds: bool = False, make: bool = True) -> Path:
    """The directory for a run, which is there afterwards, unless it is not to be made.

    Parameters
    ----------
    given : None for a new one in `runs/`, called after the graph's `name` and the time.
    resume : whether there must be a run in it, which goes on.
    shared : whether several workers of a scheduler use it.
    again : whether a run that may be in it goes on.
    seeds : whether it has a run for each of several seeds.

    Raises
    ------
    InputError
        None is given where one is needed, there is nothing to resume, it has a run already, is a
        partition, or a URL; or as :func:`check_files`.
    """
    if given is None:
        if resume:
            raise InputError("--resume needs --run-dir, the directory of the run to continue")
        if shared:
            raise InputError("under a scheduler give --run-dir: every worker must use the same one")
        given = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    check_on_disk(given, "the run directory")
    check_files(given)
    runs = [*given.glob("seed-*")] if seeds else [given]
    # One that was killed before its first step left no more than a job.
    if resume and not any(next(run.glob(name), None) for run in runs for name in FILES):
        raise InputError(f"there is no run to resume in {given}; leave --resume out to begin one")
    if holds_run(given) and not (resume or again or shared):
        raise InputError(f"{given} holds a run already; continue it with --resume, or choose "
                         "another directory")
    if not seeds and not holds_run(given) and holds_seeds(given):
        raise InputError(f"{given} holds runs of several seeds; choose another directory for one "
                         "alone")
    if not holds_run(given) and any(map(is_part_config, given.glob("*.json"))):
        raise InputError(f"{given} is a partition, which no longer opens with a run's files in it; "
                         "choose another run directory")
    try:
        if make:
            given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make run directory {given}: {error.strerror}") from None
    return given


def holds_run(directory: Path) -> bool:
    """Return whether a training has begun in a directory."""
    return any(os.path.lexists(directory / name) for name in ("metrics.jsonl", "checkpoints"))


def holds_seeds(directory: Path) -> bool:
    """Return whether a training with one of several seeds has begun in a directory."""
    return any(map(holds_run, directory.glob("seed-*")))


def check_store(run_dir: Path, resume: bool) -> None:
    """Check that a store in a run directory, if there is one, is a run's: it is read or replaced.

    Raises
    ------
    InputError
        No training wrote it.
    """
    if not os.path.lexists(run_dir / STORE_DIR) or (run_dir / STORE_MARK).is_file():
        return
    if resume and (holds_run(run_dir) or holds_seeds(run_dir)):
        return  # a run from before there were marks, whose graph is compared
    raise InputError(f"{run_dir} holds a {STORE_DIR} that no run made, which a run would replace; "
                     "choose another run directory")


@contextmanager
def store_of_run(run_dir: Path) -> Iterator[None]:
    """Write a run's store in here: it is marked before, so that what is killed begins again."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(run_dir / STORE_MARK, "dgl-heta train wrote the store beside this file\n")
    try:
        yield
    finally:
        if not (run_dir / STORE_DIR).exists():
            (run_dir / STORE_MARK).unlink(missing_ok=True)


def remove_store(run_dir: Path) -> None:
    """Remove the store that a run has made, and its mark."""
    shutil.rmtree(run_dir / STORE_DIR)
    (run_dir / STORE_MARK).unlink()


def check_files(run_dir: Path) -> None:
    """Check that what training writes in a directory is, as far as it is there, in it.

    Raises
    ------
    InputError
        A file is a link, a pipe or a device; or a directory is a link.
    """
    for names, directory in ((DIRECTORIES, True), (FILES, False)):  # none behind a link
        for name in names:
            for path in run_dir.glob(name) if "*" in name else (run_dir / name,):
                check_plain(path, directory)


@contextmanager
def claimed(run_dir: Path, *, shared: bool) -> Iterator[None]:
    """Keep a run directory to one command, and leave none behind that is empty.

    Of a scheduler's workers, which share theirs, worker 0 keeps it from those of another job; where
    the file system has no locks, nobody does.

    Raises
    ------
    InputError
        Another command has it.
    HetaError
        It cannot be locked.
    """
    lock = run_dir / ".lock"
    keeps = not shared or os.environ.get("RANK", "0") == "0"
    with contextlib.ExitStack() as stack:
        if keeps:
            try:
                file = stack.enter_context(open(lock, "a", opener=plainly))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another command is training in {run_dir}; choose another "
                                 "directory") from None
            except OSError as error:
                if not shared:
                    raise HetaError(f"cannot lock {lock}: {error.strerror or error}") from None
        try:
            yield
        finally:  # what cannot be removed by now is not worth another error than that of the body
            with contextlib.suppress(OSError):
                if keeps:
                    lock.unlink(missing_ok=True)
                run_dir.rmdir()  # only if nothing came of it
