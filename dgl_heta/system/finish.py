"""What Python does at its end, for processes that end before their libraries' threads do."""

from __future__ import annotations

import atexit
import gc
import io
import sys
import threading


def finish() -> None:
    """Wait for threads, call what is registered for the end, write out files that are open."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_files()


def flush_files() -> None:
    """Write out what is in buffers of files that are open, also of the script's own."""
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    # By type(): asked whether it is an instance, a proxy may answer for what it stands for.
    for file in [each for each in gc.get_objects() if type(each) in kinds]:
        try:
            if not file.closed:
                file.flush()
        except BrokenPipeError:  # nobody reads it any longer
            continue
        except OSError as error:
            print(f"error: cannot write {file.name}: {error.strerror or error}", file=sys.stderr)
