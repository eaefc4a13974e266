"""A partition directory in object storage: written here, then put there, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.store.builders import Builders
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.remote_files import RemotePath

_OURS = re.compile(r"[^/]*\.json|owner-[^/]*\.npy|store/manifest\.json"
                   r"|store/(nodes|relations)/.*\.npy")


@contextmanager
def uploaded_directory(out: RemotePath, last: str, *, overwrite: bool, builders: Builders
                       ) -> Iterator[Path]:
    """A temporary directory of each builder's own, whose files are put at a URL in the end.

    The file `last`, without which nothing there is opened, is put when all others are there. If
    anything fails, what was put is removed.

    Parameters
    ----------
    overwrite : remove a partition that is there, once the new one is ready to be put.

    Raises
    ------
    InputError
        Something is there that is not to be replaced; the URL may not be written.
    HetaError
        Storage does not answer.
    """
    builders.each(lambda: None if builders.rank else _check(out, last, overwrite))
    done: list[RemotePath] = []

    def put(names: list[str]) -> None:
        for name in names:
            done.append(out / name)
            done[-1].put(scratch / name)

    with scratch_directory(None, "dgl-heta-build") as scratch:
        yield scratch
        names = sorted(file.relative_to(scratch).as_posix() for file in scratch.rglob("*")
                       if file.is_file())
        try:
            builders.each(lambda: None if builders.rank else _remove(out, last))
            builders.each(lambda: put([name for name in names if name != last]))
            builders.each(lambda: put([name for name in names if name == last]))
        except BaseException:
            for path in reversed(done):
                path.unlink(missing_ok=True)
            raise


def _check(out: RemotePath, last: str, overwrite: bool) -> None:
    names = _names(out)
    if names and not overwrite:
        raise InputError(f"{out} exists; choose another URL or ask to overwrite it (--overwrite)")
    stranger = next((name for name in names if not _OURS.fullmatch(name)), None)
    if names and (stranger or last not in names):
        raise InputError(f"{out} is no partition that dgl-heta wrote: it holds "
                         f"{stranger or 'no ' + last}; it is not overwritten: choose another URL")


def _names(out: RemotePath) -> list[str]:
    return [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]


def _remove(out: RemotePath, last: str) -> None:
    """Remove the files of a partition, first the one that says that it is whole."""
    for name in sorted(_names(out), key=lambda name: name != last):
        (out / name).unlink()
