"""`python -m dgl_heta` is `dgl-heta`; both begin here, so that Ctrl-C always is one line."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, NoReturn


def _interrupted(number: int, frame: Any) -> None:
    """An exception in the midst of an import would be a traceback, or be taken for another."""
    os.write(2, b"error: interrupted\n")
    os._exit(130)


def _fail(error: Exception) -> NoReturn:
    """End the process with one line if memory ran out during an import; raise other errors."""
    from dgl_heta.system.memory import no_memory

    if not (said := no_memory(error)):
        raise error
    os.write(2, f"error: {said}\n".encode(errors="replace"))
    os._exit(1)


def main() -> None:
    """Import the commands and run the one that is asked for."""
    for name in ("COLUMNS", "LINES"):  # rich would print into no room, or fail at what is no number
        if not re.fullmatch("0*([2-9][0-9]|[1-9][0-9]{2,4})", os.environ.get(name, "80")):
            del os.environ[name]
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ordinary:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from dgl_heta.cli import main as run
    except (MemoryError, ImportError, OSError) as error:
        _fail(error)
    if ordinary:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
