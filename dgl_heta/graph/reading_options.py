"""Options of data sets and readers, given as text after a name: `name:key=value,key=value`.

A provider declares them with names, types, defaults and, in a pydantic model, descriptions.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.settings import read_section

Options = Mapping[str, Any] | BaseModel


def defaults(options: Options) -> dict[str, Any]:
    """Declared options with their defaults."""
    return dict(options)


def split_options(text: str, owner: str, options: Options) -> dict[str, str]:
    """`key=value,key=value` as text by name.

    A value ends at a comma unless it stands in double quotes; it may hold `=` and `:`. Of an owner
    whose first option is a text or a path, the first value needs no key (`git:/some/path`).

    Raises
    ------
    InputError
        An item without a key, or a quote without an end.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace, lexer.whitespace_split = ",", True
    lexer.quotes, lexer.escape, lexer.commenters = '"', "", ""
    try:
        items = [item.strip() for item in lexer]
    except ValueError:
        raise InputError(f"the options '{text}' of '{owner}' have a quote without an end") from None
    given: dict[str, str] = {}
    for number, item in enumerate(items):
        key, equals, value = item.partition("=")
        if equals and key.strip().isidentifier():
            given[key.strip()] = value.strip()
        elif number == 0 and (first := _leading(options)):
            given[first] = item
        else:
            raise InputError(f"option '{item}' of '{owner}' is wrong; write "
                             f'{owner}:key=value,key=value, and a value with a comma in "quotes"')
    return given


def read_options(kind: str, owner: str, options: Options, given: Mapping[str, Any]
                 ) -> dict[str, Any]:
    """All options of a provider (`kind`, named `owner`), some `given`, as text or as values.

    Raises
    ------
    InputError
        An option that it does not have, or a value of the wrong type.
    """
    known = defaults(options)
    for key in given:
        if key not in known:
            raise InputError(f"{kind} '{owner}' has no option '{key}'; options: {listing(known)}"
                             + nearest(key, known))
    if isinstance(options, BaseModel):
        return dict(read_section(type(options), {**known, **given}, f"{kind} {owner}"))
    return {**known, **{key: _read(kind, owner, key, known[key], value)
                        if isinstance(value, str) else value for key, value in given.items()}}


def _leading(options: Options) -> str | None:
    """The first option, if it is a text or a path."""
    for key, default in defaults(options).items():
        return key if isinstance(default, str | Path) else None
    return None


def _read(kind: str, owner: str, key: str, default: Any, text: str) -> Any:
    """A value of the type that the default has; text, where that is None."""
    if default is None or isinstance(default, str | Path):
        return Path(text) if isinstance(default, Path) else text
    if isinstance(default, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        expected = "true or false"
    else:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        whole = isinstance(default, int)
        if math.isfinite(number) and not (whole and number % 1):
            return int(number) if whole else number
        expected = f"a {'whole ' * whole}number"
    raise InputError(f"{kind} option {key}={text} is not {expected}; the default of '{owner}' is "
                     f"{key}={default}")
