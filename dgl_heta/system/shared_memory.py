"""Who has which file of /dev/shm, so that what dead processes left there can be told and removed.

DGL names shared memory by the graph and the feature alone: nothing says which run it is of. This
file uses the standard library alone: another host gets its text with the agent's.
"""

from __future__ import annotations

import contextlib
import os
import stat

PLACE = "/dev/shm"


def names() -> set[str]:
    """The files that are there."""
    try:
        return set(os.listdir(PLACE))
    except OSError:
        return set()


def mapped(pid: int) -> set[str]:
    """The names that a process has in its memory; none if it is gone or another user's."""
    names = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as lines:
        for line in lines:
            _, of_place, name = line.rstrip("\n").partition(PLACE + "/")
            if of_place and not name.endswith(" (deleted)"):
                names.add(name)
    return names


def processes() -> list[int]:
    """All processes of this machine that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def holders(name: str) -> list[int]:
    """The processes that have a name in their memory."""
    return [pid for pid in processes() if name in mapped(pid)] if name in names() else []


def remove_unused(wanted: set[str]) -> None:
    """Remove those of the names that are this user's files, and that no process has."""
    wanted = {name for name in wanted & names() if _is_ours(name)}
    if wanted:
        used = set().union(*map(mapped, processes()))
        for name in wanted - used:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(PLACE, name))


def _is_ours(name: str) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(os.path.join(PLACE, name))
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
    return False
