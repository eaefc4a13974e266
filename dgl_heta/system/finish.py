"""What Python does at its end, for processes that end before their libraries' threads do."""

from __future__ import annotations

import atexit
import gc
import io
import os
import stat
import sys
import threading
from typing import Any


def finish() -> None:
    """Wait for threads, call what is registered for the end, write out files that are open."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_files()


def flush_files() -> None:
    """Write out what is in buffers: of standard output and errors, and of files that a script has
    open. Pipes and sockets of its own are left: who reads them may have stopped."""
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    # By type(): asked whether it is an instance, a proxy may answer for what it stands for.
    files: list[Any] = [each for each in gc.get_objects() if type(each) in kinds]
    for file in [*filter(None, (sys.stdout, sys.stderr)), *filter(_on_disk, files)]:
        try:
            file.flush()
        except BrokenPipeError:  # nobody reads it any longer
            continue
        except OSError as error:
            print(f"error: cannot write {file.name}: {error.strerror or error}", file=sys.stderr)


def _on_disk(file: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or has no number
        return False
