"""The errors that users see.

Every message names the thing, its value and what would be right. The command line turns an
:class:`InputError` into exit status 2 and any other :class:`HetaError` into exit status 1,
both as one line without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HetaError(Exception):
    """A failure that the user can understand and act on (exit status 1).

    `details` are lines to show before the message, such as the traceback of a worker.
    """

    exit_status = 1

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class InputError(HetaError):
    """Input, configuration or a file that is wrong (exit status 2)."""

    exit_status = 2


def listing(names: Iterable[object], limit: int = 12) -> str:
    """`a, b, c` of the sorted names, cut after `limit` with the number left out."""
    items = sorted(str(name) for name in names)
    if len(items) > limit:
        return ", ".join(items[:limit]) + f", … ({len(items) - limit} more)"
    return ", ".join(items) if items else "(none)"


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the most similar of the names, or an empty string."""
    match = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""
