"""A partition directory in object storage: written here, then put there, whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.store.builders import Builders
from dgl_heta.store.manifest import FORMAT
from dgl_heta.system.atomic_files import failures_told
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.remote_files import RemotePath, blocks

WRITING = ".dgl-heta-writing"
"""Lies where a partition is being put; what a killed command left has it."""
_OURS = re.compile(r"[^/]*\.json|owner-[^/]*\.npy|store/manifest\.json"
                   r"|store/(nodes|relations)/.*\.npy")


@contextmanager
def uploaded_directory(out: RemotePath, last: str, *, overwrite: bool, builders: Builders
                       ) -> Iterator[Path]:
    """A temporary directory of each builder's own, whose files are put at a URL in the end.

    The file `last`, without which nothing there is opened, is put when all others are there. If
    anything fails, what was put is removed. A file :data:`WRITING` is there meanwhile.

    Parameters
    ----------
    overwrite : replace a partition that is there, or what a killed command left. It is removed once
        the new one is ready to be put.

    Raises
    ------
    InputError
        Something is there that is not to be replaced; the URL may not be written.
    HetaError
        Storage does not answer; a disk is full.
    """
    done: list[RemotePath] = []

    def put(names: list[str]) -> None:
        for name in names:
            done.append(out / name)
            done[-1].put(scratch / name)

    with scratch_directory(None, "dgl-heta-build") as scratch:
        mark = _Mark(out, last, overwrite, scratch)
        builders.each(mark.put if builders.rank == 0 else lambda: None)
        try:
            with failures_told(scratch, f"{scratch} (TMPDIR), to be put at {out}"):
                yield scratch
            names = sorted(file.relative_to(scratch).as_posix() for file in scratch.rglob("*")
                           if file.is_file() and file.name != WRITING)
            builders.each(mark.clear if builders.rank == 0 else lambda: None)
            builders.each(lambda: put([name for name in names if name != last]))
            builders.each(lambda: put([name for name in names if name == last]))
        except BaseException:
            for path in reversed(done):
                path.unlink(missing_ok=True)
            raise
        finally:
            if builders.rank == 0:
                mark.path.unlink(missing_ok=True)


class _Mark:
    """The file that says that a partition is being put at a URL, and what it replaces there."""

    def __init__(self, out: RemotePath, last: str, overwrite: bool, scratch: Path) -> None:
        self.path, self._out, self._last, self._overwrite = out / WRITING, out, last, overwrite
        self._file, self._old = scratch / WRITING, set[str]()

    def put(self) -> None:
        """Check what is there, and put the mark: whether one may write is known before hours of
        work."""
        self._old = self._replaceable()
        self._file.write_text("dgl-heta partition writes here\n", encoding="utf-8")
        self.path.put(self._file)

    def clear(self) -> None:
        """Remove what is replaced; nothing else has come in the meantime."""
        if new := sorted(self._names() - self._old - {WRITING}):
            raise InputError(f"{self._out / new[0]} came while the partition was written; nothing "
                             "was put there: choose another URL")
        for name in sorted(self._old, key=lambda name: name != self._last):
            (self._out / name).unlink()

    def _names(self) -> set[str]:
        return {path.relative_to(self._out).as_posix() for path in self._out.rglob("*")
                if path.is_file()}

    def _replaceable(self) -> set[str]:
        names, out = self._names(), self._out
        if WRITING in names and not self._overwrite:
            raise InputError(f"a partition is being written to {out}, or the command that did was "
                             "killed; wait for it, choose another URL or ask to overwrite what is "
                             "there (--overwrite)")
        if names and not self._overwrite:
            raise InputError(f"{out} exists; choose another URL or ask to overwrite it "
                             "(--overwrite)")
        wrong = sorted(names - self._ours(names))
        if names and (wrong or not names & {self._last, WRITING}):
            raise InputError(f"{out} is no partition that dgl-heta wrote: it holds "
                             f"{wrong[0] if wrong else 'no ' + self._last}; it is not overwritten: "
                             "choose another URL")
        return names - {WRITING}

    def _ours(self, names: set[str]) -> set[str]:
        """Those of the names that a partition there has, or may have where it was not finished."""
        manifest, plan = (self._json(name) for name in ("store/manifest.json", self._last))
        stored, planned = (manifest.get("format") == FORMAT,
                           str(plan.get("format", "")).startswith("dgl-heta-"))
        if WRITING not in names and not (stored and planned):
            return set()
        # Of what a killed command left any file may be missing, the manifest and the plan, too.
        files = {f"store/{file}" for file in _files(manifest)} if stored else {
            name for name in names if name.startswith("store/") and name.endswith(".npy")
            and _OURS.fullmatch(name)}
        beside = {name for name in names if "/" not in name and _OURS.fullmatch(name) and (
            name.endswith(".npy") or (planned if name == self._last else
                                      "dgl_heta_plan" in self._json(name).get("part-0", {})))}
        return {*files, *beside, WRITING, *(["store/manifest.json"] if stored else [])}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            data = json.loads(b"".join(blocks(self._out / name)))
        except (InputError, ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}


def _files(manifest: Any) -> Iterator[str]:
    """The files that a manifest names, wherever in it."""
    if isinstance(manifest, dict):
        if isinstance(manifest.get("file"), str):
            yield manifest["file"]
        manifest = list(manifest.values())
    for value in manifest if isinstance(manifest, list) else ():
        yield from _files(value)
