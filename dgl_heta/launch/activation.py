"""The user's command, rewritten where settings are given so that it runs under `dgl-heta run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePath
from typing import NamedTuple

from dgl_heta.errors import InputError

WITH_VALUE = ("--check-hash-based-pycs",)  # of the interpreter's long options
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")


@dataclass(frozen=True)
class Command:
    """The command of every process; plain DistDGL unless there are settings."""

    words: tuple[str, ...]
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    variables: bool = False
    """Whether variables of the environment are settings."""

    @property
    def active(self) -> bool:
        """True if the script runs under `dgl-heta run`."""
        return self.config is not None or bool(self.overrides) or self.variables

    @property
    def needs_package(self) -> bool:
        """Return whether dgl-heta of the host starts it."""
        return self.active or _program(self.words) is not None

    @property
    def script(self) -> str | None:
        """The Python script of the command, as it is written; None for any other command."""
        program = _program(self.words)
        return None if program is None or program.words[0] == "-m" else program.words[0]

    @property
    def reads_input(self) -> bool:
        """Whether Python or a shell is to read its program from standard input."""
        first, *words = self.words
        options = list(takewhile(lambda word: word.startswith("-"), words))
        letters = "".join(word[1:] for word in options if not word.startswith("--"))
        if not is_python(first):
            alone = options == words and not any(word.startswith("--") for word in options)
            return (PurePath(first).name in SHELLS and "c" not in letters
                    and (alone or "s" in letters))
        at, letter, _, _ = _past_options(self.words)
        asks = any(re.match(r"-[^WX]*[Vh?]|--(version|help)", word) for word in self.words[1:at])
        return not letter and not asks and self.words[at:at + 1] in ((), ("-",))

    def run_by(self, interpreter: str) -> Command:
        """The same with this interpreter, where the command says no more than 'python'."""
        if self.words[0] not in ("python", "python3"):
            return self
        return replace(self, words=(interpreter, *self.words[1:]))

    def on(self, ip_config: str, part_config: str, config: str | None) -> list[str]:
        """The words on a host where these are the paths of the files."""
        words = [word.replace("{ip_config}", ip_config).replace("{part_config}", part_config)
                 for word in self.words]
        return activate(words, config, self.overrides) if self.active else plain(words)


def is_python(word: str) -> bool:
    """Return whether a word of a command line names a Python interpreter."""
    return re.fullmatch(r"(python|pypy)\d*(\.\d+)*t?", PurePath(word).name) is not None


def activate(command: Sequence[str], config: str | None, overrides: Sequence[str]) -> list[str]:
    """`python [options] -m dgl_heta run [-c FILE] [--set …] SCRIPT ARGS` of a user's command, or
    `… -m MODULE ARGS`.

    Raises
    ------
    InputError
        The command is neither `python [options] SCRIPT ARGS` nor `python [options] -m MODULE ARGS`.
    """
    program = _program(command)
    if program is None:
        raise InputError(
            f"with settings (-c, --set, DGL_HETA_CONFIG) the command must be 'python SCRIPT …' or "
            f"'python -m MODULE …', but it is '{shlex.join(command)}'; write it so, or leave the "
            "settings out and call dgl_heta.enable() in the script")
    settings = ["-c", config] if config else []
    for override in overrides:
        settings += ["--set", override]
    return [*program.interpreter, "-m", "dgl_heta", "run", *settings, *program.words]


def plain(command: Sequence[str]) -> list[str]:
    """A user's command without settings; a Python script ends at once when it fails."""
    program = _program(command)
    if program is None:
        return list(command)
    return [*program.interpreter, "-m", "dgl_heta.launch.fail_fast", *program.words]


class _Program(NamedTuple):
    """`python [options] SCRIPT ARGS` or `python [options] -m MODULE ARGS`, in two halves."""

    interpreter: list[str]
    words: list[str]
    """From the script, or from `-m`, on."""


def _program(command: Sequence[str]) -> _Program | None:
    """The halves of a command; None for any other form."""
    if not command or not is_python(command[0]):
        return None
    at, letter, flags, value = _past_options(command)
    if letter == "m":
        words = [value, *command[at + 1:]] if value else list(command[at + 1:])
        return (_Program([*command[:at], *([f"-{flags}"] if flags else [])], ["-m", *words])
                if words else None)
    if letter or list(command[at:at + 1]) in ([], ["-"]):
        return None
    return _Program(list(command[:at]), list(command[at:]))


def _past_options(command: Sequence[str]) -> tuple[int, str, str, str]:
    """Return where the options of the interpreter end, as of `-uc CODE`; if it is at one that names
    the program its letter ("c", "m"), and what its word has before and after that."""
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-":
        word = command[at]
        if word.startswith("--"):
            at += 2 if word in WITH_VALUE else 1
            continue
        cluster = re.match(r"-([^WXcm]*)([WXcm]?)(.*)", word, re.DOTALL)
        assert cluster is not None
        flags, last, value = cluster.groups()
        if last in ("c", "m"):
            return at, last, flags, value
        at += 2 if last and not value else 1
    return at, "", "", ""
