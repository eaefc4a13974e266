"""`git log`, read in a stream: one commit after the other, the latest first."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dgl_heta import InputError

#: What begins the line of a commit; in a path git would quote it.
_MARK = "\x01"
_FIELDS = "%x00".join(("%H", "%P", "%at", "%aE", "%s"))


class Commit(NamedTuple):
    """One commit: names of commits are hexadecimal, `time` is seconds since 1970 (0: unknown)."""

    name: str
    parents: tuple[str, ...]
    time: int
    author: str
    subject: str
    files: list[str]
    """Paths that it has added, changed or deleted; none of a merge."""


def read_log(path: Path, revision: str = "HEAD", most: int | None = None) -> Iterator[Commit]:
    """The commits that a revision leads to, at most the latest `most`.

    Git runs with what the repository's own settings might start switched off: signatures, external
    and textual conversions.

    Raises
    ------
    InputError
        No git here, no repository there, no such revision, or git fails.
    """
    command = ["git", "-C", str(path), "-c", "core.quotePath=false", "--no-pager", "log",
               "--no-show-signature", "--no-ext-diff", "--no-textconv", "--no-color", "--no-notes",
               "--no-renames", "--encoding=UTF-8", "--name-only", f"--format=%x01{_FIELDS}",
               *([] if most is None else [f"--max-count={most}"]), "--end-of-options", revision,
               "--"]
    # GIT_DIR and its like, which a hook sets, would lead to another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
        "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    with tempfile.TemporaryFile() as complaints:  # a pipe could fill up while nobody reads it
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=complaints, env=environment)
        except OSError as error:
            raise InputError("git cannot be started, which data set 'git' needs: "
                             f"{error.strerror or error}") from None
        try:
            assert process.stdout is not None
            yield from _commits(line.decode("utf-8", "replace").rstrip("\n")
                                for line in process.stdout)
            process.stdout.close()
            if process.wait() != 0:
                complaints.seek(0)
                said = " ".join(complaints.read().decode("utf-8", "replace").split())
                raise InputError(f"git log failed for revision '{revision}' of '{path}': "
                                 f"{said or f'exit status {process.returncode}'}")
        finally:
            process.kill()
            process.wait()


def _commits(lines: Iterator[str]) -> Iterator[Commit]:
    commit: Commit | None = None
    for line in lines:
        if line.startswith(_MARK):
            if commit is not None:
                yield commit
            name, parents, time, author, subject = line[1:].split("\0", 4)
            commit = Commit(name, tuple(parents.split()), _seconds(time), author.lower(), subject,
                            [])
        elif line and commit is not None:
            commit.files.append(_unquoted(line))
    if commit is not None:
        yield commit


def _seconds(text: str) -> int:
    """A time, or 0 where a commit has none, or one that no clock could have shown."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(text) <= 15 else 0


def _unquoted(path: str) -> str:
    """A path without the quotes and escapes that git gives to one with quotes or controls in it."""
    if not path.startswith('"'):
        return path
    # unicode_escape takes bytes for Latin-1; what it leaves are the bytes of UTF-8 again.
    plain = path[1:-1].encode("utf-8", "replace").decode("unicode_escape")
    return plain.encode("latin-1", "replace").decode("utf-8", "replace")
