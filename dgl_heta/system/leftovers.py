"""Temporary names that say whose they are, so that the next start removes what a dead one left.

A process that is killed cannot clean up. Its temporary files have the machine, the process
namespace and the process in their names; whoever writes to the same place next removes those whose
process is dead. What came from another machine, or a container that is gone, is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dgl_heta.system.signals import leave_on_signals


def temporary_name(stem: str, kind: str) -> str:
    """A new hidden name for what will be, or serves, `stem`; `kind` is a word without digits.

    Names have at most 255 bytes; a character has at most four.
    """
    return f".{stem[:40]}.{kind}-{_here()}-{os.getpid()}-{secrets.token_hex(4)}"


def clear(parent: Path, stem: str) -> None:
    """Remove what dead processes of this machine left for `stem` in `parent`."""
    pattern = re.compile(rf"\.{re.escape(stem[:40])}\.[a-z]+-{_here()}-(\d+)-[0-9a-f]{{8}}")
    with contextlib.suppress(OSError):  # nothing there, or nothing that we may read
        for entry in os.scandir(parent):
            match = pattern.fullmatch(entry.name)
            if match and not _lives(int(match[1])):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


@contextmanager
def scratch_directory(parent: Path | None, stem: str) -> Iterator[Path]:
    """A directory for the body alone, in `parent` or where the system has temporary files.

    It is removed at the end, also on SIGTERM and SIGHUP, and after SIGKILL by the next one of the
    same `stem`.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    clear(parent, stem)
    path = parent / temporary_name(stem, "scratch")
    with leave_on_signals():
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@functools.cache
def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text()
    except OSError:
        return ""


def _here() -> str:
    """Where process numbers mean the same: the machine and the process namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    text = f"{platform.node()} {_machine()} {namespace}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
