"""Outputs that are complete or not there at all, and files that are what their names say."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dgl_heta.errors import HetaError, InputError
from dgl_heta.system.disk import is_full, sync_directory, sync_file, sync_tree
from dgl_heta.system.leftovers import clear, temporary_name
from dgl_heta.system.remote_files import check_on_disk
from dgl_heta.system.signals import leave_on_signals


@contextmanager
def new_directory(out: Path, *, overwrite: bool, kind: str,
                  others: Callable[[Path], Iterable[Path]] | None = None) -> Iterator[Path]:
    """A temporary directory that becomes `out` at the end, or leaves no trace.

    An existing `out` is an error; with `overwrite` it is replaced, provided that it is a
    directory of ours: a file in it that is named like `kind` says so. With `others`, which
    yields what in a directory is somebody else's, nothing of that may be there, and an empty
    directory is replaced, too. It is looked at again at the end, which may be hours later.
    """
    shown = out
    temporary: Path | None = None
    created: list[Path] = []
    with leave_on_signals():
        try:
            try:
                out = _located(out)
                replace = _replaceable(out, shown, overwrite, kind, others)
                parent = out.parent
                while not parent.exists():
                    created.append(parent)
                    parent = parent.parent
                if not parent.is_dir():
                    raise InputError(f"cannot write {shown}: {parent} is not a directory")
                out.parent.mkdir(parents=True, exist_ok=True)
                clear(out.parent, out.name)
                temporary = out.parent / temporary_name(out.name, "partial")
                temporary.mkdir()
            except (OSError, ValueError) as error:
                kind_of_error = HetaError if is_full(error) else InputError
                raise kind_of_error(f"cannot write {shown}: {_reason(error)}") from error
            with failures_told(temporary, shown, out):
                yield temporary
                sync_tree(temporary)
                if replace:
                    replace = _replaceable(out, shown, overwrite, kind, others)
                _put_in_place(temporary, out, shown, replace)
                sync_directory(out.parent)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            for parent in created:
                with suppress(OSError):  # not empty: `out` is complete
                    parent.rmdir()


@contextmanager
def failures_told(written: Path, shown: object, out: Path | None = None) -> Iterator[None]:
    """Make an OSError a HetaError that says which file is meant: one in what is `written` for
    `shown`, or in `out`, where that goes, or one that is read."""
    try:
        yield
    except OSError as error:
        raise HetaError(_failure(error, (written, out or written), shown)) from error


def put_directory(temporary: Path, out: Path, *, overwrite: bool, kind: str,
                  others: Callable[[Path], Iterable[Path]] | None = None) -> None:
    """Rename a directory that is whole and on the disk; an existing `out` is an error, or with
    `overwrite` replaced, as by :func:`new_directory`.

    Raises
    ------
    InputError
        As :func:`check_replaceable`.
    """
    replace = check_replaceable(out, overwrite=overwrite, kind=kind, others=others)
    shown, out = out, _located(out)
    clear(out.parent, out.name)
    _put_in_place(temporary, out, shown, replace)
    sync_directory(out.parent)


def check_replaceable(out: Path, *, overwrite: bool, kind: str,
                      others: Callable[[Path], Iterable[Path]] | None = None) -> bool:
    """Return whether `out` is there, to be replaced, as :func:`new_directory` decides it.

    Raises
    ------
    InputError
        `out` exists, and is not to be replaced or not ours.
    """
    return _replaceable(_located(out), out, overwrite, kind, others)


def _located(out: Path) -> Path:
    """The absolute path, symbolic links before the last name resolved (`.` has no last name)."""
    check_on_disk(out, "the directory to write")
    if out.name in ("", ".."):
        return Path(os.path.realpath(out))
    return Path(os.path.realpath(out.parent)) / out.name


def _replaceable(out: Path, shown: Path, overwrite: bool, kind: str,
                 others: Callable[[Path], Iterable[Path]] | None) -> bool:
    """Return whether `out` is a directory of ours to be replaced; False if there is nothing yet."""
    try:
        mode = out.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not overwrite:
        raise InputError(f"{shown} exists; choose another directory or ask to overwrite it "
                         "(--overwrite)")
    if stat.S_ISLNK(mode):
        raise InputError(f"{shown} is a symbolic link, which is not overwritten; name the "
                         "directory that it leads to")
    empty = others is not None and stat.S_ISDIR(mode) and not any(out.iterdir())
    if not empty and not any(_is_ours(file) for file in out.glob(kind)):
        raise InputError(f"{shown} exists and was not written by dgl-heta (no {kind} of ours in "
                         "it); it is not overwritten")
    if stranger := next(iter(others(out)), None) if others else None:
        raise InputError(f"{shown} holds {stranger.relative_to(out)}, which dgl-heta did not write "
                         "there; it is not overwritten: move that away, or choose another "
                         "directory")
    if out in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{shown} holds the current directory; change to another one to "
                         "overwrite it")
    return True


def _is_ours(file: Path) -> bool:
    """Return whether a file is our manifest or plan, or a DistDGL part_config, not merely named so.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and (str(data.get("format")).startswith("dgl-heta-")
                                       or {"graph_name", "num_parts", "part-0"} <= data.keys())


