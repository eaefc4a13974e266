"""The errors that users see.

Every message names the thing, its value and what would be right. The command line turns an
:class:`InputError` into exit status 2 and any other :class:`HetaError` into exit status 1,
both as one line without a traceback.
"""

from __future__ import annotations

import difflib
import itertools
import reprlib
from collections.abc import Iterable

LONGEST_MESSAGE = 900
"""Characters of a message; what is longer is cut in the middle."""


EXIT_PEER = 3
"""Exit status of a process that has lost another one."""


class HetaError(Exception):
    """A failure that the user can understand and act on (exit status 1).

    `details` are lines to show before the message, such as the traceback of a worker.
    """

    exit_status = 1

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(shortened(message, LONGEST_MESSAGE))
        self.details = details


class InputError(HetaError):
    """Input, configuration or a file that is wrong (exit status 2)."""

    exit_status = 2


def shortened(text: str, limit: int = 200) -> str:
    """A text of at most `limit` characters: its head and its tail, and how many are left out."""
    if len(text) <= limit:
        return text
    kept = max(limit - 40, 8)
    tail = kept // 3
    return f"{text[:kept - tail]} … ({len(text) - kept} characters) … {text[-tail:]}"


def quoted(value: object, limit: int = 200) -> str:
    """Return a value as a message shows it: its `repr`, shortened."""
    if isinstance(value, str):
        return shortened(repr(shortened(value, limit)), limit)
    shown = reprlib.Repr()
    shown.maxlevel, shown.maxstring, shown.maxother, shown.maxlong = 3, limit, limit, 80
    try:
        return shortened(shown.repr(value), limit)
    except ValueError:  # a whole number of thousands of digits
        return f"{type(value).__name__} that is too large to be shown"


class RelationError(InputError):
    """An argument of a kernel does not fit, for one of several relations.

    The kernel knows the relation's `place` in the call, of `count`; who calls it knows its name.
    """

    def __init__(self, place: int, count: int, text: str) -> None:
        super().__init__(f"relation {place} of {count}: {text}")
        self.place, self.text = place, text


def several(count: int, noun: str) -> str:
    """`1 worker`, `1,200 workers`; for nouns that add an s."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Iterable[object], limit: int = 12) -> str:
    """`a, b, c` of the sorted names, cut after `limit` with the number left out."""
    items = sorted(shortened(str(name), 80) for name in names)
    if len(items) > limit:
        return ", ".join(items[:limit]) + f", … ({len(items) - limit} more)"
    return ", ".join(items) if items else "(none)"


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the most similar of the names, or an empty string."""
    if len(name) > 200:  # which takes time with its square
        return ""
    known = [known for known in itertools.islice(names, 5000)
             if len(known) <= 200 and known != name]
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""
