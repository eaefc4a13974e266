"""The lines of a run's log, `metrics.jsonl`: each carries its own checksum.

A line is added by one short write, and what was written before is never touched. So a run that was
killed leaves whole lines and at most a last one that is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.system.atomic_files import plainly
from dgl_heta.system.checksums import KEY, agrees, signed


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes
    ----------
    number : from 1.
    content : the object without its checksum; None if the line holds none, or not the one that
        was written.
    cut : whether it is what a killed run leaves of its last line. Such a line is no damage.
    """

    number: int
    content: dict[str, Any] | None
    cut: bool = False


def log_line(content: Mapping[str, Any]) -> str:
    """An object as a line of a log, with its checksum and the end of the line."""
    return json.dumps(signed(content)) + "\n"


def log_lines(data: bytes) -> list[Line]:
    """The lines of a log that are not blank."""
    pieces, lines = data.split(b"\n"), []
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        content = _parsed(piece)
        if content is not None and agrees(content):
            lines.append(Line(number, {k: v for k, v in content.items() if k != KEY}))
        else:
            lines.append(Line(number, None, content is None and number == len(pieces)))
    return lines


def read_log(log: Path) -> list[Line]:
    """The lines of a log; none where there is no log.

    Raises
    ------
    InputError
        It cannot be read.
    """
    if not log.exists():
        return []
    try:
        with open(log, "rb", opener=plainly) as file:
            return log_lines(file.read())
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror or error}") from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
        return None
    return content if isinstance(content, dict) else None
