"""TOML within limits: a file of a few kB must not keep the parser busy for minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOML_BYTES = 256 << 10
_DOTS = 200
"""In a line: the time that a dotted key takes grows with the square of its parts."""


class NotToml(ValueError):
    """The text is no TOML; says what it is instead."""


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text.

    Raises
    ------
    NotToml
        It is not TOML, of more than :data:`TOML_BYTES` characters, or nested too deeply.
    """
    if len(text) > TOML_BYTES:
        raise NotToml(f"it has more than {TOML_BYTES >> 10} KiB")
    if any(line.count(".") > _DOTS for line in text.splitlines()):
        raise NotToml(f"a line has more than {_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise NotToml("it is nested too deeply") from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise NotToml(str(error)) from None


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; an :class:`InputError` says that `what` cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * TOML_BYTES + 1)
        return parse_toml(data.decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{what} {path} is not TOML: {error}") from None
