"""A directory that is being staged: gathered beside its place, compared, and put there whole.

Files are gathered in `.NAME.staging`, which stays when staging is interrupted, so that the next one
goes on with it. It becomes `NAME` when all its checksums agree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.partition.directory import STORE_DIR, is_partition, open_partition, others_in
from dgl_heta.partition.part_config import PLAN_FILE
from dgl_heta.store.manifest import FILE_NAME as MANIFEST_FILE
from dgl_heta.store.staged import FILE_NAME as STAGED_FILE
from dgl_heta.store.staged import Staged
from dgl_heta.system.atomic_files import check_plain, check_replaceable, put_directory
from dgl_heta.system.disk import is_full, sync_tree

Progress = Callable[[str, float], None]


def bytes_in(directory: Path) -> int:
    """Bytes on the disk of all files below a directory."""
    return sum(f.stat().st_blocks * 512 for f in directory.rglob("*") if f.is_file())


def working_directory(out: Path) -> Path:
    """Where files are gathered for a staged directory.

    Raises
    ------
    InputError
        The root directory, which nothing lies beside.
    """
    out = Path(os.path.realpath(out)) if out.name in ("", "..") else out.absolute()
    if not out.name:
        raise InputError(f"cannot stage into {out} itself; name a directory in it")
    return out.with_name(f".{out.name}.staging")


def check_free(out: Path) -> None:
    """Check that no other command stages into a directory.

    Raises
    ------
    InputError
        One does.
    """
    with contextlib.suppress(FileNotFoundError), (working_directory(out) / ".lock").open() as lock:
        _lock(lock, out)


def _lock(file: IO[str], out: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another command stages into {out}; wait for its end") from None


@contextlib.contextmanager
def receiving(out: Path, overwrite: bool) -> Iterator[Path]:
    """The directory in which files for `out` are gathered, kept to one staging at a time.

    Raises
    ------
    InputError
        `out` is there and not to be replaced, or not a staging; another staging writes it.
    HetaError
        It cannot be written, or its disk is full: what is there stays.
    """
    work = working_directory(out)
    try:
        check_out(out, overwrite)
        check_plain(work, directory=True)
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("a") as lock:
            _lock(lock, out)
            yield work
    except OSError as error:
        what = ("no space left on the disk" if is_full(error) else
                f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise HetaError(f"cannot stage into {out}: {what}; what was copied stays in {work}, and "
                        "the same command goes on with it") from error


def check_out(out: Path, overwrite: bool) -> None:
    """Check before anything is copied that `out` can be put in place at the end.

    Raises
    ------
    InputError
        It is there, and not to be replaced; it is no staging, or holds what is not ours.
    """
    if os.path.lexists(out) and not overwrite:
        raise InputError(f"{out} exists and is another staging, or none; choose another "
                         "directory or ask to overwrite it (--overwrite)")
    if is_partition(out) and not (out / STORE_DIR / STAGED_FILE).is_file():
        raise InputError(f"{out} is a partition that was not staged, maybe the one to stage from; "
                         "it is not overwritten: choose another directory")
    if out.is_mount():
        raise InputError(f"{out} is where a disk is mounted; name a directory in it")
    check_replaceable(out, overwrite=overwrite, kind=PLAN_FILE, others=others_in)


def finish(work: Path, out: Path, overwrite: bool, wanted: Staged,
           progress: Progress = lambda what, done: None) -> None:
    """Compare all files that were gathered with their checksums, and put them in place.

    Raises
    ------
    InputError
        They are not of the staging that is wanted. Some differ, the first by name: they are
        removed, so that the next staging copies them again.
    """
    store, plan = open_partition(work)
    if store.staged is None or not wanted.alike(store.staged):
        raise InputError(f"another command has staged into {out} in the meantime; nothing was put "
                         "in place: run one after the other")
    ours = {*store.staged.files, MANIFEST_FILE, STAGED_FILE}
    for path in [f for f in store.directory.rglob("*") if not f.is_dir()]:
        if path.relative_to(store.directory).as_posix() not in ours:
            path.unlink()  # of an earlier staging for other partitions, or what was interrupted
    wrong: list[InputError] = []
    for entry in store.manifest.entries():
        if entry.file in store.staged.files:
            progress(posixpath.dirname(entry.file), 0)
            try:
                for _ in store.compared(entry):
                    pass
            except InputError as error:
                wrong.append(error)
                (store.directory / entry.file).unlink(missing_ok=True)
    if wrong:
        more = f", and {several(len(wrong) - 1, 'file')} more" if wrong[1:] else ""
        raise InputError(f"{wrong[0]}{more} (it differs from the store that is staged, or that is "
                         "damaged: see `dgl-heta inspect` there); run the same command again")
    plan.verify()
    sync_tree(work)
    put_directory(work, out, overwrite=overwrite, kind=PLAN_FILE, others=others_in)
    (out / ".lock").unlink(missing_ok=True)


def is_staged(out: Path, staged: Staged, compare: bool = False) -> bool:
    """Return whether a directory has just this staging, by its plan, manifest and files' sizes, and
    with `compare` by their checksums."""
    if not is_partition(out):
        return False
    try:
        store, _ = open_partition(out)
        if not staged.alike(store.staged):
            return False
        if compare:
            store.verify()
    except InputError:
        return False
    return True
