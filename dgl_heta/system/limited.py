"""Files read as a whole, up to a size: what has no end, such as /dev/zero, is an error, too."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

STREAM_BYTES = 32 << 20
"""From what is no regular file, such as a pipe."""


def read_limited(path: str | Path, most: int) -> bytes:
    """The bytes of a file.

    Raises
    ------
    OSError
        It cannot be read, or has more than `most` bytes (EFBIG).
    """
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        size = min(most, state.st_size if stat.S_ISREG(state.st_mode) else STREAM_BYTES)
        data = file.read(size + 1)
        if len(data) > size:  # of a file that grows, all the same
            raise OSError(errno.EFBIG, f"it has more than {size:,} bytes", str(path))
    return data
