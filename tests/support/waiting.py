"""How long tests wait: one place for all limits of time that are not what is tested.

The suite must pass beside other work. So nothing here is an estimate of how long something takes:
`PATIENCE` ends what hangs, `PROMPT` tells what ended by itself from what was waited out. On a
machine that is slower still, HETA_TESTS_PATIENCE multiplies both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

FACTOR = float(os.environ.get("HETA_TESTS_PATIENCE", "1"))
PATIENCE = 600 * FACTOR
"""Seconds after which a process or an exchange counts as hanging."""
PROMPT = 120 * FACTOR
"""Seconds within which something ends that does not wait for a limit of its own."""


def until(condition: Callable[[], object], limit: float = PROMPT) -> bool:
    """Wait for a condition; whether it came true within a limit of seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
