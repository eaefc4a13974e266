"""How much memory is free, and how much of it a cache gets."""

from __future__ import annotations

import ctypes
import math
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dgl_heta.errors import InputError

if TYPE_CHECKING:  # partitioning asks for its own peak, and runs without torch
    import torch

DEFAULT_BYTES = 4_000_000_000  # per device, as in Heta §8.1


_NO_MEMORY = re.compile(r"(cannot|can't) allocate memory(?! in static)|failed to map segment|"
                        "out of memory", re.IGNORECASE)


def no_memory(error: BaseException | None) -> str | None:
    """Return the text of an error, or of one that caused it, if memory ran out: Python's, that of
    torch's allocators, or of a library that could not be loaded. Else None."""
    while error is not None:
        text = " ".join(str(error).split())
        if isinstance(error, MemoryError) or (
                isinstance(error, RuntimeError | ImportError | OSError)
                and _NO_MEMORY.search(text)):
            return f"not enough memory: {text}" if text else "not enough memory"
        error = error.__cause__ or error.__context__
    return None


def give_back() -> None:
    """Give memory that was freed back to the system. glibc keeps arrays of up to 32 MB, one for
    each round of a loop if something small lies between them, and Arrow's pool what it once had."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: of a GPU, or of what this process may use of memory."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        free = values["MemAvailable"]
    except (OSError, ValueError, LookupError):
        return 2**62  # not Linux: nothing is known
    return min(free, _group_free())


def _group_free() -> int:
    """Return the bytes that the limits of this process's control groups leave; page cache counts as
    free."""
    free = 2**62
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return free
    for line in groups:
        _, controllers, path = line.split(":", 2)
        root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file ",
                                               "active_file ")
        if controllers == "memory":
            root, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes",
                                            "total_inactive_file ", "total_active_file ")
        elif controllers:
            continue
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            try:
                limit = int((group / names[0]).read_text())
                used = int((group / names[1]).read_text())
                stat = (group / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):  # no limit here ("max"), or not to be seen
                continue
            files = sum(int(text.split()[1]) for text in stat
                        if text.startswith((names[2], names[3])))
            free = min(free, max(limit - used + files, 0))
    return free


def fit_in_memory(size: int) -> bool:
    """Return whether files of so many bytes will stay in memory while a process works beside them.

    They do if they take half of what is free at most: batches, caches and the model need some.
    """
    import torch

    return 2 * size <= free_bytes(torch.device("cpu"))


def capacity_bytes(megabytes: float | None, device: torch.device, sharers: int = 1) -> int:
    """The capacity of a cache on a device, which `sharers` processes use alike.

    Parameters
    ----------
    megabytes : wanted, 10⁶ bytes each; None: 4 GB, but at most half of what is free.

    Raises
    ------
    InputError
        More than is free, negative, or no number.
    """
    free = free_bytes(device) // max(sharers, 1)
    if megabytes is None:
        return min(DEFAULT_BYTES, free // 2)
    if not 0 <= megabytes < math.inf:
        raise InputError(f"the cache's capacity is {megabytes} MB; it must be 0 or more")
    if megabytes * 1e6 > free:
        share = f" for each of {sharers} workers" if sharers > 1 else ""
        raise InputError(f"the cache's capacity is {megabytes:,.0f} MB, but {device} has "
                         f"{free / 1e6:,.0f} MB free{share}; use a smaller cache.capacity_mb")
    return int(megabytes * 1e6)


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MB (10^6 bytes), mapped files included.

    From VmHWM and not `ru_maxrss`, which a process inherits from the one that started it.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
