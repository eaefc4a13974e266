"""`python -m dgl_heta` is `dgl-heta`; both begin here, so that Ctrl-C always is one line."""

from __future__ import annotations

import os
import signal
from typing import Any


def _interrupted(number: int, frame: Any) -> None:
    """An exception in the midst of an import would be a traceback, or be taken for another."""
    os.write(2, b"error: interrupted\n")
    os._exit(130)


def main() -> None:
    """Import the commands and run the one that is asked for."""
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ordinary:
        signal.signal(signal.SIGINT, _interrupted)
    from dgl_heta.cli import main as run

    if ordinary:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
