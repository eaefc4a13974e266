"""Colours, names, sizes and files of pictures and reports."""

from __future__ import annotations

from dgl_heta.errors import shortened

PALETTE = ("#2f6db5", "#d2691e", "#2b8a5b", "#8b56b5", "#c23b4b", "#16869a", "#857d12", "#c4538f")
"""One colour per partition, used round and round."""


MOST_NAME = 200
"""Characters of a name that is shown."""


def visible(text: str) -> str:
    """The text with control characters and others that no output can show replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def printable(name: object) -> str:
    """A name as it is shown: what no output can show is replaced, a long one cut in the middle."""
    return visible(shortened(str(name), MOST_NAME))


def human_bytes(count: float) -> str:
    """`119.6 MB`: decimal units, four digits at most."""
    if count < 1000:
        return f"{count:.0f} B"
    units = ("kB", "MB", "GB", "TB", "PB")
    step = 0
    while (count := count / 1000) >= 999.95 and step < len(units) - 1:
        step += 1
    return f"{count:,.{2 if count < 9.995 else 1}f} {units[step]}"
