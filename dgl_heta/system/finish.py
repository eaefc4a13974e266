"""What Python does at its end, for processes that end before their libraries' threads do."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import stat
import sys
import threading
from typing import Any

UNWRITTEN = 120
"""The exit status of a process that ends well, but for its standard output, as Python's own."""

_unwritten: list[Any] = []  # files that cannot be written, which was said


def finish() -> bool:
    """Wait for threads, call what is registered for the end, write out files that are open.

    Returns whether all of standard output was written.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_files()  # first: what a compressed file has got yet is lost once that is closed
    gc.collect()  # closes what a script that has ended had open: compressed files get their ends
    return flush_files()


def flush_files(grade: str = "error") -> bool:
    """Write out what is in buffers: of standard output and errors, and of files that a script has
    open. Pipes and sockets of its own are left: who reads them may have stopped. What cannot be
    written is told as an error, or of another grade.

    Returns whether all of standard output was written.
    """
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    # By type(): asked whether it is an instance, a proxy may answer for what it stands for.
    files: list[Any] = [each for each in gc.get_objects() if type(each) in kinds]
    for file in [*filter(None, (sys.stdout, sys.stderr)), *filter(_on_disk, files)]:
        if _is_closed(file) or any(file is each for each in _unwritten):
            continue
        try:
            file.flush()
        except BrokenPipeError:  # nobody reads it any longer
            continue
        except OSError as error:
            _unwritten.append(file)
            with contextlib.suppress(OSError, ValueError):  # nobody can be told
                # What a model has put in the place of standard output may have no name.
                name = getattr(file, "name", "standard output")
                print(f"{grade}: cannot write {name}: {error.strerror or error}", file=sys.stderr)
    return not any(file is sys.stdout for file in _unwritten)


def _is_closed(file: Any) -> bool:
    try:
        return bool(getattr(file, "closed", False))
    except ValueError:  # its buffer was taken away
        return True


def _on_disk(file: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # it is closed, or has no number
        return False
