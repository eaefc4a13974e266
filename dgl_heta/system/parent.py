"""A process that ends when its parent does, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int = 0) -> None:
    """Ask the kernel to kill this process when its parent ends; it ends at once if that is no
    longer `parent`, where one is given."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and os.getppid() != parent:
            os._exit(1)


def die_with_torchrun() -> None:
    """The same for a rank of torchrun: without it ranks would train on, and nobody would end
    them."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