def _put_in_place(temporary: Path, out: Path, shown: Path, replace: bool) -> None:
    if not replace:
        if os.path.lexists(out):
            raise HetaError(f"{shown} was made by something else in the meantime; it is left as "
                            "it is and nothing was written")
        temporary.rename(out)
        return
    retired = temporary.with_name(temporary_name(out.name, "retired"))
    try:
        out.rename(retired)
        temporary.rename(out)
    finally:
        if retired.exists() and not out.exists():
            retired.rename(out)
    shutil.rmtree(retired, ignore_errors=True)


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return error.strerror or str(error)


def _failure(error: OSError, written: tuple[Path, Path], shown: object) -> str:
    if is_full(error):
        return f"no space left on the disk while writing {shown}; nothing was kept"
    file = str(error.filename or "")
    if file and not any(file.startswith(str(path)) for path in written):  # one of the source
        return f"cannot read {file}: {_reason(error)}; {shown} was not written"
    return f"writing {shown} failed: {error.strerror or error}; nothing was kept"


def plainly(path: str, flags: int) -> int:
    """The `opener` of :func:`open` for a plain file: a pipe or a device is an error (EINVAL), and
    nothing waits for it. What is written to is not looked for behind a link (ELOOP), and is emptied
    once that is known.

    Raises
    ------
    OSError
        It is no plain file, or cannot be opened.
    """
    safe = os.O_NONBLOCK | (0 if flags & os.O_ACCMODE == os.O_RDONLY else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags & ~os.O_TRUNC | safe, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "", path)
            if flags & os.O_TRUNC:
                os.ftruncate(handle, 0)
        except OSError:
            os.close(handle)
            raise
    except OSError as error:
        if what := _other(path, directory=False, follow=safe & os.O_NOFOLLOW == 0):
            raise OSError(error.errno, f"it is {what}, no plain file", path) from None
        raise
    return handle


@contextmanager
def utf8_name(path: Path) -> Iterator[str]:
    """A name of a file to read, for libraries that know names in UTF-8 alone.

    Raises
    ------
    OSError
        It has another name, and cannot be opened.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with open(path, "rb", opener=plainly) as file:
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        yield str(path)


def check_plain(path: Path, directory: bool = False) -> None:
    """Check that a name, if anything has it, is that of a plain file, or of a directory.

    Raises
    ------
    InputError
        It is a link, which something else may be behind, or a pipe or device.
    """
    if what := _other(path, directory, follow=False):
        raise InputError(f"{path} is {what}, where a {'directory' if directory else 'plain file'} "
                         "is expected; remove it, or choose another directory")


def _other(path: str | Path, directory: bool, follow: bool) -> str | None:
    """Return what a name leads to, if it is neither missing nor what is wanted, else None."""
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode
    except OSError:
        return None
    if (stat.S_ISDIR if directory else stat.S_ISREG)(mode):
        return None
    if stat.S_ISLNK(mode):
        return f"a link to {os.readlink(path)}"
    return {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
            stat.S_IFREG: "a file"}.get(stat.S_IFMT(mode), "a device")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name of a file to write that becomes `path` at the end, whole and on the disk.

    A reader sees the old or the new one, never a part, also after a crash; if writing fails, the
    old one stays. Errors are those of the operating system, and EINVAL where `path` is a device or
    a pipe, which is never replaced.
    """
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "it is a device or a pipe, no regular file", str(path))
    clear(path.parent, path.name)
    temporary = path.with_name(temporary_name(path.name, "tmp"))
    try:
        yield temporary
        _like_others(temporary)
        sync_file(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _like_others(path: Path) -> None:
    """Give a file that its writer made for the owner alone, as that of safetensors does, the mode
    of other new files, by the process's umask."""
    if path.lstat().st_mode != stat.S_IFREG | 0o600:
        return
    with suppress(OSError):  # without /proc the mode stays
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("Umask:"):
                path.chmod(0o666 & ~int(line.split()[1], 8))


def write_atomic(path: Path, text: str) -> Path:
    """Write a text file whole or not at all.

    Raises
    ------
    HetaError
        It cannot be written.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HetaError(f"cannot write {path}: {error.strerror or error}") from None
    return path
